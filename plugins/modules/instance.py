#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: instance
short_description: Rent an instance for a slot, or destroy it behind the gate
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Makes the rental of a slot what O(state) says. What is rented bills from that moment on.
  - Renting writes the intent and the id into the ledger before any other call, and finds an instance by its unique
    name before it creates one again. It waits for approval; the refusal prints the plan, the prices and what to type.
  - Destroying passes the gate in the same task. The box itself is asked for live runs, newer files and foreign work,
    the receipt of every run is checked, and the approval must be there. Then the platform is polled until the meter
    is proven off; anything short of that fails.
options:
  state:
    description: What the slot's rental shall be.
    type: str
    choices: [running, absent]
    default: running
  platform:
    description: The slot's platform, as the profile names it.
    type: str
    required: true
  api:
    description: The client in C(profile_api).
    type: str
    required: true
  id:
    description: Destroy this instance, not the one the slot is bound to.
    type: str
    default: ''
  job:
    description: The job, as M(tenant.gpu.job_spec) resolved it. Needed to rent.
    type: dict
  run_id:
    description: The run the instance is for; it becomes part of its name.
    type: str
  approve:
    description:
      - For V(running), the plan's digest, or V(true) where the job has C(max_price) and C(max_cost).
      - For V(absent), instance ids separated by commas, or the run id when its receipt is complete.
    type: str
    default: ''
  discard:
    description: Id of the instance to destroy without a receipt. The output names what is lost.
    type: str
    default: ''
  leftovers_approve:
    description: Storage to delete, as C(kind:id) separated by commas. Refused while a rental is not proven off.
    type: str
    default: ''
  replace_dead:
    description: Rent again where the bound instance is dead. The dead one is marked superseded, and bills on.
    type: bool
    default: false
  ssh_key:
    description: Private SSH key for rentals. Made on first use.
    type: path
    default: ~/.tenant-gpu/ssh/id_ed25519
  storage_price:
    description: Prices a GB and month of C(disk) and C(volume), from the profile.
    type: dict
    default: {}
  declared_rate:
    description: The hourly rate of a box without an API, as C(amount) and C(currency).
    type: dict
    default: {}
  data_survives:
    description: Whether the data directory outlives the instance, as a network volume does.
    type: bool
    default: false
  boot_timeout:
    description: Seconds until an instance that never named an SSH address is given back.
    type: int
    default: 600
  prove_timeout:
    description: Seconds to wait for the proof that the meter is off.
    type: int
    default: 180
  results_dir:
    description: Where the pulled results and their receipts are.
    type: path
    default: results
  box:
    description: The connected box, for the gate.
    type: dict
  deadline:
    description: Seconds the box has to answer the gate.
    type: int
    default: 60
extends_documentation_fragment:
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
notes:
  - O(state=running) creates a billed instance.
seealso:
  - module: tenant.gpu.instance_info
"""

EXAMPLES = r"""
- name: Rent what the job asks for
  tenant.gpu.instance:
    platform: runpod
    api: runpod
    job: "{{ job_result.job }}"
    run_id: "{{ job_result.run_id }}"
    approve: "true"

- name: Destroy it when its results are proven
  tenant.gpu.instance:
    state: absent
    platform: runpod
    api: runpod
    box: "{{ connect_result.box }}"
    approve: pod_abc123
"""

RETURN = r"""
instance:
  description: The rental as the platform shows it; null after V(absent) and in check mode.
  returned: success
  type: dict
  sample:
    id: pod_abc123
    name: digits-runpod-1-digits-1201-160203-9f3a
    status: RUNNING
    billing: "on"
    rate: {amount: "0.69", currency: USD}
    endpoint: {host: 203.0.113.7, port: 40022, user: root}
verdict:
  description: The meter verdict after V(absent), with its evidence.
  returned: success
  type: dict
  sample:
    state: "off"
    instance_id: pod_abc123
    evidence: [{call: show, at: "2026-12-01T16:02:03.000Z", status: not_found, saw: "GET /v2/pods/pod_abc123: 404"}]
    leftovers: []
plan:
  description: What was or would be rented, with prices and the digest that approves it.
  returned: when something is to be rented
  type: dict
  sample: {digest: 4f0c2a9d1b7e, worst: "0.345000"}
superseded:
  description: The dead instance that this one replaces. It is still open.
  returned: when something was rented
  type: str
  sample: pod_old
gate:
  description: What the gate checked, in words.
  returned: when state is absent
  type: list
  elements: str
  sample: ["box asked: no live run, no foreign work, 1 runs"]
deleted:
  description: Storage that was deleted and is no longer listed.
  returned: when leftovers_approve is given
  type: list
  elements: str
  sample: ["network_volume:vol1"]
msg:
  description: In a word, what was done.
  returned: sometimes
  type: str
  sample: rented
"""

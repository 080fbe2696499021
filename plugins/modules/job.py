#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job
short_description: Launch a run detached, or stop it gracefully
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - V(started) hands the run to a runner on the box that needs neither the controller nor a terminal. A run that lives
    or has finished is left as it is, so launching twice never makes two trainers. An interrupted run is resumed from
    its newest valid checkpoint with the identical command.
  - V(stopped) asks the runner to end the run; the command gets SIGTERM and time to save.
options:
  state:
    description: What the run shall be.
    type: str
    choices: [started, stopped]
    default: started
  run_id:
    description: The run.
    type: str
    required: true
  job:
    description: The job, as M(tenant.gpu.job_spec) resolved it. Needed for V(started).
    type: dict
  release:
    description: The pushed source, as M(tenant.gpu.push) named it.
    type: str
  instance_id:
    description: The instance the box is.
    type: str
  detach:
    description: Ways to detach, best first.
    type: list
    elements: str
    default: [tmux, nohup]
  floors:
    description: Least C(free_bytes) and C(free_inodes) before a cell is started.
    type: dict
    default: {}
  env:
    description: Environment of this platform (caches, mirrors); the job's own goes over it.
    type: dict
    default: {}
  secret_dir:
    description: Folder on the box for secrets; not on a durable mount.
    type: str
    default: /root/.tenant
  secret_forbidden:
    description: Mounts on which no secret may lie.
    type: list
    elements: str
    default: []
  takeover:
    description: An instance known to be dead, whose heartbeat on a shared volume is not to be waited for.
    type: str
    default: ''
  standing:
    description: The run id, when C(tick.yml) may tear down this run's box by itself once everything is proven.
    type: str
    default: ''
  wait:
    description: Seconds to look on after the start, until the first progress; or to wait for the end of a stop.
    type: int
    default: 30
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
"""

EXAMPLES = r"""
- name: Launch
  tenant.gpu.job:
    box: "{{ connect_result.box }}"
    run_id: "{{ job_result.run_id }}"
    job: "{{ job_result.job }}"
    release: "{{ push_result.release }}"
    instance_id: pod_abc123

- name: Stop gracefully
  tenant.gpu.job:
    state: stopped
    box: "{{ connect_result.box }}"
    run_id: digits-1201-160203-9f3a
"""

RETURN = r"""
run:
  description: The run as the box tells it, with its cells.
  returned: success
  type: dict
  sample: {run_id: digits-1201-160203-9f3a, state: running, cells: [{cell: main, state: running, step: 10}]}
note:
  description: In a word, what was done.
  returned: success
  type: str
  sample: launched
"""

#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_info
short_description: Ask a box how its runs are
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Asks for every run of every project on the box in one exec, prints one line a run with state, step, age of the last
    progress and cost so far, and tells what care is due. Changes nothing on the box and nothing at the platform.
  - A box out of reach is data, with the last known state and its age.
options:
  run_id:
    description: The run that O(box) is for.
    type: str
  instance:
    description: What M(tenant.gpu.instance_info) saw of the slot's rental.
    type: dict
  trouble:
    description: Why it saw nothing.
    type: dict
  results_dir:
    description: Where pulled results and receipts are.
    type: path
    default: results
  hold:
    description: Take the lock of a care step, held until this C(ansible-playbook) ends.
    type: bool
    default: false
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.home
  - tenant.gpu.attributes
"""

EXAMPLES = r"""
- name: How is it going
  tenant.gpu.job_info:
    box: "{{ connect_result.box }}"
    run_id: "{{ job_result.run_id }}"
"""

RETURN = r"""
reachable:
  description: Whether the box answered.
  returned: success
  type: bool
  sample: true
run:
  description: The run asked for; null where the box does not have it.
  returned: success
  type: dict
  sample:
    run_id: digits-1201-160203-9f3a
    state: running
    alive: true
    progress_age: 1.2
    cells: [{cell: main, state: running, attempt: 1, step: 120, total: 400}]
runs:
  description: Every run on the box.
  returned: success
  type: list
  elements: dict
  sample: []
foreign:
  description: Work on the box that is not ours, in words.
  returned: success
  type: list
  elements: str
  sample: [tmux session notebook]
due:
  description: What care is due, and why.
  returned: success
  type: dict
  sample: {recover: false, collect: true, teardown: false, why: run is finished and not collected}
lines:
  description: The printed lines.
  returned: success
  type: list
  elements: str
  sample: ["digits-1201-160203-9f3a  running  step 120/400  progress 1 s ago  cost 0.0049 USD"]
why:
  description: Why the box was not reachable; empty where it was.
  returned: success
  type: str
  sample: ''
"""

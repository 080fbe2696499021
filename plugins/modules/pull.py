#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pull
short_description: Pull a run's results, verify them by loading, and write the receipt
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Lets the box list and hash the run's results, copies them with rsync over Ansible's own connection, compares every
    file with the hash taken on the box, and loads every artifact whole. Nothing of the box is executed.
  - Works in slices; RV(complete) is false until everything is there. Run it again to go on.
  - The results appear under O(results_dir) by one rename, when they are whole; the receipt is written last. A second
    pull moves nothing. Nothing of an earlier pull is overwritten.
options:
  run_id:
    description: The run.
    type: str
    required: true
  instance_id:
    description: The instance the box is.
    type: str
    required: true
  artifacts:
    description: The job's artifacts, with the formats and keys that are demanded.
    type: list
    elements: dict
    default: []
  accept_missing:
    description: Cells whose missing artifacts are accepted; the receipt names them.
    type: list
    elements: str
    default: []
  results_dir:
    description: Where results are kept.
    type: path
    default: results
  slice:
    description: Seconds after which a slice ends.
    type: int
    default: 240
  final:
    description: Whether the run has ended, so that a complete receipt closes it.
    type: bool
    default: true
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
seealso:
  - module: tenant.gpu.artifact_verify
"""

EXAMPLES = r"""
- name: Pull and verify
  tenant.gpu.pull:
    box: "{{ connect_result.box }}"
    run_id: "{{ job_result.run_id }}"
    instance_id: pod_abc123
    artifacts: "{{ job_result.job.artifacts }}"
  register: collect_pull
  until: collect_pull is failed or collect_pull.complete
  retries: 500
  delay: 0
"""

RETURN = r"""
complete:
  description: Whether everything is there and verified.
  returned: success
  type: bool
  sample: true
folder:
  description: Where the results are.
  returned: success
  type: str
  sample: results/digits-1201-160203-9f3a
receipt:
  description: The receipt, as written beside the results.
  returned: when complete
  type: dict
  sample: {run_id: digits-1201-160203-9f3a, level: loaded, complete: true, files: 9, failed: 0}
artifacts:
  description: Each artifact with its format, verdict and the fact that decided it.
  returned: success
  type: list
  elements: dict
  sample: [{path: cells/main/out/model.npz, format: npz, verdict: loaded, detail: "4 arrays"}]
left_behind:
  description: What stays on the box, and why.
  returned: success
  type: list
  elements: dict
  sample: [{path: cells/main/checkpoints/step-000360.npz, reason: superseded checkpoint}]
"""

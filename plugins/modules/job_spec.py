#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_spec
short_description: Resolve a job and the run it belongs to
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Makes the job of a job file whole (aliases, units, defaults), and finds or mints the run it belongs to.
  - A slot whose newest run is still open gets that run again, if the job is the same; the command is then resumed.
options:
  purpose:
    description:
      - V(launch) resolves O(job) and mints a run where none is open.
      - V(care) only reads what is recorded for the slot, or for O(run_id).
    type: str
    choices: [launch, care]
    default: launch
  job:
    description: The job's fields, named as in the job file without the prefix C(job_).
    type: dict
    default: {}
  run_id:
    description: An own id for the run, or V(new) to start another run although one is open.
    type: str
extends_documentation_fragment:
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
seealso:
  - module: tenant.gpu.job
"""

EXAMPLES = r"""
- name: Resolve a job
  tenant.gpu.job_spec:
    job:
      name: digits
      source: examples/digits
      command: [python, train.py]
"""

RETURN = r"""
job:
  description: The whole job, every field present; null where nothing is recorded for the slot.
  returned: success
  type: dict
  sample: {name: digits, command: [python, train.py], max_duration: 1800}
run_id:
  description: The run.
  returned: success
  type: str
  sample: digits-1201-160203-9f3a
record:
  description: What the controller has recorded of the run; null where nothing is.
  returned: success
  type: dict
  sample: {run_id: digits-1201-160203-9f3a, slot: runpod-1, release: null, closed: null}
"""

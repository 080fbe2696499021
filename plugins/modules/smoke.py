#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: smoke
short_description: Try a job for a few seconds before it is paid for
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Runs the job's smoke in a throw-away directory with trackers disabled, for a bounded time.
  - On the controller it gates renting, on the box it gates launching. A pass on the controller is remembered by the
    digest of the source.
  - Without a command of its own, the job's command is run; it passes by living to the end of the time.
options:
  where:
    description: Where to run it.
    type: str
    choices: [controller, box]
    required: true
  job:
    description: The job, as M(tenant.gpu.job_spec) resolved it.
    type: dict
    required: true
  release:
    description: The release on the box.
    type: str
  box:
    description: The connected box; needed for V(box).
    type: dict
extends_documentation_fragment:
  - tenant.gpu.home
  - tenant.gpu.attributes
"""

EXAMPLES = r"""
- name: Try the job here first
  tenant.gpu.smoke:
    where: controller
    job: "{{ job_result.job }}"
"""

RETURN = r"""
ran:
  description: Whether the job asks for a smoke here.
  returned: success
  type: bool
  sample: true
passed:
  description: Whether it passed; null where none ran.
  returned: success
  type: bool
  sample: true
log_tail:
  description: The last lines it wrote.
  returned: always
  type: list
  elements: str
  sample: ["step 5/5 loss 2.1"]
"""

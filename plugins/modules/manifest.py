#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: manifest
short_description: Let the box list and hash a run's results
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Makes the manifest of a run on the box, from the roster in the run's own record. Every file with its size and
    SHA-256, what is missing, and what is left behind and why. M(tenant.gpu.pull) makes its own; this one is for a look.
options:
  run_id:
    description: The run.
    type: str
    required: true
  instance_id:
    description: The instance the box is.
    type: str
    required: true
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.attributes
"""

EXAMPLES = r"""
- name: What would be collected
  tenant.gpu.manifest:
    box: "{{ connect_result.box }}"
    run_id: digits-1201-160203-9f3a
    instance_id: pod_abc123
"""

RETURN = r"""
manifest:
  description: The manifest.
  returned: success
  type: dict
  sample:
    run_id: digits-1201-160203-9f3a
    files: [{path: cells/main/out/metrics.json, size: 211, sha256: 9f86d08…}]
    missing: []
    left_behind: []
directory:
  description: The run's folder on the box, to which the paths are relative.
  returned: success
  type: str
  sample: /workspace/digits/runs/digits-1201-160203-9f3a
"""

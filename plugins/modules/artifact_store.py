#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifact_store
short_description: Put a collected run into an object store, and load it from there again
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Copies the folder of a collected run to an rclone remote, brings it back from there, compares every file with the
    manifest, loads every artifact, and only then names the remote in the receipt. The copy on the controller stays.
  - Each set of files has a place of its own, RV(remote), so that nothing of an earlier pull is overwritten.
  - Needs C(rclone) on the controller. Keys are read by rclone from its own configuration or environment.
options:
  folder:
    description: The folder of the run, as M(tenant.gpu.pull) made it.
    type: path
    required: true
  to:
    description: An rclone remote as name:path.
    type: str
    required: true
  artifacts:
    description: The job's artifacts, with the formats and keys that are demanded.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
seealso:
  - module: tenant.gpu.pull
"""

EXAMPLES = r"""
- name: Keep a second copy in a bucket
  tenant.gpu.artifact_store:
    folder: "{{ collect_result.folder }}"
    to: s3:bucket/runs
    artifacts: "{{ job_result.job.artifacts }}"
"""

RETURN = r"""
remote:
  description: Where the copy is.
  returned: success
  type: str
  sample: s3:bucket/runs/digits-1201-160203-9f3a/0f3c9a1be201
receipt:
  description: The receipt, with the remote among its copies.
  returned: success
  type: dict
  sample:
    run_id: digits-1201-160203-9f3a
    level: loaded
    copies: [{remote: s3:bucket/runs/digits-1201-160203-9f3a/0f3c9a1be201}]
files:
  description: How many files the manifest names.
  returned: success
  type: int
  sample: 9
"""

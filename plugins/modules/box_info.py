#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: box_info
short_description: Measure a box before a job is launched on it
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Measures GPUs, CPU and memory limits of the container, bytes and inodes of the disks, and tools, in one exec.
  - Fails where the box is not what the job needs. Changes nothing but a probe file that it removes.
options:
  floors:
    description: Least C(free_bytes) and C(free_inodes) on the data and durable directories.
    type: dict
    default: {}
  wanted:
    description: The job's resources, with C(offered), the GPU's name in the offer.
    type: dict
    default: {}
  durable:
    description: The profile's durable place, C(kind) and C(path).
    type: dict
    default: {}
  separate_durable:
    description: Whether the durable place must be another disk than the system's.
    type: bool
    default: false
  mounts:
    description: The profile's survival matrix.
    type: list
    elements: dict
    default: []
  volume_mounted:
    description: Whether the job asked for a volume that outlives the instance.
    type: bool
    default: false
  strict:
    description: Fail on what would fail the job; otherwise only tell.
    type: bool
    default: true
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.attributes
"""

EXAMPLES = r"""
- name: Audit the box
  tenant.gpu.box_info:
    box: "{{ connect_result.box }}"
    wanted: "{{ job_result.job.resources }}"
    floors: {free_bytes: 10737418240, free_inodes: 20000}
"""

RETURN = r"""
reachable:
  description: Whether the box answered.
  returned: always
  type: bool
  sample: true
facts:
  description: What was measured. Sizes are bytes; what is unknown is null, never 0.
  returned: always
  type: dict
  sample:
    gpus: [{index: 0, name: NVIDIA GeForce RTX 4090, memory_total_mib: 24564}]
    cgroup: {vcpus: 8, memory_limit_bytes: 34359738368}
    disk: [{path: /workspace, free_bytes: 10737418240, free_inodes: 200000}]
    releases: []
failures:
  description: What would fail the job, in words.
  returned: always
  type: list
  elements: str
  sample: []
warnings:
  description: What may hurt it.
  returned: always
  type: list
  elements: str
  sample: []
"""

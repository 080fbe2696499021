#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: connect
short_description: Reach a box and put the kit on it
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Probes the box with plain C(sh) until it answers, chooses the first Python that serves, and puts the kit there once.
  - The kit is named by its digest and never overwritten, so a run that uses an older one is not disturbed.
  - Run it after the host's address was set; M(tenant.gpu.instance_info) knows the address.
options:
  address:
    description: What was set as C(ansible_host); empty where nothing is rented.
    type: str
    required: true
  python:
    description: Interpreters to try, best first.
    type: list
    elements: str
    default: [python3, /usr/bin/python3]
  data_dir:
    description: The data directory of the profile; C(~) and C($HOME) are those of the box.
    type: str
    required: true
  project:
    description: The project's folder below O(data_dir).
    type: str
    required: true
  flavour:
    description: V(relayed) addresses are refused, since they serve no programs.
    type: str
    choices: [direct, relayed]
    default: direct
  timeout:
    description: Seconds to go on trying.
    type: int
    default: 60
  required:
    description: Whether a box out of reach ends the host's play. Otherwise it is told as data.
    type: bool
    default: true
extends_documentation_fragment:
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
"""

EXAMPLES = r"""
- name: Reach the box
  tenant.gpu.connect:
    address: "{{ ansible_host }}"
    data_dir: /workspace
    project: digits
"""

RETURN = r"""
box:
  description: The connected box, for the other modules.
  returned: always
  type: dict
  contains:
    reachable:
      description: Whether it answered.
      type: bool
      returned: always
      sample: true
    why:
      description: Why not.
      type: str
      returned: always
      sample: null
    python:
      description: The interpreter that serves.
      type: str
      returned: when reachable
      sample: /usr/bin/python3
    kit:
      description: The kit on the box.
      type: str
      returned: when reachable
      sample: /workspace/digits/bin/kit-0123456789abcdef.pyz
    root:
      description: The project's folder on the box.
      type: str
      returned: when reachable
      sample: /workspace/digits
    boot_id:
      description: The kernel's id of this boot.
      type: str
      returned: when reachable
      sample: 6e0f1f0c-0f2f-4f38-a1b4-5f4a3f0f7a55
  sample: {reachable: true, python: /usr/bin/python3, root: /workspace/digits}
"""

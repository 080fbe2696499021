#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: push
short_description: Push the source as an immutable release
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Lists the source as git would (C(.gitignore), C(.tenantignore), and fixed exclusions for secrets and caches), names
    it by its digest, and copies it to C(releases/<digest>) on the box, where it is checked again and made read-only.
  - A release that is there already is not touched, so a push can never change the inputs of a live run.
options:
  source:
    description: The job's source, C(path), or C(git) and C(ref).
    type: dict
    required: true
  present:
    description: Releases on the box, as M(tenant.gpu.box_info) found them.
    type: list
    elements: str
    default: []
  run_id:
    description: The run the source is for; its first release is kept.
    type: str
extends_documentation_fragment:
  - tenant.gpu.box
  - tenant.gpu.home
  - tenant.gpu.attributes
  - tenant.gpu.attributes.diff
"""

EXAMPLES = r"""
- name: Push the source
  tenant.gpu.push:
    box: "{{ connect_result.box }}"
    source: {path: examples/digits}
"""

RETURN = r"""
release:
  description: The digest of the source, which is the release's name.
  returned: success
  type: str
  sample: 1f0c2a9d1b7e4f0c2a9d1b7e
files:
  description: Number of files.
  returned: success
  type: int
  sample: 3
bytes:
  description: Their size.
  returned: success
  type: int
  sample: 8123
"""

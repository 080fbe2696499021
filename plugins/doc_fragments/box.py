# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option that names a connected box."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  box:
    description:
      - The connected box, as M(tenant.gpu.connect) returned it in RV(tenant.gpu.connect#module:box).
      - With C(reachable=false) in it, nothing is tried, and the answer says that the box was not reachable.
    type: dict
    required: true
  deadline:
    description: Seconds after which the box gives up and says so.
    type: int
    default: 120
"""

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The option that names the controller's memory."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  tenant_home:
    description:
      - Folder on the controller that holds the ledger, the run records, host keys and the SSH key of rentals.
      - It must be kept, since a rental that is not written down can be lost while it bills.
    type: str
    default: ~/.tenant-gpu
"""

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every verb supports."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in check mode and says what it would do, changing nothing.
    support: full
  diff_mode:
    description: Says in diff mode what changes, where it changes something.
    support: none
  idempotent:
    description: A second run with the same arguments changes nothing.
    support: full
  connection:
    description: Runs in-process on the controller; what it needs of the box goes over the host's connection.
    support: full
"""
    DIFF = r"""
options: {}
attributes:
  diff_mode:
    description: Says in diff mode what changes.
    support: full
"""

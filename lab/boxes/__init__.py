# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sandboxed boxes with a real SSH server: what a rented machine looks like from outside.

A box is a bubblewrap sandbox with its own root, mounts, PIDs, host name and boot id. It runs inside the lab's own
user, mount and PID namespaces (`enter_argv`), so that it can be limited in bytes and inodes without being root, and
so that it dies with the lab. Where namespaces are not permitted it is a plain directory, and says so (`Box.fallback`).
"""

from __future__ import annotations

from lab.boxes.box import Box, BoxError
from lab.boxes.namespaces import drop_volume, enter_argv, make_volume, namespaces_available
from lab.boxes.spec import BoxSpec, Gpu, Mount

__all__ = [
    "Box",
    "BoxError",
    "BoxSpec",
    "Gpu",
    "Mount",
    "drop_volume",
    "enter_argv",
    "make_volume",
    "namespaces_available",
]

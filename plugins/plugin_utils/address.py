# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How a rental is connected to, for the roles and for the inventory alike."""

from __future__ import annotations

import os
from pathlib import Path


def ssh_common_args(home: str | os.PathLike[str], instance_id: str) -> str:
    """``ansible_ssh_common_args``: host keys are kept by instance, since the next tenant gets the same address."""
    return (
        f"-o UserKnownHostsFile={Path(home).expanduser()}/known_hosts/{instance_id} -o HostKeyAlias={instance_id}"
        " -o StrictHostKeyChecking=accept-new -o IdentitiesOnly=yes"
        " -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
    )


def ssh_key(home: str | os.PathLike[str]) -> Path:
    """The key that rentals get unless the user names another one."""
    return Path(home).expanduser() / "ssh" / "id_ed25519"

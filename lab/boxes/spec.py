# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a box is made of, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """The cards of a box as `nvidia-smi` names them; `memory_mib` is of one card."""

    name: str
    count: int
    memory_mib: int
    driver: str = "570.124.06"
    cuda: str = "12.8"


@dataclass(frozen=True)
class Mount:
    """A mount point of the box.

    Without `source` it is a fresh tmpfs with these limits, lost with the box. With `source` it is a bind of that
    directory (a volume made by `make_volume`), whose own limits count.
    """

    path: str
    size_bytes: int | None = None
    inodes: int | None = None
    source: Path | None = None

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or ".." in self.path.split("/"):
            raise ValueError(f"mount path {self.path!r}: it must be absolute and without '..'; write e.g. /workspace")


@dataclass
class BoxSpec:
    """One box. `root` is the container disk: everything outside `mounts` that the box writes goes there.

    `env` is the environment of the box's first process only: as on RunPod, SSH sessions do not see it.
    `cgroup` is the version (1 or 2) whose files the box shows. `hide` names programs (globs too: `python3*`) that
    this image lacks; `sftp-server` is one of them. `port` of None means a free one.
    """

    box_id: str
    hostname: str
    state_dir: Path
    authorized_keys: list[str]
    env: dict[str, str]
    gpu: Gpu | None
    cpus: float = 4.0
    memory_bytes: int = 32 << 30
    cgroup: int = 2
    root: Mount = field(default_factory=lambda: Mount("/root"))
    mounts: list[Mount] = field(default_factory=list)
    port: int | None = None
    hide: frozenset[str] = frozenset()
    shm_bytes: int = 64 << 20  # docker's default

    def __post_init__(self) -> None:
        if self.cgroup not in (1, 2):
            raise ValueError(f"cgroup version {self.cgroup!r}: a box shows version 1 or 2")
        if not self.box_id or "/" in self.box_id or self.box_id in (".", ".."):
            raise ValueError(f"box id {self.box_id!r}: it names a folder, so it must not be empty or contain '/'")

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bubblewrap command line of a box."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.boxes import image
from lab.boxes.spec import BoxSpec


@dataclass
class Places:
    """Where the parts of one boot lie on the host."""

    disk: Path
    identity: Path
    hardware: Path
    cgroup: Path
    run: Path
    shm: Path
    mounts: dict[str, Path] = field(default_factory=dict)
    views: dict[Path, Path] = field(default_factory=dict)
    masked: list[Path] = field(default_factory=list)


def bwrap_options(spec: BoxSpec, places: Places, environment: Mapping[str, str]) -> list[str]:
    """The options that build the box; order matters, later mounts lie over earlier ones."""
    return [
        *("--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"),
        *("--unshare-pid", "--unshare-uts", "--unshare-ipc", "--unshare-cgroup-try", "--die-with-parent"),
        *("--hostname", spec.hostname),
        *("--bind", str(places.disk), "/"),
        *_read_only(image.system_folders()),
        *_read_only(image.interpreter_folders()),
        *_identity(places),
        *(*_bind(places.cgroup, "/sys/fs/cgroup", ro=True), *_bind(places.hardware, image.HARDWARE, ro=True)),
        *("--dev", "/dev", "--proc", "/proc"),
        *_bind(places.identity / "boot_id", "/proc/sys/kernel/random/boot_id", ro=True),
        *(*_bind(places.run, "/run"), *_bind(places.shm, "/dev/shm")),
        *(word for path, source in places.mounts.items() for word in _bind(source, path)),
        *(word for folder, view in places.views.items() for word in _bind(view, str(folder), ro=True)),
        *(word for path in places.masked for word in _bind(places.identity / "nothing", str(path), ro=True)),
        *_interpreter(spec),
        "--clearenv",
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *("--chdir", "/"),
    ]


def _bind(source: Path, target: str, ro: bool = False) -> tuple[str, str, str]:
    return ("--ro-bind" if ro else "--bind", str(source), target)


def _read_only(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        yield from ("--ro-bind", folder, folder)


def _identity(places: Places) -> Iterator[str]:
    """Bind the box's own files over the host's; a host without the file has no place to bind to."""
    for name in ("hostname", "hosts", "profile", "shadow"):
        target = Path("/etc", name)
        if target.is_file() and not target.is_symlink():
            yield from _bind(places.identity / name, str(target), ro=True)


def _interpreter(spec: BoxSpec) -> Iterator[str]:
    """Where the image hides the interpreter that the lab's environment links to, put a copy in the link's place."""
    python, link = Path(sys.executable).resolve(), Path(sys.executable)
    if python.name in image.hidden_programs(spec.hide).get(python.parent, []):
        yield from ("--tmpfs", str(link.parent))
        yield from _bind(python, str(link), ro=True)

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The namespaces that the lab lives in, and the tmpfs volumes it can mount there without being root.

The lab's process is started through `enter_argv`: it is root in a user namespace of its own, with its own mounts and
PIDs. Measured on Debian 12: bubblewrap sandboxes nest in that, with `--proc /proc`, for root and for an ordinary user;
inside an outer *bubblewrap* run by real root they do not.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLAIN_VARIABLE = "TENANT_LAB_PLAIN"
"""Set to 1, boxes are plain directories even where namespaces are permitted."""

_UNREADABLE = 9
_UNSHARE = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def enter_argv(argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` as root of fresh user, mount and PID namespaces; it dies with its parent."""
    return ["unshare", *_UNSHARE, "--", *argv]


@functools.cache
def namespaces_available() -> tuple[bool, str]:
    """Whether boxes can be sandboxes here, tried for real; the text says why not."""
    if os.environ.get(PLAIN_VARIABLE) == "1":
        return False, f"{PLAIN_VARIABLE}=1 asks for plain directories"
    for tool, package in (("unshare", "util-linux"), ("bwrap", "bubblewrap"), ("mount", "mount")):
        if shutil.which(tool) is None:
            return False, f"{tool} is not installed; type: apt-get install {package}"
    trial = (
        "mount -t tmpfs tmpfs /mnt && bwrap --unshare-user --uid 0 --gid 0 --unshare-pid --unshare-uts --unshare-ipc "
        "--cap-add ALL --ro-bind / / --dev /dev --proc /proc --die-with-parent true || exit 1; "
        # Root of a user namespace has no power over other users' files: a clone in their closed home cannot be used.
        'for file; do [ -r "$file" ] || { echo "$file cannot be read in a user namespace" >&2; exit 9; }; done'
    )
    argv = enter_argv(["sh", "-c", trial, "sh", sys.executable, __file__])
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return False, f"user namespaces could not be tried: {failure}"
    if done.returncode == 0:
        return True, ""
    seen = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    if done.returncode == _UNREADABLE:
        return False, f"{seen}; move the clone out of the closed folder, or run the lab as its owner"
    return False, (
        f"user namespaces are not permitted here ({seen}); "
        "see sysctl kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
    )


@functools.cache
def inside() -> bool:
    """Whether this process may mount without touching the host: it is root of a namespace that is not the first one."""
    if os.environ.get(PLAIN_VARIABLE) == "1" or os.geteuid() != 0:
        return False
    if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
        return False
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        if tried.returncode == 0:
            subprocess.run(["umount", place], check=True)
        return tried.returncode == 0


def sandboxed() -> tuple[bool, str]:
    """Whether a box started by *this* process will be a sandbox, and why not."""
    possible, reason = namespaces_available()
    if possible and not inside():
        return False, "this process was not started in namespaces of its own (lab.boxes.enter_argv)"
    return possible, reason


def mount_tmpfs(path: Path, size_bytes: int | None, inodes: int | None, mode: str = "755") -> None:
    """Mount a tmpfs at `path` (created when missing), limited in bytes and inodes; None means no limit of its own.

    Raises OSError with what mount said.
    """
    path.mkdir(parents=True, exist_ok=True)
    options = [f"mode={mode}", f"size={size_bytes or 0}", f"nr_inodes={inodes or 0}"]
    _run("mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(path))


def mount_without(folder: Path, names: Sequence[str], scratch: Path) -> Path | None:
    """A read-only view of `folder` that lacks `names`, as a new overlay below `scratch`.

    Made of whiteouts (character device 0:0, allowed to user namespaces since Linux 5.8). Returns None where the
    kernel refuses; the caller then masks the files instead.
    """
    veil, view = scratch / "veil", scratch / "view"
    try:
        for place in (veil, view):
            place.mkdir(parents=True, exist_ok=True)
        mount_tmpfs(veil, None, None)
        for name in names:
            os.mknod(veil / name, 0o020000, os.makedev(0, 0))
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={veil}:{folder}", str(view))
    except OSError:
        return None
    return view


def unmount(path: Path) -> None:
    """Unmount `path` when something is mounted there; a mount still in use goes when its last user does."""
    if os.path.ismount(path):
        try:
            _run("umount", "-l", str(path))
        except OSError:
            # A stop that a kill has cancelled goes on in its thread, and may have been quicker.
            if os.path.ismount(path):
                raise


def make_volume(path: Path, size_bytes: int, inodes: int | None) -> None:
    """Make an empty volume at `path` with real limits; without namespaces a plain directory, without limits.

    Raises FileExistsError when a volume is there already.
    """
    if os.path.ismount(path) or (path.is_dir() and any(path.iterdir())):
        raise FileExistsError(f"volume {path} exists already; drop it first (drop_volume)")
    if sandboxed()[0]:
        mount_tmpfs(path, size_bytes, inodes)
    else:
        path.mkdir(parents=True, exist_ok=True)


def drop_volume(path: Path) -> None:
    """Delete the volume at `path` with everything on it; no volume there is fine."""
    unmount(path)
    shutil.rmtree(path, ignore_errors=True)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Space in both dimensions: bytes and inodes, of the mounts a job writes to; and whether a path can be written."""

from __future__ import annotations

import os
import tempfile

#: Filesystem types whose free space is no promise: object stores and their like answer with invented figures.
_UNSURE_TYPES = ("fuse", "nfs", "ceph", "juicefs", "s3fs", "9p", "lustre", "cifs")
_ABSURD_BYTES = 64 << 40


def space(path: str) -> dict:
    """Free bytes and inodes of the filesystem of ``path`` (or of its nearest existing parent).

    ``inodes_limited`` is False where the filesystem counts none; ``sure`` is False where the figures may be invented.
    """
    place = existing_parent(path)
    about = os.statvfs(place)
    total = about.f_frsize * about.f_blocks
    kind = filesystem_type(place)
    return {
        "path": path,
        "device": os.stat(place).st_dev,
        "type": kind,
        "total_bytes": total,
        "free_bytes": about.f_frsize * about.f_bavail,
        "inodes_limited": about.f_files > 0,
        "total_inodes": about.f_files or None,
        "free_inodes": about.f_favail if about.f_files else None,
        "sure": total < _ABSURD_BYTES and not kind.startswith(_UNSURE_TYPES),
    }


def existing_parent(path: str) -> str:
    place = os.path.realpath(path)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return place


def filesystem_type(path: str) -> str:
    """Type of the mount that holds ``path``, from /proc/self/mountinfo (proc(5)); "unknown" where it cannot be read."""
    best, kind = "", "unknown"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
            for line in stream:
                before, _, after = line.partition(" - ")
                point = before.split()[4].encode().decode("unicode_escape")
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                    best, kind = point, after.split()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        return "unknown"
    return kind


def writable(path: str) -> str:
    """Write, sync, read back and remove a probe file; "" where that works, else why not."""
    try:
        os.makedirs(path, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path, prefix=".tenant-probe-")
        try:
            os.write(handle, b"probe")
            os.fsync(handle)
            os.lseek(handle, 0, os.SEEK_SET)
            return "" if os.read(handle, 5) == b"probe" else "what was written did not come back"
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as problem:
        return problem.strerror or str(problem)


def below_floor(found: dict, floors: dict) -> list[str]:
    """Why a mount is too full, in words; empty where it is not. Unsure figures and missing limits never fail."""
    if not found["sure"]:
        return []
    reasons = []
    if found["free_bytes"] < floors.get("free_bytes", 0):
        reasons.append(f"{found['path']} has {found['free_bytes']} bytes free, floor {floors['free_bytes']}")
    if found["inodes_limited"] and found["free_inodes"] < floors.get("free_inodes", 0):
        reasons.append(
            f"{found['path']} has {found['free_inodes']} inodes free, floor {floors['free_inodes']}"
            " (bytes are not the problem)"
        )
    return reasons

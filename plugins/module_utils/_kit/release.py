# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A release: a pushed source tree, named by its digest, sealed read-only, never rewritten.

``tree_digest`` runs on both sides, so that the controller and the box name the same bytes alike.
"""

from __future__ import annotations

import hashlib
import os
import stat

from .errors import KitError

_CHUNK = 1 << 20


def tree_digest(root: str, names: list[str] | None = None) -> str:
    """Digest of a tree: each path with its kind, its x-bit and its content, in byte order of the paths.

    ``names``: only these (relative, POSIX); None: everything below ``root``.
    """
    total = hashlib.sha256()
    for name in sorted(os.fsencode(name) for name in (list_tree(root) if names is None else names)):
        path = os.path.join(os.fsencode(root), name)
        total.update(name + b"\0" + _entry(path) + b"\0")
    return total.hexdigest()[:24]


def list_tree(root: str) -> list[str]:
    """Every file and link below ``root``, relative; links are not followed."""
    found = []
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in files + links]
    return found


def _entry(path: bytes) -> bytes:
    about = os.lstat(path)
    if stat.S_ISLNK(about.st_mode):
        return b"link " + os.readlink(path)
    inner = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            inner.update(chunk)
    return (b"exec " if about.st_mode & 0o100 else b"file ") + inner.hexdigest().encode()


def release_path(root: str, digest: str) -> str:
    return os.path.join(root, "releases", digest)


def incoming_path(root: str, digest: str) -> str:
    return os.path.join(root, "releases", ".incoming-" + digest)


def releases(root: str) -> list[str]:
    try:
        names = os.listdir(os.path.join(root, "releases"))
    except OSError:
        return []
    return sorted(name for name in names if not name.startswith("."))


def check(root: str, digest: str) -> None:
    """Raise unless the release on this box is byte for byte what its name says."""
    path = release_path(root, digest)
    if not os.path.isdir(path):
        raise KitError(
            "release_missing",
            f"there is no release {digest} in {os.path.dirname(path)}",
            "The source was not pushed to this box, or its disk was lost.",
            "Run train.yml again: it pushes what is missing.",
        )
    seen = tree_digest(path)
    if seen != digest:
        raise KitError(
            "release_changed",
            f"release {digest} has the digest {seen}",
            "Somebody changed the source under its name; results of it could not be attributed.",
            f"Move {path} away, then push again.",
        )


def seal(request: dict) -> dict:
    """Verb ``release``: turn a complete incoming tree into a release. Sealing twice changes nothing."""
    root, digest = request["root"], request["digest"]
    target, incoming = release_path(root, digest), incoming_path(root, digest)
    if os.path.isdir(target):
        check(root, digest)
        return {"changed": False, "path": target}
    seen = tree_digest(incoming) if os.path.isdir(incoming) else "nothing"
    if seen != digest:
        raise KitError(
            "push_incomplete",
            f"what arrived has the digest {seen}, expected {digest}",
            "The copy is not whole, or the source changed while it was read.",
            "Run the same command again: only what is missing travels.",
        )
    for folder, _, files in os.walk(incoming):
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o555)
    os.rename(incoming, target)
    for folder, _, _ in os.walk(target):
        os.chmod(folder, 0o555)
    return {"changed": True, "path": target}

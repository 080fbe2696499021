# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify files while others are still on their way, so that proof hides behind the transfer.

rsync gives a file its name when it is whole (interrupted ones wait in a folder of their own), so a file that is there
in the size the manifest names can be hashed and loaded at once. What changes afterwards is looked at again.
"""

from __future__ import annotations

import os
import threading
import typing as t
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.manifest import File, Manifest

_LOOK_SECONDS = 0.3
#: Smaller files are looked at together at the end: asking for each by itself costs more than it hides.
_LARGE_BYTES = 4 << 20

Identity = tuple[int, int, int, int]


class Landing:
    """A ``verify.Pool`` to ``verify_tree``: it answers from what was already looked at. Use it as a context manager."""

    def __init__(self, stage: Path, manifest: Manifest, artifacts: list[dict[str, t.Any]]) -> None:
        self._base = os.path.realpath(os.fsencode(stage))
        self._artifacts = artifacts
        self._files = manifest.files
        self._waiting: dict[bytes, File] = {one.name: one for one in self._files if one.size >= _LARGE_BYTES}
        self._seen: dict[verify.Request, tuple[Identity, Future[dict[str, t.Any]]]] = {}
        self._pool = verify.Pool()
        self._threads = ThreadPoolExecutor(self._pool.jobs)
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Landing:
        self._pool.__enter__()
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._pool.__exit__()

    def map(self, requests: t.Sequence[verify.Request]) -> list[dict[str, t.Any]]:
        """The answers, in the order of the requests; known ones where the file is still the one that was looked at."""
        self._over.set()
        self._watcher.join()
        known = {request: future for request in requests if (future := self._known(request)) is not None}
        rest = [request for request in requests if request not in known]
        answers = dict(zip(rest, self._pool.map(rest), strict=True))
        answers |= {request: future.result() for request, future in known.items()}
        return [answers[request] for request in requests]

    def arrived(self) -> int:
        """Bytes of the manifest's files that are there in full."""
        there = (_identity(os.path.join(self._base, one.name)) for one in self._files)
        return sum(one.size for one, found in zip(self._files, there, strict=True) if found and found[1] == one.size)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for name, one in list(self._waiting.items()):
                path = os.path.join(self._base, name)
                found = _identity(path)
                if found is not None and found[1] == one.size:
                    del self._waiting[name]
                    request = verify.request_for(self._base, one, self._artifacts)
                    self._seen[request] = (found, self._threads.submit(self._pool.ask, request))

    def _known(self, request: verify.Request) -> Future[dict[str, t.Any]] | None:
        """What was already asked of exactly this file as it is now."""
        seen = self._seen.get(request)
        return seen[1] if seen is not None and seen[0] == _identity(request.path) else None


def _identity(path: bytes) -> Identity | None:
    """Inode, size, mtime and ctime: what changes when a file is replaced or written to."""
    try:
        about = os.lstat(path)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns

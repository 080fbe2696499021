# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bring named files of a box into a folder here: rsync in slices over Ansible's connection, tar where rsync is missing.

Nothing but the named files is written, each by a rename when it is whole; what is half-way waits in ``.rsync-partial``.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tarfile
import threading
import time
import typing as t
from pathlib import Path

from .errors import Refused
from .kit import Unreachable
from .transfer import RETRYABLE, Route, refusal, route, rsync

_TRIES = 5
_LONGEST_PAUSE = 30.0
_TELL_SECONDS = 15.0
_PARTIAL = ".rsync-partial"


class Fetcher:
    """One pull from one box; ``slice_seconds`` bounds a slice, ``reference`` is an earlier pull to take bytes from."""

    def __init__(self, action: t.Any, directory: str, stage: Path, reference: Path, slice_seconds: int) -> None:
        self.action, self.directory, self.stage, self.reference = action, directory, stage, reference
        self.ends = time.monotonic() + slice_seconds

    def fetch(self, names: list[bytes], *, by_content: bool) -> bool:
        """True when all are there; False where the slice ended first. Raises Refused, or Unreachable."""
        pause = 1.0
        for attempt in range(1, _TRIES + 1):
            way = route(self.action)
            code, text = self._rsync(way, names, by_content)
            if code == 0:
                return True
            if code == 30 and text == "the slice ended":
                return False
            if rsync_is_missing(code, text):
                self._tar(way, names)
                return True
            if code not in RETRYABLE or attempt == _TRIES or time.monotonic() + pause > self.ends:
                raise refusal(24 if code == 23 and "vanished" in text else code, text)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return False

    def _rsync(self, way: Route, names: list[bytes], by_content: bool) -> tuple[int, str]:
        left = self.ends - time.monotonic()
        if left <= 0:
            return 30, "the slice ended"
        # Links inside the run travel as the files they are: the roster named them so.
        arguments = ["--times", "--perms", "--chmod=u+rw,go-w", "--copy-links", "--sparse"]
        arguments += ["--from0", "--files-from=-", f"--partial-dir={_PARTIAL}"]
        arguments += ["--checksum"] if by_content else []
        arguments += [f"--copy-dest={self.reference}"] if self.reference.is_dir() else []
        source = f"{way.target}:{self.directory}/"
        return rsync(way, [*arguments, source, f"{self.stage}/"], limit=left, feed=b"\0".join(names))

    def _tar(self, way: Route, names: list[bytes]) -> None:
        """The slow road: everything anew, whole files only. Members that were not asked for are refused."""
        wanted = set(names)
        remote = f"tar -C {shlex.quote(self.directory)} -chf - --null -T -"
        sending = subprocess.Popen(
            way.command(remote), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert sending.stdin is not None and sending.stdout is not None and sending.stderr is not None
        feeder = threading.Thread(target=_feed, args=(sending.stdin, b"\0".join(names) + b"\0"))
        feeder.start()
        try:
            with tarfile.open(fileobj=sending.stdout, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
                for member in archive:
                    self._land(archive, member, wanted)
        except (tarfile.TarError, OSError) as problem:
            sending.kill()
            raise Unreachable(f"tar over ssh broke off: {problem}") from problem
        finally:
            feeder.join()
        text = sending.stderr.read().decode(errors="replace")
        if sending.wait():
            raise refusal(23, f"tar over ssh: {text}")

    def _land(self, archive: tarfile.TarFile, member: tarfile.TarInfo, wanted: set[bytes]) -> None:
        name = os.fsencode(member.name.removeprefix("./"))
        content = archive.extractfile(member) if member.isreg() else None
        if content is None or name not in wanted:
            raise Refused(
                "tar_member",
                f"the box sent {member.name!r}, which was not asked for",
                "It may be hostile. Nothing of it was written.",
                "Look at the box; do not trust its results.",
            )
        target = os.path.join(os.fsencode(self.stage), name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        half = target + b".tenant-part"
        with content, open(half, "wb") as stream:
            for chunk in iter(lambda: content.read(1 << 20), b""):
                stream.write(chunk)
        os.utime(half, (member.mtime, member.mtime))
        os.replace(half, target)


def _feed(stream: t.IO[bytes], text: bytes) -> None:
    try:
        with stream:
            stream.write(text)
    except BrokenPipeError:
        return


def rsync_is_missing(code: int, text: str) -> bool:
    """On the box: its shell says so, and rsync here sees the connection closed (12) or the shell's 127."""
    return code in (12, 127) and "rsync" in text and ("not found" in text or "No such file" in text)


class Teller:
    """A line of progress every few seconds while something long goes on. Use it as a context manager."""

    def __init__(self, tell: t.Callable[[], None]) -> None:
        self._tell, self._over = tell, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_TELL_SECONDS):
            self._tell()


def drop_partials(stage: Path) -> None:
    """Empty folders that rsync leaves for interrupted files."""
    for folder in stage.rglob(_PARTIAL):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

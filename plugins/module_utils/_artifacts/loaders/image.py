# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images: PNG's chunks and their CRCs, the end marks of JPEG and GIF. Pixels are not decoded."""

from __future__ import annotations

import typing as t
import zlib

from .. import structure
from ..structure import Problem
from .base import Finish, Job, Verdict

_MAX_CHUNK = 1 << 31


def plan(job: Job) -> Finish:
    head = structure.read_at(job.stream, 0, 8)
    if head.startswith(b"\x89PNG"):
        walk = _Png()
        job.layout.pieces.append(structure.Piece(0, structure.size_of(job.stream), walk.feed, walk.done))
        return lambda: Verdict("image", "loaded", f"PNG, {walk.chunks} chunks, CRCs right", {})
    return lambda: _end_mark(job, head)


def _end_mark(job: Job, head: bytes) -> Verdict:
    size = structure.size_of(job.stream)
    tail = structure.read_at(job.stream, max(0, size - 4096), 4096).rstrip(b"\0\r\n ")
    kind, mark = ("JPEG", b"\xff\xd9") if head[:2] == b"\xff\xd8" else ("GIF", b";")
    if mark not in tail[-2:] and (kind == "GIF" or mark not in tail):
        raise Problem("truncated", f"{kind}: its end mark is missing")
    return Verdict("image", "readable", f"{kind}, with its end mark; content vouched for by the hash alone", {})


class _Png:
    """PNG (ISO 15948): u32 length, 4 letters, data, CRC of letters and data; IEND last."""

    def __init__(self) -> None:
        self.chunks, self.ended = 0, False
        self.held, self.left, self.crc, self.skip = b"", 0, 0, 8

    def feed(self, view: t.Any) -> None:
        data = self.held + bytes(view)
        at = min(self.skip, len(data))
        self.skip -= at
        while True:
            if self.left:
                part = data[at : at + self.left]
                self.crc = zlib.crc32(part, self.crc)
                at, self.left = at + len(part), self.left - len(part)
                if self.left:
                    break
            at, more = self._between(data, at)
            if not more:
                break
        self.held = data[at:]

    def _between(self, data: bytes, at: int) -> tuple[int, bool]:
        """The CRC of the chunk before, and the next chunk's head."""
        need = 12 if self.chunks else 8
        if self.ended and len(data) - at >= 4:
            self._compare(data[at : at + 4])
            self.ended, self.chunks = True, self.chunks + 1
            self.skip = 1 << 62  # what follows IEND is not looked at
            return len(data), False
        if self.ended or len(data) - at < need:
            return at, False
        if self.chunks:
            self._compare(data[at : at + 4])
            at += 4
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if length >= _MAX_CHUNK or not kind.isalpha():
            raise Problem("corrupt", f"PNG: no chunk where chunk {self.chunks} should begin")
        self.crc, self.left, self.ended = zlib.crc32(kind), length, kind == b"IEND"
        self.chunks += 1
        return at + 8, True

    def _compare(self, stored: bytes) -> None:
        if self.crc != int.from_bytes(stored, "big"):
            raise Problem("corrupt", f"PNG: the CRC of chunk {self.chunks - 1} is wrong")

    def done(self) -> None:
        if not self.ended or self.skip < 1 << 61:
            raise Problem("truncated", f"PNG: it ends after {self.chunks} chunks, without IEND")

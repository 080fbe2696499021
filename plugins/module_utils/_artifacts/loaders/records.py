# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a checksum inside the format vouches for: TensorBoard events, gzip, bz2, xz, zip; and tar, which has none."""

from __future__ import annotations

import bz2
import lzma
import typing as t

from .. import structure
from ..structure import Problem
from . import base
from .base import Finish, Job, Verdict


def plan_events(job: Job) -> Finish:
    """A cut last record is normal for a job that was killed: readable, with that fact."""

    def finish() -> Verdict:
        records = job.layout.facts["records"]
        if job.layout.facts.get("last_incomplete"):
            return Verdict("tfevents", "readable", "; ".join(job.layout.notes), {"records": records})
        return base.loaded(job.layout, "", records=records)

    return finish


def plan_checked(job: Job) -> Finish:
    """The structural sweep has unpacked everything and compared each CRC: nothing is left to load."""
    return lambda: base.loaded(job.layout, "unpacked whole, checksums right")


def plan_listed(job: Job) -> Finish:
    """tar has a checksum a header and none for content."""

    def finish() -> Verdict:
        job.layout.notes.append("content vouched for by the hash alone")
        return Verdict(
            job.layout.fmt, "readable", "; ".join(job.layout.notes), {"members": job.layout.facts["members"]}
        )

    return finish


def plan_packed(job: Job) -> Finish:
    """bz2 and xz, by the standard library, in bounded parts."""
    engine = _Unpack(job.layout.fmt, job.limits.unpacked_bytes)
    job.layout.pieces.append(structure.Piece(0, structure.size_of(job.stream), engine.feed, engine.done))
    job.layout.notes.clear()
    return lambda: base.loaded(job.layout, f"unpacks whole to {engine.size} bytes")


class _Unpack:
    def __init__(self, fmt: str, limit: int) -> None:
        self.fmt, self.limit, self.size = fmt, limit, 0
        self.engine = self._new()

    def _new(self) -> t.Any:
        return bz2.BZ2Decompressor() if self.fmt == "bz2" else lzma.LZMADecompressor(memlimit=256 << 20)

    def feed(self, view: t.Any) -> None:
        data = bytes(view)
        try:
            while data or not (self.engine.needs_input or self.engine.eof):
                if self.engine.eof:
                    self.engine = self._new()  # streams may follow one another
                self.size += len(self.engine.decompress(data, structure.CHUNK))
                if self.size > self.limit:
                    raise Problem("corrupt", f"it unpacks to more than {self.limit} bytes")
                data = self.engine.unused_data.lstrip(b"\0") if self.engine.eof else b""
        except (OSError, EOFError, lzma.LZMAError, ValueError) as problem:
            raise Problem("corrupt", f"it cannot be unpacked: {structure._short(problem)}") from problem

    def done(self) -> None:
        if not self.engine.eof:
            raise Problem("truncated", f"{self.fmt}: the file ends in the middle of the packed stream")

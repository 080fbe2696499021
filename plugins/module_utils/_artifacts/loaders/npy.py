# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""npy and npz: every array read whole by our own parser, floats scanned; object arrays stay pickled and unread."""

from __future__ import annotations

import typing as t

from .. import structure
from ..structure import NpyHeader, NpySink
from . import base
from .base import Finish, Floats, Job, Verdict

_FLOATS = {"f2": "f16", "f4": "f32", "f8": "f64", "c8": "f32", "c16": "f64"}
_NO_FLOATS = frozenset("?bBiuSUVaMmO")
_MAX_FIELDS = 256

Look = t.Callable[[t.Any], None]


class Field(t.NamedTuple):
    """One float in each element of a structured array."""

    name: str
    offset: int
    width: int
    kind: str
    little: bool


class Unknown(Exception):
    """Floats of a kind that is not scanned, such as ``long double``."""


def fields(descr: t.Any, name: str = "", at: int = 0) -> list[Field]:
    """The floats of one element. ``structure.npy_header`` has checked the description. Raises Unknown."""
    if isinstance(descr, str):
        plain = descr.lstrip("<>|=")
        if plain in _FLOATS:
            kind, width = _FLOATS[plain], int(plain[1:]) // (2 if plain[0] == "c" else 1)
            little = not descr.startswith(">")
            return [Field(name, at + shift, width, kind, little) for shift in range(0, int(plain[1:]), width)]
        if plain[:1] in _NO_FLOATS:
            return []
        raise Unknown(f"{name} ({descr})")
    if isinstance(descr, tuple):
        size = structure._itemsize(descr[0], 0)[0]
        count = structure.elements(descr[1])
        if count > _MAX_FIELDS:
            raise Unknown(f"{name} ({count} values an element)")
        return [one for place in range(count) for one in fields(descr[0], name, at + place * size)]
    found: list[Field] = []
    for row in descr:
        inner = row[1] if len(row) == 2 else (row[1], structure._as_shape(row[2]))
        label = row[0][-1] if isinstance(row[0], tuple) else row[0]
        found += fields(inner, f"{name}.{label}" if name else str(label), at)
        if len(found) > _MAX_FIELDS:
            raise Unknown(f"{name} (more than {_MAX_FIELDS} floats an element)")
        at += structure._itemsize(inner, 0)[0]
    return found


def look_at(name: str, header: NpyHeader, floats: Floats, place: tuple[int, int] | None = None) -> Look | None:
    """Who looks at the elements of one array; None where it holds no floats."""
    if header.objects:
        return None
    try:
        wanted = fields(header.descr)
    except Unknown as problem:
        floats.skipped.append(f"{name}{problem}")
        return None
    if not wanted:
        return None
    if isinstance(header.descr, str):
        return floats.scan(name, wanted[0].kind, wanted[0].little, place).feed
    return _Fields(name, header.itemsize, wanted, floats).feed


class _Fields:
    """Takes the floats out of structured elements: each of their bytes is a stride of the array."""

    def __init__(self, name: str, itemsize: int, wanted: list[Field], floats: Floats) -> None:
        self.itemsize, self.rest = itemsize, b""
        self.wanted = [(one, floats.scan(f"{name}.{one.name}", one.kind, one.little)) for one in wanted]

    def feed(self, view: t.Any) -> None:
        part = self.rest + bytes(view)
        whole = len(part) - len(part) % self.itemsize
        self.rest, part = part[whole:], part[:whole]
        for one, scanner in self.wanted:
            column = bytearray(len(part) // self.itemsize * one.width)
            for place in range(one.width):
                column[place :: one.width] = part[one.offset + place :: self.itemsize]
            scanner.feed(column)


def plan(job: Job) -> Finish:
    return _plan_npz(job) if job.layout.fmt == "npz" else _plan_npy(job)


def _plan_npy(job: Job) -> Finish:
    layout, floats = job.layout, Floats()
    for extent, header in zip(layout.extents, layout.facts.get("headers", []), strict=True):
        look = look_at(extent.name, header, floats, (extent.offset, extent.length))
        if look:
            layout.pieces.append(structure.Piece(extent.offset, extent.length, look, name=extent.name))
    shapes = {extent.name: list(extent.shape) for extent in layout.extents}
    return lambda: _verdict(job, floats, {"shapes": shapes})


def _plan_npz(job: Job) -> Finish:
    layout, floats = job.layout, Floats()
    base.require(sorted({*job.spec.keys, *job.spec.finite} - set(layout.facts["arrays"])), layout.facts["arrays"])
    for sink in layout.facts.get("sinks", []):
        sink.look = _Later(sink, floats).look
    return lambda: _verdict(job, floats, {"shapes": layout.facts.get("shapes", {})})


class _Later:
    """A member's dtype is known only when its header has come."""

    def __init__(self, sink: NpySink, floats: Floats) -> None:
        self.sink, self.floats = sink, floats

    def look(self, header: NpyHeader, view: t.Any) -> None:
        found = look_at(self.sink.name, header, self.floats)
        self.sink.look = (lambda _, part: found(part)) if found else None
        if found:
            found(view)


def _verdict(job: Job, floats: Floats, facts: dict[str, t.Any]) -> Verdict:
    layout = job.layout
    layout.notes += floats.judge(job.stream)
    if layout.facts.get("objects"):
        facts["objects"] = layout.facts["objects"]
        return Verdict(layout.fmt, "structural_only", "; ".join(layout.notes), facts)
    if floats.skipped:
        layout.notes.append(f"not scanned for NaN: {', '.join(floats.skipped[:3])}")
        return Verdict(layout.fmt, "structural_only", "; ".join(layout.notes), facts)
    return base.loaded(layout, "every array read, no NaN", **facts)

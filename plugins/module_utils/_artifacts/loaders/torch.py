# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""torch files (zip since 1.6, legacy before): every storage of the right size, every tensor inside its storage, every
number finite, and no global that a weights-only load would refuse. torch itself is not needed and nothing is unpickled.
"""

from __future__ import annotations

import typing as t

from .. import structure
from ..structure import Layout, Problem
from . import base, weights
from .base import Finish, Floats, Job, Verdict

_FLOATS = {
    "FloatStorage": "f32", "HalfStorage": "f16", "BFloat16Storage": "bf16", "DoubleStorage": "f64",
    "ComplexFloatStorage": "f32", "ComplexDoubleStorage": "f64",
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "complex64": "f32", "complex128": "f64",
    "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "fnuz", "float8_e5m2fnuz": "fnuz",
    "float8_e8m0fnu": "e8m0",
}  # fmt: skip
_DTYPE_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "uint64": 8, "complex128": 16, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip


def plan(job: Job) -> Finish:
    layout = job.layout
    if "object_at" not in layout.facts:  # a bare pickle, or the tar of torch 0.1
        return _bare(job)
    machine, root = interpret(job, layout.facts["object_at"], layout.facts["object_end"])
    _refuse_dangerous(machine.globals)
    tensors = weights.tensors(root)
    _require(job, root)
    floats = _scan(layout, tensors)

    def finish() -> Verdict:
        notes = floats.judge(job.stream)
        return _verdict(layout, machine.globals, tensors, notes)

    return finish


def interpret(job: Job, start: int, end: int) -> tuple[weights.Machine, t.Any]:
    if end - start > job.limits.pickle_bytes:
        words = f"a pickle of {end - start} bytes is not interpreted (limit {job.limits.pickle_bytes})"
        raise Problem("structural_only", words)
    machine = weights.Machine()
    return machine, machine.run(structure.Slice(job.stream, start, end - start))


def _bare(job: Job) -> Finish:
    _refuse_dangerous(job.layout.facts.get("globals", ()))
    if job.layout.fmt == "pickle":  # no load is safe, here or anywhere
        job.layout.verdict = "readable"
        job.layout.notes.append("content vouched for by the hash alone")
    return lambda: base.as_it_is(job.layout)


def _refuse_dangerous(names: t.Iterable[str]) -> None:
    bad = sorted(name for name in names if weights.dangerous(name))
    if bad:
        words = ", ".join(structure._short(name) for name in bad[:3])
        raise Problem("suspect", f"loading it would call {words}: no checkpoint needs that, it can run code")


def _require(job: Job, root: t.Any) -> None:
    wanted = {*job.spec.keys, *job.spec.finite}
    missing = sorted(key for key in wanted if not base.present(base.look_up(root, key, weights.get)))
    base.require(missing, weights.keys(root))
    for key in job.spec.finite:
        value = base.look_up(root, key, weights.get)
        if isinstance(value, (int, float)):
            base.must_be_finite(key, value)


def _scan(layout: Layout, tensors: list[weights.Tensor]) -> Floats:
    """Check each tensor against its storage, and let its bytes be scanned while the storage is swept."""
    floats = Floats()
    spans: dict[str, dict[tuple[int, int], tuple[str, str | None]]] = {}
    for tensor in tensors:
        kind, span = _FLOATS.get(tensor.dtype or tensor.storage), _span(layout, tensor)
        if span[1] > span[0]:
            spans.setdefault(tensor.key, {}).setdefault(span, (tensor.name, kind))
    pieces = {piece.offset: piece for piece in layout.pieces}
    for key, wanted in spans.items():
        offset, length = layout.facts["places"][key]
        piece = pieces.get(offset)
        if piece is None or piece.length != length:  # legacy: nothing looks at the storages yet
            piece = structure.Piece(offset, length, _ignore, name=key)
            layout.pieces.append(piece)
        for span, (name, kind) in _merged(wanted):
            if kind:
                place = (offset + span[0], span[1] - span[0])
                piece.also(_window(span, floats.scan(name, kind, layout.facts["little"], place).feed))
    return floats


def _ignore(view: t.Any) -> None:
    del view


def _merged(
    wanted: dict[tuple[int, int], tuple[str, str | None]],
) -> list[tuple[tuple[int, int], tuple[str, str | None]]]:
    """Spans of one storage without overlaps: shared or tied weights are scanned once."""
    merged: list[tuple[tuple[int, int], tuple[str, str | None]]] = []
    for span, what in sorted(wanted.items(), key=lambda row: row[0]):
        if merged and span[0] < merged[-1][0][1] and what[1] == merged[-1][1][1]:
            last, named = merged[-1]
            merged[-1] = ((last[0], max(last[1], span[1])), named)
        else:
            merged.append((span, what))
    return merged


def _window(span: tuple[int, int], feed: t.Callable[[t.Any], None]) -> t.Callable[[t.Any], None]:
    """Pass on only the bytes of ``span`` of what comes in order from the storage's begin."""
    at = 0

    def look(view: t.Any) -> None:
        nonlocal at
        part = view[max(0, span[0] - at) : max(0, span[1] - at)]
        at += len(view)
        if len(part):
            feed(part)

    return look


def _span(layout: Layout, tensor: weights.Tensor) -> tuple[int, int]:
    """The bytes of the storage that a tensor touches. Raises Problem."""
    place = layout.facts["places"].get(tensor.key)
    if place is None:
        raise Problem("corrupt", f"tensor {tensor.name}: its storage {structure._short(tensor.key)} is not in the file")
    if tensor.storage == "UntypedStorage":
        width = _DTYPE_BYTES.get(tensor.dtype or "", 1)
    else:
        width = structure.STORAGE_BYTES.get(tensor.storage, 0)
    if not width:
        return (0, 0)
    if 0 in tensor.shape:
        return (0, 0)
    reach = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride, strict=True)) + 1
    begin, end = tensor.offset * width, (tensor.offset + reach) * width
    if tensor.offset < 0 or end > place[1]:
        words = f"tensor {tensor.name}: shape {list(tensor.shape)} reaches byte {end} of a storage of {place[1]}"
        raise Problem("corrupt", words)
    return begin, end


def _verdict(layout: Layout, names: set[str], tensors: list[weights.Tensor], notes: list[str]) -> Verdict:
    elements = sum(structure.elements(tensor.shape) for tensor in tensors)
    facts = {"tensors": len(tensors), "elements": elements}
    layout.notes += notes
    unknown = sorted(name for name in names if not weights.allowed(name))
    idle = set(layout.facts["places"]) - {tensor.key for tensor in tensors}
    if unknown and not tensors and layout.facts["crc"]:
        words = f"no tensor, objects of {', '.join(structure._short(name) for name in unknown[:3])}"
        layout.notes.insert(0, f"{words}: vouched for by CRC and hash alone")
        return Verdict(layout.fmt, "readable", "; ".join(layout.notes), facts)
    if unknown:
        words = f"it names {', '.join(structure._short(name) for name in unknown[:3])}"
        layout.notes.insert(0, f"{words}: a load needs weights_only=False, which runs code; its tensors were read")
        return Verdict(layout.fmt, "structural_only", "; ".join(layout.notes), facts)
    if idle and not layout.facts["crc"]:
        layout.notes.insert(0, f"no tensor refers to {len(idle)} of its storages")
        return Verdict(layout.fmt, "structural_only", "; ".join(layout.notes), facts)
    words = f"{len(tensors)} tensors, {elements} elements, no NaN" if tensors else "no tensor in it"
    return base.loaded(layout, words, **facts)

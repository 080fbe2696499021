# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""safetensors: the header against the file, and every float tensor scanned."""

from __future__ import annotations

import typing as t

from .. import structure
from . import base
from .base import Finish, Floats, Job, Verdict

_FLOATS = {
    "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "C64": "f32", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "fnuz", "F8_E5M2FNUZ": "fnuz", "F8_E8M0": "e8m0",
}  # fmt: skip


def plan(job: Job) -> Finish:
    layout, floats = job.layout, Floats()
    names = [extent.name for extent in layout.extents]
    base.require(sorted({*job.spec.keys, *job.spec.finite} - set(names)), names)
    for extent in layout.extents:
        kind = _FLOATS.get(extent.dtype)
        feed: t.Callable[[t.Any], None] = _ignore
        if kind:
            feed = floats.scan(extent.name, kind, True, (extent.offset, extent.length)).feed
        layout.pieces.append(structure.Piece(extent.offset, extent.length, feed, name=extent.name))

    def finish() -> Verdict:
        elements = sum(structure.elements(extent.shape) for extent in layout.extents)
        facts = {"tensors": len(layout.extents), "elements": elements}
        layout.notes += floats.judge(job.stream)
        if layout.facts.get("unknown_dtype"):
            return Verdict(layout.fmt, "structural_only", "; ".join(layout.notes), facts)
        if not layout.extents:
            return base.loaded(layout, "no tensor in it", **facts)
        return base.loaded(layout, f"{elements} elements, no NaN", **facts)

    return finish


def _ignore(view: t.Any) -> None:
    del view

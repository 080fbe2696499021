# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""torch.distributed.checkpoint: the index ``.metadata`` and every piece of the ``*.distcp`` files that it names.

A shard is a row of whole torch files, one a tensor or object; the index knows where each begins. Source:
torch/distributed/checkpoint/filesystem.py (``_StorageInfo(relative_path, offset, length)``) and metadata.py.
"""

from __future__ import annotations

import os
import typing as t

from .. import structure
from ..structure import Problem, Slice, _short
from . import torch, weights
from .base import Finish, Job, Verdict, open_regular


class _Place(t.NamedTuple):
    file: str
    offset: int
    length: int


def plan(job: Job) -> Finish:
    machine, root = torch.interpret(job, 0, structure.size_of(job.stream))
    bad = sorted(name for name in machine.globals if weights.dangerous(name))
    if bad:
        raise Problem("suspect", f"loading it would call {_short(bad[0])}: no checkpoint needs that, it can run code")
    places = _places(root)
    if not places:
        raise Problem("structural_only", "the index names no piece of a shard in a way that is known")

    def finish() -> Verdict:
        elements = _load_all(job, places)
        words = f"{len(places)} pieces in {len({place.file for place in places})} shards, {elements} elements, no NaN"
        return Verdict("dcp", "loaded", words, {"pieces": len(places), "elements": elements})

    return finish


def _places(root: t.Any) -> list[_Place]:
    """Every ``_StorageInfo`` in the index."""
    found: list[_Place] = []
    seen: set[int] = set()
    todo = [root]
    while todo:
        value = todo.pop()
        if isinstance(value, (list, tuple)):
            todo.extend(value)
        elif isinstance(value, (weights.Map, weights.Call)) and id(value) not in seen:
            seen.add(id(value))
            place = _place(value) if isinstance(value, weights.Call) else None
            found += [place] if place else []
            todo.extend(_inside(value))
    return sorted(set(found))


def _inside(value: t.Any) -> list[t.Any]:
    if isinstance(value, weights.Map):
        return [part for pair in value.pairs for part in pair]
    return [value.function, value.args, value.items, value.state]


def _place(call: weights.Call) -> _Place | None:
    if not isinstance(call.state, weights.Map):
        return None
    fields = {key: inner for key, inner in call.state.pairs if isinstance(key, str)}
    name, offset, length = (fields.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(name, str) or type(offset) is not int or type(length) is not int:
        return None
    if fields.get("transform_descriptors"):
        raise Problem("structural_only", f"{_short(name)}: packed by {_short(fields['transform_descriptors'])}")
    if "/" in name or name in ("", ".", "..") or offset < 0 or length < 0:
        raise Problem("corrupt", f"the index names {_short(name)} at {offset}, which is no shard beside it")
    return _Place(name, offset, length)


def _load_all(job: Job, places: list[_Place]) -> int:
    elements = 0
    folder = os.path.dirname(os.fsencode(job.path))
    for name in sorted({place.file for place in places}):
        try:
            stream = open_regular(os.path.join(folder, os.fsencode(name)))
        except OSError as problem:
            raise Problem("corrupt", f"{_short(name)} cannot be read: {problem.strerror}") from problem
        with stream:
            for place in places:
                if place.file == name:
                    elements += _load(job, stream, place)
    return elements


def _load(job: Job, stream: t.BinaryIO, place: _Place) -> int:
    """Load one piece as the torch file it is. Raises Problem."""
    where = f"{_short(place.file)} at {place.offset}"
    if place.offset + place.length > structure.size_of(stream):
        raise Problem("truncated", f"{where}: {place.length} bytes announced, the file has {structure.size_of(stream)}")
    part = Slice(stream, place.offset, place.length)
    head = structure.read_at(t.cast(t.BinaryIO, part), 0, structure.HEAD)
    try:
        layout = structure.read_torch(t.cast(t.BinaryIO, part), head, structure.Options())
        finish = torch.plan(job._replace(stream=part, layout=layout))
        problem = structure.sweep(part, layout.pieces)
        if problem is not None:
            raise problem
        return int(finish().facts.get("elements", 0))
    except Problem as problem:
        raise Problem(problem.verdict, f"{where}: {problem.detail}") from problem

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all loaders share: an artifact's spec, the limits, and one read of the file for hash, structure and load."""

from __future__ import annotations

import math
import os
import stat
import typing as t

from .. import structure
from ..structure import Layout, Problem
from . import finite

#: from best to worst; the last three fail
VERDICTS = ("loaded", "readable", "structural_only", "suspect", "corrupt", "truncated")
FAILED = frozenset({"suspect", "corrupt", "truncated"})


class Spec(t.NamedTuple):
    """What the job wants of an artifact: ``keys`` that must be there, ``finite`` ones that must hold finite numbers.

    A key is exact or a path with dots (``eval.loss``).
    """

    keys: tuple[str, ...] = ()
    finite: tuple[str, ...] = ()


class Limits(t.NamedTuple):
    """Bounds of one file's verification, in bytes and seconds."""

    json_bytes: int = 64 << 20
    unpacked_bytes: int = 1 << 40
    pickle_bytes: int = 64 << 20
    memory_bytes: int = 1 << 30
    floor_seconds: float = 60.0
    bytes_per_second: float = 20e6

    def seconds(self, size: int) -> float:
        return self.floor_seconds + size / self.bytes_per_second


class Verdict(t.NamedTuple):
    format: str
    verdict: str
    detail: str
    facts: dict[str, t.Any]


class Job(t.NamedTuple):
    """One file being loaded, as a loader's ``plan`` gets it."""

    stream: t.Any
    layout: Layout
    spec: Spec
    limits: Limits
    path: t.Any


#: after the sweep: the verdict, or Problem
Finish = t.Callable[[], Verdict]
Plan = t.Callable[[Job], Finish]


def open_regular(path: t.Any) -> t.BinaryIO:
    """Open a file for reading that is no link, pipe or device. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "it is no regular file")
    return open(handle, "rb", buffering=0)


def load(
    path: t.Any,
    fmt: str | None,
    spec: Spec,
    limits: Limits,
    plans: dict[str, Plan],
    also: t.Callable[[t.Any], None] | None = None,
) -> Verdict:
    """Load one file; every byte also goes to ``also`` where it is given. Raises OSError only."""
    with open_regular(path) as stream:
        fed = _Once(also)
        try:
            return _load(stream, path, fmt, spec, limits, plans, fed)
        except Problem as problem:
            found = fmt or structure.detect(structure.read_at(stream, 0, structure.HEAD), structure.suffix_of(path))
            fed.rest(stream)
            return Verdict(found, problem.verdict, problem.detail, {})
        except (MemoryError, SystemError):  # some of CPython's C code turns the one into the other
            fed.rest(stream)
            words = f"it needs more memory than the limit of {limits.memory_bytes >> 20} MiB: not loaded"
            return Verdict(fmt or "unknown", "structural_only", words, {})
        except RecursionError:
            fed.rest(stream)
            return Verdict(fmt or "unknown", "corrupt", "it nests without bound", {})


def _load(
    stream: t.BinaryIO, path: t.Any, fmt: str | None, spec: Spec, limits: Limits, plans: dict[str, Plan], fed: _Once
) -> Verdict:
    head = structure.read_at(stream, 0, structure.HEAD)
    options = structure.Options(limits.json_bytes, limits.unpacked_bytes)
    layout = structure.examine(stream, head, path, fmt, options)
    plan = plans.get(layout.fmt)
    finish = plan(Job(stream, layout, spec, limits, path)) if plan else lambda: as_it_is(layout)
    problem = fed.sweep(stream, layout)
    if problem is not None:
        raise problem
    return finish()


class _Once:
    """Feeds every byte of the file to ``also`` exactly once, whatever happens to the load."""

    def __init__(self, also: t.Callable[[t.Any], None] | None) -> None:
        self.also, self.swept = also, also is None

    def sweep(self, stream: t.BinaryIO, layout: Layout) -> Problem | None:
        self.swept = True
        return structure.sweep(stream, layout.pieces, self.also)

    def rest(self, stream: t.BinaryIO) -> None:
        if not self.swept:
            self.swept = True
            structure.sweep(stream, [], self.also)


def as_it_is(layout: Layout) -> Verdict:
    return Verdict(layout.fmt, layout.verdict, "; ".join(layout.notes), {})


def loaded(layout: Layout, detail: str, **facts: t.Any) -> Verdict:
    return Verdict(layout.fmt, "loaded", "; ".join(part for part in [detail, *layout.notes] if part), facts)


# --- floats ----------------------------------------------------------------------------------------------------------


class Floats:
    """The scanners of one file's arrays, and what they found."""

    def __init__(self) -> None:
        self.scanners: list[finite.Scanner] = []
        self.places: dict[str, tuple[int, int, str, bool]] = {}
        self.skipped: list[str] = []

    def scan(self, name: str, kind: str, little: bool, place: tuple[int, int] | None = None) -> finite.Scanner:
        scanner = finite.Scanner(name, kind, little)
        self.scanners.append(scanner)
        if place:
            self.places[name] = (*place, kind, little)
        return scanner

    def judge(self, stream: t.Any) -> list[str]:
        """Notes in words; raises Problem ``suspect`` where a number is not finite."""
        bad = [scanner for scanner in self.scanners if scanner.bad]
        masks = [scanner for scanner in bad if self._is_mask(stream, scanner)]
        worse = [scanner for scanner in bad if scanner not in masks]
        if worse:
            more = f" and {len(worse) - 1} further arrays" if len(worse) > 1 else ""
            raise Problem("suspect", f"numbers that are not finite: {worse[0].words()}{more}")
        return [f"{scanner.name} holds only 0 and -Inf (a mask)" for scanner in masks[:3]]

    def _is_mask(self, stream: t.Any, scanner: finite.Scanner) -> bool:
        place = self.places.get(scanner.name)
        if scanner.nan or scanner.plus or place is None:
            return False
        offset, length, kind, little = place
        step = structure.CHUNK
        parts = (
            structure.read_at(stream, at, min(step, offset + length - at))
            for at in range(offset, offset + length, step)
        )
        return all(finite.only_zeros_beside(part, kind, little) for part in parts)


# --- keys ------------------------------------------------------------------------------------------------------------

_NOTHING = object()


def look_up(value: t.Any, key: str, get: t.Callable[[t.Any, str], t.Any]) -> t.Any:
    """The value under an exact key or a path with dots; ``_NOTHING`` (see ``present``) where there is none."""
    found = get(value, key)
    if found is not _NOTHING or "." not in key:
        return found
    for at, char in enumerate(key):
        if char == ".":
            inner = get(value, key[:at])
            if inner is not _NOTHING:
                found = look_up(inner, key[at + 1 :], get)
                if found is not _NOTHING:
                    return found
    return _NOTHING


def present(value: t.Any) -> bool:
    return value is not _NOTHING


def from_json(value: t.Any, key: str) -> t.Any:
    """``get`` for parsed JSON: members of objects, places of arrays."""
    if isinstance(value, dict):
        return value.get(key, _NOTHING)
    if isinstance(value, list) and key.lstrip("-").isdigit() and -len(value) <= int(key) < len(value):
        return value[int(key)]
    return _NOTHING


def nothing() -> t.Any:
    return _NOTHING


def require(missing: list[str], has: t.Iterable[str]) -> None:
    """Raise Problem ``suspect`` for keys that are not there, naming some that are."""
    if missing:
        there = ", ".join(structure._short(key) for key in list(has)[:8]) or "none"
        raise Problem("suspect", f"required keys missing: {', '.join(missing)}; it has: {there}")


def must_be_finite(key: str, value: t.Any) -> None:
    """A finite number, or a non-empty list of such. Raises Problem ``suspect``."""
    values = value if isinstance(value, list) else [value]
    for one in values or [None]:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        if not number or not math.isfinite(t.cast(float, one)):
            raise Problem("suspect", f"{key} is {structure._short(one)}, not a finite number")

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Are all numbers finite? Told from the bytes, without numpy: a float is not finite when all its exponent bits are set.

The bytes of one significance ("plane") of an array are a stride of it, which Python slices at several GB/s; only where
the plane of the exponent holds a suspicious byte are the other planes looked at.
Sources: IEEE 754 (2, 4, 8 bytes), bfloat16, OCP 8-bit floating point (E4M3, E5M2, E8M0), FNUZ (arXiv 2206.02915).
"""

from __future__ import annotations

import functools
import typing as t


class Kind(t.NamedTuple):
    """A float: bytes of one, and which bits of which byte (0 is the least significant) make exponent and mantissa.

    ``nans`` stands in place of them for one-byte floats without infinities: the bytes that mean NaN.
    """

    width: int
    exponent: dict[int, int]
    mantissa: dict[int, int]
    nans: bytes = b""


KINDS = {
    "f16": Kind(2, {1: 0x7C}, {1: 0x03, 0: 0xFF}),
    "bf16": Kind(2, {1: 0x7F, 0: 0x80}, {0: 0x7F}),
    "f32": Kind(4, {3: 0x7F, 2: 0x80}, {2: 0x7F, 1: 0xFF, 0: 0xFF}),
    "f64": Kind(8, {7: 0x7F, 6: 0xF0}, {6: 0x0F, **dict.fromkeys(range(6), 0xFF)}),
    "e5m2": Kind(1, {0: 0x7C}, {0: 0x03}),
    "e4m3": Kind(1, {}, {}, b"\x7f\xff"),
    "fnuz": Kind(1, {}, {}, b"\x80"),
    "e8m0": Kind(1, {}, {}, b"\xff"),
}


class Scanner:
    """Counts what is not finite in a stream of elements that comes in parts of any length."""

    def __init__(self, name: str, kind: str, little: bool = True) -> None:
        self.name, self.kind, self.little = name, KINDS[kind], little
        self.nan = self.plus = self.minus = self.seen = 0
        self.first: int | None = None
        self._rest = b""
        self._top = self._index(max(self.kind.exponent, default=0))
        self._table = _all_set(self.kind.exponent.get(max(self.kind.exponent, default=0), 0))
        self._plain = self.kind.exponent.get(max(self.kind.exponent, default=0)) == 0x7F

    def _index(self, significance: int) -> int:
        return significance if self.little else self.kind.width - 1 - significance

    def feed(self, view: t.Any) -> None:
        part = self._rest + bytes(view) if self._rest else bytes(view)
        over = len(part) % self.kind.width
        self._rest = part[len(part) - over :] if over else b""
        part = part[: len(part) - over] if over else part
        if self._suspicious(part):
            self._count(part)
        self.seen += len(part) // self.kind.width

    def _suspicious(self, part: bytes) -> bool:
        if self.kind.nans:
            return any(byte in part for byte in self.kind.nans)
        plane = part[self._top :: self.kind.width]
        if self._plain:
            return b"\x7f" in plane or b"\xff" in plane
        return b"\1" in plane.translate(self._table)

    def _count(self, part: bytes) -> None:
        """Exact counts by planes: whole arrays of flags are combined as one big integer."""
        if self.kind.nans:
            self._note(b"".join(b"\1" if byte in self.kind.nans else b"\0" for byte in _BYTES), part)
            return
        count = len(part) // self.kind.width
        odd = int.from_bytes(b"\1" * count, "little")
        for significance, bits in self.kind.exponent.items():
            odd &= self._flags(part, significance, _all_set(bits))
        mantissa = 0
        for significance, bits in self.kind.mantissa.items():
            mantissa |= self._flags(part, significance, _any_set(bits))
        sign = self._flags(part, self.kind.width - 1, _any_set(0x80))
        self._tally(odd & mantissa, odd & ~mantissa & ~sign, odd & ~mantissa & sign, count)

    def _flags(self, part: bytes, significance: int, table: bytes) -> int:
        return int.from_bytes(part[self._index(significance) :: self.kind.width].translate(table), "little")

    def _tally(self, nan: int, plus: int, minus: int, count: int) -> None:
        self.nan += nan.bit_count()
        self.plus += plus.bit_count()
        self.minus += minus.bit_count()
        every = (nan | plus | minus).to_bytes(count, "little").find(1)
        if every >= 0 and self.first is None:
            self.first = self.seen + every

    def _note(self, table: bytes, part: bytes) -> None:
        flags = part.translate(table)
        self.nan += flags.count(1)
        if self.first is None:
            self.first = self.seen + flags.find(1)

    @property
    def bad(self) -> int:
        return self.nan + self.plus + self.minus

    def words(self) -> str:
        parts = [(self.nan, "NaN"), (self.plus, "Inf"), (self.minus, "-Inf")]
        return f"{self.name}: {', '.join(f'{count} {word}' for count, word in parts if count)} (first at {self.first})"


_BYTES = range(256)


@functools.cache
def _all_set(bits: int) -> bytes:
    return bytes(int(byte & bits == bits) for byte in _BYTES)


@functools.cache
def _any_set(bits: int) -> bytes:
    return bytes(int(byte & bits != 0) for byte in _BYTES)


def only_zeros_beside(part: bytes, kind: str, little: bool) -> bool:
    """Whether every element is zero or minus infinity: an attention mask, which is legal in a checkpoint."""
    scanner = Scanner("", kind, little)
    scanner.feed(part)
    width = scanner.kind.width
    nonzero = 0
    for significance in range(width):
        nonzero |= scanner._flags(part, significance, _any_set(0x7F if significance == width - 1 else 0xFF))
    return scanner.nan == scanner.plus == 0 and nonzero.bit_count() == scanner.minus

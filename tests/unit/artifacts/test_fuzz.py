# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bytes that nobody thought of: a check always answers, with a verdict, and never raises."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import loaders, structure
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.loaders import base, finite
from tests.unit.artifacts import make
from tests.unit.artifacts.faults import EVENTS, MANY, NPY, NPZ, ST, TORCH

pytestmark = pytest.mark.artifacts
WHOLE = {
    "a.pt": MANY, "b.pt": TORCH, "c.pth": make.torch_legacy(make.floats(5)), "a.safetensors": ST, "a.npy": NPY,
    "a.npz": NPZ, "a.json": b'{"a": [1, 2.5, "x"], "b": null}', "a.jsonl": b'{"a": 1}\n{"a": 2}\n',
    "a.tfevents": EVENTS,
    "a.gz": make.gz(b"hello" * 50), "a.tar": make.tar({"a": b"x" * 700, "b": b"y"}), "a.png": make.png(),
    "a.zip": make.archive({"a": b"x" * 100}),
}  # fmt: skip
CHECKED = ("a.pt", "b.pt", "c.pth", "a.safetensors", "a.npy", "a.npz")


def answer(name: str, content: bytes) -> tuple[str, str]:
    """(verdict of structure, verdict of the loader), in this process so that an exception shows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        on_box = structure.check(str(path))
        here = loaders.load(str(path))
    assert on_box["verdict"] in ("structural_only", "readable", "suspect", "corrupt", "truncated")
    assert here.verdict in base.VERDICTS
    assert isinstance(here.detail, str) and here.detail
    json.dumps(here.facts)
    return on_box["verdict"], here.verdict


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_changed_bytes(name: str, data: st.DataObject) -> None:
    raw = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    answer(name, bytes(raw))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_cut_and_spliced(name: str, data: st.DataObject) -> None:
    raw = WHOLE[name]
    cut, on = (data.draw(st.integers(0, len(raw))) for _ in range(2))
    answer(name, raw[:cut] + data.draw(st.binary(max_size=30)) + raw[on:])


@pytest.mark.parametrize("name", CHECKED)
def test_no_cut_is_ever_whole(name: str) -> None:
    raw = WHOLE[name]
    for cut in range(0, len(raw), max(1, len(raw) // 97)):
        on_box, here = answer(name, raw[:cut])
        assert here in ("suspect", "corrupt", "truncated"), (cut, here)
        assert on_box in ("suspect", "corrupt", "truncated"), (cut, on_box)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(structure._SUFFIX)))
def test_noise(content: bytes, suffix: str) -> None:
    answer(f"noise{suffix}", content)


HEADER = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__", ""]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "I64", "F4", "XX", 3]),
            "shape": st.lists(st.integers(-2, 1 << 66) | st.floats() | st.none(), max_size=4),
            "data_offsets": st.lists(st.integers(-8, 1 << 66), max_size=3),
        }
    )
    | st.none(),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(HEADER, st.binary(max_size=40))
def test_safetensors_headers(header: dict, body: bytes) -> None:
    answer("a.safetensors", make.safetensors_raw(json.dumps(header).encode(), body))


DESCR = st.sampled_from(
    ["<f4", "|O", ">c8", "<U3", "x", "<f", "<M8[ns]", [("a", "<f4"), ("b", "<i8", (2,))], [("a",)], 5]
)


@settings(max_examples=150, deadline=None)
@given(DESCR, st.lists(st.integers(-1, 1 << 66), max_size=4), st.binary(max_size=40), st.booleans())
def test_npy_headers(descr: Any, shape: list[int], body: bytes, order: bool) -> None:
    header = {"descr": descr, "fortran_order": order, "shape": tuple(shape)}
    answer("a.npy", make.npy_raw(repr(header), body))


SINGLE = [bytes([code]) for code in b"(]})Naesutbld012RQo\x81\x85\x86\x93\x94"]
LONGER = [b"q\x01", b"h\x01", b"K\x05", make.u("storage"), make.u("0"), make.glob("torch.FloatStorage")]
OPCODES = st.lists(st.sampled_from([*SINGLE, *LONGER, make.glob("torch._utils._rebuild_tensor_v2")]), max_size=40)


@settings(max_examples=250, deadline=None)
@given(OPCODES)
def test_pickles(opcodes: list[bytes]) -> None:
    answer("a.pt", make.torch_zip(b"".join(opcodes), {"0": make.floats(8)}))


# --- the finite scan against numpy ---


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([("f16", "f2"), ("f32", "f4"), ("f64", "f8")]),
    st.booleans(),
    st.lists(st.floats(width=16) | st.sampled_from([float("nan"), float("inf"), -float("inf")]), max_size=50),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_the_scan_counts_as_numpy_does(
    kinds: tuple[str, str], little: bool, values: list[float], steps: list[int]
) -> None:
    array = np.array(values, ("<" if little else ">") + kinds[1])
    raw, at, turn = array.tobytes(), 0, 0
    scanner = finite.Scanner("a", kinds[0], little)
    while at < len(raw):  # in parts that do not end where an element ends
        step = steps[turn % len(steps)]
        scanner.feed(raw[at : at + step])
        at, turn = at + step, turn + 1
    assert scanner.nan == int(np.isnan(array).sum())
    assert scanner.plus == int(np.isposinf(array).sum()) and scanner.minus == int(np.isneginf(array).sum())
    odd = np.flatnonzero(~np.isfinite(array))
    assert scanner.first == (int(odd[0]) if len(odd) else None)
    assert scanner.seen == len(array)


def test_every_half_and_every_byte_sized_float() -> None:
    """All 65,536 patterns of two bytes; bfloat16 as the upper half of a float."""
    patterns = np.arange(1 << 16, dtype="<u2")
    for kind, values in (
        ("f16", patterns.view("<f2").astype("f8")),
        ("bf16", (patterns.astype("<u4") << 16).view("<f4").astype("f8")),
    ):
        for pattern, value in zip(patterns[::7], values[::7], strict=True):
            scanner = finite.Scanner("a", kind)
            scanner.feed(struct.pack("<H", pattern))
            assert bool(scanner.bad) == (not np.isfinite(value)), (kind, hex(pattern))
    for kind, wanted in (
        ("e4m3", {0x7F, 0xFF}),
        ("e5m2", set(range(0x7C, 0x80)) | set(range(0xFC, 0x100))),
        ("fnuz", {0x80}),
        ("e8m0", {0xFF}),
    ):
        for byte in range(256):
            scanner = finite.Scanner("a", kind)
            scanner.feed(bytes([byte]))
            assert bool(scanner.bad) == (byte in wanted), (kind, hex(byte))

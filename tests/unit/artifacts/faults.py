# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table: format, fault, file, and the verdict it must get from a loader; with whole files beside the broken ones.

``structure`` (what the box may say) follows from the loader's verdict unless a fourth field says otherwise.
"""

from __future__ import annotations

import bz2
import json
import lzma
import pickle
import struct
import zipfile
from typing import Any, NamedTuple

import numpy as np

from tests.unit.artifacts import make
from tests.unit.artifacts.make import floats, mapping, tensor


class Case(NamedTuple):
    name: str  # of the file
    fault: str
    content: bytes
    verdict: str
    words: str = ""  # must stand in the detail
    structure: str | None = None
    spec: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple's default


NAN, INF = float("nan"), float("inf")
TORCH = make.simple_torch()
MANY = make.torch_zip(
    mapping({"a": tensor("0", "FloatStorage", 8, [8]), "b": tensor("1", "LongStorage", 3, [3])}),
    {"0": floats(8), "1": bytes(24)},
)
TWINS = make.torch_zip(
    mapping({"a": tensor("0", "FloatStorage", 8, [8]), "b": tensor("1", "FloatStorage", 8, [8])}),
    {"0": floats(8), "1": floats(8)},
)
ST = make.safetensors({"a": ("F32", [2], floats(2)), "b": ("I64", [1], bytes(8))})
NPZ = make.npz(a=np.arange(10.0), b=np.ones((3, 4), "f4"))
NPY = make.npy(np.arange(10.0))
HTML = b"<!DOCTYPE html><html><head><title>403 Forbidden</title></head><body>no</body></html>"
S3 = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>'
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
EVENTS = b"".join(make.record(bytes([value]) * 9) for value in range(5))


def call(name: str, args: bytes) -> bytes:
    return make.glob(name) + b"(" + args + b"tR"


def with_header(header: Any, body: bytes = b"") -> bytes:
    return make.safetensors_raw(json.dumps(header).encode(), body)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def bad_crc(raw: bytes, needle: bytes) -> bytes:
    return make.flip(raw, raw.index(needle))


def deep(opener: bytes, closer: bytes, count: int = 100_000) -> bytes:
    return opener * count + closer * count


def bomb() -> bytes:
    """A member that claims a small size and unpacks to much more."""
    raw = make.archive({"a.npy": make.npy(np.zeros(1_000_000))}, zipfile.ZIP_DEFLATED)
    return raw.replace(struct.pack("<I", 8_000_128), struct.pack("<I", 200))


def overlap(raw: bytearray) -> None:
    """Let the second storage's entry point at the first one."""
    places = [at for at in range(len(raw)) if raw[at : at + 4] == b"PK\x01\x02"]
    first, second = (next(p for p in places if raw[p + 46 :].startswith(f"archive/data/{n}".encode())) for n in "01")
    raw[second + 16 : second + 28] = raw[first + 16 : first + 28]
    raw[second + 42 : second + 46] = raw[first + 42 : first + 46]


def encrypted(raw: bytearray) -> None:
    at = raw.index(b"PK\x01\x02")
    raw[at + 8] |= 1


def nested_json(count: int) -> bytes:
    return b"[" * count + b"]" * count


TORCH_CASES = [
    Case("ok.pt", "none", TORCH, "loaded", "1 tensors"),
    Case("many.pt", "none", MANY, "loaded", "2 tensors"),
    Case("ok.ckpt", "none, by another suffix", TORCH, "loaded"),
    Case("no_crc.pt", "none, CRC not recorded", make.simple_torch(crc=False), "loaded", "CRC not recorded"),
    Case("legacy.pth", "none, legacy", make.torch_legacy(floats(6)), "loaded", "legacy torch format"),
    Case("half.pt", "none, half precision", make.simple_torch(floats(8, dtype="<f2"), "HalfStorage", 2), "loaded"),
    Case("nothing.pt", "none, no tensor", make.torch_zip(mapping({"epoch": b"K\x03"}), {}), "loaded", "no tensor"),
    Case(
        "view.pt",
        "none, NaN outside of the view",
        make.torch_zip(mapping({"v": tensor("0", "FloatStorage", 8, [2])}), {"0": floats(8, NAN)}),
        "loaded",
    ),
    Case(
        "mask.pt",
        "none, mask of -Inf",
        make.simple_torch(np.array([0, -INF, 0, -INF], "<f4").tobytes()),
        "loaded",
        "mask",
    ),
    Case("scalar.pt", "none, a scalar", make.torch_zip(tensor("0", "FloatStorage", 1, []), {"0": floats(1)}), "loaded"),
    Case(
        "empty_tensor.pt",
        "none, no element",
        make.torch_zip(tensor("0", "FloatStorage", 0, [0, 3]), {"0": b""}),
        "loaded",
    ),
    Case(
        "big_endian.pt",
        "none, big-endian",
        make.torch_zip(tensor("0", "FloatStorage", 4, [4]), {"0": floats(4, dtype=">f4")}).replace(
            b"little", b"big\0\0\0"
        ),
        "corrupt",
        "CRC",
    ),
    Case("cut.pt", "cut, magic right", TORCH[: len(TORCH) * 81 // 100], "truncated", "no central directory"),
    Case("cut_one.pt", "last byte missing", TORCH[:-1], "truncated"),
    Case("cut_head.pt", "only the magic", TORCH[:4], "truncated"),
    Case("flip.pt", "one byte of a storage wrong", bad_crc(TORCH, floats(8)[8:16]), "corrupt", "CRC"),
    Case("hole.pt", "a part of the middle missing", TORCH[:300] + TORCH[340:], "corrupt"),
    Case("nan.pt", "NaN", make.simple_torch(floats(8, NAN)), "suspect", "1 NaN", "structural_only"),
    Case("inf.pt", "Inf", make.simple_torch(floats(8, INF)), "suspect", "1 Inf", "structural_only"),
    Case("minus.pt", "-Inf among weights", make.simple_torch(floats(8, -INF)), "suspect", "1 -Inf", "structural_only"),
    Case(
        "nan_half.pt",
        "NaN, half precision",
        make.simple_torch(floats(8, NAN, "<f2"), "HalfStorage", 2),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case(
        "nan_double.pt",
        "NaN, double",
        make.simple_torch(floats(8, NAN, "<f8"), "DoubleStorage", 8),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case("nan_legacy.pth", "NaN, legacy", make.torch_legacy(floats(6, NAN)), "suspect", "NaN", "structural_only"),
    Case(
        "nan_no_crc.pt",
        "NaN, CRC not recorded",
        make.simple_torch(floats(8, NAN), crc=False),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case("legacy_cut.pth", "legacy, cut in the storages", make.torch_legacy(floats(6))[:-3], "truncated", "missing"),
    Case("legacy_cut_pickle.pth", "legacy, cut in a pickle", make.torch_legacy(floats(6))[:60], "truncated"),
    Case(
        "legacy_long.pth",
        "legacy, bytes after the end",
        make.torch_legacy(floats(6)) + b"xx",
        "corrupt",
        "2 bytes after",
    ),
    Case("legacy_lies.pth", "legacy, absurd count", make.torch_legacy(floats(6), 1 << 60), "truncated"),
    Case(
        "no_storage.pt",
        "a storage is not in the archive",
        make.torch_zip(tensor("9", "FloatStorage", 8, [8]), {"0": floats(8)}),
        "corrupt",
        "storage 9",
    ),
    Case(
        "short_storage.pt",
        "a storage is too short",
        make.torch_zip(tensor("0", "FloatStorage", 9, [9]), {"0": floats(8)}),
        "corrupt",
        "storage 0",
    ),
    Case(
        "outside.pt",
        "shape reaches out of its storage",
        make.torch_zip(tensor("0", "FloatStorage", 8, [9]), {"0": floats(8)}),
        "corrupt",
        "reaches",
        "structural_only",
    ),
    Case(
        "overflow.pt",
        "shape of 2^62 squared",
        make.torch_zip(tensor("0", "FloatStorage", 8, [1 << 62, 1 << 62]), {"0": floats(8)}),
        "corrupt",
        "reaches",
        "structural_only",
    ),
    Case(
        "negative.pt",
        "negative offset",
        make.torch_zip(tensor("0", "FloatStorage", 8, [2], -4), {"0": floats(8)}),
        "corrupt",
        "",
        "structural_only",
    ),
    Case(
        "evil.pt",
        "os.system",
        make.torch_zip(call("os.system", make.u("id")), {}),
        "suspect",
        "os.system",
        "structural_only",
    ),
    Case(
        "evil_posix.pt",
        "posix.system",
        make.torch_zip(call("posix.system", make.u("id")), {}),
        "suspect",
        "posix.system",
        "structural_only",
    ),
    Case(
        "evil_eval.pt",
        "builtins.eval",
        make.torch_zip(call("builtins.eval", make.u("1")), {}),
        "suspect",
        "eval",
        "structural_only",
    ),
    Case(
        "evil_stack.pt",
        "STACK_GLOBAL subprocess.Popen",
        make.torch_zip(make.u("subprocess") + make.u("Popen") + b"\x93(" + make.u("id") + b"tR", {}),
        "suspect",
        "subprocess.Popen",
        "structural_only",
    ),
    Case(
        "evil_legacy.pth",
        "os.system, legacy",
        make.torch_legacy(floats(1)).replace(make.glob("collections.OrderedDict"), make.glob("os.system")),
        "suspect",
        "os.system",
        "structural_only",
    ),
    Case(
        "evil_hub.pt",
        "torch.hub.load",
        make.torch_zip(call("torch.hub.load", make.u("x")), {}),
        "suspect",
        "torch.hub",
        "structural_only",
    ),
    Case(
        "unknown.pt",
        "class of the user, with tensors",
        make.torch_zip(call("my_project.Config", tensor("0", "FloatStorage", 8, [8])), {"0": floats(8)}),
        "structural_only",
        "my_project.Config",
    ),
    Case(
        "unknown_bare.pt",
        "class of the user, no tensor",
        make.torch_zip(call("my_project.Config", b"K\x01"), {}),
        "readable",
        "my_project.Config",
        "structural_only",
    ),
    Case("no_pickle.pt", "zip without data.pkl", make.archive({"a/version": b"3"}), "corrupt", "data.pkl"),
    Case("two.pt", "two pickles", make.archive({"a/data.pkl": b"\x80\x02N.", "b/data.pkl": b"\x80\x02N."}), "corrupt"),
    Case("cut_pickle.pt", "pickle without STOP", make.archive({"archive/data.pkl": b"\x80\x02}"}), "truncated", "STOP"),
    Case("garbage_pickle.pt", "pickle of noise", make.archive({"archive/data.pkl": b"\xff\xfe\xfd"}), "corrupt"),
    Case("underflow.pt", "pickle pops an empty stack", make.torch_zip(b"000R", {}), "corrupt", "", "structural_only"),
    Case(
        "memo.pt",
        "pickle with a memo of 2^31",
        make.torch_zip(b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7f", {}),
        "loaded",
        "no tensor",
    ),
    Case(
        "long.pt",
        "string of 2^31 bytes announced",
        make.archive({"archive/data.pkl": b"\x80\x02X\xff\xff\xff\x7fabc."}),
        "truncated",
    ),
    Case(
        "long8.pt",
        "bytes of 2^62 announced",
        make.archive({"archive/data.pkl": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc."}),
        "truncated",
    ),
    Case("deep.pt", "100,000 nested lists", make.torch_zip(b"]" * 100_000 + b"a" * 99_999, {}), "loaded"),
    Case(
        "laughs.pt",
        "lists that double 60 times",
        make.torch_zip(
            b"]q\x00" + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(60)),
            {},
        ),
        "loaded",
    ),
    Case(
        "packed.pt",
        "members packed",
        make.archive({"archive/data.pkl": b"\x80\x02N."}, zipfile.ZIP_DEFLATED),
        "corrupt",
        "never packs",
    ),
    Case("html.pt", "HTML page", HTML, "suspect", "HTML page"),
    Case("html.bin", "HTML page", b"\n  " + HTML, "suspect", "403 Forbidden"),
    Case("s3.pt", "object store's error", S3, "suspect", "NoSuchKey"),
    Case("lfs.pt", "git-LFS pointer", LFS, "suspect", "git-LFS"),
    Case("zeros.pt", "all zeros", bytes(70_000), "suspect", "all 70000 bytes are zero"),
    Case("empty.pt", "empty", b"", "suspect", "empty"),
    Case("text.pt", "some text", b"hello", "corrupt", "not a torch file"),
    Case("json.pt", "JSON in its place", b'{"error": "rate limited"}', "corrupt"),
    Case("late_zeros.pt", "second half zeros", TORCH[:200] + bytes(len(TORCH) - 200), "truncated"),
    Case("key.pt", "required key missing", TORCH, "suspect", "model", "structural_only", {"keys": ["model"]}),
    Case("key_ok.pt", "none, key required", TORCH, "loaded", "", None, {"keys": ["w"]}),
    Case(
        "overlap.pt", "two members over the same bytes", make.patched(TWINS, overlap), "corrupt", "claim the same bytes"
    ),
    Case("twins.pt", "none, two storages alike", TWINS, "loaded", "2 tensors"),
    Case("idle.pt", "none, a storage that nothing names", make.torch_zip(mapping({}), {"0": floats(8)}), "loaded"),
    Case(
        "idle_no_crc.pt",
        "the same, CRC not recorded",
        make.torch_zip(mapping({}), {"0": floats(8)}, crc=False),
        "structural_only",
        "no tensor refers to 1",
    ),
]


SAFETENSORS_CASES = [
    Case("ok.safetensors", "none", ST, "loaded"),
    Case(
        "meta.safetensors",
        "none, metadata",
        make.safetensors({"a": ("F32", [2], floats(2))}, {"format": "pt"}),
        "loaded",
    ),
    Case("no_suffix", "none, no suffix", ST, "loaded"),
    Case(
        "zero.safetensors",
        "none, an empty tensor",
        make.safetensors({"e": ("F32", [0], b""), "a": ("F32", [2], floats(2))}),
        "loaded",
    ),
    Case("none.safetensors", "none, no tensor", with_header({}), "loaded", "no tensor"),
    Case("scalar.safetensors", "none, a scalar", make.safetensors({"a": ("F32", [], floats(1))}), "loaded"),
    Case(
        "zero_weights.safetensors",
        "none, weights of zero",
        make.safetensors({"a": ("F32", [64], bytes(256))}),
        "loaded",
    ),
    Case(
        "padded.safetensors",
        "none, header padded",
        make.safetensors_raw(json.dumps({"a": entry()}).encode() + b"   ", floats(2)),
        "loaded",
    ),
    Case("cut.safetensors", "4 bytes missing", ST[:-4], "truncated", "4 bytes missing"),
    Case("cut_header.safetensors", "cut in the header", ST[:40], "truncated", "header"),
    Case("cut_length.safetensors", "cut in the length", ST[:5], "truncated"),
    Case("long.safetensors", "4 bytes after the end", ST + bytes(4), "corrupt", "4 bytes after the last tensor"),
    Case(
        "duplicate.safetensors",
        "duplicate key",
        make.safetensors_raw(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), floats(2)),
        "corrupt",
        "duplicate key a",
    ),
    Case(
        "shape.safetensors",
        "shape and range disagree",
        with_header({"t": entry("F32", [1000, 1000], [0, 4])}, bytes(4)),
        "corrupt",
        "4000000",
    ),
    Case(
        "overflow.safetensors",
        "2^33 x 2^33",
        with_header({"t": entry("F32", [1 << 33, 1 << 33], [0, 8])}, bytes(8)),
        "corrupt",
        "takes",
    ),
    Case(
        "wrap.safetensors",
        "2^32 x 2^32, 0 in 64 bits",
        with_header({"t": entry("F32", [1 << 32, 1 << 32], [0, 0])}),
        "corrupt",
        "takes",
    ),
    Case(
        "unknown.safetensors",
        "unknown dtype",
        with_header({"t": entry("F5_E9M9")}, floats(2)),
        "structural_only",
        "cannot verify",
    ),
    Case("fp4.safetensors", "none, four bits", with_header({"t": entry("F4", [4], [0, 2])}, b"ab"), "loaded"),
    Case(
        "nan.safetensors",
        "NaN",
        make.safetensors({"a": ("F32", [8], floats(8, NAN))}),
        "suspect",
        "a: 1 NaN",
        "structural_only",
    ),
    Case(
        "nan_bf16.safetensors",
        "NaN, bfloat16",
        make.safetensors({"a": ("BF16", [2], b"\x80\x3f\xc0\x7f")}),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case(
        "ok_bf16.safetensors", "none, bfloat16", make.safetensors({"a": ("BF16", [2], b"\x80\x3f\x7f\x7f")}), "loaded"
    ),
    Case(
        "nan_fp8.safetensors",
        "NaN, E4M3",
        make.safetensors({"a": ("F8_E4M3", [2], b"\x38\x7f")}),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case(
        "inf_fp8.safetensors",
        "Inf, E5M2",
        make.safetensors({"a": ("F8_E5M2", [2], b"\x38\x7c")}),
        "suspect",
        "Inf",
        "structural_only",
    ),
    Case(
        "mask.safetensors", "none, a mask", make.safetensors({"m": ("F16", [2], b"\x00\x00\x00\xfc")}), "loaded", "mask"
    ),
    Case("huge.safetensors", "header of 2^63 bytes", struct.pack("<Q", 1 << 63) + b"{}", "corrupt", "header would be"),
    Case("big_header.safetensors", "header of 90 MB announced", struct.pack("<Q", 90_000_000) + b"{}", "truncated"),
    Case("nojson.safetensors", "header is no JSON", make.safetensors_raw(b"{nope"), "corrupt", "no JSON"),
    Case("list.safetensors", "header is a list", make.safetensors_raw(b"[]"), "corrupt"),
    Case(
        "deep.safetensors",
        "header nests 100,000 deep",
        make.safetensors_raw(b'{"a":' + deep(b"[", b"]") + b"}"),
        "corrupt",
    ),
    Case("nan_header.safetensors", "NaN in the header", make.safetensors_raw(b'{"a": NaN}'), "corrupt"),
    Case("negative.safetensors", "negative offset", with_header({"t": entry(offsets=[-8, 0])}, floats(2)), "corrupt"),
    Case(
        "backwards.safetensors",
        "range ends before it begins",
        with_header({"t": entry(offsets=[8, 0])}, floats(2)),
        "corrupt",
    ),
    Case("float.safetensors", "shape of floats", with_header({"t": entry(shape=[2.0])}, floats(2)), "corrupt"),
    Case(
        "bool.safetensors",
        "shape of booleans",
        with_header({"t": entry("F32", [True, True], [0, 4])}, floats(1)),
        "corrupt",
    ),
    Case(
        "gap.safetensors",
        "a hole between tensors",
        with_header({"a": entry(), "b": entry(offsets=[16, 24])}, floats(6)),
        "corrupt",
        "hole of 8",
    ),
    Case(
        "overlap.safetensors",
        "tensors overlap",
        with_header({"a": entry(), "b": entry(offsets=[4, 12])}, floats(3)),
        "corrupt",
        "overlaps",
    ),
    Case("fields.safetensors", "a field missing", with_header({"a": {"dtype": "F32"}}), "corrupt"),
    Case(
        "dims.safetensors",
        "3,000 dimensions",
        with_header({"a": entry(shape=[1] * 3000, offsets=[0, 4])}, floats(1)),
        "corrupt",
        "dimensions",
    ),
    Case("html.safetensors", "HTML page", HTML, "suspect", "HTML page"),
    Case("zeros.safetensors", "all zeros", bytes(4096), "suspect", "zero"),
    Case("empty.safetensors", "empty", b"", "suspect", "empty"),
    Case("lfs.safetensors", "git-LFS pointer", LFS, "suspect", "git-LFS"),
    Case("torch.safetensors", "torch file in its place", TORCH, "loaded", "", None),
    Case("key.safetensors", "required tensor missing", ST, "suspect", "z", "structural_only", {"keys": ["z"]}),
]

NUMPY_CASES = [
    Case("ok.npy", "none", NPY, "loaded"),
    Case("two.npy", "none, two arrays in a row", NPY + NPY, "loaded"),
    Case("big_endian.npy", "none, big-endian", make.npy(np.ones(3, ">f8")), "loaded"),
    Case("fields.npy", "none, structured", make.npy(np.ones(3, [("a", "f4"), ("b", "i8", (2,))])), "loaded"),
    Case(
        "v2.npy",
        "none, version 2",
        make.npy_raw("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", floats(2), (2, 0)),
        "loaded",
    ),
    Case("cut.npy", "8 bytes missing", NPY[:-8], "truncated", "8 bytes missing"),
    Case("cut_header.npy", "cut in the header", NPY[:20], "truncated"),
    Case("cut_magic.npy", "cut after the magic", NPY[:6], "truncated"),
    Case("long.npy", "3 bytes after the end", NPY + b"abc", "corrupt", "3 bytes after"),
    Case("nan.npy", "NaN", make.npy(np.array([1.0, NAN])), "suspect", "NaN", "structural_only"),
    Case("nan_big.npy", "NaN, big-endian", make.npy(np.array([1.0, NAN], ">f4")), "suspect", "NaN", "structural_only"),
    Case(
        "nan_field.npy",
        "NaN in a field",
        make.npy(np.array([(1, NAN)], [("a", "i4"), ("b", "f8")])),
        "suspect",
        "b: 1 NaN",
        "structural_only",
    ),
    Case(
        "nan_complex.npy",
        "NaN, complex",
        make.npy(np.array([complex(1, NAN)], "c8")),
        "suspect",
        "NaN",
        "structural_only",
    ),
    Case("object.npy", "object array", make.npy(np.array([{}, None], object)), "structural_only", "object array"),
    Case("object_cut.npy", "object array, cut", make.npy(np.array([{}, None], object))[:-2], "truncated"),
    Case(
        "shape.npy",
        "shape of 10^18",
        make.npy_raw(
            "{'descr': '<f8', 'fortran_order': False, 'shape': (10**18,), }".replace("10**18", str(10**18)), bytes(8)
        ),
        "truncated",
    ),
    Case(
        "expression.npy",
        "an expression in the header",
        make.npy_raw("{'descr': '<f8', 'fortran_order': False, 'shape': (2**3,), }"),
        "corrupt",
    ),
    Case(
        "code.npy",
        "a call in the header",
        make.npy_raw("__import__('os').system('id')"),
        "corrupt",
        "no Python literal",
    ),
    Case("nest.npy", "header nests deep", make.npy_raw("(" * 1900 + ")" * 1900), "corrupt"),
    Case(
        "long_header.npy",
        "header of 2 GB announced",
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2 << 30) + b"{",
        "corrupt",
    ),
    Case(
        "dtype.npy", "absurd dtype", make.npy_raw("{'descr': 'x9', 'fortran_order': False, 'shape': (1,), }"), "corrupt"
    ),
    Case(
        "negative.npy",
        "negative shape",
        make.npy_raw("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
        "corrupt",
    ),
    Case("version.npy", "version 9", b"\x93NUMPY\x09\x00" + NPY[8:], "corrupt", "version"),
    Case("ok.npz", "none", NPZ, "loaded", "2 arrays"),
    Case("packed.npz", "none, packed", make.archive({"a.npy": NPY}, zipfile.ZIP_DEFLATED), "loaded"),
    Case("empty_array.npz", "none, an empty array", make.npz(a=np.empty((0, 3))), "loaded"),
    Case("strings.npz", "none, strings", make.npz(a=np.array(["x", "yy"])), "loaded"),
    Case("cut.npz", "cut", NPZ[:-30], "truncated", "no central directory"),
    Case("flip.npz", "one byte wrong", make.flip(NPZ, NPZ.index(np.arange(10.0)[5:7].tobytes())), "corrupt", "CRC"),
    Case("nan.npz", "NaN", make.npz(loss=np.array([NAN])), "suspect", "loss: 1 NaN", "structural_only"),
    Case("object.npz", "object array", make.npz(a=np.array([{}], object)), "structural_only", "object array"),
    Case("short.npz", "an array shorter than its shape", make.archive({"a.npy": NPY[:-8]}), "truncated", "array a"),
    Case("long.npz", "an array longer than its shape", make.archive({"a.npy": NPY + b"x"}), "corrupt", "more than"),
    Case("headless.npz", "an array without its header", make.archive({"a.npy": b"\x93NUM"}), "truncated"),
    Case("bomb.npz", "unpacks to more than it claims", bomb(), "corrupt", "more than"),
    Case("none.npz", "no array", make.archive({"readme.txt": b"hi"}), "suspect", "no array"),
    Case("key.npz", "required array missing", NPZ, "suspect", "loss", "structural_only", {"keys": ["loss"]}),
    Case("encrypted.npz", "encrypted", make.patched(NPZ, lambda raw: encrypted(raw)), "corrupt", "encrypted"),
    Case("html.npz", "HTML page", HTML, "suspect", "HTML"),
]


JSON_CASES = [
    Case("ok.json", "none", b'{"loss": 0.5, "n": 3}', "loaded", "loss=0.5", None, {"finite": ["loss"], "keys": ["n"]}),
    Case("bom.json", "none, byte order mark", b'\xef\xbb\xbf{"a": 1}', "loaded"),
    Case(
        "dotted.json",
        "none, dotted key",
        b'{"eval": {"loss": 1}, "a.b": 2}',
        "loaded",
        "",
        None,
        {"finite": ["eval.loss", "a.b"]},
    ),
    Case("list.json", "none, numbers in a list", b'{"loss": [1, 2.5]}', "loaded", "", None, {"finite": ["loss"]}),
    Case("cut.json", "cut", b'{"loss": 0.5, "n": ', "truncated"),
    Case("cut_string.json", "cut in a string", b'{"loss": "abc', "truncated"),
    Case("cut_utf8.json", "cut in a character", '{"a": "模'.encode()[:-1], "truncated"),
    Case("nan.json", "NaN", b'{"loss": NaN}', "suspect", "NaN"),
    Case("infinity.json", "-Infinity", b'{"loss": -Infinity}', "suspect", "Infinity"),
    Case("overflow.json", "1e999", b'{"loss": 1e999}', "suspect", "finite", "structural_only", {"finite": ["loss"]}),
    Case(
        "text_nan.json",
        "the text NaN",
        b'{"loss": "NaN"}',
        "suspect",
        "finite",
        "structural_only",
        {"finite": ["loss"]},
    ),
    Case("null.json", "null", b'{"loss": null}', "suspect", "finite", "structural_only", {"finite": ["loss"]}),
    Case(
        "true.json",
        "true for a number",
        b'{"loss": true}',
        "suspect",
        "finite",
        "structural_only",
        {"finite": ["loss"]},
    ),
    Case(
        "key.json", "required key missing", b'{"a": 1}', "suspect", "it has: a", "structural_only", {"keys": ["loss"]}
    ),
    Case("twice.json", "duplicate key", b'{"a": 1, "a": 2}', "corrupt", "duplicate key a"),
    Case("after.json", "text after the end", b'{"a": 1} x', "corrupt"),
    Case("latin.json", "no UTF-8", b'{"a": "\xe9"}', "corrupt"),
    Case("deep.json", "nests 200,000 deep", nested_json(200_000), "corrupt"),
    Case("digits.json", "a number of 100,000 digits", b'{"a": ' + b"9" * 100_000 + b"}", "corrupt"),
    Case("empty.json", "empty", b"", "suspect", "empty"),
    Case("blank.json", "only blanks", b" \n", "truncated"),
    Case("html.json", "HTML page", HTML, "suspect", "HTML"),
    Case("ok.jsonl", "none", b'{"loss": 1}\n{"loss": 0.5}\n', "loaded", "2 records", None, {"finite": ["loss"]}),
    Case("tail.jsonl", "none, no last newline", b'{"loss": 1}\n{"loss": 0.5}', "loaded", "2 records"),
    Case("cut.jsonl", "last line cut", b'{"loss": 1}\n{"lo', "truncated", "last line"),
    Case("middle.jsonl", "a line in the middle broken", b'{"a": 1}\n{"b"\n{"a": 2}\n', "corrupt", "line 2"),
    Case("nan.jsonl", "NaN", b'{"loss": 1}\n{"loss": NaN}\n', "suspect", "line 2"),
    Case(
        "text.jsonl",
        "not a finite number",
        b'{"loss": 1}\n{"loss": "inf"}\n',
        "suspect",
        "line 2",
        "structural_only",
        {"finite": ["loss"]},
    ),
    Case("key.jsonl", "required key missing", b'{"a": 1}\n', "suspect", "loss", "structural_only", {"keys": ["loss"]}),
    Case("nothing.jsonl", "no record", b"\n\n", "suspect", "no record"),
]

OTHER_CASES = [
    Case("run.tfevents", "none", EVENTS, "loaded", "5 records"),
    Case("events.out.tfevents.1.host.2.0", "none, TensorBoard's name", EVENTS, "loaded"),
    Case(
        "cut.tfevents", "last record cut", EVENTS[:-7], "readable", "4 records, last one incomplete", "structural_only"
    ),
    Case("first.tfevents", "first record wrong", make.flip(EVENTS, 14), "corrupt", "record 0"),
    Case("length.tfevents", "a length wrong", make.flip(EVENTS, len(EVENTS) // 5), "corrupt", "record 1"),
    Case("short.tfevents", "not one record", EVENTS[:20], "truncated"),
    Case(
        "huge.tfevents",
        "a record of 2^60 bytes",
        EVENTS + struct.pack("<QI", 1 << 60, make.crc32c(struct.pack("<Q", 1 << 60))),
        "corrupt",
        "would be",
    ),
    Case("p.parquet", "marks right, no pages", b"PAR1" + bytes(20) + struct.pack("<I", 8) + b"PAR1", "any"),
    Case("cut.parquet", "last byte missing", b"PAR1" + bytes(20) + struct.pack("<I", 8) + b"PAR", "truncated"),
    Case("footer.parquet", "absurd footer", b"PAR1" + bytes(20) + struct.pack("<I", 1 << 31) + b"PAR1", "corrupt"),
    Case("empty.parquet", "empty", b"", "suspect"),
    Case("a.gz", "none", make.gz(b"hello" * 100), "loaded"),
    Case("two.gz", "none, two members", make.gz(b"a") + make.gz(b"b"), "loaded"),
    Case("cut.gz", "cut", make.gz(b"hello" * 100)[:-4], "truncated"),
    Case("crc.gz", "CRC wrong", make.flip(make.gz(b"hello" * 100), -6 + len(make.gz(b"hello" * 100))), "corrupt"),
    Case("tail.gz", "text after the end", make.gz(b"a") + b"junk", "corrupt"),
    Case("bomb.gz", "none, 50 MB of zeros", make.gz(bytes(50_000_000)), "loaded"),
    Case("a.tar", "none", make.tar({"a": b"x" * 1000}), "readable", "1 members", "structural_only"),
    Case("cut.tar", "cut in a member", make.tar({"a": b"x" * 9000})[:3000], "truncated"),
    Case("end.tar", "no end mark", make.tar({"a": b"x"})[:1024], "truncated", "end mark"),
    Case("header.tar", "a header wrong", make.flip(make.tar({"a": b"x", "b": b"y"}), 1030), "corrupt"),
    Case("a.zip", "none", make.archive({"a": b"x" * 1000}, zipfile.ZIP_DEFLATED), "loaded"),
    Case("crc.zip", "CRC wrong", make.flip(make.archive({"a": b"x" * 1000}), 500), "corrupt", "CRC"),
    Case("cut.zip", "cut", make.archive({"a": b"x" * 1000})[:-10], "truncated"),
    Case("a.bz2", "none", bz2.compress(b"hello" * 100), "loaded", "", "readable"),
    Case("cut.bz2", "cut", bz2.compress(b"hello" * 100)[:-4], "truncated", "", "readable"),
    Case("flip.xz", "one byte wrong", make.flip(lzma.compress(b"hello" * 100), 30), "corrupt", "", "readable"),
    Case("a.xz", "none", lzma.compress(b"hello" * 100), "loaded", "", "readable"),
    Case("a.png", "none", make.png(), "loaded", "", "readable"),
    Case("cut.png", "cut", make.png()[:-6], "truncated", "", "readable"),
    Case("crc.png", "CRC wrong", make.flip(make.png(), 20), "corrupt", "CRC", "readable"),
    Case("a.jpg", "none", b"\xff\xd8\xff\xe0" + bytes(50) + b"\xff\xd9", "readable"),
    Case("cut.jpg", "cut", b"\xff\xd8\xff\xe0" + bytes(50), "truncated", "", "readable"),
    Case("a.pkl", "none", pickle.dumps({"a": [1, 2, {3}]}), "readable", "hash alone", "structural_only"),
    Case("evil.pkl", "os.system", b"cposix\nsystem\n(Vid\ntR.", "suspect", "posix.system", "structural_only"),
    Case("cut.pkl", "cut", pickle.dumps({"a": [1, 2, 3]})[:-3], "truncated"),
    Case("log", "none", b"step 1\nstep 2\n", "readable", "2 lines"),
    Case("empty.log", "none, empty", b"", "readable"),
    Case("nul.log", "NUL bytes in a log", b"step 1\n" + bytes(30), "readable", "30 NUL"),
    Case("page.html", "none, a page that is one", HTML, "readable"),
    Case("plot.svg", "none, a drawing", b"<?xml version='1.0'?><svg/>", "readable"),
    Case("mystery.xyz", "unknown bytes", bytes(range(256)), "readable", "hash"),
    Case("model.onnx", "no loader", b"\x08\x07" + bytes(range(64)), "readable"),
]

CASES = [*TORCH_CASES, *SAFETENSORS_CASES, *NUMPY_CASES, *JSON_CASES, *OTHER_CASES]

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes artifact files byte by byte, whole ones and broken ones, without the libraries that usually write them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence

import numpy as np

# --- safetensors ---


def safetensors(tensors: dict[str, tuple[str, Sequence[int], bytes]], metadata: dict | None = None) -> bytes:
    header: dict = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    return safetensors_raw(json.dumps(header).encode(), body)


def safetensors_raw(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


# --- torch ---


def u(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def glob(name: str) -> bytes:
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def numbers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def strides(shape: Sequence[int]) -> list[int]:
    found = [1]
    for length in list(shape)[:0:-1]:
        found.append(found[-1] * length)
    return found[::-1] if shape else []


def tensor(
    key: str,
    storage: str,
    count: int,
    shape: Sequence[int],
    offset: int = 0,
    stride: Sequence[int] | None = None,
    legacy: bool = False,
) -> bytes:
    """Opcodes that leave one tensor on the stack, as torch.save writes them."""
    ident = (
        b"("
        + u("storage")
        + glob(f"torch.{storage}")
        + u(key)
        + u("cpu")
        + number(count)
        + (b"N" if legacy else b"")
        + b"tQ"
    )
    args = ident + number(offset) + numbers(shape) + numbers(strides(shape) if stride is None else stride)
    return glob("torch._utils._rebuild_tensor_v2") + b"(" + args + b"\x89" + glob("collections.OrderedDict") + b")RtR"


def mapping(items: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(u(key) + value for key, value in items.items()) + b"u"


def pickled(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def torch_zip(
    root: bytes, storages: dict[str, bytes], crc: bool = True, extra: dict[str, bytes] | None = None
) -> bytes:
    members = {"data.pkl": pickled(root), "byteorder": b"little"}
    members |= {f"data/{key}": data for key, data in storages.items()}
    members |= {"version": b"3\n", **(extra or {})}
    raw = archive({f"archive/{name}": data for name, data in members.items()})
    return raw if crc else without_crc(raw)


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, data in members.items():
            packed.writestr(zipfile.ZipInfo(name), data, method)
    return stream.getvalue()


def without_crc(raw: bytes) -> bytes:
    """Zero each CRC, in local headers and in the central directory, as torch does with compute_crc32 = False."""
    for info in zipfile.ZipFile(io.BytesIO(raw)).infolist():
        raw = raw.replace(struct.pack("<I", info.CRC), bytes(4)) if info.CRC else raw
    return raw


def simple_torch(data: bytes | None = None, storage: str = "FloatStorage", width: int = 4, crc: bool = True) -> bytes:
    data = floats(8) if data is None else data
    count = len(data) // width
    return torch_zip(mapping({"w": tensor("0", storage, count, [count])}), {"0": data}, crc=crc)


def torch_legacy(data: bytes, count: int | None = None) -> bytes:
    count = len(data) // 4 if count is None else count
    magic = pickled(number(0x1950A86A20F9469CFC6C))
    system = pickled(mapping({"little_endian": b"\x88"}))
    root = pickled(mapping({"w": tensor("17", "FloatStorage", count, [count], legacy=True)}))
    keys = pickled(b"](" + u("17") + b"e")
    return magic + pickled(number(1001)) + system + root + keys + struct.pack("<q", count) + data


def floats(count: int, odd: float | None = None, dtype: str = "<f4") -> bytes:
    values = np.linspace(0.5, 1.5, count).astype(dtype)
    if odd is not None:
        values[count // 2] = odd
    return values.tobytes()


# --- numpy ---


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npy_raw(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    raw = header.encode()
    width = "<H" if version[0] == 1 else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(width, len(raw)) + raw + data


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


# --- TensorBoard events ---


def crc32c(data: bytes) -> int:
    """Bit by bit, unlike the table that is tested."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", crc32c(length)) + data + struct.pack("<I", crc32c(data))


# --- others ---


def png(data: bytes = b"\0" * 4) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def flip(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]


def patched(raw: bytes, change: Callable[[bytearray], None]) -> bytes:
    copy = bytearray(raw)
    change(copy)
    return bytes(copy)

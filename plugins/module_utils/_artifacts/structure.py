# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Is a file whole? Told from its structure, without running, unpickling or believing anything in it.

A format is read in two steps. Its reader takes in headers and indexes (small, bounded) and lists the ``Piece``s of the
file whose bytes must be looked at; ``sweep`` then reads the file once, front to back, and feeds the pieces. The loaders
on the controller add looks of their own (finite values, required keys), so that hash, CRC and load share one read.

Nothing is allocated because a header says so: every length is compared with the file's real size first.

Sources: torch/serialization.py and caffe2/serialize (zip, 64-byte alignment, legacy five pickles), safetensors README
("Format"), numpy.lib.format (NEP 1), APPNOTE.TXT 6.3.10 (zip), RFC 1952 (gzip), POSIX ustar, git-lfs spec v1,
tensorflow/core/lib/io/record_writer.cc (events), parquet-format README.
"""

from __future__ import annotations

import ast
import codecs
import io
import json
import os
import pickletools
import re
import stat
import struct
import tarfile
import typing as t
import zipfile
import zlib

CHUNK = 1 << 17  # bytes read at once: small enough to stay in a core's cache from hash to scan
HEAD = 4096
MAX_SAFETENSORS_HEADER = 100_000_000  # the format's own limit (safetensors README)
MAX_NPY_HEADER = 1 << 20
MAX_DIRECTORY = 256 << 20  # bytes of a zip's central directory
MAX_MEMBERS = 1_000_000
MAX_JSON = 64 << 20  # beyond this JSON is not parsed whole: Python objects take some ten times the text
MAX_LINE = 64 << 20
MAX_PICKLE = 256 << 20
MAX_UNPACKED = 1 << 40  # bytes that a compressed stream may grow to

#: bits of one element. Source: safetensors/src/tensor.rs ``Dtype::bitsize``.
SAFETENSORS_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

LEGACY_MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # LONG1 0x1950a86a20f9469cfc6c
_LFS = b"version https://git-lfs.github.com/spec/v1"
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|script)\b", re.I | re.S)
_XML = re.compile(rb"\s*<(?:\?xml\b|[Ee]rror>|!doctype\b)", re.I)
_MARKUP = (".html", ".htm", ".xhtml", ".xml", ".svg", ".xsd", ".rss")

_MAGIC = (
    (b"\x93NUMPY", "npy"),
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PAR1", "parquet"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"\x89PNG\r\n\x1a\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"GIF87a", "image"),
    (b"GIF89a", "image"),
)
_SUFFIX = {
    ".pt": "torch", ".pth": "torch", ".ckpt": "torch", ".bin": "torch", ".safetensors": "safetensors",
    ".npz": "npz", ".npy": "npy", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".gz": "gz", ".tgz": "gz",
    ".zst": "zst", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".tar": "tar", ".tfevents": "tfevents",
    ".parquet": "parquet", ".h5": "hdf5", ".hdf5": "hdf5", ".onnx": "onnx", ".distcp": "distcp", ".pkl": "pickle",
    ".pickle": "pickle", ".png": "image", ".jpg": "image", ".jpeg": "image", ".gif": "image",
    ".txt": "text", ".log": "text", ".md": "text", ".csv": "text", ".tsv": "text", ".yaml": "text", ".yml": "text",
    ".toml": "text", ".py": "text", ".out": "text", ".err": "text", ".html": "text", ".xml": "text", ".svg": "text",
    ".metadata": "dcp",
}  # fmt: skip
#: formats that a user may name; another word is refused by the loaders' table
FORMATS = tuple(sorted(set(_SUFFIX.values()) | {"dcp", "unknown"}))


class Problem(Exception):
    """A file that is not whole. ``verdict`` is one of ``suspect corrupt truncated structural_only readable``."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


class Piece:
    """Bytes ``[offset, offset + length)`` of a file, named for messages, and who looks at them.

    ``feed(view)`` gets them in order, in parts of at most ``CHUNK`` bytes; ``done()`` is called after the last one.
    Both raise Problem.
    """

    __slots__ = ("done", "feed", "length", "name", "offset")

    def __init__(
        self,
        offset: int,
        length: int,
        feed: t.Callable[[t.Any], None],
        done: t.Callable[[], None] | None = None,
        name: str = "",
    ) -> None:
        self.offset, self.length, self.feed, self.done, self.name = offset, length, feed, done, name

    def also(self, look: t.Callable[[t.Any], None]) -> None:
        """Let ``look`` see the same bytes, after the feed that is there."""
        first = self.feed

        def both(view: t.Any) -> None:
            first(view)
            look(view)

        self.feed = both


class Extent:
    """Where one array's elements lie in the file. ``dtype`` as the format spells it, ``little`` its byte order."""

    __slots__ = ("dtype", "length", "little", "name", "offset", "shape")

    def __init__(self, name: str, dtype: str, shape: tuple, offset: int, length: int, little: bool = True) -> None:
        self.name, self.dtype, self.shape = name, dtype, shape
        self.offset, self.length, self.little = offset, length, little


class Layout:
    """What headers and indexes said: ``pieces`` to read, ``extents`` of arrays, ``notes`` in words, ``facts`` as data.

    ``verdict`` is what a structural check may say at best.
    """

    def __init__(self, fmt: str) -> None:
        self.fmt = fmt
        self.verdict = "structural_only"
        self.pieces: list[Piece] = []
        self.extents: list[Extent] = []
        self.notes: list[str] = []
        self.facts: dict[str, t.Any] = {}


class Options:
    """Limits in bytes: of a JSON text that is parsed whole, and of what a packed stream may grow to."""

    def __init__(self, max_json: int = MAX_JSON, max_unpacked: int = MAX_UNPACKED) -> None:
        self.max_json, self.max_unpacked = max_json, max_unpacked


# --- reading ---------------------------------------------------------------------------------------------------------


def size_of(stream: t.Any) -> int:
    return stream.size if isinstance(stream, Slice) else os.fstat(stream.fileno()).st_size


def read_at(stream: t.BinaryIO, offset: int, length: int) -> bytes:
    """At most ``length`` bytes from ``offset``; fewer at the end of the file. The file's size bounds the allocation."""
    if offset < 0:
        raise Problem("corrupt", f"an offset in it is negative ({offset})")
    stream.seek(offset)
    return stream.read(max(0, min(length, size_of(stream) - offset)))


class Slice(io.RawIOBase):
    """A part of a file as a file of its own, which never allocates more than the part holds."""

    def __init__(self, stream: t.Any, offset: int, length: int) -> None:
        super().__init__()
        self._stream, self._offset, self.size, self._at = stream, offset, length, 0
        self._buffer, self._base = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError("negative seek position")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        held = self._from_buffer(wanted)
        if len(held) < wanted:
            ahead = max(wanted, min(1 << 16, left))
            self._buffer, self._base = read_at(self._stream, self._offset + self._at, ahead), self._at
            held = self._buffer[:wanted]
        self._at += len(held)
        return held

    def _from_buffer(self, wanted: int) -> bytes:
        begin = self._at - self._base
        return self._buffer[begin : begin + wanted] if begin >= 0 else b""

    def readinto(self, buffer: t.Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def readline(self, size: int | None = -1) -> bytes:
        """pickle's old opcodes end at a newline; a line longer than 64 KiB is none of theirs."""
        line = self.read(1 << 16)
        cut = line.find(b"\n") + 1
        if cut:
            self._at -= len(line) - cut
            line = line[:cut]
        return line


def sweep(stream: t.Any, pieces: list[Piece], also: t.Callable[[memoryview], None] | None = None) -> Problem | None:
    """Feed each piece, front to back, and every byte to ``also`` (a hash) where one is given: one read of the file.

    Pieces must not overlap. The first Problem ends the feeding, not the hashing, and is returned.
    """
    todo = sorted((piece for piece in pieces if piece.length), key=lambda piece: piece.offset)
    problem = _overlap(todo) or _finish_empty(pieces)
    size, buffer = size_of(stream), bytearray(CHUNK)
    whole, at, index = memoryview(buffer), 0, 0
    if problem is not None:
        todo = []
    while at < size or index < len(todo):
        if also is None:
            if index >= len(todo):
                break
            at = max(at, todo[index].offset)
        stream.seek(at)
        got = stream.readinto(whole)
        if not got:
            break
        if also is not None:
            also(whole[:got])
        try:
            index = _feed(todo, index, whole[:got], at)
        except Problem as found:
            problem, todo, index = found, [], 0
        at += got
        if also is None and problem is not None:
            break
    if problem is None and index < len(todo):
        return Problem("truncated", f"the file ended at {at} while it was read")
    return problem


def _finish_empty(pieces: list[Piece]) -> Problem | None:
    try:
        for piece in pieces:
            if piece.done and not piece.length:
                piece.done()
    except Problem as found:
        return found
    return None


def _overlap(pieces: list[Piece]) -> Problem | None:
    for before, after in zip(pieces, pieces[1:]):
        if before.offset + before.length > after.offset:
            return Problem("corrupt", f"two parts of it claim the same bytes (at {after.offset})")
    return None


def _feed(pieces: list[Piece], index: int, view: memoryview, at: int) -> int:
    """Give ``view`` (the bytes from ``at`` on) to the pieces it touches; return the first that is not finished."""
    end = at + len(view)
    while index < len(pieces) and pieces[index].offset < end:
        piece = pieces[index]
        stop = piece.offset + piece.length
        part = view[max(0, piece.offset - at) : max(0, min(stop, end) - at)]
        if len(part):
            piece.feed(part)
        if stop > end:
            break
        if piece.done:
            piece.done()
        index += 1
    return index


# --- which format ----------------------------------------------------------------------------------------------------


def detect_format(path: t.Any) -> str:
    """The format by content first, then by suffix: one of ``FORMATS``. Raises OSError."""
    if os.path.isdir(path):
        return "dcp" if os.path.exists(os.path.join(path, _like(path, ".metadata"))) else "unknown"
    with open(path, "rb") as stream:
        return detect(read_at(stream, 0, HEAD), suffix_of(path))


def _like(path: t.Any, name: str) -> t.Any:
    return os.fsencode(name) if isinstance(path, bytes) else name


def suffix_of(path: t.Any) -> str:
    name = os.fsdecode(os.path.basename(path)).lower()
    if name == ".metadata":
        return name
    if ".tfevents" in name:
        return ".tfevents"
    return os.path.splitext(name)[1]


def detect(head: bytes, suffix: str) -> str:
    """The format of a file that begins with ``head`` (its first ``HEAD`` bytes) and is named ``*<suffix>``."""
    by_name = _SUFFIX.get(suffix, "")
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and by_name != "distcp":
        return _kind_of_zip(head, by_name)
    for magic, fmt in _MAGIC:
        if head.startswith(magic):
            return fmt
    if LEGACY_MAGIC in head[:32]:
        return "torch"
    if head[257:262] == b"ustar":
        return "tar"
    if _is_event_file(head):
        return "tfevents"
    if len(head) > 8 and head[8:9] == b"{" and by_name in ("", "safetensors") and head[4:8] == b"\0\0\0\0":
        return "safetensors"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and by_name in ("", "pickle", "dcp"):
        return by_name or "pickle"
    return by_name or ("text" if _looks_like_text(head) else "unknown")


def _kind_of_zip(head: bytes, by_name: str) -> str:
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if name.endswith(b"data.pkl") or by_name == "torch":
        return "torch"
    return "npz" if name.endswith(b".npy") or by_name == "npz" else "zip"


def _looks_like_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _is_event_file(head: bytes) -> bool:
    return len(head) >= 12 and masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def masked_crc32c(data: t.Any) -> int:
    """CRC-32C (Castagnoli) with TensorFlow's mask (tensorflow/core/lib/hash/crc32c.h)."""
    crc, table = 0xFFFFFFFF, _CRC32C
    for byte in bytes(data):
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# --- the check -------------------------------------------------------------------------------------------------------


def check(path: t.Any, fmt: str | None = None, deep: bool = True) -> dict:
    """Look whether a file is whole: ``{"format", "verdict", "detail"}``.

    ``verdict`` is one of ``structural_only suspect corrupt truncated readable``; ``readable`` means that this module
    knows no structure to check. ``deep=False`` reads headers and indexes only (a few KiB of any file). A file that
    cannot be opened is ``corrupt``. A directory is checked file by file; the first one that is not whole decides.
    """
    try:
        if os.path.isdir(path):
            return _check_directory(path, deep)
        if not stat.S_ISREG(os.stat(path).st_mode):
            return {"format": fmt or "unknown", "verdict": "corrupt", "detail": "it is no regular file"}
        with open(path, "rb") as stream:
            return _check_stream(stream, path, fmt, deep)
    except OSError as problem:
        detail = f"it cannot be read: {problem.strerror or problem}"
        return {"format": fmt or "unknown", "verdict": "corrupt", "detail": detail}


def _check_stream(stream: t.BinaryIO, path: t.Any, fmt: str | None, deep: bool) -> dict:
    head = read_at(stream, 0, HEAD)
    found = fmt or detect(head, suffix_of(path))
    try:
        layout = examine(stream, head, path, fmt)
        found = layout.fmt
        problem = sweep(stream, layout.pieces) if deep else None
        if problem is not None:
            raise problem
    except Problem as problem:
        return {"format": found, "verdict": problem.verdict, "detail": problem.detail}
    except RecursionError:
        return {"format": found, "verdict": "corrupt", "detail": "it nests without bound"}
    except MemoryError:
        return {"format": found, "verdict": "readable", "detail": "there is too little memory here to look at it"}
    return {"format": layout.fmt, "verdict": layout.verdict, "detail": "; ".join(layout.notes) or "whole"}


def examine(stream: t.BinaryIO, head: bytes, path: t.Any, fmt: str | None, options: Options | None = None) -> Layout:
    """The layout of a file, after the looks that need no format (empty, zeros, a web page, an LFS pointer)."""
    suffix = suffix_of(path)
    found = detect(head, suffix)
    wanted = fmt or found
    refuse_impostor(stream, head, wanted, suffix)
    if fmt and fmt != found and found in _READERS and fmt in _READERS and not _fits(fmt, found):
        raise Problem("corrupt", f"expected {fmt}, the content is {found}")
    reader = _READERS.get(wanted)
    if reader is None:
        layout = Layout(wanted)
        layout.verdict = "readable"
        layout.notes.append("no structure to check; only its hash vouches for it")
        return layout
    return reader(stream, head, options or Options())


#: a file of the right-hand kind may be asked for by the left-hand name
_SUBSUMES = {
    "zip": ("torch", "npz"),
    "pickle": ("torch",),
    "torch": ("pickle", "zip"),
    "npz": ("zip",),
    "text": ("json", "jsonl"),
}


def _fits(fmt: str, found: str) -> bool:
    return (
        found in _SUBSUMES.get(fmt, ()) or found == "text" or (fmt in ("json", "jsonl") and found in ("json", "jsonl"))
    )


def refuse_impostor(stream: t.BinaryIO, head: bytes, fmt: str, suffix: str) -> None:
    """Raise Problem ``suspect`` for what stands in a file's place: nothing, zeros, an error page, an LFS pointer."""
    size = size_of(stream)
    if size == 0:
        if fmt == "text":
            return
        raise Problem("suspect", "empty file (0 bytes)")
    if head.startswith(_LFS):
        raise Problem("suspect", "git-LFS pointer: the text that stands for a file, not the file (run `git lfs pull`)")
    if fmt != "text" and suffix not in _MARKUP:
        if _HTML.match(head):
            raise Problem(
                "suspect", f"HTML page in place of the file (an error or login page was saved): {_title(head)}"
            )
        if _XML.match(head):
            raise Problem("suspect", f"XML document in place of the file (an object store's error?): {_title(head)}")
    if not head.strip(b"\0") and _only_zeros(stream):
        raise Problem("suspect", f"all {size} bytes are zero (allocated, never filled)")


def _title(head: bytes) -> str:
    found = re.search(rb"<(?:title|Code|Message)>([^<]{1,80})", head, re.I)
    text = (found.group(1) if found else head.strip()[:40]).decode("ascii", "replace")
    return "".join(char if char.isprintable() else "?" for char in text)


def _only_zeros(stream: t.BinaryIO) -> bool:
    """Whether every byte is zero; holes of a sparse file are not read."""
    size, at = size_of(stream), 0
    while at < size:
        at = _next_data(stream, at, size)
        block = read_at(stream, at, CHUNK)
        if block.count(0) != len(block):
            return False
        at += len(block)
        if not block:
            break
    return True


def _next_data(stream: t.BinaryIO, at: int, size: int) -> int:
    try:
        return os.lseek(stream.fileno(), at, os.SEEK_DATA)
    except OSError as problem:  # ENXIO: a hole up to the end; else the file system cannot tell
        return size if problem.errno == 6 else at
    except AttributeError:  # no SEEK_DATA here
        return at


# --- safetensors -----------------------------------------------------------------------------------------------------


def read_safetensors(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    header, start = safetensors_header(stream)
    layout = Layout("safetensors")
    body = size_of(stream) - start
    layout.facts["metadata"] = header.pop("__metadata__", None)
    rows = sorted((_safetensors_row(name, entry) for name, entry in header.items()), key=lambda row: (row[3], row[4]))
    at, unknown = 0, []
    for name, dtype, shape, begin, end in rows:
        if begin != at:
            word = "overlaps the one before it" if begin < at else f"leaves a hole of {begin - at} bytes before it"
            raise Problem("corrupt", f"tensor {name} {word}")
        bits = SAFETENSORS_BITS.get(dtype)
        if bits is None:
            unknown.append(f"{name} ({dtype})")
        elif -(-bits * elements(shape) // 8) != end - begin:
            words = "tensor %s: shape %s of %s takes %d bytes, its range has %d"
            raise Problem("corrupt", words % (name, list(shape), dtype, -(-bits * elements(shape) // 8), end - begin))
        layout.extents.append(Extent(name, dtype, shape, start + begin, end - begin))
        at = end
    if at > body:
        raise Problem(
            "truncated",
            f"{at - body} bytes missing: the tensors end at {start + at}, the file has {start + body}",
        )
    if at < body:
        raise Problem("corrupt", f"{body - at} bytes after the last tensor")
    layout.notes.append(f"{len(rows)} tensors cover the file exactly")
    if unknown:
        layout.facts["unknown_dtype"] = unknown
        layout.notes.append("cannot verify the size of {}: unknown dtype".format(", ".join(unknown[:3])))
    return layout


def safetensors_header(stream: t.BinaryIO) -> tuple:
    """(header as a dict, offset of the first tensor byte). Raises Problem."""
    size = size_of(stream)
    if size < 8:
        raise Problem("truncated", f"{size} bytes are too few for a safetensors header")
    length = int.from_bytes(read_at(stream, 0, 8), "little")
    if length > MAX_SAFETENSORS_HEADER:
        raise Problem(
            "corrupt",
            f"not safetensors: the header would be {length} bytes long (limit {MAX_SAFETENSORS_HEADER})",
        )
    if length > size - 8:
        raise Problem(
            "truncated",
            f"{length + 8 - size} bytes missing: the header ends at {length + 8}, the file has {size}",
        )
    return _safetensors_json(read_at(stream, 8, length)), 8 + length


def _safetensors_json(raw: bytes) -> dict:
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, Problem):
            raise
        raise Problem("corrupt", f"the safetensors header is no JSON: {_short(problem)}") from problem
    if not isinstance(header, dict):
        raise Problem("corrupt", "the safetensors header is no JSON object")
    return header


def _no_duplicates(pairs: list) -> dict:
    found: dict = {}
    for key, value in pairs:
        if key in found:
            raise Problem("corrupt", f"duplicate key {_short(key)}")
        found[key] = value
    return found


def _no_constant(word: str) -> None:
    raise Problem("corrupt", f"{word} is no JSON")


def _short(value: object) -> str:
    return "".join(char if char.isprintable() else "?" for char in str(value))[:120]


def _safetensors_row(name: str, entry: object) -> tuple:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Problem("corrupt", f"tensor {_short(name)}: its entry is not {{dtype, shape, data_offsets}}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise Problem("corrupt", f"tensor {_short(name)}: dtype, shape or data_offsets have the wrong type")
    if offsets[0] > offsets[1]:
        raise Problem("corrupt", f"tensor {_short(name)}: its range ends before it begins")
    return _short(name), _short(dtype), tuple(shape), offsets[0], offsets[1]


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 64 for item in value)


def elements(shape: t.Sequence) -> int:
    """The number of elements; Python's integers do not overflow, and 64 dimensions are more than any library has."""
    if len(shape) > 64:
        raise Problem("corrupt", f"a shape of {len(shape)} dimensions")
    count = 1
    for length in shape:
        count *= length
    return count


# --- npy, npz --------------------------------------------------------------------------------------------------------


class NpyHeader(t.NamedTuple):
    descr: t.Any
    shape: tuple
    itemsize: int
    objects: bool
    length: int  # of the header itself


def read_npy(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout, size, at, count = Layout("npy"), size_of(stream), 0, 0
    while at < size:  # np.save may be called several times on one file
        if read_at(stream, at, 6) != b"\x93NUMPY":
            word = f"{size - at} bytes after the array" if count else "it does not begin as npy"
            raise Problem("corrupt", word)
        header = npy_header(Slice(stream, at, size - at))
        at += header.length
        if header.objects:
            PickleScan(Slice(stream, at, size - at))
            layout.facts["objects"] = [f"array {count}"]
            layout.notes.append("object array: its content is a pickle, which is not loaded")
            return layout
        length = header.itemsize * elements(header.shape)
        if length > size - at:
            words = "%d bytes missing: shape %s of %s takes %d bytes, %d follow"
            raise Problem(
                "truncated", words % (length - size + at, list(header.shape), header.descr, length, size - at)
            )
        layout.extents.append(npy_extent(f"array {count}", header, at, length))
        layout.facts.setdefault("headers", []).append(header)
        at += length
        count += 1
    layout.notes.append(f"shape and size agree: {_describe(layout.extents[0])}")
    return layout


def npy_extent(name: str, header: NpyHeader, offset: int, length: int) -> Extent:
    descr = header.descr if isinstance(header.descr, str) else "structured"
    return Extent(name, descr, header.shape, offset, length, little=not descr.startswith(">"))


def _describe(extent: Extent) -> str:
    return f"{extent.dtype}{list(extent.shape)}"


def npy_header(stream: t.Any) -> NpyHeader:
    """Parse the header of one npy array from a binary reader (numpy.lib.format, 1.0 to 3.0). Raises Problem."""
    start = stream.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY":
        raise Problem("truncated" if b"\x93NUMPY".startswith(start[:6]) else "corrupt", "no npy header")
    if start[6] not in (1, 2, 3):
        raise Problem("corrupt", f"npy version {start[6]}.{start[7]} is unknown")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > MAX_NPY_HEADER:
        raise Problem("corrupt", f"the npy header would be {length} bytes long")
    raw = stream.read(length)
    if len(raw) < length:
        raise Problem("truncated", f"the npy header is cut: {len(raw)} of {length} bytes")
    descr, shape = _npy_dict(raw.decode("utf-8" if start[6] == 3 else "latin-1", "replace"))
    itemsize, objects = _itemsize(descr, 0)
    return NpyHeader(descr, shape, itemsize, objects, 8 + width + length)


def _npy_dict(text: str) -> tuple:
    if text.count("(") + text.count("[") + text.count("{") > 2000:
        raise Problem("corrupt", "the npy header nests without bound")
    try:
        header = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as problem:
        raise Problem("corrupt", "the npy header is no Python literal") from problem
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise Problem("corrupt", "the npy header is not {descr, fortran_order, shape}")
    shape = header["shape"]
    if not isinstance(shape, tuple) or not all(type(item) is int and 0 <= item < 1 << 64 for item in shape):
        raise Problem("corrupt", f"the npy header's shape is {_short(shape)}")
    return header["descr"], shape


_DESCR = re.compile(r"[<>|=]?([?bBiufcmMOSUVa])(\d{0,9})(?:\[[^\]]{0,20}\])?$")
_ONE_BYTE = {"?": 1, "b": 1, "B": 1}


def _itemsize(descr: t.Any, depth: int) -> tuple:
    """(bytes of one element, whether it holds objects) of an npy dtype description."""
    if depth > 20:
        raise Problem("corrupt", "the npy dtype nests without bound")
    if isinstance(descr, str):
        return _plain_itemsize(descr)
    if isinstance(descr, tuple) and len(descr) == 2 and isinstance(descr[1], tuple):
        size, objects = _itemsize(descr[0], depth + 1)
        if not all(type(item) is int and item >= 0 for item in descr[1]):
            raise Problem("corrupt", f"the npy dtype has the shape {_short(descr[1])}")
        return size * elements(descr[1]), objects
    if isinstance(descr, list) and descr and all(isinstance(field, tuple) and len(field) in (2, 3) for field in descr):
        parts = [
            _itemsize(field[1] if len(field) == 2 else (field[1], _as_shape(field[2])), depth + 1) for field in descr
        ]
        return sum(size for size, _ in parts), any(objects for _, objects in parts)
    raise Problem("corrupt", f"the npy dtype is {_short(descr)}")


def _as_shape(value: t.Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _plain_itemsize(descr: str) -> tuple:
    found = _DESCR.match(descr)
    if not found:
        raise Problem("corrupt", f"the npy dtype is {_short(descr)}")
    kind, digits = found.group(1), found.group(2)
    if kind == "O":
        return 8, True
    if not digits and kind not in _ONE_BYTE:
        raise Problem("corrupt", f"the npy dtype is {_short(descr)}")
    size = int(digits) if digits else _ONE_BYTE[kind]
    return (size * 4 if kind == "U" else size), False


def read_npz(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    members = zip_members(stream, head)
    layout = Layout("npz")
    for member in members:
        name = _short(member.name[:-4] if member.name.endswith(".npy") else member.name)
        if not member.name.endswith(".npy"):
            layout.notes.append(f"{name} is no array")
            layout.pieces.append(member_piece(member, options))
            continue
        sink = NpySink(name, layout)
        layout.pieces.append(member_piece(member, options, sink.feed, sink.done))
    layout.facts["arrays"] = [_short(member.name[:-4]) for member in members if member.name.endswith(".npy")]
    layout.notes.insert(0, f"{len(layout.facts['arrays'])} arrays")
    if not layout.facts["arrays"]:
        raise Problem("suspect", "no array in it")
    return layout


class NpySink:
    """Checks one npy stream that arrives in parts: header, then exactly as many bytes as it announces.

    ``look(header, view)`` may be set by a loader to see the elements' bytes.
    """

    def __init__(self, name: str, layout: Layout) -> None:
        self.name, self.layout = name, layout
        self.held, self.left = bytearray(), 0
        self.header: NpyHeader | None = None
        self.look: t.Callable[[NpyHeader, t.Any], None] | None = None
        layout.facts.setdefault("sinks", []).append(self)

    def feed(self, view: t.Any) -> None:
        if self.header is None:
            self.held += view
            self._try_header()
        else:
            self._data(view)

    def _try_header(self) -> None:
        if len(self.held) < 12:
            return
        width = 2 if self.held[6] == 1 else 4
        needed = 8 + width + int.from_bytes(self.held[8 : 8 + width], "little")
        if len(self.held) < needed and needed <= MAX_NPY_HEADER + 12:
            return
        self.header = npy_header(io.BytesIO(self.held))
        rest, self.held = bytes(self.held[self.header.length :]), bytearray()
        if self.header.objects:
            self.layout.facts.setdefault("objects", []).append(self.name)
            self.layout.notes.append(f"{self.name} is an object array: its content is a pickle, which is not loaded")
        self.left = self.header.itemsize * elements(self.header.shape)
        self.layout.facts.setdefault("shapes", {})[self.name] = list(self.header.shape)
        self._data(rest)

    def _data(self, view: t.Any) -> None:
        if self.header is None or self.header.objects:
            return
        self.left -= len(view)
        if self.left < 0:
            raise Problem("corrupt", f"array {self.name}: {-self.left} bytes more than its shape takes")
        if self.look and len(view):
            self.look(self.header, view)

    def done(self) -> None:
        if self.header is None:
            raise Problem("truncated", f"array {self.name}: the npy header is cut")
        if self.left > 0 and not self.header.objects:
            raise Problem("truncated", f"array {self.name}: {self.left} bytes missing")


# --- zip -------------------------------------------------------------------------------------------------------------


class Member(t.NamedTuple):
    name: str
    offset: int  # of the data, not of the local header
    packed: int
    size: int
    crc: int
    method: int


def zip_members(stream: t.BinaryIO, head: bytes) -> list:
    """The members by the central directory, each checked against its local header. Raises Problem."""
    size = size_of(stream)
    _check_directory_size(stream, size)
    try:
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, EOFError, OverflowError) as problem:
        raise Problem("corrupt", f"zip: {_short(problem)}") from problem
    return [_member(stream, info, size) for info in infos]


def _check_directory_size(stream: t.BinaryIO, size: int) -> None:
    tail = read_at(stream, max(0, size - 65557), 65557)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        raise Problem("truncated", f"truncated, no central directory: the zip archive was cut short at {size} bytes")
    directory, comment = (
        int.from_bytes(tail[at + 12 : at + 16], "little"),
        int.from_bytes(tail[at + 20 : at + 22], "little"),
    )
    if len(tail) - at - 22 < comment:
        raise Problem("truncated", "truncated: the zip archive's comment is cut")
    if (directory > MAX_DIRECTORY and directory != 0xFFFFFFFF) or (directory > size and directory != 0xFFFFFFFF):
        raise Problem("corrupt", f"zip: a central directory of {directory} bytes")
    if directory == 0xFFFFFFFF:
        _check_zip64(tail, at, size)


def _check_zip64(tail: bytes, at: int, size: int) -> None:
    """The 64-bit end record, 56 bytes long, stands before its 20 bytes of locator (APPNOTE 4.3.14, 4.3.15)."""
    record = tail.rfind(b"PK\x06\x06", 0, at)
    directory = int.from_bytes(tail[record + 40 : record + 48], "little") if record >= 0 else 0
    if record < 0 or directory > min(size, MAX_DIRECTORY):
        raise Problem("corrupt", "zip: its 64-bit end record is missing or absurd")


def _member(stream: t.BinaryIO, info: zipfile.ZipInfo, size: int) -> Member:
    name = _short(info.filename)
    local = read_at(stream, info.header_offset, 30)
    if len(local) < 30 or local[:4] != b"PK\x03\x04":
        raise Problem("corrupt", f"zip: no header where {name} should begin")
    offset = info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    if offset + info.compress_size > size:
        raise Problem("truncated", f"zip: {name} ends at {offset + info.compress_size}, the file at {size}")
    if info.flag_bits & 1:
        raise Problem("corrupt", f"zip: {name} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Problem("corrupt", f"zip: {name} is packed by method {info.compress_type}, which no checkpoint uses")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise Problem("corrupt", f"zip: {name} is stored, but its two sizes differ")
    return Member(info.filename, offset, info.compress_size, info.file_size, info.CRC, info.compress_type)


def member_piece(
    member: Member,
    options: Options,
    feed: t.Callable[[t.Any], None] | None = None,
    done: t.Callable[[], None] | None = None,
    check_crc: bool = True,
) -> Piece:
    """The piece of one member: unpacked, its CRC compared, and given to ``feed`` as it comes."""
    state = _Crc(member, check_crc, feed, done)
    if member.method == zipfile.ZIP_STORED:
        return Piece(member.offset, member.packed, state.feed, state.done, member.name)
    if member.size > options.max_unpacked or member.size > max(1 << 20, member.packed * 1040):
        raise Problem(
            "corrupt",
            f"zip: {_short(member.name)} claims to unpack from {member.packed} to {member.size} bytes",
        )
    unpack = Inflate(state.feed, member.size, -zlib.MAX_WBITS, _short(member.name))

    def finish() -> None:
        unpack.done()
        state.done()

    return Piece(member.offset, member.packed, unpack.feed, finish, member.name)


class _Crc:
    def __init__(self, member: Member, check: bool, feed: t.Any, done: t.Any) -> None:
        self.member, self.check, self.next, self.after = member, check, feed, done
        self.crc = self.size = 0

    def feed(self, view: t.Any) -> None:
        self.size += len(view)
        if self.check:
            self.crc = zlib.crc32(view, self.crc)
        if self.next:
            self.next(view)

    def done(self) -> None:
        name = _short(self.member.name)
        if self.size != self.member.size:
            raise Problem("corrupt", f"zip: {name} has {self.size} bytes, {self.member.size} announced")
        if self.check and self.crc != self.member.crc:
            raise Problem("corrupt", f"zip: the CRC of {name} is wrong: its bytes have changed")
        if self.after:
            self.after()


class Inflate:
    """Unpacks a deflate stream in bounded parts and refuses more than ``limit`` bytes."""

    def __init__(self, feed: t.Callable[[bytes], None], limit: int, wbits: int, name: str) -> None:
        self.next, self.limit, self.wbits, self.name = feed, limit, wbits, name
        self.engine, self.size, self.spare = zlib.decompressobj(wbits), 0, b""

    def feed(self, view: t.Any) -> None:
        data: t.Any = view
        while len(data):
            try:
                part = self.engine.decompress(data, CHUNK)
            except zlib.error as problem:
                raise Problem("corrupt", f"{self.name} cannot be unpacked: {_short(problem)}") from problem
            self.size += len(part)
            if self.size > self.limit:
                raise Problem("corrupt", f"{self.name} unpacks to more than {self.limit} bytes")
            if part:
                self.next(part)
            if self.engine.eof:
                self.spare = self.engine.unused_data
                return
            data = self.engine.unconsumed_tail

    def done(self) -> None:
        while not self.engine.eof:
            part = self.engine.decompress(self.engine.unconsumed_tail, CHUNK)
            if not part:
                raise Problem("truncated", f"{self.name} ends in the middle of its packed stream")
            self.size += len(part)
            self.next(part)


def read_zip(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("zip")
    members = zip_members(stream, head)
    layout.pieces = [member_piece(member, options) for member in members]
    layout.notes.append(f"{len(members)} members, their CRCs checked")
    return layout


# --- torch -----------------------------------------------------------------------------------------------------------


def read_torch(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    if head[:2] == b"PK":
        return _read_torch_zip(stream, head, options)
    if LEGACY_MAGIC in head[:32]:
        return _read_torch_legacy(stream)
    if head[:1] == b"\x80":
        layout = read_pickle(stream, head, options)
        layout.fmt = "torch"
        layout.notes.append("a bare pickle, not a torch file")
        return layout
    if head[257:262] == b"ustar":
        layout = read_tar(stream, head, options)
        layout.fmt, layout.notes = "torch", ["the tar format of torch before 0.1.10", *layout.notes]
        return layout
    raise Problem("corrupt", f"not a torch file: it begins with {head[:8].hex()}")


def torch_members(stream: t.BinaryIO, head: bytes) -> tuple:
    """(members, name of the pickle, prefix) of a torch zip. Raises Problem."""
    members = zip_members(stream, head)
    names = {member.name for member in members}
    if len(names) != len(members):
        raise Problem("corrupt", "zip: a name occurs twice")
    pickles = sorted(name for name in names if name == "data.pkl" or name.endswith("/data.pkl"))
    pickles = [name for name in pickles if name.count("/") <= 1]
    if len(pickles) != 1:
        raise Problem("corrupt", f"no torch file: the zip archive has {len(pickles)} data.pkl")
    return members, pickles[0], pickles[0][: -len("data.pkl")]


def crc_recorded(members: list) -> bool:
    """torch can be told not to compute CRCs (``config.save.compute_crc32 = False``): then all are zero."""
    return any(member.crc for member in members if member.size)


def _read_torch_zip(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    members, pickle, prefix = torch_members(stream, head)
    layout = Layout("torch")
    recorded = crc_recorded(members)
    for member in members:
        layout.pieces.append(member_piece(member, options, check_crc=recorded and bool(member.crc)))
    main = next(member for member in members if member.name == pickle)
    if any(member.method != zipfile.ZIP_STORED for member in members if member.name.startswith(f"{prefix}data")):
        raise Problem("corrupt", "torch never packs its members, here they are packed")
    scan = PickleScan(Slice(stream, main.offset, main.size))
    held = {member.name[len(prefix) + 5 :]: member for member in members if member.name.startswith(f"{prefix}data/")}
    _compare_storages(scan.storages, held)
    places = {key: (member.offset, member.size) for key, member in held.items()}
    layout.facts.update(crc=recorded, prefix=prefix, object_at=main.offset, object_end=main.offset + main.size)
    layout.facts.update(places=places, little=_torch_is_little(stream, members, prefix))
    layout.notes.append(f"torch zip, {len(held)} storages")
    layout.notes.append("CRCs checked" if recorded else "CRC not recorded, content not checked")
    return layout


def _torch_is_little(stream: t.BinaryIO, members: list, prefix: str) -> bool:
    orders = [member for member in members if member.name == f"{prefix}byteorder"]
    return not orders or read_at(stream, orders[0].offset, min(8, orders[0].size)) != b"big"


def _compare_storages(wanted: dict, held: dict) -> None:
    for key, (kind, count) in wanted.items():
        name, width = _short(key), STORAGE_BYTES.get(kind)
        if key not in held:
            raise Problem("corrupt", f"the pickle refers to storage {name}, which is not in the archive")
        if width is not None and count * width != held[key].size:
            words = f"{count} elements of {kind} take {count * width} bytes, the archive has {held[key].size}"
            raise Problem("corrupt", f"storage {name}: {words}")


def _read_torch_legacy(stream: t.BinaryIO) -> Layout:
    """Five pickles (magic, protocol, system, object, storage keys), then per storage an int64 count and its bytes."""
    size, at = size_of(stream), 0
    starts, scans = [], []
    for part in ("magic number", "protocol", "system information", "object", "storage keys"):
        part_of = Slice(stream, at, size - at)
        try:
            scans.append(PickleScan(part_of))
        except Problem as problem:
            raise Problem(problem.verdict, f"legacy torch format, {part}: {problem.detail}") from problem
        starts.append(at)
        at += part_of.tell()
    layout = Layout("torch")
    places = _legacy_storages(stream, scans[3].storages, scans[4].atoms, at)
    layout.facts.update(legacy=True, object_at=starts[3], object_end=starts[4], places=places, little=True, crc=False)
    layout.notes.append(
        f"legacy torch format (before 1.6), five pickles whole, {len(places)} storages of the right size"
    )
    return layout


def _legacy_storages(stream: t.BinaryIO, wanted: dict, keys: list, at: int) -> dict:
    """{key: (offset, bytes)} of the storages, which follow in the order of ``keys``. Raises Problem."""
    size, places = size_of(stream), {}
    for key in keys:
        if key not in wanted:
            raise Problem("corrupt", f"legacy torch format: no tensor uses the storage {_short(key)}")
        kind, count = wanted[key]
        width = STORAGE_BYTES.get(kind)
        if width is None:
            raise Problem("structural_only", f"legacy torch format: the element size of {_short(kind)} is not known")
        at += 8
        if at + count * width > size:
            raise Problem(
                "truncated", f"legacy torch format: {at + count * width - size} bytes of its storages missing"
            )
        stored = int.from_bytes(read_at(stream, at - 8, 8), "little")
        if stored != count:
            raise Problem("corrupt", f"legacy torch format: storage {_short(key)} has {stored} elements, not {count}")
        places[key] = (at, count * width)
        at += count * width
    if set(wanted) - set(places):
        raise Problem("truncated", f"legacy torch format: {len(set(wanted) - set(places))} storages missing")
    if at < size:
        raise Problem("corrupt", f"legacy torch format: {size - at} bytes after the last storage")
    return places


#: bytes of an element. Source: torch/storage.py, ``_dtype_to_storage_type_map``.
STORAGE_BYTES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8, "QUInt8Storage": 1, "QInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1,
    "QUInt2x4Storage": 1, "UntypedStorage": 1,
}  # fmt: skip


class PickleScan:
    """One walk over a pickle's opcodes to its STOP, running nothing. Raises Problem.

    ``globals``: the names it would import, as ``module.name``; ``storages``: torch's ``{key: (type, elements)}`` from
    its persistent ids ``("storage", type, key, location, elements, …)``; ``atoms``: its strings, in order.
    """

    def __init__(self, stream: t.Any) -> None:
        self.globals: list[str] = []
        self.storages: dict = {}
        self.atoms: list[str] = []
        self._recent: list = []  # constants since the last MARK
        self._memo: dict = {}
        try:
            for opcode, argument, position in pickletools.genops(stream):
                if position is not None and position > MAX_PICKLE:
                    raise Problem("structural_only", f"a pickle of more than {MAX_PICKLE} bytes is not walked")
                self._step(opcode.name, argument)
        except ValueError as problem:
            # genops' words at the end of the data; Problem is no ValueError.
            cut = any(word in str(problem) for word in ("exhausted", "remain", "not enough data", "no newline found"))
            detail = "the pickle ends before its STOP" if cut else f"no pickle: {_short(problem)}"
            raise Problem("truncated" if cut else "corrupt", detail) from problem
        except (struct.error, IndexError, KeyError, OverflowError, SyntaxError, TypeError) as problem:
            raise Problem("corrupt", f"no pickle: {_short(problem)}") from problem

    def _step(self, name: str, argument: t.Any) -> None:
        if name in ("GLOBAL", "INST"):
            self._push(self._global(*str(argument).split(" ", 1)))
        elif name == "STACK_GLOBAL":
            words = [str(word) for word in self._recent[-2:]]
            del self._recent[-2:]
            self._push(self._global(*words))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = self._recent[-1] if self._recent else None
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._recent[-1] if self._recent else None
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._push(self._memo.get(argument))
        elif name == "MARK":
            self._recent = []
        elif name == "BINPERSID":
            self._storage()
        elif isinstance(argument, (str, int)) and name not in ("PROTO", "FRAME"):
            self._push(argument)
            if isinstance(argument, str):
                self.atoms.append(argument)

    def _push(self, value: t.Any) -> None:
        if len(self._recent) > 64:  # a persistent id is short; a long list of numbers need not be kept
            del self._recent[:32]
        self._recent.append(value)

    def _global(self, *words: str) -> str:
        self.globals.append(".".join(words))
        return self.globals[-1]

    def _storage(self) -> None:
        row = self._recent
        if "storage" not in row:
            return
        at = len(row) - 1 - row[::-1].index("storage")
        part = row[at : at + 5]
        if len(part) == 5 and isinstance(part[2], str) and type(part[4]) is int and part[4] >= 0:
            self.storages[part[2]] = (str(part[1]).rpartition(".")[2], part[4])


def read_pickle(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout, size = Layout("pickle"), size_of(stream)
    part = Slice(stream, 0, size)
    layout.facts["globals"] = sorted(set(PickleScan(part).globals))
    layout.notes.append("a pickle, whole to its STOP; it is not loaded")
    if part.tell() < size:
        layout.notes.append(f"{size - part.tell()} bytes follow it")
    return layout


# --- JSON, text ------------------------------------------------------------------------------------------------------


def read_dcp(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = read_pickle(stream, head, options)
    layout.fmt, layout.notes = "dcp", ["the index of a torch.distributed checkpoint, a pickle whole to its STOP"]
    return layout


def parse_json(raw: bytes) -> t.Any:
    """Strict JSON: UTF-8, no NaN or Infinity, no duplicate keys. Raises Problem."""
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_no_duplicates, parse_constant=_non_finite)
    except UnicodeDecodeError as problem:
        cut = problem.reason == "unexpected end of data"
        raise Problem("truncated" if cut else "corrupt", f"no UTF-8 at byte {problem.start}") from problem
    except json.JSONDecodeError as problem:
        cut = not raw.decode("utf-8-sig", "replace")[problem.pos :].strip() or "Unterminated" in problem.msg
        words = "JSON ends too early" if cut else "no JSON"
        detail = f"{words}: {problem.msg} at line {problem.lineno} column {problem.colno}"
        raise Problem("truncated" if cut else "corrupt", detail) from problem
    except RecursionError as problem:
        raise Problem("corrupt", "JSON that nests without bound") from problem
    except ValueError as problem:  # an integer of more than 4300 digits
        raise Problem("corrupt", f"no JSON: {_short(problem)}") from problem


def _non_finite(word: str) -> None:
    raise Problem("suspect", f"it holds {word}, which is no JSON and no result")


class Collect:
    """Keeps what it is fed, up to a limit."""

    def __init__(self, limit: int, use: t.Callable[[bytes], None]) -> None:
        self.held, self.limit, self.use = bytearray(), limit, use

    def feed(self, view: t.Any) -> None:
        if len(self.held) + len(view) > self.limit:
            raise Problem("readable", f"larger than {self.limit} bytes: not parsed, only its hash vouches for it")
        self.held += view

    def done(self) -> None:
        self.use(bytes(self.held))


def read_json(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("json")

    def use(raw: bytes) -> None:
        layout.facts["value"] = parse_json(raw)

    sink = Collect(options.max_json, use)
    layout.pieces.append(Piece(0, size_of(stream), sink.feed, sink.done))
    layout.notes.append("strict JSON")
    return layout


class Lines:
    """Splits what it is fed into lines; ``each(number, line)`` gets them without their newline, numbers from 1."""

    def __init__(self, each: t.Callable[[int, bytes], None], last: t.Callable[[int, bytes], None]) -> None:
        self.each, self.last, self.rest, self.number = each, last, b"", 0

    def feed(self, view: t.Any) -> None:
        lines = (self.rest + bytes(view)).split(b"\n")
        self.rest = lines.pop()
        if len(self.rest) > MAX_LINE:
            raise Problem("corrupt", f"line {self.number + 1} is longer than {MAX_LINE} bytes")
        for line in lines:
            self.number += 1
            self.each(self.number, line)

    def done(self) -> None:
        if self.rest.strip():
            self.last(self.number + 1, self.rest)


def read_jsonl(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("jsonl")
    layout.facts.update(records=0)

    def each(number: int, line: bytes) -> None:
        if not line.strip():
            return
        try:
            value = parse_json(line)
        except Problem as problem:
            verdict = "corrupt" if problem.verdict == "truncated" else problem.verdict
            raise Problem(verdict, f"line {number}: {problem.detail}") from problem
        layout.facts["records"] += 1
        look = layout.facts.get("look")
        if look:
            look(number, value)

    def last(number: int, line: bytes) -> None:
        try:
            value = parse_json(line)
        except Problem as problem:
            raise Problem(problem.verdict, f"the last line ({number}): {problem.detail}") from problem
        layout.facts["records"] += 1
        look = layout.facts.get("look")
        if look:
            look(number, value)

    lines = Lines(each, last)

    def done() -> None:
        lines.done()
        if not layout.facts["records"]:
            raise Problem("suspect", "no record in it")
        layout.notes.append(f"{layout.facts['records']} records of strict JSON")

    layout.pieces.append(Piece(0, size_of(stream), lines.feed, done))
    return layout


def read_text(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("text")
    layout.verdict = "readable"
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    seen = {"lines": 0, "nul": 0, "bad": 0}

    def feed(view: t.Any) -> None:
        part = bytes(view)
        seen["lines"] += part.count(b"\n")
        seen["nul"] += part.count(b"\0")
        seen["bad"] += decoder.decode(part).count("\ufffd")

    def done() -> None:
        layout.notes.append(f"text, {seen['lines']} lines")
        if seen["nul"]:
            layout.notes.append(f"{seen['nul']} NUL bytes in it (a crash while it was written?)")
        if seen["bad"]:
            layout.notes.append(f"{seen['bad']} places are no UTF-8")

    layout.pieces.append(Piece(0, size_of(stream), feed, done))
    return layout


# --- gz, tar, events, parquet ----------------------------------------------------------------------------------------


class GzSink:
    """One or more gzip members (RFC 1952), unpacked into ``feed``; zlib compares CRC and length itself."""

    def __init__(self, feed: t.Callable[[bytes], None], limit: int) -> None:
        self.next, self.limit = feed, limit
        self.engine: Inflate | None = None
        self.size = self.padding = 0

    def feed(self, view: t.Any) -> None:
        data = bytes(view)
        while data:
            if self.engine is None:
                data = data.lstrip(b"\0") if self.padding or self.size else data
                if not data:
                    self.padding = 1
                    return
                self.engine = Inflate(self.next, self.limit - self.size, 16 + zlib.MAX_WBITS, "gzip member")
            self.engine.feed(data)
            if not self.engine.engine.eof:
                return
            data, self.size = self.engine.spare, self.size + self.engine.size
            self.engine = None

    def done(self) -> None:
        if self.engine is not None:
            raise Problem("truncated", "gzip: the file ends in the middle of the packed stream")


def read_gz(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("gz")
    size = size_of(stream)
    limit = min(options.max_unpacked, max(1 << 20, size * 1040))

    def ignore(part: bytes) -> None:
        del part

    sink = GzSink(ignore, limit)

    def done() -> None:
        sink.done()
        layout.notes.append(f"gzip, unpacks whole to {sink.size} bytes")

    layout.pieces.append(Piece(0, size, sink.feed, done))
    return layout


def read_tar(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout, count, end = Layout("tar"), 0, 0
    size = size_of(stream)
    try:
        stream.seek(0)
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while True:
                member = archive.next()
                if member is None:
                    break
                count += 1
                end = archive.offset
                vars(archive)["members"] = []  # it would remember them all
                if count > MAX_MEMBERS:
                    raise Problem("corrupt", f"tar: more than {MAX_MEMBERS} members")
    except tarfile.TarError as problem:
        cut = "end of data" in str(problem) or "truncated" in str(problem)
        raise Problem("truncated" if cut else "corrupt", f"tar: {_short(problem)}") from problem
    except (ValueError, OverflowError, MemoryError, OSError) as problem:
        raise Problem("corrupt", f"tar: {_short(problem)}") from problem
    tail = read_at(stream, end, 512)
    if end > size or len(tail) < 512:
        raise Problem("truncated", f"tar: no end mark after {count} members")
    if tail.strip(b"\0"):
        raise Problem("corrupt", f"tar: no header where member {count + 1} should begin")
    layout.notes.append(f"tar, {count} members")
    layout.facts["members"] = count
    return layout


class EventSink:
    """TFRecord framing: u64 length, masked CRC of it, data, masked CRC of the data."""

    MAX_RECORD = 64 << 20

    def __init__(self, layout: Layout) -> None:
        self.layout, self.held, self.records = layout, b"", 0

    def feed(self, view: t.Any) -> None:
        data, at = self.held + bytes(view), 0
        while len(data) - at >= 12:
            length = int.from_bytes(data[at : at + 8], "little")
            if masked_crc32c(data[at : at + 8]) != int.from_bytes(data[at + 8 : at + 12], "little"):
                raise Problem("corrupt", f"record {self.records}: the CRC of its length is wrong")
            if length > self.MAX_RECORD:
                raise Problem("corrupt", f"record {self.records}: it would be {length} bytes long")
            if len(data) - at < 16 + length:
                break
            body = data[at + 12 : at + 12 + length]
            if masked_crc32c(body) != int.from_bytes(data[at + 12 + length : at + 16 + length], "little"):
                raise Problem("corrupt", f"record {self.records}: the CRC of its data is wrong")
            self.records += 1
            at += 16 + length
        self.held = data[at:]

    def done(self) -> None:
        if self.held:
            words = "%d records, last one incomplete (normal for a running or killed job)"
            self.layout.notes.append(words % self.records)
            self.layout.facts["last_incomplete"] = True
        else:
            self.layout.notes.append(f"{self.records} records, CRCs checked")
        self.layout.facts["records"] = self.records
        if not self.records:
            raise Problem("truncated", "not one whole record")


def read_tfevents(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    layout = Layout("tfevents")
    sink = EventSink(layout)
    layout.pieces.append(Piece(0, size_of(stream), sink.feed, sink.done))
    return layout


def read_parquet(stream: t.BinaryIO, head: bytes, options: Options) -> Layout:
    size = size_of(stream)
    tail = read_at(stream, max(0, size - 8), 8)
    if head[:4] != b"PAR1":
        raise Problem("corrupt", f"not parquet: it begins with {head[:4].hex()}")
    if size < 12 or tail[4:] != b"PAR1":
        raise Problem("truncated", "parquet: the closing PAR1 is missing")
    footer = int.from_bytes(tail[:4], "little")
    if footer > size - 12:
        raise Problem("corrupt", f"parquet: a footer of {footer} bytes in a file of {size}")
    layout = Layout("parquet")
    layout.notes.append("both marks and the footer's length fit; pages are not read")
    return layout


_READERS: dict = {
    "safetensors": read_safetensors, "npy": read_npy, "npz": read_npz, "zip": read_zip, "torch": read_torch,
    "pickle": read_pickle, "json": read_json, "jsonl": read_jsonl, "text": read_text, "gz": read_gz, "tar": read_tar,
    "tfevents": read_tfevents, "parquet": read_parquet, "dcp": read_dcp,
}  # fmt: skip


# --- directories -----------------------------------------------------------------------------------------------------


def _check_directory(path: t.Any, deep: bool) -> dict:
    """A sharded checkpoint: its index and every file in it. ``format`` is ``directory`` unless it is a DCP one."""
    fmt = "dcp" if os.path.exists(os.path.join(path, _like(path, ".metadata"))) else "directory"
    names = sorted(name for name in os.listdir(path) if os.path.isfile(os.path.join(path, name)))
    if not names:
        return {"format": fmt, "verdict": "suspect", "detail": "an empty directory"}
    problems = shard_problems(path)
    if problems:
        return {"format": fmt, "verdict": "corrupt", "detail": problems[0]}
    for name in names:
        found = check(os.path.join(path, name), deep=deep)
        if found["verdict"] not in ("structural_only", "readable"):
            detail = "{}: {}".format(os.fsdecode(name), found["detail"])
            return {"format": fmt, "verdict": found["verdict"], "detail": detail}
    return {"format": fmt, "verdict": "structural_only", "detail": f"{len(names)} files, each whole"}


def shard_problems(folder: t.Any) -> list:
    """What the index of a sharded checkpoint and its files say differently, in words: index to disk, disk to index,
    index to header. An empty list where there is no index, or nothing to say."""
    names = {os.fsdecode(name) for name in os.listdir(folder)}
    problems: list = []
    for index in sorted(name for name in names if name.endswith(".index.json")):
        problems += _index_problems(folder, index, names)
    problems += _dcp_problems(folder, names) + _family_problems(names)
    return problems


def _open_in(folder: t.Any, name: str) -> t.BinaryIO:
    return open(os.path.join(folder, os.fsencode(name) if isinstance(folder, bytes) else name), "rb")


def _index_problems(folder: t.Any, index: str, names: set) -> list:
    with _open_in(folder, index) as stream:
        if size_of(stream) > MAX_JSON:
            return [f"{index}: an index of {size_of(stream)} bytes"]
        try:
            value = parse_json(stream.read())
        except Problem as problem:
            return [f"{index}: {problem.detail}"]
    weights = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        return [f"{index}: no weight_map in it"]
    wanted = set(weights.values())
    unsafe = sorted(name for name in wanted if "/" in name or name in ("", ".", ".."))
    if unsafe:
        return [f"{index} names {_short(unsafe[0])}, which is no file beside it"]
    problems = [f"{index} names {_short(name)}, which is missing" for name in sorted(wanted - names)]
    family = re.compile(re.escape(index.split(".")[0]) + r"-\d+-of-\d+\.")
    extra = sorted(name for name in names - wanted if family.match(name))
    problems += [f"{_short(name)} is on disk, but {index} does not name it" for name in extra]
    for name in sorted(wanted & names):
        if name.endswith(".safetensors"):
            problems += _header_problems(folder, index, name, {key for key, shard in weights.items() if shard == name})
    return problems


def _header_problems(folder: t.Any, index: str, name: str, wanted: set) -> list:
    with _open_in(folder, name) as stream:
        try:
            header, _ = safetensors_header(stream)
        except Problem as problem:
            return [f"{name}: {problem.detail}"]
    held = set(header) - {"__metadata__"}
    lacking = [f"{name}: tensor {_short(key)} is in {index}, not in the file" for key in sorted(wanted - held)]
    return lacking + [f"{name}: tensor {_short(key)} is in the file, not in {index}" for key in sorted(held - wanted)]


_DCP_FILE = re.compile(r"__(\d+)_(\d+)\.distcp$")


def _dcp_problems(folder: t.Any, names: set) -> list:
    """torch.distributed.checkpoint: ``.metadata`` (a pickle) names the ``*.distcp`` files as plain strings."""
    held = {name for name in names if _DCP_FILE.match(name)}
    if ".metadata" not in names:
        return [f"no .metadata beside {len(held)} .distcp files: the save did not finish"] if held else []
    with _open_in(folder, ".metadata") as stream:
        try:
            wanted = {text for text in PickleScan(Slice(stream, 0, size_of(stream))).atoms if _DCP_FILE.match(text)}
        except Problem as problem:
            return [f".metadata: {problem.detail}"]
    problems = [f".metadata names {name}, which is missing" for name in sorted(wanted - held)]
    return problems + [f"{name} is on disk, but .metadata does not name it" for name in sorted(held - wanted)]


_FAMILY = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[A-Za-z]+)$")
_ZERO = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)(?:_\w+)?_optim_states\.pt$")


def _family_problems(names: set) -> list:
    """``x-00001-of-00003`` without its siblings, and DeepSpeed's ranks with a hole in them."""
    families: dict = {}
    for name in names:
        found = _FAMILY.match(name)
        if found:
            families.setdefault((found.group(1), found.group(3), found.group(4)), set()).add(int(found.group(2)))
    problems = []
    for (stem, total, suffix), numbers in sorted(families.items()):
        first = 0 if 0 in numbers else 1
        lacking = [number for number in range(first, min(int(total), 100_000) + first) if number not in numbers]
        if lacking:
            problems.append(f"{_short(stem)}-{lacking[0]:05d}-of-{total}{suffix} is missing")
    ranks = {int(found.group(1)) for found in map(_ZERO.match, names) if found}
    gaps = sorted(set(range(max(ranks) + 1)) - ranks) if ranks and max(ranks) < 1_000_000 else []
    return problems + [f"the DeepSpeed states of rank {rank} are missing" for rank in gaps[:1]]

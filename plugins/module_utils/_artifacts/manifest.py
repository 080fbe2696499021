# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest: what the roster holds on the box, with sizes and SHA-256. Built there, validated on the controller.

A manifest comes from a box that may be hostile: ``validate`` is the only way in, and after it every path is known to
stay inside the run's folder.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import stat
import time
import typing as t
import unicodedata

from . import structure
from .roster import Entry, Roster, collect, raw, to_bytes, to_text

SCHEMA = "tenant.gpu/manifest/1"
CHUNK = 1 << 20
MAX_FILES = 1_000_000
MAX_SIZE = 1 << 50  # one file: a pebibyte
_INT64 = 1 << 63
_NAME_MAX, _PATH_MAX = 255, 4096
#: names that the controller itself writes into a run's folder
_RESERVED = frozenset({"manifest.json", "receipt.json", "card.md"})
_HEX = re.compile(r"[0-9a-f]{64}\Z")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+,=-]{0,199}\Z")


class ManifestError(Exception):
    """A manifest that must not be used: ``seen``, ``means``, ``do``."""

    def __init__(self, seen: str, means: str, do: str) -> None:
        super().__init__(seen)
        self.seen, self.means, self.do = seen, means, do


# --- on the box ------------------------------------------------------------------------------------------------------


class _Hashed(t.NamedTuple):
    entry: Entry
    sha256: str
    moved: dict | None
    error: str | None


def build(
    run_dir: t.Any,
    run_id: str,
    instance_id: str | None,
    cells: t.Sequence[str],
    artifacts: t.Sequence[dict],
    checkpoints: dict | None,
    *,
    boot_id: str,
    host: str,
    jobs: int | None = None,
    excludes: t.Sequence[str] = (),
) -> dict:
    """A MANIFEST as in contracts, with ``moved``: files whose size or time changed while they were hashed.

    ``jobs`` threads hash at once (default: one a usable core, at most 16); hashlib lets go of the interpreter's lock.
    Raises OSError where the run directory cannot be read.
    """
    root = os.fsencode(run_dir)
    roster = collect(root, cells, artifacts, checkpoints, excludes, deep=True)
    _check_shards(root, roster)
    files, moved = [], []
    for done in _hash_all(root, roster.files, jobs):
        if done.error is not None:
            roster.lack(done.entry.cell, done.entry.artifact, f"{to_text(done.entry.path)}: {done.error}")
            continue
        if done.moved is not None:
            moved.append(done.moved)
        files.append(_row(done))
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "instance_id": instance_id,
        "made_on": {"boot_id": boot_id, "host": host},
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "newest_mtime_ns": roster.newest_mtime_ns,
        "files": sorted(files, key=lambda row: row["path"]),
        "missing": roster.missing,
        "left_behind": roster.left_behind,
        "moved": moved,
    }


def _row(done: _Hashed) -> dict:
    entry = done.entry
    return {
        "path": to_text(entry.path),
        "size": entry.size,
        "sha256": done.sha256,
        "mtime_ns": entry.mtime_ns,
        "cell": entry.cell,
        "artifact": entry.artifact,
    }


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _hash_all(root: bytes, entries: list[Entry], jobs: int | None) -> t.Iterator[_Hashed]:
    workers = jobs or min(16, usable_cores())
    # Largest first, so that no core is left with one big file at the end.
    order = sorted(entries, key=lambda entry: entry.size, reverse=True)
    if workers <= 1 or len(order) <= 1:
        return iter([_hash_one(root, entry) for entry in order])
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        batches = _batches(order, workers)
        return iter(
            [
                done
                for batch in pool.map(lambda batch: [_hash_one(root, one) for one in batch], batches)
                for done in batch
            ]
        )


def _batches(order: list[Entry], workers: int) -> list[list[Entry]]:
    """Big files alone, small ones by the hundred: a thread hand-over a file would cost more than its hash."""
    big = [[entry] for entry in order if entry.size >= CHUNK]
    small = order[len(big) :]
    step = max(1, min(256, -(-len(small) // (workers * 4))))
    return big + [small[at : at + step] for at in range(0, len(small), step)]


def _hash_one(root: bytes, entry: Entry) -> _Hashed:
    """Hash what the open file holds, then look again: both the file and the name must be what they were."""
    full = os.path.join(root, entry.path)
    digest = hashlib.sha256()
    try:
        handle = os.open(full, os.O_RDONLY | os.O_NONBLOCK)
        with open(handle, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return _Hashed(entry, "", None, "it is no regular file any more")
            _feed(stream, digest, entry.size)
        after = os.stat(full)
    except OSError as problem:
        return _Hashed(entry, "", None, f"it cannot be read: {problem.strerror}")
    moved = None
    if (after.st_size, after.st_mtime_ns) != (entry.size, entry.mtime_ns):
        moved = {
            "path": to_text(entry.path),
            "size_before": entry.size,
            "size_after": after.st_size,
            "mtime_ns_before": entry.mtime_ns,
            "mtime_ns_after": after.st_mtime_ns,
        }
    return _Hashed(entry, digest.hexdigest(), moved, None)


def _feed(stream: t.Any, digest: t.Any, size: int) -> None:
    """Hash to the end of the file, with a buffer no larger than the file needs."""
    buffer = bytearray(max(1, min(CHUNK, size + 1)))
    view = memoryview(buffer)
    while True:
        got = stream.readinto(buffer)
        if not got:
            return
        digest.update(view[:got])


def _check_shards(root: bytes, roster: Roster) -> None:
    """Sharded checkpoints among the artifacts: what index and files say differently is missing."""
    folders: dict[bytes, Entry] = {}
    for entry in roster.files:
        name = os.path.basename(entry.path)
        if name.endswith((b".index.json", b".distcp")) or name == b".metadata" or b"-of-0" in name:
            folders.setdefault(os.path.dirname(entry.path), entry)
    for folder, entry in sorted(folders.items()):
        try:
            problems = structure.shard_problems(os.path.join(root, folder))
        except OSError as problem:
            problems = [f"it cannot be read: {problem.strerror}"]
        for words in problems:
            roster.lack(entry.cell, entry.artifact, f"{to_text(folder)}: {words}")


# --- on the controller -----------------------------------------------------------------------------------------------


class File(t.NamedTuple):
    """A validated file. ``name`` is its path's bytes on both sides, ``path`` the text that stands in the manifest."""

    path: str
    name: bytes
    size: int
    sha256: str
    mtime_ns: int
    cell: str | None
    artifact: str | None


class Manifest(t.NamedTuple):
    run_id: str
    instance_id: str | None
    newest_mtime_ns: int
    files: list
    missing: list
    left_behind: list
    moved: list
    bytes: int
    collisions: list  # pairs of paths that are one on a file system without case


def validate(obj: t.Any, *, max_files: int = MAX_FILES, case_sensitive: bool = True) -> Manifest:
    """Check a manifest that came from a box, all of it. Raises ManifestError.

    ``case_sensitive=False`` refuses paths that only differ in case or in Unicode's composition: where the results go
    onto such a file system, one would overwrite the other.
    """
    if not isinstance(obj, dict) or obj.get("schema") != SCHEMA:
        raise _bad("it has no schema tenant.gpu/manifest/1", "It is not a manifest, or one of another version.")
    rows = obj.get("files")
    if not isinstance(rows, list) or len(rows) > max_files:
        count = len(rows) if isinstance(rows, list) else "no list of"
        raise _bad(f"{count} files (limit {max_files})", "Its list of files is missing or absurd.")
    files = [_file(index, row) for index, row in enumerate(rows)]
    _refuse_twins(files)
    collisions = _collisions(files)
    if collisions and not case_sensitive:
        raise _bad(
            f"{shown(collisions[0][0])} and {shown(collisions[0][1])}", "They are one file where case does not count."
        )
    return Manifest(
        _identifier(obj, "run_id"),
        None if obj.get("instance_id") is None else _identifier(obj, "instance_id"),
        _integer("newest_mtime_ns", obj.get("newest_mtime_ns"), 0, _INT64),
        files,
        [_texts("missing", row, ("artifact", "reason"), ("cell",)) for row in _rows(obj, "missing", max_files)],
        [_left_behind(row) for row in _rows(obj, "left_behind", max_files)],
        [_texts("moved", row, ("path",), ()) for row in _rows(obj, "moved", max_files)],
        sum(one.size for one in files),
        collisions,
    )


def _bad(seen: str, means: str) -> ManifestError:
    return ManifestError(
        f"the manifest from the box: {seen}",
        f"{means} Nothing was fetched or written.",
        "Make it again with collect.yml; if it repeats, do not trust this box: look at what runs there.",
    )


def shown(value: object, limit: int = 200) -> str:
    """A value from the box for the screen: short, control characters made visible, so that no escape is obeyed."""
    whole = str(value)
    text = whole[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(whole) <= limit else f"{text}…"


def _rows(obj: dict, key: str, limit: int) -> list:
    rows = obj.get(key, [])
    if not isinstance(rows, list) or len(rows) > limit:
        raise _bad(f"{key} is not a list, or longer than {limit}", "It is malformed.")
    return rows


def _identifier(obj: dict, key: str) -> str:
    value = obj.get(key)
    if not isinstance(value, str) or not _ID.match(value) or ".." in value:
        raise _bad(f"{key} is {shown(value)}", "It names no run or instance of ours.")
    return value


def _integer(key: str, value: t.Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value < high:
        raise _bad(f"{key} is {shown(value)}", "It is not a whole number in the range that a file can have.")
    return value


def _texts(key: str, row: t.Any, needed: tuple, optional: tuple) -> dict:
    if not isinstance(row, dict):
        raise _bad(f"an entry of {key} is {shown(row)}", "It is malformed.")
    for name in needed:
        if not isinstance(row.get(name), str):
            raise _bad(f"{key}: {name} is {shown(row.get(name))}", "It is malformed.")
    for name in optional:
        if not isinstance(row.get(name), (str, type(None))):
            raise _bad(f"{key}: {name} is {shown(row.get(name))}", "It is malformed.")
    return row


def _left_behind(row: t.Any) -> dict:
    _texts("left_behind", row, ("path", "reason"), ())
    _integer("left_behind: size", row.get("size"), 0, _INT64)
    if type(row.get("re_derivable")) is not bool:
        raise _bad(f"left_behind: re_derivable is {shown(row.get('re_derivable'))}", "It is malformed.")
    return t.cast(dict, row)


def _file(index: int, row: t.Any) -> File:
    if not isinstance(row, dict):
        raise _bad(f"file {index} is {shown(row)}", "It is malformed.")
    path = row.get("path")
    name = safe_path(path)
    size = _integer("the size of a file", row.get("size"), 0, MAX_SIZE)
    mtime = _integer("the time of a file", row.get("mtime_ns"), -_INT64, _INT64)
    digest = row.get("sha256")
    if not isinstance(digest, str) or not _HEX.match(digest):
        raise _bad(f"the hash of {shown(path)} is {shown(digest)}", "It is no SHA-256 of 64 lower-case hex digits.")
    _texts("files", row, (), ("cell", "artifact"))
    return File(t.cast(str, path), name, size, digest, mtime, row.get("cell"), row.get("artifact"))


def safe_path(path: t.Any) -> bytes:
    """The bytes of a path that stays below the folder it is joined to. Raises ManifestError.

    A backslash is an ordinary character, as it is on the box.
    """
    if not isinstance(path, str):
        raise _bad(f"a path is {shown(path)}", "It is no text.")
    try:
        name = to_bytes(path)
    except UnicodeEncodeError as problem:
        raise _bad(f"the path {ascii(path)[:200]}", "It holds half a character.") from problem
    if to_text(name) != path:
        raise _bad(f"the path {shown(path)}", "It spells a name in a way that we never write.")
    parts = name.split(b"/")
    if b"\0" in name or any(part in (b"", b".", b"..") for part in parts):
        raise _bad(f"the path {shown(path)}", "It is absolute, leaves the run's folder, or has empty parts.")
    if len(name) > _PATH_MAX or any(len(part) > _NAME_MAX for part in parts):
        raise _bad(f"the path {shown(path)}", "It is longer than a file system takes.")
    top = path.split("/")[0]
    if unicodedata.normalize("NFKC", top).casefold().rstrip(". ") in _RESERVED or top.startswith("."):
        raise _bad(f"the path {shown(path)}", "That name belongs to the controller's own files.")
    return name


def _refuse_twins(files: list) -> None:
    """No path twice, and none that is a file in one row and a folder in another."""
    names = {one.name for one in files}
    if len(names) != len(files):
        seen: set = set()
        twin = next(one for one in files if one.name in seen or seen.add(one.name))  # type: ignore[func-returns-value]
        raise _bad(f"{shown(twin.path)} stands in it twice", "Which of them is meant cannot be known.")
    for one in files:
        at = one.name.rfind(b"/")
        while at > 0:
            if one.name[:at] in names:
                raise _bad(f"{shown(one.path)} lies below another file", "A path is both a file and a folder.")
            at = one.name.rfind(b"/", 0, at)


def _collisions(files: list) -> list:
    folded: dict = {}
    pairs = []
    for one in files:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", one.path).casefold())
        if key in folded:
            pairs.append((folded[key], one.path))
        folded.setdefault(key, one.path)
    return pairs


def digest(obj: t.Any) -> str:
    """SHA-256 of an object as canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# --- sha256sum's text ------------------------------------------------------------------------------------------------

_SUMS_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *](.+)\Z", re.DOTALL)
_UNESCAPE = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


def write_sums(rows: t.Iterable[tuple]) -> bytes:
    """``(name: bytes, sha256: str)`` rows as sha256sum writes them (coreutils: ``\\``, newline and CR are escaped)."""
    return b"".join(_sums_line(name, sha256) for name, sha256 in rows)


def _sums_line(name: bytes, sha256: str) -> bytes:
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != name else b"") + raw(sha256) + b"  " + escaped + b"\n"


def read_sums(text: bytes) -> list:
    """The ``(name: bytes, sha256: str)`` rows of a sha256sum file; CRLF ends are tolerated. Raises ManifestError.

    Every name is one line: a CR inside a name is always written escaped, so a CR at the end belongs to the line's end.
    """
    crlf = b"\r\n" in text
    rows = []
    for number, line in enumerate(text.split(b"\n"), 1):
        line = line[:-1] if crlf and line.endswith(b"\r") else line
        if not line.strip():
            continue
        found = _SUMS_LINE.match(line)
        if not found:
            raise _bad_sums(number, line)
        name = _unescape(number, line, found.group(3)) if found.group(1) else found.group(3)
        rows.append((name, found.group(2).decode("ascii").lower()))
    return rows


def _unescape(number: int, line: bytes, name: bytes) -> bytes:
    if re.search(rb"(?<!\\)(?:\\\\)*\\(?![\\nr])", name):
        raise _bad_sums(number, line)
    return re.sub(rb"\\[\\nr]", lambda found: _UNESCAPE[found.group()], name)


def _bad_sums(number: int, line: bytes) -> ManifestError:
    return ManifestError(
        f"line {number} of the checksum file: {shown(to_text(line[:120]))}",
        "It is not '<64 hex digits>  <name>' as sha256sum writes it.",
        "Write the file again with sha256sum, in its default format.",
    )

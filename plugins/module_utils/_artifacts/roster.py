# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The roster: which files of a run must exist at the end, and what is left behind and why.

Everything below works on byte strings, so that no locale and no odd name can spoil it. In JSON a name is text: see
``to_text``.
"""

from __future__ import annotations

import os
import re
import stat
import typing as t

from . import structure

# A byte that is no UTF-8 becomes the character U+EF00 + byte (as in MirBSD's OPTU encoding, of private use). A name
# that holds such a character already has that character's own bytes escaped alike, so every name comes back exact.
_ESCAPE = 0xEF00
_ESCAPED = re.compile("[\uef80-\uefff]")

#: never results: written by tools for themselves, or not finished
_CACHES = frozenset({
    b"__pycache__", b".cache", b".ipynb_checkpoints", b".pytest_cache", b".mypy_cache", b".ruff_cache", b".git",
    b".Trash", b"lost+found", b"@eaDir", b"triton_cache", b".triton", b".nv", b"torchinductor_cache",
})  # fmt: skip
_UNFINISHED = re.compile(
    rb"(?:.*\.(?:incomplete|lock|tmp|part|partial|crdownload|swp)|.*~|tmp-.*|.*-tmp|\.nfs[0-9a-f]+|.*\.tmp[-_.].*)$"
)
_GLOB = re.compile(rb"[*?\[]")
_MAX_LEFT_BEHIND = 1000


def unfinished(name: bytes) -> bool:
    """Whether tools call a file so while they are still writing it."""
    return _UNFINISHED.match(name) is not None


def raw(text: str) -> bytes:
    """A job's word as bytes, whatever the locale."""
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    """A file name as text for JSON: UTF-8 where it is, single bytes escaped where not. ``to_bytes`` reverses it."""
    text = name.decode("utf-8", "surrogateescape")
    if _ESCAPED.search(text):
        text = _ESCAPED.sub(lambda found: found.group().encode("utf-8").decode("ascii", "surrogateescape"), text)
    return re.sub("[\udc80-\udcff]", lambda found: chr(_ESCAPE + ord(found.group()) - 0xDC00), text)


def to_bytes(text: str) -> bytes:
    """The file name that ``to_text`` wrote as ``text``. Raises UnicodeEncodeError where it holds a lone surrogate."""
    if re.search("[\ud800-\udfff]", text):
        text.encode("utf-8")
    plain = _ESCAPED.sub(lambda found: chr(0xDC00 + ord(found.group()) - _ESCAPE), text)
    return plain.encode("utf-8", "surrogateescape")


class Entry(t.NamedTuple):
    """A file of the roster. ``artifact`` is the job's path for it, or ``checkpoint``, ``attempt`` or ``run``."""

    path: bytes  # relative to the run directory, POSIX
    cell: str | None
    artifact: str
    size: int
    mtime_ns: int


class Roster:
    """``files`` (by path, each once), ``missing`` and ``left_behind`` as in a MANIFEST, and the newest time.

    ``newest_mtime_ns`` covers the files of the roster and every checkpoint that was weighed for it, also a refused one:
    what is written later than that was not looked at.
    """

    def __init__(self) -> None:
        self.files: list[Entry] = []
        self.missing: list[dict] = []
        self.left_behind: list[dict] = []
        self.newest_mtime_ns = 0
        self._paths: set[bytes] = set()
        self._inodes: dict = {}
        self._left: set[bytes] = set()

    def take(self, path: bytes, found: os.stat_result, cell: str | None, artifact: str) -> None:
        """Add one file; a second name of the same inode is left behind, since its bytes are there already."""
        if path in self._paths:
            return
        key = (found.st_dev, found.st_ino)
        if key in self._inodes:
            self.leave(path, found.st_size, f"the same file as {to_text(self._inodes[key])} (a link), taken once", True)
            return
        self._inodes[key] = path
        self._paths.add(path)
        self.files.append(Entry(path, cell, artifact, found.st_size, found.st_mtime_ns))
        self.newest_mtime_ns = max(self.newest_mtime_ns, found.st_mtime_ns)

    def has(self, path: bytes) -> bool:
        return path in self._paths

    def lack(self, cell: str | None, artifact: str, reason: str) -> None:
        self.missing.append({"cell": cell, "artifact": artifact, "reason": reason})

    def leave(self, path: bytes, size: int, reason: str, re_derivable: bool) -> None:
        if path in self._left:
            return
        self._left.add(path)
        row = {"path": to_text(path), "size": size, "reason": reason, "re_derivable": re_derivable}
        self.left_behind.append(row)


class Found(t.NamedTuple):
    path: bytes  # relative to the run directory
    stat: os.stat_result


class Walk:
    """The files below one directory of the run; what is refused on the way goes to the roster's left_behind."""

    def __init__(self, run_dir: bytes, roster: Roster, excludes: t.Sequence[bytes]) -> None:
        self.run_dir, self.roster, self.excludes = run_dir, roster, excludes
        self.real = os.path.realpath(run_dir)

    def files(self, below: bytes) -> list[Found]:
        """Regular files below ``below`` (relative to the run directory), sorted by path. Links to files inside the run
        count as the file; links to directories are not followed."""
        found: list[Found] = []
        todo = [below]
        if os.path.islink(os.path.join(self.run_dir, below)):
            reason = self._why_not_follow(os.path.join(self.run_dir, below))
            if reason and "outside" in reason:
                self.roster.leave(below, 0, reason, False)
                return []
        while todo:
            folder = todo.pop()
            for name in self._names(folder):
                self._sort_out(folder + b"/" + name, name, found, todo)
        return sorted(found)

    def _names(self, folder: bytes) -> list[bytes]:
        try:
            return os.listdir(os.path.join(self.run_dir, folder))
        except OSError as problem:
            if not isinstance(problem, FileNotFoundError):
                self.roster.leave(folder, 0, f"it cannot be read: {problem.strerror}", False)
            return []

    def _sort_out(self, path: bytes, name: bytes, found: list[Found], todo: list[bytes]) -> None:
        full = os.path.join(self.run_dir, path)
        try:
            state = os.lstat(full)
            if stat.S_ISLNK(state.st_mode):
                reason = self._why_not_follow(full)
                if reason:
                    self.roster.leave(path, 0, reason, False)
                    return
                state = os.stat(full)
        except OSError as problem:
            self.roster.leave(path, 0, f"it cannot be read: {problem.strerror}", False)
            return
        reason = self._why_exclude(path, name)
        if reason:
            self.roster.leave(path, _weight(full, state), reason, name in _CACHES)
        elif stat.S_ISDIR(state.st_mode):
            todo.append(path)
        elif stat.S_ISREG(state.st_mode):
            found.append(Found(path, state))
        else:
            self.roster.leave(path, 0, f"a {_kind(state)}, not a file", False)

    def _why_not_follow(self, full: bytes) -> str | None:
        target = os.path.realpath(full)
        shown = to_text(os.readlink(full))
        if not (target + b"/").startswith(self.real + b"/"):
            return f"link target outside the run: {shown}"
        if not os.path.exists(target):
            return f"dead link to {shown}"
        return "link to a directory, which is taken under its own name" if os.path.isdir(target) else None

    def _why_exclude(self, path: bytes, name: bytes) -> str | None:
        if name in _CACHES:
            return "a cache"
        if unfinished(name):
            return "not finished, or temporary"
        if any(matches(pattern, path) or matches(pattern, name) for pattern in self.excludes):
            return "excluded by the job"
        return None


def _kind(state: os.stat_result) -> str:
    if stat.S_ISFIFO(state.st_mode):
        return "named pipe"
    return "socket" if stat.S_ISSOCK(state.st_mode) else "device"


def _weight(full: bytes, state: os.stat_result) -> int:
    """Bytes of a file, or of all files below a directory."""
    if not stat.S_ISDIR(state.st_mode):
        return state.st_size
    total = 0
    for folder, _, names in os.walk(full):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def matches(pattern: bytes, path: bytes) -> bool:
    """Shell-like: ``*`` and ``?`` stay within a component, ``**`` spans any number of them, ``[…]`` as in fnmatch."""
    return _compiled(pattern).match(path) is not None


_PATTERNS: dict = {}


def _compiled(pattern: bytes) -> t.Any:
    if pattern not in _PATTERNS:
        _PATTERNS[pattern] = re.compile(_translate(pattern), re.DOTALL)
    return _PATTERNS[pattern]


def _translate(pattern: bytes) -> bytes:
    parts, at = [], 0
    token = re.compile(rb"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|.", re.DOTALL)
    while at < len(pattern):
        found = token.match(pattern, at)
        word = found.group() if found else pattern[at : at + 1]
        at += len(word)
        parts.append(_piece(word))
    return b"".join(parts) + rb"\Z"


def _piece(word: bytes) -> bytes:
    fixed = {b"**/": b"(?:.*/)?", b"**": b".*", b"*": b"[^/]*", b"?": b"[^/]"}
    if word in fixed:
        return fixed[word]
    if len(word) > 2 and word[:1] == b"[":
        inner = word[1:-1].replace(b"\\", b"\\\\")
        inner = b"^/" + inner[1:] if inner[:1] == b"!" else inner.replace(b"^", b"\\^")
        return b"[" + inner.replace(b"[", b"\\[") + b"]"
    return re.escape(word)


def numbers(name: bytes) -> list[int]:
    """``step-1000`` sorts after ``step-900``: the numbers in a name, in order."""
    return [int(digits) for digits in re.findall(rb"\d+", name)]


def collect(
    run_dir: t.Any,
    cells: t.Sequence[str],
    artifacts: t.Sequence[dict],
    checkpoints: dict | None,
    excludes: t.Sequence[str] = (),
    deep: bool = False,
) -> Roster:
    """What must come of a run: the job's artifacts, the newest whole checkpoint of each cell, and always the record.

    ``artifacts``: ``{path: glob below the cell's out/, format, keys, finite, cell?}``; none means all of ``out/``.
    ``checkpoints``: ``{path, pattern, keep_best}``, below the cell's folder. ``deep`` reads candidate checkpoints whole
    (CRCs); otherwise their headers and indexes decide. Raises OSError where the run directory cannot be read.
    """
    root = os.fsencode(run_dir)
    os.listdir(root)
    roster = Roster()
    walk = Walk(root, roster, [raw(word) for word in excludes])
    for name in (b"run.json", b"events.jsonl"):
        _take_if_there(roster, root, name, None, "run")
    spec = checkpoints or {}
    for cell in cells:
        place = b"cells/" + raw(cell)
        _attempts(roster, root, place, cell)
        _artifacts(roster, walk, place + b"/out", cell, [row for row in artifacts if row.get("cell") in (None, cell)])
        _checkpoints(roster, walk, place + b"/" + raw(spec.get("path") or "checkpoints"), cell, spec, deep)
    roster.files.sort()
    roster.left_behind = _bounded(sorted(roster.left_behind, key=lambda row: row["path"]))
    return roster


def _bounded(rows: list[dict]) -> list[dict]:
    if len(rows) <= _MAX_LEFT_BEHIND:
        return rows
    rest = rows[_MAX_LEFT_BEHIND:]
    derivable = all(row["re_derivable"] for row in rest)
    words = f"{len(rest)} further entries, not listed one by one"
    tail = {"path": "(others)", "size": sum(row["size"] for row in rest), "reason": words, "re_derivable": derivable}
    return [*rows[:_MAX_LEFT_BEHIND], tail]


def _take_if_there(roster: Roster, root: bytes, path: bytes, cell: str | None, artifact: str) -> None:
    try:
        state = os.lstat(os.path.join(root, path))
    except OSError:
        return
    if stat.S_ISREG(state.st_mode):
        roster.take(path, state, cell, artifact)


def _attempts(roster: Roster, root: bytes, place: bytes, cell: str) -> None:
    """Log and exit record of every attempt, also of a failed cell."""
    try:
        names = os.listdir(os.path.join(root, place))
    except OSError:
        names = []
    found = sorted((name for name in names if re.match(rb"attempt-\d+$", name)), key=numbers)
    for name in found:
        for part in (b"log", b"result.json"):
            _take_if_there(roster, root, place + b"/" + name + b"/" + part, cell, "attempt")
    if not found:
        roster.lack(cell, "attempt", "the cell never ran: there is no attempt")


def _artifacts(roster: Roster, walk: Walk, out: bytes, cell: str, rows: t.Sequence[dict]) -> None:
    files = walk.files(out)
    wanted = rows or [{"path": "**"}]
    for row in wanted:
        pattern = raw(row["path"])
        hits = _hits(pattern, out, files)
        for hit in hits:
            roster.take(hit.path, hit.stat, cell, row["path"])
        if not hits and rows:
            roster.lack(cell, row["path"], _why_missing(pattern, out, roster, files))
    for one in files:
        if not roster.has(one.path):
            roster.leave(one.path, one.stat.st_size, "no artifact of the job names it", False)


def _hits(pattern: bytes, out: bytes, files: list[Found]) -> list[Found]:
    """Files that a path means: the file itself, everything below a directory of that name, or what a glob fits."""
    exact = out + b"/" + pattern.rstrip(b"/")
    hits = [one for one in files if one.path == exact or one.path.startswith(exact + b"/")]
    if hits or not _GLOB.search(pattern):
        return hits
    skip = len(out) + 1
    return [one for one in files if _fits(pattern, one.path[skip:])]


def _fits(pattern: bytes, path: bytes) -> bool:
    """A glob that fits a directory takes what is below it."""
    parts = path.split(b"/")
    return any(matches(pattern, b"/".join(parts[:length])) for length in range(len(parts), 0, -1))


def _why_missing(pattern: bytes, out: bytes, roster: Roster, files: list[Found]) -> str:
    """Say what is there in its place, if something is."""
    name = os.path.basename(pattern)
    for row in roster.left_behind:
        path = to_bytes(row["path"])
        if path.startswith(out + b"/") and (path[len(out) + 1 :] == pattern or os.path.basename(path).startswith(name)):
            return f"only {row['path']} is there: {row['reason']}"
    if not files:
        return "nothing was written to out/"
    return "no file in out/ fits it"


def _checkpoints(roster: Roster, walk: Walk, place: bytes, cell: str, spec: dict, deep: bool) -> None:
    """The newest whole checkpoint, and the best one where the job names it; the others are left behind."""
    pattern, best = raw(spec.get("pattern") or "*"), raw(spec.get("keep_best") or "")
    newest: bytes | None = None
    for name, files in _candidates(roster, walk.files(place), place, pattern, best):
        roster.newest_mtime_ns = max([roster.newest_mtime_ns, *(one.stat.st_mtime_ns for one in files)])
        kept = bool(best) and matches(best, name)
        if newest is not None and not kept:
            _leave_all(roster, files, f"superseded by {to_text(newest)}", True)
            continue
        found = structure.check(os.path.join(walk.run_dir, place, name), deep=deep)
        if found["verdict"] not in ("structural_only", "readable"):
            _leave_all(roster, files, f"{found['verdict']}: {found['detail']}", False)
            continue
        newest = newest if kept else name
        for one in files:
            roster.take(one.path, one.stat, cell, "checkpoint")


def _candidates(roster: Roster, files: list[Found], place: bytes, pattern: bytes, best: bytes) -> list:
    """(name, its files), newest first by number; a checkpoint is a file or a directory of shards."""
    groups: dict[bytes, list[Found]] = {}
    for one in files:
        path = one.path[len(place) + 1 :]
        groups.setdefault(path if b"/" in pattern else path.split(b"/")[0], []).append(one)
    fitting = []
    for name, members in groups.items():
        if name.startswith(b".") or not (matches(pattern, name) or (best and matches(best, name))):
            _leave_all(roster, members, f"not a checkpoint: the pattern is {to_text(pattern)}", False)
        else:
            fitting.append((name, members))
    return sorted(fitting, key=lambda row: (numbers(row[0]), row[0]), reverse=True)


def _leave_all(roster: Roster, files: list[Found], reason: str, re_derivable: bool) -> None:
    for one in files:
        roster.leave(one.path, one.stat.st_size, reason, re_derivable)

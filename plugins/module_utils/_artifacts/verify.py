# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verify files from a box: their bytes against the manifest, and each artifact through its loader, in one read.

All opening and parsing happens in ``worker`` processes, one a core, each reused for many files and replaced when one
kills it or takes too long.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import queue
import select
import shutil
import stat
import subprocess
import sys
import time
import typing as t

from . import structure
from .loaders import PLANS, Limits
from .loaders.base import FAILED, VERDICTS
from .manifest import File, Manifest, shown, usable_cores, validate
from .roster import to_bytes, to_text

#: names in a run's folder that the controller writes itself
OWN_FILES = frozenset({b"MANIFEST.json", b"RECEIPT.json", b"CARD.md"})
#: what a user may write as an artifact's format
FORMATS = tuple(sorted({*PLANS, "hdf5", "onnx", "zst", "distcp", "unknown"}))
_START = "import sys; sys.path.append(sys.argv.pop(2)); from _artifacts.worker import main; main()"
_RECORDS = frozenset({"run", "attempt"})
_GRACE = 10.0
_DETAIL = 500  # characters

safe_text = shown


class Request(t.NamedTuple):
    """One file to look at. ``path`` is absolute; ``load=False`` only hashes."""

    path: bytes
    format: str | None = None
    keys: tuple[str, ...] = ()
    finite: tuple[str, ...] = ()
    load: bool = True
    hash: bool = True


class Worker:
    """One confined process, started when first needed."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._held = b""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, requests: t.Sequence[Request]) -> list[dict[str, t.Any]]:
        """The answers; a verdict of our own where the process died of a file or took too long, and a new process then.

        All requests are written at once, so they must fit into a pipe (``_batches``).
        """
        answers: list[dict[str, t.Any]] = []
        while len(answers) < len(requests):
            answers += self._ask(requests[len(answers) :])
        return answers

    def _ask(self, requests: t.Sequence[Request]) -> list[dict[str, t.Any]]:
        """The answers up to and with the first file that ended the process."""
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # a dead process shows in the missing reply
            process.stdin.write(b"".join(map(_encoded, requests)))
            process.stdin.flush()
        answers = []
        for request in requests:
            found = self._reply(request, self.limits.seconds(_size(request.path)) + _GRACE)
            answers.append(found)
            if found.get("killed"):
                break
        return answers

    def _reply(self, request: Request, seconds: float) -> dict[str, t.Any]:
        line = self._line(seconds)
        if line is None:
            return self._gave_up(request, f"it took more than {seconds:.0f} s, and was given up")
        try:
            return t.cast("dict[str, t.Any]", json.loads(line))
        except ValueError:
            return self._gave_up(request, "reading it killed the verifier (memory or time limit, or a crash)")

    def _line(self, seconds: float) -> bytes | None:
        """One line; None when time is up, b"" at the end of the stream."""
        assert self._process is not None and self._process.stdout is not None
        handle, end = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._held:
            if not select.select([handle], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            part = os.read(handle, 1 << 16)
            if not part:
                return b""
            self._held += part
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _start(self) -> subprocess.Popen[bytes]:
        home = str(pathlib.Path(__file__).resolve().parent.parent)
        command = [*_without_network(), sys.executable, "-I", "-c", _START, json.dumps(self.limits._asdict()), home]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/"
        )
        return self._process

    def _gave_up(self, request: Request, detail: str) -> dict[str, t.Any]:
        self.close()
        return {
            "format": request.format or "unknown",
            "verdict": "suspect",
            "detail": detail,
            "facts": {},
            "killed": True,
        }

    def close(self) -> None:
        process, self._process, self._held = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()


def _size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _encoded(request: Request) -> bytes:
    return json.dumps({**request._asdict(), "path": to_text(request.path)}).encode() + b"\n"


_BATCH_FILES, _BATCH_BYTES, _BATCH_REQUESTS = 64, 4 << 20, 32 << 10


def _batches(requests: t.Sequence[Request]) -> list[list[int]]:
    """Places of requests, by batches: large files first and alone, small ones together, for a hand-over costs as much
    as a small file. A batch's lines fit into a pipe's 64 KiB, so that writing them never waits."""
    sizes = [_size(request.path) for request in requests]
    batches: list[list[int]] = []
    files, bytes_, text = _BATCH_FILES, 0, 0
    for index in sorted(range(len(requests)), key=lambda index: -sizes[index]):
        line = len(_encoded(requests[index]))
        if files >= _BATCH_FILES or bytes_ + sizes[index] > _BATCH_BYTES or text + line > _BATCH_REQUESTS:
            batches.append([])
            files = bytes_ = text = 0
        batches[-1].append(index)
        files, bytes_, text = files + 1, bytes_ + sizes[index], text + line
    return batches


@functools.cache
def _without_network() -> tuple[str, ...]:
    """The command in front that takes the network away, where this system lets an ordinary user do it."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    words = (unshare, "--user", "--map-current-user", "--net", "--")
    for command in (words, (unshare, "-rn", "--")):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if not subprocess.run([*command, "true"], capture_output=True, timeout=10, check=False).returncode:
                return command
    return ()


class Mapper(t.Protocol):
    """What answers requests: a ``Pool``, or something that stands before one."""

    def map(self, requests: t.Sequence[Request]) -> list[dict[str, t.Any]]: ...


class Pool:
    """Workers for several files at once. Use it as a context manager."""

    def __init__(self, jobs: int | None = None, limits: Limits | None = None) -> None:
        self.jobs = max(1, jobs or usable_cores())
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all = [Worker(limits or Limits()) for _ in range(self.jobs)]
        for worker in self._all:
            self._idle.put(worker)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.close()

    def ask(self, request: Request) -> dict[str, t.Any]:
        return self._ask([request])[0]

    def _ask(self, requests: list[Request]) -> list[dict[str, t.Any]]:
        worker = self._idle.get()
        try:
            return worker.ask(requests)
        finally:
            self._idle.put(worker)

    def map(self, requests: t.Sequence[Request]) -> list[dict[str, t.Any]]:
        """The answers, in the order of the requests."""
        batches = _batches(requests)
        answers: list[dict[str, t.Any]] = [{}] * len(requests)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as threads:
            work = threads.map(self._ask, [[requests[index] for index in batch] for batch in batches])
            for batch, found in zip(batches, work, strict=True):
                for index, one in zip(batch, found, strict=True):
                    answers[index] = one
        return answers

    def peak_bytes(self) -> int:
        """The most memory that a worker of now has had (VmHWM of proc(5)); 0 where that cannot be told."""
        return max((_peak(worker.pid) for worker in self._all), default=0)


def _peak(pid: int | None) -> int:
    try:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM:")), 0)


def verify_file(
    path: t.Any,
    *,
    format: str | None = None,
    keys: t.Sequence[str] = (),
    finite: t.Sequence[str] = (),
    limits: Limits | None = None,
    pool: Pool | None = None,
) -> dict[str, t.Any]:
    """Load one file in a confined process: ``{path, format, verdict, detail, facts, size, sha256}``.

    ``verdict`` is one of ``loaded readable structural_only suspect corrupt truncated``. ``limits`` is for a pool of its
    own, where none is given. Never raises for what the file holds.
    """
    request = _alone(os.fsencode(path), format, keys, finite)
    if pool is not None:
        return _row(os.fsencode(path), pool.ask(request))
    with Pool(1, limits) as own:
        return _row(os.fsencode(path), own.ask(request))


def _alone(path: bytes, format: str | None, keys: t.Sequence[str], finite: t.Sequence[str]) -> Request:
    """A file that the user names: links of his own are followed, as any program that loads it would."""
    return Request(os.path.realpath(path), format, tuple(keys), tuple(finite))


def _row(path: bytes, found: dict[str, t.Any]) -> dict[str, t.Any]:
    dead = os.path.islink(path) and not os.path.exists(path)
    detail = f"dead link to {to_text(os.readlink(path))}" if dead else found["detail"]
    return {"path": to_text(path), "size": None, "sha256": None, **found, "detail": shown(detail, _DETAIL)}


def worst(rows: t.Iterable[dict[str, t.Any]]) -> str:
    """The worst verdict of some results; ``loaded`` where there are none."""
    return max((row["verdict"] for row in rows), key=VERDICTS.index, default="loaded")


# --- a tree against its manifest -------------------------------------------------------------------------------------


def verify_tree(
    root: t.Any,
    manifest: dict[str, t.Any] | Manifest,
    artifacts: t.Sequence[dict[str, t.Any]] = (),
    jobs: int | None = None,
    *,
    limits: Limits | None = None,
    pool: Mapper | None = None,
) -> dict[str, t.Any]:
    """Hash every file of a manifest below ``root`` and load every artifact of the job's list, in one read each.

    Answers ``{artifacts: [{path, format, verdict, detail, cell, artifact, size, sha256, facts}], failed, mismatched:
    [path], differences: [{path, wanted: {size, sha256}, found}], missing: [path], strangers: [path], files, bytes}``.
    ``failed`` counts bad artifacts, mismatches and missing files. Paths are text as in the manifest; ``to_bytes`` gives
    the name on disk. Raises ManifestError for a manifest that must not be used.
    """
    checked = manifest if isinstance(manifest, Manifest) else validate(manifest)
    base = os.path.realpath(os.fsencode(root))
    real = functools.lru_cache(maxsize=4096)(functools.partial(_real_folder, base))
    here = [one for one in checked.files if _is_inside(base, one.name, real)]
    missing = sorted({one.path for one in checked.files} - {one.path for one in here})
    requests = [request_for(base, one, artifacts) for one in here]
    if pool is not None:
        answers = pool.map(requests)
    else:
        with Pool(jobs, limits) as own:
            answers = own.map(requests)
    differences = [row for one, found in zip(here, answers, strict=True) for row in _difference(one, found)]
    rows = [
        _artifact_row(one, found)
        for one, request, found in zip(here, requests, answers, strict=True)
        if request.load and one.artifact not in _RECORDS
    ]
    rows += _sharded(base, checked, rows)
    bad = sum(row["verdict"] in FAILED for row in rows)
    return {
        "artifacts": rows,
        "failed": bad + len(differences) + len(missing),
        "mismatched": [row["path"] for row in differences],
        "differences": differences,
        "missing": missing,
        "strangers": strangers(base, checked),
        "files": len(here),
        "bytes": sum(one.size for one in here),
    }


def _is_inside(base: bytes, name: bytes, real: t.Callable[[bytes], bool]) -> bool:
    """Whether the file is there as a regular file, with no link anywhere on the way from ``base``."""
    full = os.path.join(base, name)
    try:
        if not stat.S_ISREG(os.lstat(full).st_mode):
            return False
    except OSError:
        return False
    return real(os.path.dirname(full))


def _real_folder(base: bytes, folder: bytes) -> bool:
    return os.path.realpath(folder) == folder and (folder + b"/").startswith(base + b"/")


def request_for(base: bytes, one: File, artifacts: t.Sequence[dict[str, t.Any]]) -> Request:
    """How one file of a manifest below ``base`` is to be looked at, as ``verify_tree`` does it."""
    path = os.path.join(base, one.name)
    if one.artifact in _RECORDS:
        return Request(path, load=False)
    entry = _entry(one, artifacts)
    if entry is None:
        return Request(path)
    return Request(path, entry.get("format"), tuple(entry.get("keys") or ()), tuple(entry.get("finite") or ()))


def _entry(one: File, artifacts: t.Sequence[dict[str, t.Any]]) -> dict[str, t.Any] | None:
    fitting = [row for row in artifacts if row["path"] == one.artifact]
    own = [row for row in fitting if row.get("cell") == one.cell]
    return next(iter([*own, *(row for row in fitting if not row.get("cell"))]), None)


def _difference(one: File, found: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    if found.get("sha256") == one.sha256 and found.get("size") == one.size:
        return []
    wanted = {"size": one.size, "sha256": one.sha256}
    return [{"path": one.path, "wanted": wanted, "found": {key: found.get(key) for key in wanted}}]


def _artifact_row(one: File, found: dict[str, t.Any]) -> dict[str, t.Any]:
    row = {"path": one.path, "cell": one.cell, "artifact": one.artifact, "size": one.size, "sha256": one.sha256}
    kept = {key: found[key] for key in ("format", "verdict", "detail", "facts")}
    return {**row, **kept, "detail": shown(found["detail"], _DETAIL)}


def _sharded(base: bytes, manifest: Manifest, rows: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """A row for each folder of shards whose index and files do not agree."""
    marks = (b".index.json", b".distcp", b".metadata")
    folders: dict[bytes, File] = {}
    for one in manifest.files:
        if one.name.endswith(marks) or b"-of-0" in one.name:
            folders.setdefault(os.path.dirname(one.name), one)
    found: list[dict[str, t.Any]] = []
    for folder, one in sorted(folders.items()):
        for words in _shard_problems(os.path.join(base, folder)):
            row = {"path": to_text(folder), "cell": one.cell, "artifact": one.artifact, "size": 0, "sha256": None}
            found.append(
                {**row, "format": "sharded", "verdict": "corrupt", "detail": shown(words, _DETAIL), "facts": {}}
            )
    return found


def _shard_problems(folder: bytes) -> list[str]:
    try:
        return structure.shard_problems(folder)
    except OSError as problem:
        return [f"it cannot be read: {problem.strerror}"]


def strangers(root: t.Any, manifest: Manifest) -> list[str]:
    """Files and links below ``root`` that the manifest does not name, the controller's own ones aside."""
    base = os.fsencode(root)
    known = {one.name for one in manifest.files} | OWN_FILES
    found = []
    for folder, folders, names in os.walk(base):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in [*names, *links]:
            path = os.path.relpath(os.path.join(folder, name), base)
            if path not in known:
                found.append(to_text(path))
        folders[:] = [name for name in folders if not (folder == base and name.startswith(b"."))]
    return sorted(found)


def verify_path(
    path: t.Any,
    *,
    format: str | None = None,
    keys: t.Sequence[str] = (),
    finite: t.Sequence[str] = (),
    jobs: int | None = None,
    limits: Limits | None = None,
) -> dict[str, t.Any]:
    """Load a file, or every file below a directory, without a manifest: as ``verify_tree`` answers. Raises OSError."""
    top = os.fsencode(path)
    if not os.path.isdir(top):
        os.stat(top)
        return _summary([verify_file(top, format=format, keys=keys, finite=finite, limits=limits)])
    files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)

    def shorter(one: bytes) -> str:
        return to_text(os.path.relpath(one, top))

    with Pool(jobs, limits) as pool:
        answers = pool.map([_alone(one, format, keys, finite) for one in files])
    rows = [{**_row(one, found), "path": shorter(one)} for one, found in zip(files, answers, strict=True)]
    for folder, _, _ in os.walk(top):
        for words in _shard_problems(folder):
            found = {"format": "sharded", "verdict": "corrupt", "detail": words, "facts": {}}
            rows.append({**_row(folder, found), "path": shorter(folder)})
    return _summary(rows)


def _summary(rows: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    failed = sum(row["verdict"] in FAILED for row in rows)
    return {
        "artifacts": rows,
        "failed": failed,
        "mismatched": [],
        "differences": [],
        "missing": [],
        "strangers": [],
        "files": len(rows),
        "bytes": sum(row["size"] or 0 for row in rows),
    }


__all__ = [
    "FAILED",
    "FORMATS",
    "Limits",
    "Pool",
    "Request",
    "request_for",
    "safe_text",
    "strangers",
    "to_bytes",
    "verify_file",
    "verify_path",
    "verify_tree",
    "worst",
]

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest: names that round-trip, files that move, and what a hostile box may not say."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest, roster
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.manifest import ManifestError
from tests.unit.artifacts.runs import build, make_run, paths, write

pytestmark = pytest.mark.artifacts
NAMES = [
    b"new\nline.pt", b"back\\slash.pt", b"cr\r.pt", b"sp ace.pt", b"\xff\xfe.pt", "模型.pt".encode(), b"-rf",
    "\uef85.pt".encode(), b"\x1b[31mred.pt", b"'quote\".pt", b"*.pt", b"\xed\xa0\x80.pt", b"e\xcc\x81.pt",
    b"\xc3\xa9.pt", b" .pt ",
]  # fmt: skip


def row(path: str = "run.json", **change: Any) -> dict:
    return {"path": path, "size": 1, "sha256": "a" * 64, "mtime_ns": 1, "cell": None, "artifact": "run", **change}


def whole(*rows: dict, **change: Any) -> dict:
    return {
        "schema": manifest.SCHEMA, "run_id": "r-1", "instance_id": "i-1", "made_on": {"boot_id": "b", "host": "h"},
        "made_at": "2026-12-01T00:00:00Z", "newest_mtime_ns": 1, "files": list(rows), "missing": [], "left_behind": [],
        "moved": [], **change,
    }  # fmt: skip


# --- names ---


@given(st.binary(max_size=40))
def test_any_name_comes_back(name: bytes) -> None:
    text = roster.to_text(name)
    assert roster.to_bytes(text) == name
    assert json.loads(json.dumps(text, ensure_ascii=False).encode()) == text


@given(st.text(max_size=20))
def test_utf8_names_are_themselves(text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    if not any("\uef80" <= char <= "\uefff" for char in text):
        assert roster.to_text(raw) == text


def test_odd_names_on_disk(tmp_path: Path) -> None:
    make_run(tmp_path)
    for number, name in enumerate(NAMES):
        write(tmp_path, b"cells/main/out/" + name, b"%d" % number)
    made = json.loads(json.dumps(build(tmp_path, artifacts=[])))
    checked = manifest.validate(made)
    found = {os.path.basename(one.name) for one in checked.files}
    assert set(NAMES) <= found
    for one in checked.files:
        full = os.path.join(os.fsencode(tmp_path), one.name)
        assert hashlib.sha256(Path(os.fsdecode(full)).read_bytes()).hexdigest() == one.sha256


# --- hashing ---


def test_hashes_are_right_with_any_number_of_threads(tmp_path: Path) -> None:
    make_run(tmp_path)
    for number in range(300):
        write(tmp_path, f"cells/main/out/many/{number}", os.urandom(number))
    write(tmp_path, "cells/main/out/big", os.urandom(3 << 20))
    one, four = (build(tmp_path, artifacts=[], jobs=jobs) for jobs in (1, 4))
    assert one["files"] == four["files"] and len(one["files"]) > 300
    for entry in one["files"]:
        assert entry["sha256"] == hashlib.sha256((tmp_path / entry["path"]).read_bytes()).hexdigest()


def test_a_file_that_moves_while_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    target = tmp_path / "cells/main/out/best.pt"
    real = manifest._feed

    def slow(stream: Any, digest: Any, size: int) -> None:
        real(stream, digest, size)
        if size == target.stat().st_size:
            target.write_bytes(b"other content")

    monkeypatch.setattr(manifest, "_feed", slow)
    made = build(tmp_path)
    (moved,) = [row for row in made["moved"] if row["path"] == "cells/main/out/best.pt"]
    assert moved["size_after"] == 13 and moved["size_before"] > 13


def test_a_log_that_grows_is_seen_as_moved(tmp_path: Path) -> None:
    """The real thing: a writer that does not stop while a large file is hashed."""
    make_run(tmp_path)
    log = write(tmp_path, "cells/main/out/growing", os.urandom(8 << 20))
    stop = threading.Event()

    def grow() -> None:
        with open(log, "ab") as stream:
            while not stop.is_set():
                stream.write(b"x" * 100)
                stream.flush()
                time.sleep(0.001)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        made = build(tmp_path, artifacts=[])
    finally:
        stop.set()
        thread.join()
    assert "cells/main/out/growing" in [row["path"] for row in made["moved"]]


def test_an_unreadable_file_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    real = os.open

    def refuse(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(os.fsdecode(path)).endswith("metrics.json"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    made = build(tmp_path)
    assert "cells/main/out/metrics.json" not in paths(made)
    assert [row["artifact"] for row in made["missing"]] == ["metrics.json"]


# --- the box's own Python ---


def old_pythons() -> list[str]:
    """Interpreters of the oldest kind that a box may have."""
    homes = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    found = [
        str(path)
        for home in homes
        if os.access(home, os.R_OK | os.X_OK)
        for path in sorted(home.glob("3.8.*/bin/python3.8"))
    ]
    return found or [path for path in [shutil.which("python3.8")] if path]


def test_the_same_manifest_on_an_old_python_in_the_c_locale(tmp_path: Path) -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("no Python 3.8 is installed here")
    run = make_run(tmp_path / "run")
    for number, name in enumerate(NAMES):
        write(run, b"cells/main/out/" + name, b"%d" % number)
    home = Path(manifest.__file__).resolve().parent.parent
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from _artifacts import manifest;"
        "print(json.dumps(manifest.build(sys.argv[2], 'digits-1', 'i-1', ['main'], [], {'pattern': 'step-*.pt'},"
        " boot_id='boot', host='box')))"
    )
    command = [pythons[0], "-I", "-c", program, str(home), str(run)]
    reply = subprocess.run(command, capture_output=True, check=True, env={"LC_ALL": "C"})
    there, here = json.loads(reply.stdout), build(run, artifacts=[])
    for made in (there, here):
        made.pop("made_at")
    assert there == here


# --- hostile manifests ---


def test_a_whole_manifest_is_taken() -> None:
    checked = manifest.validate(whole(row(), row("cells/a/out/back\\slash.pt", size=5)))
    assert checked.bytes == 6 and checked.files[1].name == b"cells/a/out/back\\slash.pt"


HOSTILE: dict[str, Any] = {
    "not an object": [],
    "no schema": {"files": []},
    "another schema": whole(schema="tenant.gpu/manifest/2"),
    "files no list": whole(files={}),
    "file no object": whole(files=["run.json"]),
    "dot dot": whole(row("cells/../../etc/passwd")),
    "dot dot alone": whole(row("..")),
    "dot": whole(row("./run.json")),
    "absolute": whole(row("/etc/passwd")),
    "empty": whole(row("")),
    "empty part": whole(row("cells//x")),
    "trailing slash": whole(row("cells/")),
    "nul": whole(row("a\0b")),
    "lone surrogate": whole(row("a\ud800")),
    "escape of a plain letter": whole(row("a\uef80\u0301".replace("\u0301", "") + "\uefff" + "b", size=-1)),
    "escape that spells UTF-8": whole(row("\uefc3\uefa9.pt")),
    "path a number": whole(row(7)),  # type: ignore[arg-type]
    "path null": whole(row(None)),  # type: ignore[arg-type]
    "long part": whole(row("a" * 256)),
    "long path": whole(row("/".join(["a" * 200] * 30))),
    "our receipt": whole(row("RECEIPT.json")),
    "our receipt in another case": whole(row("Receipt.JSON")),
    "our receipt with a dot": whole(row("RECEIPT.json.")),
    "our manifest in wide letters": whole(row("ＭＡＮＩＦＥＳＴ.json")),
    "our card below": whole(row("CARD.md/x")),
    "hidden at the top": whole(row(".ssh/authorized_keys")),
    "twice": whole(row(), row()),
    "file and folder": whole(row("cells"), row("cells/a")),
    "size negative": whole(row(size=-1)),
    "size huge": whole(row(size=1 << 62)),
    "size a float": whole(row(size=1.0)),
    "size NaN": whole(row(size=float("nan"))),
    "size a boolean": whole(row(size=True)),
    "size text": whole(row(size="1")),
    "hash short": whole(row(sha256="a" * 63)),
    "hash upper case": whole(row(sha256="A" * 64)),
    "hash no hex": whole(row(sha256="g" * 64)),
    "hash with newline": whole(row(sha256="a" * 64 + "\n")),
    "hash null": whole(row(sha256=None)),
    "time text": whole(row(mtime_ns="1")),
    "time huge": whole(row(mtime_ns=1 << 70)),
    "cell a list": whole(row(cell=["a"])),
    "run id leaves": whole(row(), run_id="../other"),
    "run id null": whole(row(), run_id=None),
    "run id with escape": whole(row(), run_id="a\x1b[31m"),
    "instance id a number": whole(row(), instance_id=5),
    "newest infinite": whole(row(), newest_mtime_ns=float("inf")),
    "missing no list": whole(row(), missing={"a": 1}),
    "missing of numbers": whole(row(), missing=[1]),
    "left behind without size": whole(row(), left_behind=[{"path": "a", "reason": "b", "re_derivable": True}]),
    "left behind yes": whole(row(), left_behind=[{"path": "a", "size": 1, "reason": "b", "re_derivable": "yes"}]),
    "moved of text": whole(row(), moved=["x"]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_manifest_is_refused(name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        manifest.validate(HOSTILE[name])
    assert caught.value.seen and caught.value.means and caught.value.do
    assert caught.value.seen.isprintable(), "a name from a box must not drive the terminal"


def test_too_many_files() -> None:
    with pytest.raises(ManifestError, match="3 files"):
        manifest.validate(whole(row("a"), row("b"), row("c")), max_files=2)


def test_names_that_differ_in_case_only() -> None:
    made = whole(row("cells/a/A.pt"), row("cells/a/a.pt"), row("cells/é"), row("cells/e\u0301"))
    assert len(manifest.validate(made).collisions) == 2, "legal on the box and on most controllers"
    with pytest.raises(ManifestError, match=r"A\.pt and cells/a/a\.pt"):
        manifest.validate(made, case_sensitive=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(st.sampled_from(sorted(whole())), JSON)
def test_any_value_in_any_place_is_taken_or_refused(key: str, value: Any) -> None:
    try:
        manifest.validate(whole(**{key: value}))
    except ManifestError:
        return


@settings(max_examples=150)
@given(st.sampled_from(sorted(row())), JSON)
def test_any_value_in_a_file_is_taken_or_refused(key: str, value: Any) -> None:
    try:
        checked = manifest.validate(whole(row(**{key: value}) if key != "path" else row(value)))
    except ManifestError:
        return
    (one,) = checked.files
    base = b"/results/run"
    assert os.path.normpath(os.path.join(base, one.name)).startswith(base + b"/")


@given(st.text(min_size=1, max_size=30))
def test_a_safe_path_stays_inside(path: str) -> None:
    try:
        name = manifest.safe_path(path)
    except ManifestError:
        return
    assert os.path.normpath(b"/base/" + name) == b"/base/" + name


def test_digest_does_not_depend_on_order() -> None:
    one, other = whole(row()), dict(reversed(whole(row()).items()))
    assert manifest.digest(one) == manifest.digest(other)
    assert manifest.digest(one) != manifest.digest(whole(row(size=2)))


# --- sha256sum (C29) ---


def test_sums_as_sha256sum_writes_them(tmp_path: Path) -> None:
    names = [b"new\nline.pt", b"back\\slash.pt", b"cr\r.pt", b"sp ace.pt", b"\xff.pt", b"plain", b"back\\nslash"]
    for name in names:
        write(tmp_path, name, name)
    text = subprocess.run(["sha256sum", *names], cwd=tmp_path, capture_output=True, check=True).stdout
    rows = [(name, hashlib.sha256(name).hexdigest()) for name in names]
    assert manifest.read_sums(text) == rows
    assert manifest.write_sums(rows) == text
    assert manifest.read_sums(text.replace(b"\n", b"\r\n")) == rows, "CRLF ends are no part of a name"
    binary = subprocess.run(["sha256sum", "-b", *names], cwd=tmp_path, capture_output=True, check=True).stdout
    assert manifest.read_sums(binary) == rows


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name), st.just("0" * 64)))
)
def test_sums_round_trip(rows: list) -> None:
    text = manifest.write_sums(rows)
    assert manifest.read_sums(text) == rows


@pytest.mark.parametrize("text", [b"hello\n", b"abc  name\n", b"\\" + b"0" * 64 + b"  bad\\x\n", b"0" * 64 + b" \n"])
def test_bad_sums_are_refused(text: bytes) -> None:
    with pytest.raises(ManifestError, match="line 1"):
        manifest.read_sums(text)


def test_box_side_imports_nothing_but_the_standard_library() -> None:
    home = Path(manifest.__file__).resolve().parent.parent
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from _artifacts import manifest, roster, structure;"
        "print(any(name.split('.')[0] in ('ansible', 'numpy', 'torch') for name in sys.modules))"
    )
    reply = subprocess.run([sys.executable, "-I", "-c", program, str(home)], capture_output=True, text=True, check=True)
    assert reply.stdout.strip() == "False"

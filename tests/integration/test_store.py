# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A second copy in a store: the real rclone, against a WebDAV server on loopback (which keeps no hashes)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import receipt as receipts
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from tests.integration.tenant import ROOT, wait_for
from tests.unit.artifacts.runs import ARTIFACTS, build, make_run

pytestmark = [
    pytest.mark.artifacts,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed here"),
]
RECEIPT = "RECEIPT.json"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """(what lies in the store, the environment that configures the remote ``dest`` to it)."""
    behind = tmp_path / "store"
    behind.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    empty = {"RCLONE_CONFIG": str(tmp_path / "rclone.conf"), "RCLONE_CONFIG_DEST_TYPE": "webdav"}
    (tmp_path / "rclone.conf").touch()
    serving = subprocess.Popen(
        ["rclone", "serve", "webdav", str(behind), "--addr", f"127.0.0.1:{port}", "--dir-cache-time", "0s"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 20, "the store")
        yield behind, {**empty, "RCLONE_CONFIG_DEST_URL": f"http://127.0.0.1:{port}"}
    finally:
        serving.kill()
        serving.wait()


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """The folder of a run as collect.yml leaves it."""
    root = make_run(tmp_path / "results" / "digits-1")
    made = build(root)
    for row in made["left_behind"]:
        (root / row["path"]).unlink(missing_ok=True)
    found = verify.verify_tree(root, made, ARTIFACTS, 2)
    proof = receipts.make(made, found, [{"host": "here", "path": str(root)}], None)
    (root / "MANIFEST.json").write_text(json.dumps(made))
    (root / RECEIPT).write_text(json.dumps(proof))
    return root


def keep(folder: Path, env: dict[str, str], to: str = "dest:runs", *words: str) -> dict[str, Any]:
    """What `ansible -m tenant.gpu.artifact_store` answers."""
    arguments = json.dumps({"folder": str(folder), "to": to, "artifacts": ARTIFACTS})
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible"),
            *("localhost", "-i", "localhost,", "-c", "local"),
            *("-m", "tenant.gpu.artifact_store", "-a", arguments, *words),
        ],
        cwd=ROOT,
        env={**os.environ, **env, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "localhost |" in done.stdout, done.stdout + done.stderr
    answer = done.stdout.split("localhost |", 1)[1]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(answer[answer.index("{") :])[0]
    return found


def test_a_copy_counts_when_it_was_loaded_from_there_again(collected: Path, store: tuple[Path, dict[str, str]]) -> None:
    behind, env = store
    planned = keep(collected, env, "dest:runs", "--check")
    assert planned["changed"] and list(behind.iterdir()) == []
    first = keep(collected, env)
    assert first["changed"], first
    place = behind / first["remote"].removeprefix("dest:")
    assert (place / "cells/main/out/best.pt").read_bytes() == (collected / "cells/main/out/best.pt").read_bytes()
    here, there = json.loads((collected / RECEIPT).read_text()), json.loads((place / RECEIPT).read_text())
    assert here == there and {"remote": first["remote"]} in here["copies"] and len(here["copies"]) == 2
    assert keep(collected, env)["changed"] is False
    assert [path.name for path in collected.parent.iterdir()] == ["digits-1"], "the copy that came back is gone"
    (place / "cells/main/out/best.pt").unlink()
    again = keep(collected, env)
    assert again["changed"] and (place / "cells/main/out/best.pt").exists()
    assert len(again["receipt"]["copies"]) == 2


def test_what_only_looks_the_same_in_the_store_is_sent_again(
    collected: Path, store: tuple[Path, dict[str, str]]
) -> None:
    behind, env = store
    place = behind / keep(collected, env)["remote"].removeprefix("dest:")
    best = place / "cells/main/out/best.pt"
    best.write_bytes(bytes(best.stat().st_size))
    (place / RECEIPT).unlink()
    answer = keep(collected, env)
    assert answer["changed"], answer
    assert best.read_bytes() == (collected / "cells/main/out/best.pt").read_bytes()


def test_a_store_that_does_not_answer_leaves_the_receipt_alone(
    collected: Path, store: tuple[Path, dict[str, str]]
) -> None:
    before = (collected / RECEIPT).read_bytes()
    refused = keep(collected, {**store[1], "RCLONE_CONFIG_DEST_URL": "http://127.0.0.1:9"})
    assert refused["error"]["code"] == "remote" and "stays" in refused["error"]["means"]
    assert (collected / RECEIPT).read_bytes() == before


@pytest.mark.parametrize("to", ["/somewhere", ":s3,access_key_id=x:bucket", "-x:y", "bucket"])
def test_what_is_no_named_remote_is_refused(collected: Path, to: str) -> None:
    assert keep(collected, {}, to)["error"]["code"] == "remote"


def test_only_what_was_collected_is_copied(collected: Path) -> None:
    (collected / RECEIPT).unlink()
    assert keep(collected, {}, "dest:runs")["error"]["code"] == "not_collected"

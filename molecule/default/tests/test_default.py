# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The box after the roles ran, seen from outside over SSH: plain facts of files and processes, no roles' variables."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

EPHEMERAL = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
PROJECT = "/root/tenant/quick"
ATTEMPT = f"{PROJECT}/runs/molecule-1/cells/main/attempt-1"
FINISH_SECONDS = 30.0


@pytest.fixture(scope="module")
def box() -> Host:
    """The box through ssh, with the host key that the roles met."""
    at = json.loads((EPHEMERAL / "endpoint.json").read_text())
    return testinfra.get_host(
        f"ssh://{at['user']}@{at['host']}:{at['port']}",
        ssh_identity_file=f"{EPHEMERAL}/id_ed25519",
        ssh_extra_args=f"-F none -o UserKnownHostsFile={EPHEMERAL}/known_hosts -o StrictHostKeyChecking=yes",
    )


@pytest.fixture(scope="module")
def result(box: Host) -> dict[str, Any]:
    """The exit record of the run; it is written when the command ends, not when launch returns."""
    deadline = time.monotonic() + FINISH_SECONDS
    while not box.file(f"{ATTEMPT}/result.json").exists:
        assert time.monotonic() < deadline, f"no result.json in {FINISH_SECONDS} s"
        time.sleep(0.2)
    loaded: dict[str, Any] = json.loads(box.file(f"{ATTEMPT}/result.json").content_string)
    return loaded


def test_one_kit_is_there_named_by_its_digest(box: Host) -> None:
    (name,) = box.file(f"{PROJECT}/bin").listdir()
    kit = box.file(f"{PROJECT}/bin/{name}")
    assert name == f"kit-{hashlib.sha256(kit.content).hexdigest()[:16]}.pyz"
    assert kit.user == "root" and kit.mode & 0o022 == 0


def test_the_one_release_is_the_source_and_nobody_can_change_it(box: Host) -> None:
    (digest,) = box.file(f"{PROJECT}/releases").listdir()
    release = f"{PROJECT}/releases/{digest}"
    job = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"], "tests/integration/jobs/quick")
    assert box.file(f"{release}/train.py").content == (job / "train.py").read_bytes()
    assert box.check_output("find %s -perm /222", release) == ""


def test_the_run_was_launched_once_and_finished(box: Host, result: dict[str, Any]) -> None:
    assert result["class"] == "ok" and result["exit_code"] == 0, result
    assert box.file(f"{PROJECT}/runs").listdir() == ["molecule-1"]
    attempts = [name for name in box.file(f"{PROJECT}/runs/molecule-1/cells/main").listdir() if "attempt" in name]
    assert attempts == ["attempt-1"], "the second converge starts nothing"
    assert "step 10/10" in box.file(f"{ATTEMPT}/log").content_string
    metrics = json.loads(box.file(f"{PROJECT}/runs/molecule-1/cells/main/out/metrics.json").content_string)
    assert metrics["steps"] == 10


@pytest.mark.usefixtures("result")
def test_nothing_of_ours_goes_on_running(box: Host) -> None:
    deadline = time.monotonic() + FINISH_SECONDS
    while left := [line for line in box.check_output("ps -eo args").splitlines() if ".pyz" in line]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_the_box_was_adopted_not_rented() -> None:
    ledger = (EPHEMERAL / "tenant" / "ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in ledger] == ["adopted"]


def test_nothing_is_left_in_the_users_home() -> None:
    assert not (Path.home() / ".tenant-gpu/runs/molecule-1").exists()
    known = Path.home() / ".ssh" / "known_hosts"
    at = json.loads((EPHEMERAL / "endpoint.json").read_text())
    assert not known.exists() or f"[{at['host']}]:{at['port']}" not in known.read_text()

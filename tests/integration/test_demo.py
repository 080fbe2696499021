# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`make demo`, as a user sees it: the whole story, its account, and an end in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import numpy
import pytest

from tests.integration.tenant import ROOT

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(300)]
DEMO = [sys.executable, "-m", "lab.demo"]


def _processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and str(os.getpid()) not in path.parts:
            found.append(line)
    return found


def test_the_demo_tells_the_truth_and_its_account_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run([*DEMO, "--folder", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    facts = json.loads((folder / "summary.json").read_text())
    assert facts["state"] == "finished" and facts["attempts"] == 2
    assert 120 <= facts["resumed_from_step"] < facts["final_step"] == 400
    assert facts["accuracy"] > 0.9
    assert facts["artifacts"]["failed"] == 0 and facts["artifacts"]["verified"] >= 4
    assert facts["meter"] == "off" and facts["leftovers"] == [] and len(facts["evidence"]) == 2
    claimed, billed = Decimal(facts["cost"]["claimed"]), Decimal(facts["cost"]["lab_bill"])
    assert abs(claimed - billed) <= billed * Decimal("0.02")
    assert facts["wall_seconds"] <= 120
    assert facts["box_execs"]["audit"] == 2, "a phase is one exec: audited once on each box"
    assert facts["box_execs"]["release"] == 1 and facts["box_execs"]["launch"] == 2
    model = next((folder / "results").glob("*/cells/main/out/model.npz"))
    with numpy.load(model, allow_pickle=False) as arrays:
        assert all(numpy.isfinite(arrays[name]).all() for name in arrays.files)
    for line in ("host of", "rent_approve", "discard:", "meter off", "no longer listed"):
        assert line in done.stdout
    assert _processes_of(folder) == []


def test_an_interrupted_demo_leaves_nothing_running_and_says_what_was_left(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = subprocess.Popen(
        [*DEMO, "--folder", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if re.search(r"attempt 1 from the start", line):
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    seen += process.communicate(timeout=60)[0]
    assert process.returncode == 130, seen
    assert "Left in the lab" in seen and "ledger.jsonl" in seen
    assert _processes_of(folder) == []

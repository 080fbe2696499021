# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate (architecture §4.4): take any one condition away and nothing is destroyed."""

from __future__ import annotations

import hashlib
import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import receipt as receipts
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.plugin_utils import gate
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused, as_result

MTIME = 1_700_000_000_000_000_000


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of run r1 from instance i1, with a receipt made the way ``pull`` makes it."""
    content = b'{"loss": 0.5}'
    target = tmp_path / "r1" / "cells" / "main" / "out" / "metrics.json"
    target.parent.mkdir(parents=True)
    target.write_bytes(content)
    row = {"path": "cells/main/out/metrics.json", "size": len(content), "mtime_ns": MTIME, "cell": "main"}
    row |= {"sha256": hashlib.sha256(content).hexdigest(), "artifact": "metrics.json"}
    manifest = {
        "schema": "tenant.gpu/manifest/1", "run_id": "r1", "instance_id": "i1",
        "made_on": {"boot_id": "b", "host": "box"}, "made_at": "2026-12-01T00:00:00Z", "newest_mtime_ns": MTIME,
        "files": [row], "missing": [], "left_behind": [], "moved": [],
    }  # fmt: skip
    found = verify.verify_tree(str(tmp_path / "r1"), manifest, [{"path": "metrics.json", "format": "json"}])
    receipt = receipts.make(manifest, found, [{"host": "here", "path": str(tmp_path / "r1")}], "test")
    (tmp_path / "r1" / "MANIFEST.json").write_text(json.dumps(manifest))
    (tmp_path / "r1" / "RECEIPT.json").write_text(json.dumps(receipt))
    return tmp_path


def _run(**changes: t.Any) -> dict[str, t.Any]:
    row = {"run_id": "r1", "state": "finished", "alive": False, "instance_id": "i1", "newest_mtime_ns": MTIME}
    return {"runs": [{**row, **changes}], "foreign": []}


def _question(results: Path, **changes: t.Any) -> gate.Question:
    run = {"run_id": "r1", "state": "finished", "alive": False, "instance_id": "i1", "newest_mtime_ns": MTIME}
    known: dict[str, t.Any] = {
        "instance_id": "i1", "approve": "i1", "discard": "", "results_dir": results,
        "status": {"runs": [run], "foreign": []}, "why_unreachable": "", "recorded_runs": ["r1"],
    }  # fmt: skip
    return gate.Question(**{**known, **changes})


def _refused(question: gate.Question) -> str:
    with pytest.raises(Refused) as caught:
        gate.decide(question)
    assert caught.value.seen and caught.value.means and caught.value.do
    return caught.value.code


def test_it_opens_with_everything_in_place_and_says_what_it_checked(results: Path) -> None:
    assert any("receipt of r1" in line for line in gate.decide(_question(results)))
    gate.decide(_question(results, approve="r1"))
    gate.decide(_question(results, approve="other, i1"))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"approve": ""}, "not_approved"),
        ({"approve": "i2"}, "not_approved"),
        ({"approve": "true"}, "not_approved"),
        ({"status": None}, "box_unreachable"),
        ({"status": _run(alive=True, state="running")}, "live_run"),
        ({"status": _run(run_id="other-project-run")}, "no_receipt"),
        ({"status": _run(newest_mtime_ns=MTIME + 1)}, "newer_on_box"),
        ({"status": _run(newest_mtime_ns=None)}, "newer_on_box"),
        ({"status": {"runs": _run()["runs"], "foreign": ["tmux session theirs"]}}, "foreign_work"),
        ({"instance_id": "i2", "approve": "i2"}, "receipt"),
        ({"discard": "i2"}, "discard_other"),
        ({"status": _run(state="unknown")}, "run_unreadable"),
        ({"status": {"runs": [], "foreign": []}, "launched_runs": ["r1"]}, "run_unreadable"),
    ],
)
def test_it_stays_shut(results: Path, changes: dict[str, t.Any], code: str) -> None:
    assert _refused(_question(results, **changes)) == code


def test_a_copy_that_is_not_there_in_full_closes_it(results: Path) -> None:
    (results / "r1" / "cells/main/out/metrics.json").write_text("{}")
    assert _refused(_question(results)) == "receipt"


def test_a_receipt_for_another_manifest_closes_it(results: Path) -> None:
    path = results / "r1" / "MANIFEST.json"
    path.write_text(path.read_text().replace("2026-12-01", "2026-12-02"))
    assert _refused(_question(results)) == "receipt"


def test_what_was_only_seen_structurally_opens_no_destroy(results: Path) -> None:
    path = results / "r1" / "RECEIPT.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "level": "structural_only"}))
    assert _refused(_question(results)) in ("receipt_level", "receipt")


def test_runs_of_other_instances_on_a_volume_do_not_matter_where_the_data_survives(results: Path) -> None:
    status = _run()
    status["runs"].append({**status["runs"][0], "run_id": "older", "instance_id": "i0"})
    assert _refused(_question(results, status=status)) == "no_receipt"
    gate.decide(_question(results, status=status, data_survives=True))


def test_discard_names_what_is_lost_and_needs_no_receipt(results: Path) -> None:
    lines = gate.decide(_question(results, approve="", discard="i1", status=_run(run_id="lost")))
    assert "run lost (finished) is given up" in lines[0]
    assert "unseen" in gate.decide(_question(results, approve="", discard="i1", status=None))[0]


def test_commands_are_told_as_they_are_typed_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    text = "ansible-playbook playbooks/watch.yml -l runpod-1"
    monkeypatch.chdir(root)
    assert as_result("x", "", "", text)["error"]["do"] == text
    monkeypatch.chdir(tmp_path)
    assert as_result("x", "", "", text)["error"]["do"] == "ansible-playbook tenant.gpu.watch -l runpod-1"


def test_nothing_from_a_box_reaches_the_terminal_raw() -> None:
    result = as_result("x", "name\x1b]0;owned\x07\nsecond", "m\x9b", "d\r")
    assert result["error"]["seen"] == "name\\x1b]0;owned\\x07\nsecond"
    assert "\x9b" not in result["msg"] and "\r" not in result["msg"]

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main job against the lab: rented, trained, interrupted, resumed, pulled, verified, torn down, proven."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from lab.api import Lab
from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.mark.matrix
def test_the_whole_life_of_a_job(tenant: Tenant) -> None:
    checked = tenant.train("--check")
    assert checked.rc == 0, checked.output
    assert not tenant.live() and not tenant.actions(), "check mode rents nothing and writes nothing"

    trained = tenant.ok("train")
    assert tenant.actions()[:4] == ["volume_intent", "volume_created", "create_intent", "created"]
    assert len(tenant.live()) == 1
    again = tenant.ok("train")
    assert again.changed == 0, "the same command a second time changes nothing"
    assert len(tenant.live()) == 1
    assert "attempt 1 from the start" in trained.output

    tenant.until(r"finished  step 10/10")
    collected = tenant.ok("collect")
    folder = tenant.results / tenant.run_id()
    receipt = json.loads((folder / "RECEIPT.json").read_text())
    assert receipt["complete"] and receipt["level"] == "loaded" and receipt["failed"] == 0
    assert json.loads((folder / "cells/main/out/metrics.json").read_text())["steps"] == 10
    assert "CARD.md" in {path.name for path in folder.iterdir()}
    assert re.search(r"metrics\.json .*loaded", collected.output)
    assert tenant.ok("collect").changed == 0

    instance = tenant.instance()
    asked = tenant.play("teardown")
    assert asked.refusal()["code"] == "not_approved"
    assert f"teardown_approve={instance}" in asked.refusal()["do"]
    assert tenant.live() == [instance]
    torn = tenant.ok("teardown", "-e", f"teardown_approve={instance}")
    assert f"{instance}: meter off" in torn.output
    assert not tenant.live()
    verdict = [line for line in tenant.ledger() if line["action"] == "verdict"][-1]
    assert verdict["verdict"] == "off" and {"show", "list", "whoami"} <= set(re.findall(r"(\w+):", verdict["saw"]))
    assert tenant.ok("teardown").changed == 0

    volume = re.search(r"leftovers_approve=(network_volume:\w+)", torn.output)
    assert volume, torn.output
    tenant.ok("teardown", "-e", f"leftovers_approve={volume[1]}")
    assert [found for found in tenant.lab.volumes() if found["state"] != "gone"] == []


def test_the_claimed_cost_is_the_bill(tenant: Tenant) -> None:
    tenant.ok("train")
    tenant.until(r"finished")
    tenant.ok("collect")
    instance = tenant.instance()
    tenant.ok("teardown", "-e", f"teardown_approve={tenant.run_id()}")
    output = tenant.play("watch").output
    claimed = re.search(r"cost ([\d.]+) USD", output)
    assert claimed, output
    billed = Decimal(tenant.lab.bill()["rentals"][instance]["total"])
    assert abs(Decimal(claimed[1]) - billed) <= Decimal("0.02") * billed + Decimal("0.0001")


def test_watch_only_reads(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "400"}
    tenant.ok("train")
    before, ledger = len(tenant.lab.requests()), tenant.actions()
    watched = tenant.ok("watch")
    assert watched.changed == 0
    assert re.search(r"running  step \d+/400  progress \d+ s ago  cost [\d.]+ USD", watched.output)
    assert {call["method"] for call in tenant.lab.requests()[before:]} == {"GET"}
    assert tenant.actions() == ledger
    stopped = tenant.ok("stop")
    assert "state stopped" in stopped.output
    assert tenant.ok("stop").changed == 0


def test_a_host_failure_is_recovered_and_the_dead_box_given_up_by_name(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "600"}
    tenant.ok("train")
    tenant.until(r"step (1\d|[2-9]\d|1\d\d)/")
    first = tenant.instance()
    tenant.lab.kill_host(first)
    assert re.search(r"UNREACHABLE, last known running step \d+", tenant.ok("watch").output)

    refused = tenant.play("teardown", "-e", f"teardown_approve={first}")
    assert refused.refusal()["code"] == "box_unreachable", "an unreachable box is not destroyed on approval alone"

    ticked = tenant.ok("tick", "-e", "rent_approve=true")
    second = tenant.instance()
    assert second != first
    resumed = re.search(r"attempt 2 resumed from step (\d+)", ticked.output)
    assert resumed and int(resumed[1]) >= 10, ticked.output
    assert set(tenant.live()) == {first, second}, "the dead one bills until it is given up"
    assert tenant.play("teardown", "-e", "discard=somebody").refusal()["code"] == "unknown_instance"
    assert set(tenant.live()) == {first, second}
    tenant.ok("teardown", "-e", f"discard={first}")
    assert tenant.live() == [second]
    tenant.ok("stop")
    tenant.ok("collect", "-e", "collect_accept_missing=main")
    tenant.ok("teardown", "-e", f"teardown_approve={second}")
    assert not tenant.live()


def test_tick_does_what_is_due_to_the_end(tenant: Tenant) -> None:
    tenant.job["job_when_done"] = "teardown"
    tenant.ok("train", "-e", "run_id=standing-1", "-e", "teardown_standing=standing-1")
    tenant.until(r"finished")
    ticked = tenant.ok("tick")
    assert "receipt:" in ticked.output and "meter off" in ticked.output
    assert not tenant.live()
    assert tenant.ok("tick").changed == 0


def test_a_run_is_not_destroyed_live_nor_with_newer_files(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "400"}
    tenant.ok("train")
    instance = tenant.instance()
    approve = ("-e", f"teardown_approve={instance}")
    assert tenant.play("teardown", *approve).refusal()["code"] == "live_run"
    tenant.ok("stop")
    assert tenant.play("teardown", *approve).refusal()["code"] == "no_receipt"
    accept = ("-e", "collect_accept_missing=main")
    tenant.ok("collect", *accept)
    path = f"/workspace/quick/runs/{tenant.run_id()}/cells/main/checkpoints/step-009999.json"
    tenant.lab.exec(instance, ["sh", "-c", f"echo '{{\"step\": 9999}}' > {path}"])
    assert tenant.play("teardown", *approve).refusal()["code"] == "newer_on_box"
    tenant.ok("collect", *accept)
    receipt = tenant.results / tenant.run_id() / "RECEIPT.json"
    kept = receipt.read_text()
    receipt.write_text(kept.replace(instance, "another1"))
    assert tenant.play("teardown", *approve).refusal()["code"] == "receipt"
    receipt.write_text(kept)
    tenant.lab.exec(instance, ["tmux", "new-session", "-d", "-s", "theirs", "sleep 1000"])
    foreign = tenant.play("teardown", *approve).refusal()
    assert foreign["code"] == "foreign_work" and "theirs" in foreign["seen"]
    tenant.lab.exec(instance, ["tmux", "kill-session", "-t", "=theirs"])
    tenant.ok("teardown", *approve)


def test_the_same_name_is_looked_for_after_an_answer_that_never_came(tenant: Tenant) -> None:
    tenant.lab.fault("api.drop", {"method": "POST", "path": "/v2/pods$"}, times=1)
    before = len(tenant.lab.requests())
    tenant.ok("train")
    assert len(tenant.live()) == 1
    created = [
        call for call in tenant.lab.requests()[before:] if call["method"] == "POST" and call["path"] == "/v2/pods"
    ]
    assert len(created) == 1, "an unknown outcome is looked up, never tried again blindly"


def test_a_delete_that_is_only_acknowledged_fails_the_play(tmp_path: Path, make_lab: Callable[..., Lab]) -> None:
    tenant = Tenant(tmp_path / "user", make_lab())
    tenant.ok("train")
    tenant.until(r"finished")
    tenant.ok("collect")
    instance = tenant.instance()
    tenant.lab.fault("api.fail", {"method": "DELETE"}, times=1, status=204, body="")
    approve = ("-e", f"teardown_approve={instance}", "-e", "teardown_prove_timeout=3")
    lied = tenant.play("teardown", *approve)
    assert lied.refusal()["code"] == "not_proven_off"
    assert tenant.live() == [instance]
    assert [line["verdict"] for line in tenant.ledger() if line["action"] == "verdict"] == ["on"]
    tenant.ok("teardown", *approve)
    assert not tenant.live()

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is due: a pure decision. One signal never costs money, and only the platform's word makes a box dead."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.tenant.gpu.plugins.plugin_utils import care


def _seen(**changes: t.Any) -> dict[str, t.Any]:
    job = {"retry": {"on_events": ["interruption"], "max": 3}, "when_done": "keep"}
    record = {"run_id": "r1", "closed": None, "job": job}
    return {"record": record, "run": None, "reachable": True, "instance": {"id": "i1", "dead": False}, **changes}


def _due(**changes: t.Any) -> list[str]:
    found = care.due(_seen(**changes))
    assert found["why"]
    return [name for name in ("recover", "collect", "teardown") if found[name]]


def test_nothing_without_an_open_run() -> None:
    assert _due(record=None) == []
    assert _due(record={"closed": {"at": "…"}}) == []


@pytest.mark.parametrize("state", ["running", "stalled", "queued"])
def test_a_living_run_is_left_alone(state: str) -> None:
    assert _due(run={"state": state}) == []


def test_an_unreachable_box_is_let_be_until_the_platform_calls_it_dead() -> None:
    assert _due(reachable=False) == []
    assert _due(reachable=False, instance=None, trouble={"code": "rate_limited"}) == []
    assert _due(reachable=False, instance={"id": "i1", "dead": True, "status": "ERROR"}) == ["recover"]
    assert _due(reachable=False, instance=None, trouble={"code": "not_found"}) == ["recover"]


@pytest.mark.parametrize("state", ["preempted", "dead"])
def test_an_interrupted_run_is_recovered_while_it_makes_progress(state: str) -> None:
    run = {"state": state, "class": "reboot"}
    assert _due(run=run) == ["recover"]
    assert _due(run=run, fruitless=3) == []


def test_recovery_needs_the_job_to_name_interruption() -> None:
    seen = _seen(run={"state": "dead"})
    seen["record"]["job"]["retry"]["on_events"] = ["no_capacity"]
    assert not care.due(seen)["recover"]


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_an_ended_run_is_collected_once(state: str) -> None:
    assert _due(run={"state": state}) == ["collect"]
    assert _due(run={"state": state}, receipt={"complete": True}) == []
    assert _due(run={"state": state}, receipt={"complete": False}) == ["collect"]


def test_teardown_by_itself_only_finished_as_the_job_says_and_with_the_standing_approval() -> None:
    seen = _seen(run={"state": "finished"}, receipt={"complete": True})
    assert not care.due(seen)["teardown"]
    seen["record"]["job"]["when_done"] = "teardown"
    assert not care.due(seen)["teardown"]
    seen["record"]["teardown_standing"] = "another"
    assert not care.due(seen)["teardown"]
    seen["record"]["teardown_standing"] = "r1"
    assert care.due(seen)["teardown"]
    seen["run"] = {"state": "failed"}
    assert not care.due(seen)["teardown"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [([], 0), ([None, 240], 0), ([None, 120, 120], 1), ([None, None, None], 2), ([None, 120, 90, 130], 0)],
)
def test_attempts_without_progress_are_counted(steps: list[int | None], expected: int) -> None:
    assert care.fruitless(steps) == expected

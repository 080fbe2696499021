# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ledger: what is rented, what it costs, and that no crash loses a line."""

from __future__ import annotations

import json
import multiprocessing
import time
from decimal import Decimal
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental, Span, cost, cost_of_run, spent

RATE = {"amount": "0.36", "currency": "USD"}


def _rented(home: Path, instance_id: str = "i1", slot: str = "runpod-1", run_id: str = "r1") -> Ledger:
    ledger = Ledger(home)
    ledger.append("create_intent", slot=slot, platform="runpod", name=f"n-{instance_id}", run_id=run_id)
    fields = {"slot": slot, "platform": "runpod", "instance_id": instance_id, "name": f"n-{instance_id}"}
    ledger.append("created", **fields, rate=RATE, run_id=run_id)
    return ledger


def _bound(ledger: Ledger) -> str | None:
    rental = ledger.bound("runpod-1")
    return rental.instance_id if rental else None


def _rental(ledger: Ledger) -> Rental:
    rental = ledger.rental("i1")
    assert rental is not None
    return rental


def test_a_slot_is_bound_until_its_meter_is_proven_off(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    assert _bound(ledger) == "i1"
    assert ledger.bound("runpod-2") is None
    ledger.append("destroyed", instance_id="i1", saw="204")
    ledger.append("verdict", instance_id="i1", verdict="unknown")
    assert ledger.bound("runpod-1") is not None, "a delete that was acknowledged is no proof"
    ledger.append("verdict", instance_id="i1", verdict="off")
    assert ledger.bound("runpod-1") is None
    assert _rental(ledger).ended_at


def test_a_superseded_instance_is_open_but_not_bound(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    _rented(tmp_path, "i2")
    ledger.append("superseded", slot="runpod-1", instance_id="i1", note="i2")
    assert _bound(ledger) == "i2"
    assert _rental(ledger).open


def test_an_intent_without_outcome_is_pending(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append("create_intent", slot="runpod-1", platform="runpod", name="n1", run_id="r1")
    assert (ledger.pending_intent("runpod-1") or {})["name"] == "n1"
    ledger.append("created", slot="runpod-1", platform="runpod", instance_id="i1", name="n1")
    assert ledger.pending_intent("runpod-1") is None


def test_a_line_cut_short_by_a_crash_is_left_out_and_a_broken_one_is_told(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    with ledger.path.open("ab") as stream:
        stream.write(b'{"schema": "tenant.gpu/ledger/1", "action": "verd')
    assert [rental.instance_id for rental in ledger.rentals()] == ["i1"]
    ledger.append("verdict", instance_id="i1", verdict="unknown")
    assert _rental(ledger).verdict == "unknown", "the next line stands by itself"
    ledger.path.write_bytes(b"not json\n" + ledger.path.read_bytes())
    with pytest.raises(Refused, match="line 1"):
        ledger.rentals()


def test_a_home_that_cannot_be_written_refuses(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(Refused) as caught:
        Ledger(tmp_path / "home").append("create_intent")
    assert caught.value.code == "ledger"
    assert "nothing was done" in caught.value.means


def _append_many(home: str) -> None:
    for number in range(50):
        Ledger(home).append("verdict", instance_id=f"i{number}", saw="x" * 3000)


def test_writers_side_by_side_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(str(tmp_path),)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Ledger(tmp_path).entries()) == 150


def test_cost_is_by_the_second_and_unknown_is_not_zero() -> None:
    assert cost(RATE, "2026-12-01T00:00:00.000Z", "2026-12-01T00:00:10.000Z") == Decimal("0.36") * 10 / 3600
    assert cost(None, "2026-12-01T00:00:00Z", None) is None


def test_cost_of_a_run_over_two_instances(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    _rented(tmp_path, "i2")
    _rented(tmp_path, "i3", run_id="other")
    spent = cost_of_run(ledger, "r1")
    assert [row["instance_id"] for row in spent["rentals"]] == ["i1", "i2"]
    ledger.append("created", slot="s", platform="ssh", instance_id="bare", name="bare", run_id="r1")
    assert cost_of_run(ledger, "r1")["amount"] is None


def test_an_instance_that_serves_two_runs_is_counted_once(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    ledger.append("bound", slot="runpod-1", instance_id="i1", run_id="r2")
    lines = ledger.path.read_text().splitlines()
    stamps = ["2026-12-01T00:00:00.000Z", "2026-12-01T00:00:00.000Z", "2026-12-01T01:00:00.000Z"]
    edited = [json.dumps({**json.loads(line), "at": at}) for line, at in zip(lines, stamps, strict=True)]
    ended = json.dumps({"at": "2026-12-01T03:00:00.000Z", "action": "destroyed", "instance_id": "i1"})
    ledger.path.write_text("\n".join([*edited, ended]) + "\n")
    assert cost_of_run(ledger, "r1")["amount"] == "0.360000"
    assert cost_of_run(ledger, "r2")["amount"] == "0.720000"


def test_a_parked_stretch_is_counted_at_its_own_rate() -> None:
    rental = Rental("i1", "s", "p", "n", None, RATE, "2026-12-01T00:00:00.000Z", ended_at="2026-12-01T04:00:00.000Z")
    rental.spans += [
        Span("2026-12-01T01:00:00.000Z", True, {"amount": "0.01", "currency": "USD"}),
        Span("2026-12-01T03:00:00.000Z", False, RATE),
    ]
    assert spent(rental) == Decimal("0.36") * 2 + Decimal("0.02")
    assert spent(rental, "2026-12-01T02:00:00.000Z", "2026-12-01T03:30:00.000Z") == Decimal("0.01") + Decimal("0.18")
    assert rental.parked_since is None, "it has ended"


def test_an_unknown_rate_is_unknown_from_its_first_moment() -> None:
    at = "2026-12-01T00:00:00.000Z"
    assert spent(Rental("i1", "s", "p", "n", None, None, at, ended_at=at)) is None
    assert spent(Rental("i1", "s", "p", "n", None, RATE, at, ended_at=at)) == 0


def test_a_park_keeps_the_clock_it_started(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    clock = {"id": "auto_release", "due": "2026-12-19T00:00:00.000Z", "text": "t", "text_zh": "z"}
    ledger.append("stopped", slot="runpod-1", instance_id="i1", rate=RATE, clock=clock)
    parked = ledger.rental("i1")
    assert parked is not None and parked.clock == clock
    ledger.append("started", slot="runpod-1", instance_id="i1")
    running = ledger.rental("i1")
    assert running is not None and running.clock is None


def test_a_parked_stretch_without_a_known_rate_is_unknown(tmp_path: Path) -> None:
    ledger = _rented(tmp_path)
    ledger.append("stopped", instance_id="i1")
    rental = _rental(ledger)
    assert rental.parked_since is not None
    time.sleep(0.005)
    assert spent(rental) is None
    assert spent(rental, rental.created_at, rental.parked_since) is not None
    ledger.append("started", instance_id="i1")
    assert _rental(ledger).parked_since is None
    assert _rental(ledger).spans[-1].rate == RATE

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bill that the meter shows: from the ledger alone, and unknown where a rate is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.tenant.gpu.plugins.plugin_utils.bill import bill, lines
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs

RATE = {"amount": "0.36", "currency": "USD"}
LONG_AGO, LATER = "2026-12-01T00:00:00.000Z", "2026-12-01T10:00:00.000Z"


def write(home: Path, *entries: dict[str, Any]) -> None:
    """Ledger lines with times of their own."""
    ledger = Ledger(home)
    for entry in entries:
        at = entry.pop("at")
        ledger.append(**entry)
        rows = ledger.path.read_text().splitlines()
        rows[-1] = json.dumps({**json.loads(rows[-1]), "at": at})
        ledger.path.write_text("\n".join(rows) + "\n")


def created(instance_id: str, slot: str = "s-1", **more: Any) -> dict[str, Any]:
    facts = {"platform": "p", "name": "n", "rate": RATE, "run_id": "run-1", **more}
    return {"action": "created", "at": LONG_AGO, "slot": slot, "instance_id": instance_id, **facts}


def off(instance_id: str, at: str) -> dict[str, Any]:
    return {"action": "verdict", "at": at, "instance_id": instance_id, "verdict": "off"}


def test_nothing_is_said_where_no_rental_was_touched(tmp_path: Path) -> None:
    assert lines(bill(str(tmp_path), ["s-1"], LATER)) == []
    write(tmp_path, created("i1"), off("i1", "2026-12-01T05:00:00.000Z"), created("i2", "other"))
    assert lines(bill(str(tmp_path), ["s-1"], LATER)) == [], "what ended before this run is history"


def test_what_ended_in_this_run_is_summed_up(tmp_path: Path) -> None:
    write(tmp_path, created("i1"), off("i1", LATER))
    found = bill(str(tmp_path), ["s-1"], LATER)
    assert found["totals"] == {"USD": {"spent": "3.600000", "per_hour": "0.000000"}}
    assert lines(found)[0] == "s-1  i1  off  3.6000 USD so far"


def test_a_delete_that_is_not_proven_is_no_end(tmp_path: Path) -> None:
    write(tmp_path, created("i1"), {"action": "destroyed", "at": LATER, "instance_id": "i1"})
    (row,) = bill(str(tmp_path), ["s-1"], LATER)["rentals"]
    assert row["state"] == "unknown: not proven off"


def test_an_unknown_rate_is_unknown_in_every_sum(tmp_path: Path) -> None:
    write(tmp_path, created("i1"), created("i2", rate=None))
    found = bill(str(tmp_path), ["s-1"], LATER)
    assert found["totals"]["unknown"] == {"spent": None, "per_hour": None}
    assert "unknown so far, unknown an hour" in lines(found)[1]


def test_a_parked_box_shows_days_price_and_the_date_it_is_lost(tmp_path: Path) -> None:
    clock = {"id": "auto_release", "due": "2026-12-16T00:00:00.000Z", "text": "t", "text_zh": "z"}
    stopped = {"action": "stopped", "at": LATER, "instance_id": "i1", "clock": clock}
    write(tmp_path, created("i1"), {**stopped, "rate": {"amount": "0.01", "currency": "USD"}})
    found = bill(str(tmp_path), ["s-1"], LATER)
    (row,) = found["rentals"]
    assert (row["state"], row["per_day"], row["projected"]) == ("parked", "0.240000", None)
    assert float(row["spent"]) == 3.6 + float(row["spent_parked"]) and float(row["spent_parked"]) > 0
    assert "0.2400 USD a day" in lines(found)[0] and "auto_release on 2026-12-16" in lines(found)[0]


def test_the_end_is_reckoned_from_max_duration(tmp_path: Path) -> None:
    Runs(tmp_path).put({"run_id": "run-1", "slot": "s-1", "created_at": LONG_AGO, "job": {"max_duration": 3600}})
    Ledger(tmp_path).append("created", slot="s-1", platform="p", instance_id="i1", name="n", rate=RATE, run_id="run-1")
    (row,) = bill(str(tmp_path), ["s-1"], LONG_AGO)["rentals"]
    assert abs(float(row["projected"]) - 0.36) < 0.001


def test_other_slots_and_storage_are_not_forgotten(tmp_path: Path) -> None:
    volume = {"action": "volume_created", "at": LONG_AGO, "platform": "p", "instance_id": "v1", "name": "data"}
    write(tmp_path, created("i1"), created("i2", "s-2"), volume)
    text = "\n".join(lines(bill(str(tmp_path), ["s-1"], LATER)))
    assert "1 more open on other slots: s-2" in text
    assert "storage data (p v1): unknown an hour until it is deleted" in text

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The meter at the end of real playbook runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def test_each_run_ends_with_its_bill(tenant: Tenant, tmp_path: Path) -> None:
    nothing = tenant.ok("watch")
    assert "METER" not in nothing.output and "meter:" not in nothing.output
    book = tmp_path / "bill.json"
    trained = tenant.ok("train", env={"TENANT_METER_JSON": str(book)})
    bill_of_train = trained.output.split("METER", 1)[1]
    assert tenant.instance() in bill_of_train and "running" in bill_of_train and "at job_max_duration" in bill_of_train
    found = json.loads(book.read_text())
    (row,) = found["rentals"]
    assert row["instance_id"] == tenant.instance() and float(row["per_hour"]) > 0
    assert float(row["projected"]) == pytest.approx(float(row["per_hour"]) / 2, rel=0.05), "job_max_duration is 30m"
    tenant.until("finished")
    tenant.ok("collect")
    torn = tenant.ok("teardown", "-e", f"teardown_approve={tenant.instance()}")
    bill_of_teardown = torn.output.split("METER", 1)[1]
    assert f"{tenant.instance()}  off" in bill_of_teardown and "0.0000 USD an hour" in bill_of_teardown
    assert "storage quick" in bill_of_teardown, "what bills on is in the bill"
    assert "METER" not in tenant.ok("teardown").output, "nothing was touched"


def test_a_bill_that_cannot_be_made_fails_nothing(tenant: Tenant) -> None:
    tenant.ok("train")
    (tenant.home / "ledger.jsonl").write_text("no json\n")
    played = tenant.play("watch")
    assert "meter: the bill cannot be shown: line 1 of" in played.output
    assert "Traceback" not in played.output

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bad input: each stops with what was seen, what it means and what to type next; none leaves an unrecorded rental."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.api import Lab
from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def _recorded(user: Tenant) -> None:
    """Whatever the lab bills stands in the ledger."""
    known = {line.get("instance_id") for line in user.ledger() if line["action"] in ("created", "volume_created")}
    assert set(user.live()) <= known
    assert {volume["id"] for volume in user.lab.volumes() if volume["state"] != "gone"} <= known


def test_a_host_without_a_profile(tmp_path: Path, lab: Lab) -> None:
    user = Tenant(tmp_path, lab, {"nowhere": {"box-1": None}})
    played = user.train(limit="box-1")
    assert played.rc != 0
    for words in ("has no profile_platform", "Means:", "Known here:", "runpod"):
        assert words in " ".join(played.output.split())
    assert not user.live()


@pytest.mark.parametrize("key", ["", "wrong"])
def test_a_key_that_is_missing_or_wrong(tenant: Tenant, key: str) -> None:
    refusal = tenant.train(env={"RUNPOD_API_KEY": key}).refusal()
    assert refusal["code"] == "auth"
    assert ("RUNPOD_API_KEY is not set" if not key else "401") in refusal["seen"]
    assert not tenant.live()


def test_no_capacity(tenant: Tenant) -> None:
    tenant.lab.fault("offer.none")
    refusal = tenant.train().refusal()
    assert refusal["code"] == "no_capacity"
    assert not tenant.live()


def test_a_price_over_the_limit(tenant: Tenant) -> None:
    tenant.job["job_max_price"] = "0.10 USD"
    assert tenant.train().refusal()["code"] == "over_max_price"
    tenant.job["job_max_price"], tenant.job["job_max_cost"] = "0.80 USD", "0.01 USD"
    assert tenant.train("-e", "run_id=new").refusal()["code"] == "over_max_cost"
    tenant.job["job_max_cost"] = "1 CNY"
    assert tenant.train("-e", "run_id=new").refusal()["code"] == "currency"
    assert not tenant.live()


def test_renting_waits_for_the_word_and_takes_the_plans_digest(tenant: Tenant) -> None:
    refusal = tenant.train(approve="").refusal()
    assert refusal["code"] == "not_approved" and "USD an hour" in refusal["seen"]
    assert not tenant.live() and "create_intent" not in tenant.actions()
    digest = refusal["do"].rpartition("rent_approve=")[2].split()[0]
    assert tenant.train(approve="0123456789ab").refusal()["code"] == "not_approved"
    assert tenant.train(approve=digest).rc == 0


def test_approve_true_needs_both_limits(tenant: Tenant) -> None:
    del tenant.job["job_max_cost"]
    refusal = tenant.train().refusal()
    assert refusal["code"] == "not_approved" and "job_max_cost" in refusal["do"]


def test_an_ssh_that_never_comes_up_is_given_back(tenant: Tenant) -> None:
    tenant.lab.fault("box.never_ssh")
    refusal = tenant.train("-e", "rent_boot_timeout=3").refusal()
    assert refusal["code"] == "never_reachable"
    assert "meter is off" in refusal["do"]
    assert not tenant.live()
    _recorded(tenant)


def test_a_box_whose_ssh_does_not_answer(tenant: Tenant) -> None:
    tenant.lab.fault("link.cut")
    played = tenant.train("-e", "connect_timeout=4", "-e", "ansible_ssh_timeout=2")
    assert played.rc != 0 and "UNREACHABLE" in played.output
    refusal = played.refusal()
    assert refusal["code"] == "unreachable" and "discard" in refusal["do"]
    assert tenant.live() == [tenant.instance()], "it is written down, and it bills until it is given up"
    tenant.lab.clear()
    assert tenant.train().rc == 0, "the same command goes on"


def test_a_command_that_does_not_exist(tenant: Tenant) -> None:
    tenant.job["job_command"] = ["./no-such-program"]
    refusal = tenant.train().refusal()
    assert refusal["code"] == "command_missing"
    assert "no-such-program" in refusal["seen"]
    _recorded(tenant)


def test_a_roster_that_is_not_met_is_no_success(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_FORGET": "metrics"}
    tenant.train()
    tenant.until(r"  failed  ")
    collected = tenant.play("collect")
    assert "INCOMPLETE" in collected.output and "MISSING metrics.json" in collected.output
    instance = tenant.instance()
    refusal = tenant.play("teardown", "-e", f"teardown_approve={instance}").refusal()
    assert refusal["code"] == "receipt"
    wrong = tenant.play("collect", "-e", "collect_accept_missing=typo").refusal()
    assert wrong["code"] == "accept_missing" and "main" in wrong["seen"]
    tenant.ok("collect", "-e", "collect_accept_missing=main")
    tenant.ok("teardown", "-e", f"teardown_approve={instance}")


def test_an_artifact_that_does_not_load_makes_no_receipt(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_METRICS": '{"loss": NaN}'}
    tenant.ok("train")
    tenant.until(r"  finished  ")
    refusal = tenant.play("collect").refusal()
    assert refusal["code"] == "artifact" and "metrics.json" in refusal["seen"]
    assert not (tenant.results / tenant.run_id()).exists()


def test_several_slots_for_one_job(tmp_path: Path, lab: Lab) -> None:
    user = Tenant(tmp_path, lab, {"runpod": {"runpod-1": None, "runpod-2": None}})
    played = user.train(limit="runpod")
    assert played.refusal()["code"] == "several_slots"
    assert "runpod-1, runpod-2" in played.output
    assert not user.live()


def test_a_changed_job_does_not_resume_the_old_run(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "400"}
    tenant.ok("train")
    tenant.job["job_env"] = {"QUICK_STEPS": "401"}
    refusal = tenant.train().refusal()
    assert refusal["code"] == "other_run_open" and "env" in refusal["seen"]


def test_a_private_key_in_the_source(tenant: Tenant, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print('hi')\n")
    (source / "notes.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n")
    tenant.job["job_source"] = str(source)
    refusal = tenant.train().refusal()
    assert refusal["code"] == "private_key" and "notes.txt" in refusal["seen"]


def test_a_relayed_address_and_a_secret_that_is_not_set(tenant: Tenant) -> None:
    assert tenant.train("-e", "profile_ssh_flavour=relayed").refusal()["code"] == "relayed"
    tenant.job["job_secrets"] = ["NO_SUCH_TOKEN"]
    refusal = tenant.train("-e", "run_id=new").refusal()
    assert refusal["code"] == "secret_missing" and "export NO_SUCH_TOKEN" in refusal["do"]
    _recorded(tenant)


def test_a_box_that_is_not_what_was_rented(tmp_path: Path, make_lab: Callable[..., Lab]) -> None:
    user = Tenant(tmp_path / "user", make_lab())
    user.lab.fault("box.lose_gpu")
    refusal = user.train().refusal()
    assert refusal["code"] == "audit" and "have no GPU" in refusal["seen"]
    _recorded(user)

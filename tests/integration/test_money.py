# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ways to lose money without noticing, each found by somebody who tried: none may end in silence."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.api import Lab
from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture
def tenant(tmp_path: Path, make_lab: Callable[..., Lab]) -> Iterator[Tenant]:
    yield Tenant(tmp_path / "user", make_lab())


def test_another_accounts_key_proves_nothing(tenant: Tenant, make_lab: Callable[..., Lab]) -> None:
    tenant.ok("train")
    first = tenant.instance()
    other = make_lab()
    played = tenant.train(env=other.env())
    assert played.rc != 0
    assert [line["verdict"] for line in tenant.ledger() if line["action"] == "verdict"] == ["unknown"]
    assert [rental for rental in other.rentals() if rental["state"] != "gone"] == []
    assert tenant.live() == [first]


def test_two_commands_at_once_rent_once(tenant: Tenant) -> None:
    tenant.lab.fault("api.delay", {"path": "/v2/catalog"}, seconds=2.0)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: tenant.train("-e", "run_id=same-run"), range(2)))
    assert [played.rc for played in both] == [0, 0], both
    assert len(tenant.live()) == 1


def test_what_still_bills_is_named_until_it_does_not(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "600"}
    tenant.ok("train")
    tenant.until(r"step \d\d+/")
    dead = tenant.instance()
    tenant.lab.kill_host(dead)
    tenant.ok("tick", "-e", "rent_approve=true")
    assert f"STILL OPEN: {dead}" in tenant.ok("watch").output
    tenant.ok("stop")
    tenant.ok("collect", "-e", "collect_accept_missing=main")
    torn = tenant.ok("teardown", "-e", f"teardown_approve={tenant.instance()}")
    assert f"STILL OPEN: {dead}" in torn.output and "STILL BILLS: network_volume" in torn.output
    again = tenant.ok("teardown", "-e", f"discard={dead}")
    assert f"{dead}: meter off" in again.output and not tenant.live()
    assert "STILL BILLS: network_volume" in tenant.ok("teardown").output, "said again, not once"


def test_an_old_approval_does_not_turn_a_teardown_into_nothing(tenant: Tenant) -> None:
    tenant.ok("train")
    first = tenant.instance()
    tenant.until(r"  finished  ")
    tenant.ok("teardown", "-e", f"discard={first}")
    tenant.ok("train", "-e", "run_id=new")
    tenant.until(r"  finished  ")
    tenant.ok("collect")
    second = tenant.instance()
    assert second != first
    wrong = tenant.play("teardown", "-e", f"teardown_approve={second}", "-e", "leftovers_approve=network_volume:typo")
    assert wrong.refusal()["code"] == "unknown_leftover"
    tenant.ok("teardown", "-e", f"teardown_approve={second}", "-e", f"discard={first}")
    assert not tenant.live()


def test_a_volume_with_results_that_nobody_has_goes_only_by_its_own_name(tenant: Tenant) -> None:
    tenant.ok("train")
    tenant.until(r"  finished  ")
    tenant.ok("teardown", "-e", f"discard={tenant.instance()}")
    volume = next(one["id"] for one in tenant.lab.volumes() if one["state"] != "gone")
    approve = ("-e", f"leftovers_approve=network_volume:{volume}")
    assert tenant.play("teardown", *approve).refusal()["code"] == "leftover_holds_results"
    tenant.ok("teardown", *approve, "-e", f"discard={volume}")
    assert [one for one in tenant.lab.volumes() if one["state"] != "gone"] == []


def test_a_run_that_makes_no_progress_is_not_rented_for_again_and_again(tenant: Tenant) -> None:
    tenant.job["job_env"] = {"QUICK_STEPS": "600", "QUICK_PAUSE": "3"}
    tenant.job["job_retry"] = {"on_events": ["interruption"], "max": 1}
    tenant.ok("train")
    for number in (1, 2):
        tenant.lab.kill_host(tenant.instance())
        ticked = tenant.ok("tick", "-e", "rent_approve=true")
        assert ("attempt 2" in ticked.output) == (number == 1), ticked.output
    assert len([line for line in tenant.ledger() if line["action"] == "created"]) == 2


def test_a_cut_off_create_is_found_and_not_repeated(tenant: Tenant) -> None:
    tenant.ok("train")
    instance = tenant.instance()
    path = tenant.home / "ledger.jsonl"
    lines = path.read_text().splitlines()
    cut = next(index for index, line in enumerate(lines) if '"create_intent"' in line)
    path.write_text("\n".join(lines[: cut + 1]) + "\n" + lines[cut + 1][:40])
    again = tenant.ok("train")
    assert f"found {instance}" in again.output
    assert tenant.live() == [instance] and tenant.instance() == instance


def test_check_mode_changes_nothing_on_a_box_that_is_there(tenant: Tenant) -> None:
    tenant.ok("train")
    tenant.until(r"  finished  ")
    instance, before = tenant.instance(), tenant.ledger()
    listing = "find /workspace /root -printf '%p %T@\\n' | sort"
    _, files, _ = tenant.lab.exec(instance, ["sh", "-c", listing])
    for book in ("train", "collect", "stop", "teardown", "tick", "watch"):
        words = ("-e", f"discard={instance}") if book == "teardown" else ()
        played = tenant.ok(book, "--check", "--diff", *words)
        assert played.rc == 0
    assert tenant.ledger() == before
    _, after, _ = tenant.lab.exec(instance, ["sh", "-c", listing])
    changed = set(after.decode().splitlines()) ^ set(files.decode().splitlines())
    assert {line.split()[0] for line in changed} <= {"/workspace/quick", "/workspace"}, "only where the probe was"
    assert not tenant.results.exists() or not list(tenant.results.iterdir())

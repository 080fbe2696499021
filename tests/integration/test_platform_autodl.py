# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The AutoDL client against the lab: real HTTP, real boxes, a meter that runs, and lies of the API."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.autodl import AutoDL
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Endpoint,
    Instance,
    NoCapacity,
    PlatformError,
    UnknownOutcome,
    Wanted,
    verdict,
)
from lab.api import Lab
from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
IMAGE = "base-image-l2t43iu6uk"


def client(lab: Lab, **environ: str) -> AutoDL:
    made = AutoDL({**lab.env(), **environ})
    made.poll_seconds, made.patience_seconds = 0.1, 5.0  # type: ignore[misc]  # an account's pace, quickened
    made._http.budget = 1.0
    return made


@pytest.fixture
def autodl(lab: Lab) -> Iterator[AutoDL]:
    yield client(lab)
    lab.clear()
    for rental in lab.rentals():
        if rental["state"] != "gone":
            lab.destroy(rental["id"])


@pytest.fixture
def rent(autodl: AutoDL, public_key: str) -> Callable[..., Instance]:
    def rent(name: str = "digits-autodl-1-r1", **wanted: Any) -> Instance:
        asked = Wanted(name=name, image=IMAGE, public_key=public_key, **{"gpu": "RTX4090", **wanted})
        return autodl.rent(asked, autodl.offers(asked)[0])

    return rent


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return seen


def address(autodl: AutoDL, made: Instance) -> Endpoint:
    return until(lambda: autodl.show(made.id).endpoint)


def ssh(there: Endpoint, key: Path, command: str) -> str:
    argv = ["ssh", "-i", str(key), "-p", str(there.port), "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes"]
    argv += ["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", f"{there.user}@{there.host}", command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lab_state(lab: Lab, made: Instance) -> str:
    return str(lab.rental(made.id.removeprefix("pro-"))["state"])


def state(autodl: AutoDL, made: Instance, known: bool = True) -> str:
    return str(verdict(autodl, made.id, known)["state"])


# A rental's life


def test_rent_log_in_pause_start_and_give_back(
    lab: Lab, autodl: AutoDL, rent: Callable[..., Instance], ssh_key: Path
) -> None:
    made = rent(disk_gb=60, gpu_count=2)
    assert autodl.show(made.id).billing == "on"
    there = address(autodl, made)
    assert ssh(there, ssh_key, "nvidia-smi -L | wc -l; echo 1 > /root/tenant/kept").strip() == "2"
    seen = autodl.show(made.id)
    assert (seen.status, str(seen.rate), seen.region) == ("running", "5.96 CNY", "westDC2")
    assert state(autodl, made) == "on"

    autodl.stop(made.id)
    assert autodl.show(made.id).status == "shutting_down"
    until(lambda: autodl.show(made.id).status == "shutdown")
    assert state(autodl, made) == "disk_only"
    assert autodl.show(made.id).endpoint is None

    autodl.start(made.id)
    again = address(autodl, made)
    assert again.port != there.port
    assert ssh(again, ssh_key, "cat /root/tenant/kept").strip() == "1"

    assert "Success" in autodl.destroy(made.id)
    assert (state(autodl, made), state(autodl, made, known=False)) == ("off", "unknown")
    assert lab_state(lab, made) == "gone"


def test_an_instance_is_found_by_its_name(autodl: AutoDL, rent: Callable[..., Instance]) -> None:
    first, second = rent("digits-a"), rent("digits-b")
    assert [one.id for one in autodl.find("digits-b")] == [second.id]
    listed = {one.id: one for one in autodl.list()}
    assert {first.id, second.id} <= set(listed)
    assert (listed[first.id].gpu, listed[first.id].gpu_count) == ("v-48g", 1)
    assert autodl.find("digits-c") == []


def test_the_second_page_counts(autodl: AutoDL, rent: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.tenant.gpu.plugins.module_utils._platforms import autodl as module

    monkeypatch.setattr(module, "_PAGE_SIZE", 1)
    made = [rent(f"digits-{number}").id for number in range(3)]
    assert [one.id for one in autodl.list() if one.billing != "off"] == made


def test_money(lab: Lab, autodl: AutoDL) -> None:
    assert "wallet" in autodl.whoami()
    assert float(autodl.balance()["balance"]["amount"]) == pytest.approx(
        float(lab.bill()["accounts"]["autodl"]["balance"]), abs=0.01
    )


def test_no_stock_no_credit_no_rights(
    lab: Lab, rent: Callable[..., Instance], autodl: AutoDL, make_lab: Callable[..., Lab], public_key: str
) -> None:
    lab.fault("offer.none", {"platform": "autodl"})
    with pytest.raises(NoCapacity, match="暂无库存"):
        rent()
    lab.clear()
    poor = client(make_lab(balance=1))
    wanted = Wanted(name="n", gpu="h800", image=IMAGE, public_key=public_key)
    with pytest.raises(PlatformError, match="余额") as caught:
        poor.rent(wanted, poor.offers(wanted)[0])
    assert "Top up" in caught.value.do
    with pytest.raises(AuthError):
        client(lab, AUTODL_TOKEN="Bearer " + lab.env()["AUTODL_TOKEN"]).whoami()
    assert [one for one in lab.rentals() if one["platform"] == "autodl" and one["state"] != "gone"] == []


def test_what_is_on_cannot_be_released(autodl: AutoDL, rent: Callable[..., Instance]) -> None:
    made = rent()
    with pytest.raises(Conflict, match="关机状态"):
        autodl._change("release", {"instance_uuid": made.id})
    assert autodl.show(made.id).billing == "on"


# The API lies


STATUS, LIST = {"platform": "autodl", "path": "/pro/status"}, {"platform": "autodl", "path": "/pro/list"}
NOT_FOUND = {"code": "RecordNotFoundError", "msg": "", "data": None, "request_id": "r"}
NO_ROWS = {"code": "Success", "msg": "", "data": {"list": [], "max_page": 0, "result_total": 0}, "request_id": "r"}


@pytest.mark.parametrize(
    ("match", "answer"),
    [
        (STATUS, {"status": 200, "body": NOT_FOUND}),
        (STATUS, {"status": 200, "body": {**NOT_FOUND, "code": "Success", "data": "released"}}),
        (STATUS, {"status": 404, "body": {"message": "no route"}}),
        (STATUS, {"status": 200, "body": "<html>log in</html>"}),
        (STATUS, {"status": 200, "body": '{"code": "Succ'}),
        (STATUS, {"status": 410, "body": "gone"}),
        (STATUS, {"status": 429, "body": "slow down"}),
        (LIST, {"status": 200, "body": NO_ROWS}),
        (LIST, {"status": 200, "body": {**NO_ROWS, "data": {"list": None}}}),
    ],
)
def test_a_lie_never_turns_the_meter_off(
    lab: Lab, autodl: AutoDL, rent: Callable[..., Instance], match: dict[str, str], answer: dict[str, Any]
) -> None:
    made = rent()
    lab.fault("api.fail", match, **answer)
    assert lab_state(lab, made) != "gone"
    assert state(autodl, made) in ("on", "unknown")


def test_list_lag_after_a_create_and_after_a_release(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab(list_lag=1.0)
    autodl = client(lab)
    wanted = Wanted(name="late", gpu="5090", image=IMAGE, public_key=public_key)
    made = autodl.rent(wanted, autodl.offers(wanted)[0])
    assert autodl.find("late") == []
    assert state(autodl, made) == "on"
    until(lambda: autodl.find("late"))
    autodl.destroy(made.id)
    assert state(autodl, made) == "unknown", "it is still listed"
    until(lambda: state(autodl, made) == "off")


def test_a_released_one_that_lingers_is_off_once_it_left_the_list(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(linger=60.0)
    autodl = client(lab)
    wanted = Wanted(name="lingers", gpu="5090", image=IMAGE)
    made = autodl.rent(wanted, autodl.offers(wanted)[0])
    autodl.destroy(made.id)
    assert autodl.show(made.id).status == "released"
    assert state(autodl, made) == "off"


def test_a_create_that_answered_nothing_is_found_by_name(
    lab: Lab, autodl: AutoDL, rent: Callable[..., Instance]
) -> None:
    lab.fault("api.drop", {"platform": "autodl", "path": "/create"}, times=1)
    with pytest.raises(UnknownOutcome):
        rent("dropped")
    found = until(lambda: autodl.find("dropped"))
    assert len(found) == 1
    assert [call["path"] for call in lab.requests() if call["path"].endswith("/create")][-1:] != []
    autodl.destroy(found[0].id)
    assert state(autodl, found[0]) == "off"


def test_a_power_off_that_was_swallowed_releases_nothing(
    lab: Lab, autodl: AutoDL, rent: Callable[..., Instance]
) -> None:
    made = rent()
    autodl.patience_seconds = 0.5  # type: ignore[misc]
    lab.fault("api.fail", {"path": "/power_off"}, status=200, body={**NOT_FOUND, "code": "Success"})
    with pytest.raises(PlatformError, match="after power_off"):
        autodl.destroy(made.id)
    assert state(autodl, made) == "on"
    assert lab_state(lab, made) != "gone"


def test_a_release_that_was_swallowed_is_seen(lab: Lab, autodl: AutoDL, rent: Callable[..., Instance]) -> None:
    made = rent()
    fault = lab.fault("api.fail", {"path": "/release"}, status=200, body={**NOT_FOUND, "code": "Success"})
    autodl.destroy(made.id)
    assert state(autodl, made) == "disk_only"
    lab.clear(fault)
    autodl.destroy(made.id)
    assert state(autodl, made) == "off"


def test_a_release_that_failed_and_took_effect_is_proven_by_the_next_look(
    lab: Lab, autodl: AutoDL, rent: Callable[..., Instance]
) -> None:
    made = rent()
    lab.fault("api.fail", {"path": "/release"}, status=500, body="oops", executed=True, times=1)
    with pytest.raises(PlatformError):
        autodl.destroy(made.id)
    assert state(autodl, made) == "off"
    assert autodl.destroy(made.id)


def test_a_dead_host_is_told(lab: Lab, autodl: AutoDL, rent: Callable[..., Instance]) -> None:
    made = rent()
    address(autodl, made)
    lab.kill_host(made.id.removeprefix("pro-"))
    seen = autodl.show(made.id)
    assert (seen.dead, seen.billing, seen.endpoint) == (True, "disk_only", None)
    autodl.destroy(made.id)
    assert state(autodl, made) == "off"


# The playbooks


def test_the_main_job_on_autodl(tmp_path: Path, lab: Lab, autodl: AutoDL) -> None:
    """Rented by the playbooks, trained, collected, torn down and proven off; renting waits for a typed word."""
    tenant = Tenant(tmp_path, lab, {"autodl_pro": {"autodl_pro-1": None}})
    tenant.job |= {"job_volumes": [], "job_image": IMAGE, "job_max_price": "4 CNY", "job_max_cost": "3 CNY"}
    here: dict[str, Any] = {"limit": "autodl_pro-1"}
    assert "rent_approve=" in tenant.train("-e", "mirrors_needed=false", approve="", **here).refusal()["do"]
    assert not tenant.live()
    trained = tenant.train("-e", "mirrors_needed=false", **here)
    assert trained.rc == 0, trained.output
    until(lambda: "finished  step 10/10" in tenant.play("watch", **here).output)
    assert tenant.ok("collect", **here).rc == 0
    instance = tenant.instance()
    assert instance.startswith("pro-")
    torn = tenant.ok("teardown", "-e", f"teardown_approve={instance}", **here)
    assert f"{instance}: meter off" in torn.output
    assert not tenant.live()

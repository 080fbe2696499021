# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The vast.ai client against answers that its server, a proxy or bad luck can give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Endpoint,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    PlatformError,
    RateLimited,
    Retired,
    UnknownOutcome,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.vastai import _BILLING, VastAi
from tests.unit.scripted import Script, scripted

KEY = "vast-key-nobody-may-see"
SECRET = "hf_secret_nobody_may_see"
ID = "12345"
SHOW, LIST, USER = f"GET /api/v0/instances/{ID}/", "GET /api/v1/instances/", "GET /api/v0/users/current"
DELETE, CREATE, SEARCH = f"DELETE /api/v0/instances/{ID}/", "PUT /api/v0/asks/77/", "POST /api/v0/bundles/"
BAD_KEY = {"success": False, "error": "auth_error", "msg": "Invalid user key"}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ tenant.gpu"
WANTED = Wanted(name="digits-vastai-1-r1", gpu="RTX4090", image="img", disk_gb=40, env={"HF_TOKEN": SECRET})
OFFER = Offer("77", "RTX 4090", 1, 24, Money(Decimal("0.36"), "USD"), "Sweden, SE", "1 machine")
PORTS = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": "40123"}]}


def row(number: int = 12345, status: Any = "running", **more: Any) -> dict[str, Any]:
    return {"id": number, "actual_status": status, "label": "n", "dph_total": 0.36, "storage_total_cost": 0.01, **more}


def page(*rows: dict[str, Any], total: int | None = None, token: str | None = None) -> tuple[int, dict[str, Any]]:
    body = {"success": True, "instances_found": len(rows), "next_token": token, "instances": list(rows)}
    return 200, {**body, "total_instances": len(rows) if total is None else total}


def offered(**more: Any) -> dict[str, Any]:
    usual = {"id": 77, "gpu_name": "RTX 4090", "num_gpus": 1, "gpu_ram": 24564, "cuda_max_good": 12.8, "rentable": True}
    prices = {"dph_total": 0.36, "inet_up_cost": 0.004, "inet_down_cost": 0.002}
    return {**usual, **prices, "direct_port_count": 8, "geolocation": "Sweden, SE", **more}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        script.tell(USER, (200, {"id": 9, "balance": 0.0, "credit": 12.5, "api_key": KEY}))
        script.tell(LIST, page())
        yield script


@pytest.fixture
def vastai(script: Script) -> VastAi:
    made = VastAi({"VAST_API_KEY": KEY, "VAST_API_BASE_URL": script.url})
    made._http.budget = 0.0
    made.proof_gap = 0.0
    return made


# States


@pytest.mark.parametrize(
    ("status", "billing"),
    [
        (None, "disk_only"),
        ("created", "disk_only"),
        ("loading", "disk_only"),
        ("running", "on"),
        ("frozen", "on"),
        ("rebooting", "on"),
        ("recycling", "on"),
        ("stopped", "disk_only"),
        ("exited", "disk_only"),
        ("unknown", "on"),
        ("offline", "unknown"),
        ("hibernating", "unknown"),
    ],
)
def test_each_state_of_the_sheet_has_its_billing(script: Script, vastai: VastAi, status: Any, billing: str) -> None:
    script.tell(SHOW, (200, {"instances": row(status=status)}))
    seen = vastai.show(ID)
    assert seen.billing == billing
    assert seen.rate == Money(Decimal("0.01" if billing == "disk_only" else "0.36"), "USD")
    assert verdict(vastai, ID, True)["state"] == billing


def test_no_state_of_an_instance_that_is_there_means_off() -> None:
    assert "off" not in _BILLING.values()


def test_an_outbid_instance_is_named(script: Script, vastai: VastAi) -> None:
    stopped: dict[str, Any] = dict.fromkeys(("cur_state", "intended_status", "next_state"), "stopped")
    script.tell(SHOW, (200, {"instances": row(status="stopped", is_bid=True, **stopped)}))
    seen = vastai.show(ID)
    assert seen.dead and "outbid" in str(seen.note)


# Where it is reached


@pytest.mark.parametrize(
    ("told", "endpoint"),
    [
        ({"ports": PORTS, "public_ipaddr": " 203.0.113.7\n"}, Endpoint("203.0.113.7", 40123, "root")),
        ({"image_runtype": "ssh_direct", "ssh_host": "ssh4.vast.ai", "ssh_port": 10600, "uptime_mins": None}, None),
        (
            {"image_runtype": "ssh_direct", "ssh_host": "ssh4.vast.ai", "ssh_port": 10600, "uptime_mins": 3},
            Endpoint("ssh4.vast.ai", 10600, "root"),
        ),
        (
            {"image_runtype": "jupyter_proxy", "ssh_host": "ssh4.vast.ai", "ssh_port": 10600},
            Endpoint("ssh4.vast.ai", 10601, "root"),
        ),
        ({"ports": PORTS, "public_ipaddr": "-oProxyCommand=x"}, None),
        ({"ports": [22], "public_ipaddr": "203.0.113.7"}, None),
        ({"ports": {"22/tcp": [{"HostPort": "0"}]}, "public_ipaddr": "203.0.113.7"}, None),
    ],
    ids=["direct", "direct-to-come", "relay-after-a-wait", "jupyter-plus-one", "option-as-host", "array", "port-0"],
)
def test_the_address(script: Script, vastai: VastAi, told: dict[str, Any], endpoint: Endpoint | None) -> None:
    script.tell(SHOW, (200, {"instances": row(**told)}))
    assert vastai.show(ID).endpoint == endpoint


# Ids


@pytest.mark.parametrize("wrong", ["", " ", "0", "-1", "1/2", "..", "12345/", "12345?x", "1e3", "abc", "１２"])
def test_a_strange_id_never_enters_a_path(script: Script, vastai: VastAi, wrong: str) -> None:
    for call in (vastai.show, vastai.destroy, vastai.stop, vastai.start):
        with pytest.raises(PlatformError, match="cannot be an instance id"):
            call(wrong)
    with pytest.raises(PlatformError):
        vastai.delete_leftover("local_volume", wrong)
    assert script.asked == []


# Gone, or not


def off(vastai: VastAi) -> bool:
    return verdict(vastai, ID, True)["state"] == "off"


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"instances": None}),
        (404, {"success": False, "error": "no_such_instance", "msg": "x"}),
        (404, {"success": False, "error": "not_found", "msg": "Instance not found"}),
    ],
    ids=["null", "no_such_instance", "not_found"],
)
def test_gone_is_off(script: Script, vastai: VastAi, answer: Any) -> None:
    script.tell(SHOW, answer)
    assert off(vastai)


@pytest.mark.parametrize(
    "answer",
    [
        (404, BAD_KEY),
        (401, BAD_KEY),
        (404, {}),
        (404, {"detail": "Not Found"}),
        (404, "<html>not here</html>"),
        (200, {}),
        (200, {"success": True}),
        (200, {"instances": []}),
        (200, {"instances": row(999)}),
        (200, "<html>sign in</html>"),
        (200, '{"instances": nul'),
        (200, ""),
        (200, {"success": False, "error": "auth_error", "msg": "Invalid user key"}),
        (410, {"success": False, "error": "deprecated_endpoint", "msg": "x"}),
        (429, {"detail": "API requests too frequent endpoint threshold=2.0"}),
        (502, "bad gateway"),
        "drop",
    ],
)
def test_anything_else_by_id_is_not_off(script: Script, vastai: VastAi, answer: Any) -> None:
    script.tell(SHOW, answer)
    assert verdict(vastai, ID, True)["state"] == "unknown"


@pytest.mark.parametrize(
    "answers",
    [
        [page(row())],
        [page(row(1), token="t", total=2), page(row())],
        [page(total=1)],
        [page(row(1), total=2)],
        [(200, {"success": True})],
        [(200, {"success": True, "instances": None, "total_instances": 0})],
        [(200, {"success": True, "instances": []})],
        [(200, {"success": False, "error": "auth_error", "msg": "Invalid user key"})],
        [(410, {"success": False, "error": "deprecated_endpoint"})],
        [page(row(1), token="t", total=1), page(row(1), token="t", total=1)],
        [page({"id": 5, "label": "half"})],
        [(200, "<html>")],
        [(429, {"detail": "threshold=2.0"})],
    ],
    ids=[
        "listed", "page-2", "empty-but-counted", "short", "no-list", "null", "uncounted", "not-ok", "410",
        "endless", "half", "html", "429",
    ],
)  # fmt: skip
def test_a_list_that_is_not_whole_proves_nothing(script: Script, vastai: VastAi, answers: list[Any]) -> None:
    script.tell(SHOW, (200, {"instances": None}))
    script.tell(LIST, *answers)
    assert not off(vastai)


def test_a_list_that_changed_while_it_was_read_is_read_again(script: Script, vastai: VastAi) -> None:
    script.tell(LIST, page(row(1), total=2), page(row(1)))
    assert [found.id for found in vastai.list()] == ["1"]


def test_a_key_that_stopped_working_proves_nothing(script: Script, vastai: VastAi) -> None:
    script.tell(SHOW, (200, {"instances": None}))
    script.tell(USER, (401, BAD_KEY))
    assert not off(vastai)


def test_null_once_is_not_gone(script: Script, vastai: VastAi) -> None:
    slept: list[float] = []
    vastai.proof_gap, vastai._http.sleep = 10.0, slept.append
    script.tell(SHOW, (200, {"instances": None}), (200, {"instances": row()}))
    assert vastai.show(ID).status == "running"
    assert slept and 9 < slept[0] <= 10


def test_gone_is_read_twice_and_then_believed(script: Script, vastai: VastAi) -> None:
    slept: list[float] = []
    vastai.proof_gap, vastai._http.sleep = 0.05, slept.append
    script.tell(SHOW, (200, {"instances": None}))
    with pytest.raises(NotFound):
        vastai.show(ID)
    assert script.calls().count(SHOW) == 2 and len(slept) == 1


# Destroy


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((200, {"success": False, "error": "invalid_args", "msg": "x"}), PlatformError),
        ((200, {}), PlatformError),
        ((200, ""), PlatformError),
        ((200, {"msg": "destroyed"}), PlatformError),
        ((404, BAD_KEY), AuthError),
        ((404, {"success": False, "error": "auth_error", "msg": "revoked"}), AuthError),
        ((404, "<html>"), PlatformError),
        ((429, {"success": False, "error": "rate_limit_exceeded", "msg": "threshold=3.0"}), RateLimited),
        ((503, {"error": "x"}), PlatformError),
        ("drop", UnknownOutcome),
    ],
)
def test_a_destroy_that_was_not_confirmed_is_an_error_and_is_asked_once(
    script: Script, vastai: VastAi, answer: Any, kind: type[PlatformError]
) -> None:
    script.tell(DELETE, answer)
    with pytest.raises(kind):
        vastai.destroy(ID)
    assert script.calls() == [DELETE]


def test_destroying_what_is_gone_says_so(script: Script, vastai: VastAi) -> None:
    script.tell(DELETE, (404, {"success": False, "error": "no_such_instance", "msg": ""}))
    assert "no_such_instance" in vastai.destroy(ID)


# Create


def test_the_id_of_a_new_instance_is_new_contract(script: Script, vastai: VastAi) -> None:
    script.tell(CREATE, (200, {"success": True, "id": 3, "new_contract": 12345, "instance_api_key": SECRET}))
    made = vastai.rent(WANTED, OFFER)
    assert (made.id, made.name, made.rate) == (ID, WANTED.name, OFFER.rate)
    assert SECRET not in repr(made)
    assert script.calls() == [CREATE], "the id is written down before any other call"
    body = script.asked[0].body
    assert body["cancel_unavail"] is True
    assert "price" not in body, "a price would make it interruptible"
    assert (body["label"], body["disk"], body["image"]) == (WANTED.name, 40, "img")
    assert "no_auto_tmux" in body["onstart"] and len(body["onstart"]) < 4000


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("drop", UnknownOutcome),
        ((200, "<html>"), UnknownOutcome),
        ((200, ""), UnknownOutcome),
        ((200, {}), UnknownOutcome),
        ((200, {"success": True}), UnknownOutcome),
        ((200, {"success": True, "new_contract": None}), UnknownOutcome),
        ((500, {"error": "x"}), PlatformError),
        ((504, "<html>"), PlatformError),
        ((410, {"success": False, "error": "no_such_ask", "msg": "x"}), NoCapacity),
        ((404, {"success": False, "error": "invalid_args", "msg": "error 404/3603: no_such_ask x"}), NoCapacity),
        ((404, BAD_KEY), AuthError),
        ((400, {"success": False, "error": "invalid_args", "msg": f"bad -e HF_TOKEN={SECRET}"}), PlatformError),
        ((200, {"success": False, "error": "invalid_price", "msg": f"key {KEY}"}), PlatformError),
        ((429, {"detail": "API requests too frequent endpoint threshold=4.5"}), RateLimited),
    ],
)
def test_a_create_is_never_repeated_and_tells_no_secret(
    script: Script, vastai: VastAi, answer: Any, kind: type[PlatformError]
) -> None:
    vastai._http.budget = 30.0
    script.tell(CREATE, answer)
    with pytest.raises(kind) as told:
        vastai.rent(WANTED, OFFER)
    assert script.calls() == [CREATE]
    assert type(told.value) is kind
    whole = f"{told.value} {told.value.seen} {told.value.means} {told.value.do}"
    assert KEY not in whole and SECRET not in whole


@pytest.mark.parametrize("status", [200, 400])
def test_what_a_refused_create_left_is_destroyed(script: Script, vastai: VastAi, status: int) -> None:
    refused = {"success": False, "error": "insufficient_credit", "msg": "x", "new_contract": 12345}
    script.tell(CREATE, (status, refused))
    script.tell(DELETE, (200, {"success": True}))
    with pytest.raises(PlatformError, match="insufficient_credit") as told:
        vastai.rent(WANTED, OFFER)
    assert script.calls() == [CREATE, DELETE]
    assert ID in told.value.seen


def test_what_cannot_be_destroyed_is_an_unknown_outcome(script: Script, vastai: VastAi) -> None:
    script.tell(CREATE, (400, {"success": False, "error": "insufficient_credit", "new_contract": 12345}))
    script.tell(DELETE, (500, {}))
    with pytest.raises(UnknownOutcome, match=ID):
        vastai.rent(WANTED, OFFER)


def test_volumes_are_refused_before_anything_is_rented(script: Script, vastai: VastAi) -> None:
    for call in (lambda: vastai.find_volume("v"), lambda: vastai.create_volume("v", 10, None)):
        with pytest.raises(PlatformError, match="job_volumes") as told:
            call()
        assert "job_durable" in told.value.do
    assert script.asked == []


# Search


def test_the_search_asks_for_what_is_wanted_and_leaves_out_doubtful_hosts(script: Script, vastai: VastAi) -> None:
    script.tell(SEARCH, (200, {"offers": [offered()]}))
    wanted = Wanted(name="n", gpu="RTX4090", gpu_count=2, vram_gb=24, disk_gb=40, cuda=">=12.1", region="SE")
    assert vastai.offers(wanted) == []  # what came back has one card
    body = script.asked[0].body
    assert body["gpu_name"] == {"in": ["RTX 4090"]}
    assert body["num_gpus"] == {"eq": 2} and body["cuda_max_good"] == {"gte": 12.1}
    assert body["gpu_ram"]["gte"] <= 24564, "a card of 24 GB says 24564 MB"
    assert body["verified"] == {"eq": True} and body["direct_port_count"] == {"gte": 1}
    assert body["reliability"]["gte"] >= 0.9 and body["allocated_storage"] == 40
    assert body["geolocation"] == {"eq": "SE"}


def test_the_cheapest_comes_first_with_what_traffic_costs(script: Script, vastai: VastAi) -> None:
    script.tell(SEARCH, (200, {"offers": [offered(dph_total=0.5), offered(id=78, dph_total=0.4)]}))
    found = vastai.offers(WANTED)
    assert [offer.id for offer in found] == ["78", "77"]
    assert found[0].rate == Money(Decimal("0.4"), "USD")
    assert "0.0040 up" in found[0].stock


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_name": "RTX 3090"},
        {"num_gpus": 4},
        {"gpu_ram": 8192},
        {"direct_port_count": 0},
        {"rentable": False},
        {"is_bid": True},
        {"cuda_max_good": 11.8},
    ],
)
def test_an_offer_that_does_not_fit_is_left_out(script: Script, vastai: VastAi, wrong: dict[str, Any]) -> None:
    script.tell(SEARCH, (200, {"offers": [offered(**wrong)]}))
    assert vastai.offers(Wanted(name="n", gpu="RTX4090", vram_gb=24, cuda=">=12.1")) == []


@pytest.mark.parametrize("wrong", [{"dph_total": None}, {"dph_total": "free"}, {"id": None}, {"gpu_ram": "24 GB"}])
def test_an_offer_that_is_not_understood_is_an_error(script: Script, vastai: VastAi, wrong: dict[str, Any]) -> None:
    script.tell(SEARCH, (200, {"offers": [offered(**wrong)]}))
    with pytest.raises(PlatformError):
        vastai.offers(WANTED)


def test_underscores_are_tried_where_spaces_find_nothing(script: Script, vastai: VastAi) -> None:
    script.tell(SEARCH, (200, {"offers": []}), (200, {"offers": [offered(gpu_name="RTX_4090")]}))
    assert len(vastai.offers(WANTED)) == 1
    assert script.asked[1].body["gpu_name"] == {"in": ["RTX_4090"]}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("A10", ["A10"]),
        ("A100", ["A100 PCIE", "A100 SXM4", "A100X"]),
        ("L40", ["L40"]),
        ("H100SXM", ["H100 SXM"]),
        ("rtx_4090", ["RTX 4090"]),
        ("RTX 9090", ["RTX 9090"]),
    ],
)
def test_card_names(script: Script, vastai: VastAi, asked: str, names: list[str]) -> None:
    script.tell(SEARCH, (200, {"offers": []}))
    vastai.offers(Wanted(name="n", gpu=asked))
    assert script.asked[0].body["gpu_name"]["in"] == names


def test_a_used_up_quota_of_searches_is_not_asked_again_today(script: Script, vastai: VastAi) -> None:
    vastai._http.budget = 30.0
    script.tell(SEARCH, (429, {"success": False, "error": "search_quota_exceeded", "msg": "x"}))
    with pytest.raises(RateLimited, match="search_quota"):
        vastai.offers(WANTED)
    assert script.calls() == [SEARCH]


# Errors and retries


def test_a_429_is_waited_for_as_long_as_it_says(script: Script, vastai: VastAi) -> None:
    slept: list[float] = []
    vastai._http.budget, vastai._http.sleep = 30.0, slept.append
    script.tell(USER, (429, {"detail": "API requests too frequent endpoint threshold=2.5"}), (200, {"id": 9}))
    assert "user 9" in vastai.whoami()
    assert slept == [2.5]


def test_the_retired_list_is_an_error_of_its_own(script: Script, vastai: VastAi) -> None:
    script.tell(LIST, (410, {"success": False, "error": "deprecated_endpoint", "msg": "x"}))
    with pytest.raises(Retired):
        vastai.list()


def test_a_redirect_is_followed_once_on_the_same_host_with_the_key(script: Script, vastai: VastAi) -> None:
    script.tell(DELETE, (307, ""))
    script.tell(DELETE.rstrip("/"), (200, {"success": True}))
    assert "200" in vastai.destroy(ID)
    assert script.asked[1].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("call", [USER, LIST, SHOW])
def test_the_key_is_in_no_message(script: Script, vastai: VastAi, call: str) -> None:
    said = {"success": False, "error": "invalid_args", "msg": f"no {KEY} here"}
    for answer in ((401, BAD_KEY), (500, f"<html>{KEY}</html>"), (200, KEY), (400, said), (200, said)):
        script.tell(call, answer)
        ask = {USER: vastai.whoami, LIST: vastai.list, SHOW: lambda: vastai.show(ID)}[call]
        with pytest.raises(PlatformError) as told:
            ask()
        assert KEY not in f"{told.value.seen} {told.value.means} {told.value.do}"


def test_secrets_of_an_instance_are_dropped(script: Script, vastai: VastAi) -> None:
    hidden: dict[str, Any] = {
        "extra_env": [["HF_TOKEN", SECRET]],
        "onstart": SECRET,
        "jupyter_token": SECRET,
        "api_key": SECRET,
    }
    script.tell(SHOW, (200, {"instances": row(**hidden)}))
    assert SECRET not in json.dumps(vastai.show(ID).as_dict())


def test_what_a_host_says_is_made_printable(script: Script, vastai: VastAi) -> None:
    script.tell(SHOW, (200, {"instances": row(status_msg="bad\x1b[2Jimage\n")}))
    assert vastai.show(ID).note == "bad [2Jimage"


# Account


def test_the_balance_is_the_credit(script: Script, vastai: VastAi) -> None:
    script.tell(LIST, page(row(1), row(2, "stopped")))
    found = vastai.balance()
    assert found["balance"] == {"amount": "12.5", "currency": "USD"}
    assert found["account_balance"] == {"amount": "0", "currency": "USD"}
    assert found["burn_per_hour"] == {"amount": "0.37", "currency": "USD"}
    assert KEY not in json.dumps(found)


def test_a_key_is_registered_once(script: Script, vastai: VastAi) -> None:
    script.tell(
        "GET /api/v0/ssh/", (404, {"msg": "No SSH keys found for the user."}), (200, [{"id": 1, "key": PUBLIC_KEY}])
    )
    script.tell("POST /api/v0/ssh/", (200, {"success": True, "key": {"id": 1}}))
    assert vastai.ensure_key(PUBLIC_KEY) is True
    assert vastai.ensure_key(PUBLIC_KEY + "-other-comment") is False


def test_leftovers_are_the_volumes_that_no_other_instance_uses(script: Script, vastai: VastAi) -> None:
    script.tell(SHOW, (200, {"instances": row()}))
    volumes = [
        {"id": 1, "disk_space": 15.2, "machine_id": 40, "instances": [{"id": 12345}]},
        {"id": 2, "disk_space": 10, "instances": [{"id": 6}]},
        {"id": 3, "disk_space": 10, "instances": []},
    ]
    script.tell("GET /api/v0/volumes", (200, {"volumes": volumes}))
    assert [found.id for found in vastai.leftovers(vastai.show(ID))] == ["1", "3"]
    assert next((found.id, found.size_gb, found.region) for found in vastai.leftovers(None)) == ("1", 16, "machine 40")
    script.tell("GET /api/v0/volumes", (200, {}))
    with pytest.raises(PlatformError):
        vastai.leftovers(None)


def test_without_a_key_it_says_where_to_get_one() -> None:
    with pytest.raises(AuthError) as told:
        client("vastai", {})
    assert "VAST_API_KEY" in told.value.do


def test_the_vendors_key_file_serves(tmp_path: Path, script: Script) -> None:
    place = tmp_path / ".config/vastai/vast_api_key"
    place.parent.mkdir(parents=True)
    place.write_text(f"{KEY}\n")
    made = client("vastai", {"HOME": str(tmp_path), "VAST_API_BASE_URL": script.url})
    assert "user 9" in made.whoami()
    assert script.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert not re.search(KEY, script.asked[0].path)

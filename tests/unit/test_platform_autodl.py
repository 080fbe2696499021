# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The AutoDL client against answers that its server, a proxy or bad luck can give."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.autodl import AutoDL, _authorize
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    PlatformError,
    UnknownOutcome,
    Wanted,
    verdict,
)
from tests.unit.scripted import Script, scripted

PRO = "/api/v1/dev/instance/pro"
WALLET = "POST /api/v1/dev/wallet/balance"
TOKEN = "eyJ-the-token-nobody-may-see"
ID = "pro-76419909953e"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ tenant.gpu"
WANTED = Wanted(name="digits-autodl-1-r1", gpu="RTX4090", image="base-image-l2t43iu6uk", disk_gb=40, public_key=KEY)


def ok(data: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"code": "Success", "msg": "", "data": data, "request_id": "r"}


def no(code: str, msg: str = "") -> tuple[int, dict[str, Any]]:
    return 200, {"code": code, "msg": msg, "data": None, "request_id": "r"}


def page(*rows: dict[str, Any], last: int = 1, total: int | None = None) -> tuple[int, dict[str, Any]]:
    return ok({"list": list(rows), "max_page": last, "result_total": len(rows) if total is None else total})


def row(uuid: str = ID, status: str = "running", name: str = "n") -> dict[str, Any]:
    return {"uuid": uuid, "status": status, "name": name, "gpu_spec_uuid": "v-48g", "req_gpu_amount": 1}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        script.tell(
            "POST /api/v1/dev/wallet/balance", ok({"assets": 12345, "blocked_asset": 345, "voucher_balance": 7})
        )
        script.tell(f"POST {PRO}/list", page())
        yield script


@pytest.fixture
def autodl(script: Script) -> AutoDL:
    environ = {"AUTODL_TOKEN": TOKEN, "AUTODL_API_BASE_URL": script.url, "AUTODL_PRICES": "v-48g=2.98 CNY"}
    made = AutoDL(environ, sleep=lambda seconds: None)
    made._http.budget = 0.0
    return made


def offer(rate: str = "2.98") -> Offer:
    return Offer("v-48g", "RTX 4090", 1, 48, Money(Decimal(rate), "CNY"), None, "unknown")


# The envelope


def test_the_raw_token_travels_without_a_scheme(script: Script, autodl: AutoDL) -> None:
    autodl.whoami()
    assert script.asked[0].headers["authorization"] == TOKEN


def test_reads_by_id_ask_in_the_query_string(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("shutdown"))
    autodl.show(ID)
    assert (script.asked[0].query, script.asked[0].body) == ({"instance_uuid": ID}, None)


@pytest.mark.parametrize(
    ("code", "msg", "kind"),
    [
        ("AuthorizeFailed", "登录超时", AuthError),
        ("TORealName", "请先实名认证", AuthError),
        ("PermissionDenied", "", AuthError),
        ("BadRequest", "无当前资源访问权限", AuthError),
        ("RecordNotFoundError", "", NotFound),
        ("InternalError", "当前算力规格暂无库存", NoCapacity),
        ("InternalError", "请确保实例是关机状态", Conflict),
        ("InternalError", "账户余额不足", PlatformError),
        ("RequestParameterIsWrong", "", PlatformError),
        ("SomethingNew", "", PlatformError),
    ],
)
def test_a_code_in_a_200_is_an_error_of_its_kind(
    script: Script, autodl: AutoDL, code: str, msg: str, kind: type[PlatformError]
) -> None:
    script.tell(f"GET {PRO}/status", no(code, msg))
    with pytest.raises(PlatformError) as caught:
        autodl.show(ID)
    assert type(caught.value) is kind
    assert code in caught.value.seen and caught.value.means and caught.value.do


@pytest.mark.parametrize(
    "answer",
    [
        (200, "<html>login</html>"),
        (200, "[]"),
        (200, "null"),
        (200, {"data": "released"}),
        (200, {"code": 0, "data": "released"}),
        (200, '{"code": "Success", "da'),
        (200, ""),
        ok(None),
        ok({"status": "released"}),
        ok(""),
        (404, {"message": "no route"}),
        (404, "<html>not found</html>"),
        (410, {"message": "gone"}),
        (401, {"message": "no"}),
        (502, "<html>bad gateway</html>"),
        "drop",
    ],
)
def test_what_is_not_understood_never_means_gone(script: Script, autodl: AutoDL, answer: Any) -> None:
    script.tell(f"GET {PRO}/status", answer)
    with pytest.raises(PlatformError) as caught:
        autodl.show(ID)
    assert not isinstance(caught.value, NotFound)
    assert verdict(autodl, ID, True)["state"] == "unknown"


def test_reads_are_repeated(script: Script, autodl: AutoDL) -> None:
    autodl._http.budget, autodl._http.sleep = 30.0, lambda seconds: None
    script.tell(f"GET {PRO}/status", (503, "busy"), "drop", (429, {"message": "slow"}), ok("shutdown"))
    assert autodl.show(ID).status == "shutdown"


# States


@pytest.mark.parametrize(
    ("status", "billing", "dead"),
    [
        ("creating", "on", False),
        ("created", "on", False),
        ("starting", "on", False),
        ("shutting_down", "on", False),
        ("shutdown", "disk_only", True),
        ("failed", "disk_only", True),
        ("create_failed", "disk_only", True),
        ("released", "off", True),
        ("oss_merged", "unknown", False),
        ("RUNNING", "unknown", False),
    ],
)
def test_each_state_has_its_billing(script: Script, autodl: AutoDL, status: str, billing: str, dead: bool) -> None:
    script.tell(f"GET {PRO}/status", ok(status))
    seen = autodl.show(ID)
    assert (seen.status, seen.billing, seen.dead) == (status, billing, dead)
    assert f"GET {PRO}/snapshot" not in script.calls()


SNAPSHOT = {
    "payg_price": 2980,
    "region_sign": "westDC2",
    "snapshot_gpu_alias_name": "RTX 4090",
    "root_password": "hunter2",
    "jupyter_token": "jupyter-secret",
}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ({"proxy_host": "connect.westc.seetacloud.com", "ssh_port": 40022}, ("connect.westc.seetacloud.com", 40022)),
        ({"ssh_command": "ssh -p 40023 root@region-9.autodl.com"}, ("region-9.autodl.com", 40023)),
        ({"proxy_host": "", "ssh_port": 0, "ssh_command": ""}, None),
        ({"ssh_command": "ssh -p 1 -o ProxyCommand=evil root@host"}, None),
        ({}, None),
    ],
)
def test_a_running_one_has_price_and_address(
    script: Script, autodl: AutoDL, address: dict[str, Any], expected: tuple[str, int] | None
) -> None:
    script.tell(f"GET {PRO}/status", ok("running"))
    script.tell(f"GET {PRO}/snapshot", ok({**SNAPSHOT, **address}))
    seen = autodl.show(ID)
    assert (seen.billing, str(seen.rate)) == ("on", "2.98 CNY")
    assert (seen.endpoint and (seen.endpoint.host, seen.endpoint.port)) == expected
    assert "hunter2" not in str(seen.as_dict()) and "jupyter-secret" not in str(seen.as_dict())


# The list


def test_every_page_is_read(script: Script, autodl: AutoDL) -> None:
    script.tell(f"POST {PRO}/list", page(row("pro-aaaa"), last=2, total=2), page(row("pro-bbbb"), last=2, total=2))
    assert [one.id for one in autodl.list()] == ["pro-aaaa", "pro-bbbb"]
    assert [one.body["page_index"] for one in script.asked] == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        page(row(), last=1, total=2),
        ok({"list": None, "max_page": 1, "result_total": 1}),
        ok({"max_page": 0, "result_total": 0, "list": {}}),
        ok({"list": []}),
        ok([]),
        ok(None),
        page({"status": "running"}),
        page({"uuid": ID}),
        ok({"list": [], "max_page": 10**9, "result_total": 0}),
    ],
)
def test_half_a_list_is_an_error(script: Script, autodl: AutoDL, answer: Any) -> None:
    script.tell(f"POST {PRO}/list", answer)
    with pytest.raises(PlatformError):
        autodl.list()
    script.tell(f"GET {PRO}/status", no("RecordNotFoundError"))
    assert verdict(autodl, ID, True)["state"] == "unknown"


def test_an_empty_account_may_say_null(script: Script, autodl: AutoDL) -> None:
    script.tell(f"POST {PRO}/list", ok({"list": None, "max_page": 0, "result_total": 0}))
    assert autodl.list() == []


def test_off_needs_everything(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", no("RecordNotFoundError"))
    assert verdict(autodl, ID, True)["state"] == "off"
    assert verdict(autodl, ID, False)["state"] == "unknown"
    script.tell(WALLET, no("AuthorizeFailed"))
    assert verdict(autodl, ID, True)["state"] == "unknown"


def test_not_found_and_still_listed_is_unknown(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", no("RecordNotFoundError"))
    script.tell(f"POST {PRO}/list", page(row("pro-aaaa"), last=2, total=2), page(row(), last=2, total=2))
    assert verdict(autodl, ID, True)["state"] == "unknown"


# Ids


@pytest.mark.parametrize(
    "instance_id", ["", "pro-", "7641-9909953e", "pro-../x", "pro-a b", "pro-abcd&x=1", "pro-abcd\n"]
)
def test_a_strange_id_enters_no_request(script: Script, autodl: AutoDL, instance_id: str) -> None:
    for verb in (autodl.show, autodl.destroy, autodl.stop, autodl.start):
        with pytest.raises(PlatformError, match="cannot be an instance id"):
            verb(instance_id)
    assert script.asked == []


# Renting


def test_a_create_says_what_was_asked(script: Script, autodl: AutoDL) -> None:
    script.tell(f"POST {PRO}/create", ok(ID))
    made = autodl.rent(WANTED, offer())
    body = script.asked[0].body
    assert (made.id, made.name, made.billing, str(made.rate), made.disk_gb) == (ID, WANTED.name, "on", "2.98 CNY", 40)
    command = body.pop("start_command")
    assert body == {
        "instance_name": "digits-autodl-1-r1",
        "gpu_spec_uuid": "v-48g",
        "req_gpu_amount": 1,
        "expand_system_disk_by_gb": 10,
        "image_uuid": "base-image-l2t43iu6uk",
        "cuda_v_from": 118,
    }
    assert KEY in command


def test_the_key_is_let_in_once_whatever_its_comment(tmp_path: Path) -> None:
    key = KEY + " it's; touch /tmp/never $(id)"
    command = _authorize(key).replace("/root/.ssh", str(tmp_path / "ssh"))
    for _ in range(2):
        subprocess.run(["bash", "-c", command], check=True)
    known = tmp_path / "ssh/authorized_keys"
    assert known.read_text() == f"{key}\n"
    assert known.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("drop", UnknownOutcome),
        ((200, "<html>"), UnknownOutcome),
        (ok(None), UnknownOutcome),
        (ok({"instance_uuid": ID}), UnknownOutcome),
        (ok("7641-ordinary"), UnknownOutcome),
        (no("InternalError", "当前算力规格暂无库存"), NoCapacity),
        (no("InternalError", "系统繁忙"), PlatformError),
        ((500, {"message": "oops"}), PlatformError),
    ],
)
def test_a_create_is_never_repeated(script: Script, autodl: AutoDL, answer: Any, kind: type[PlatformError]) -> None:
    script.tell(f"POST {PRO}/create", answer)
    with pytest.raises(kind) as caught:
        autodl.rent(WANTED, offer())
    assert type(caught.value) is kind
    assert script.calls() == [f"POST {PRO}/create"]


def test_what_may_have_been_rented_counts_as_unknown(script: Script, autodl: AutoDL) -> None:
    """The renter looks for the name where no status below 500 says that it was refused."""
    for answer, definite in ((no("InternalError", "系统繁忙"), False), (no("RequestParameterIsWrong"), True)):
        script.tell(f"POST {PRO}/create", answer)
        with pytest.raises(PlatformError) as caught:
            autodl.rent(WANTED, offer())
        assert ((caught.value.status or 500) < 500) is definite


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"disk_gb": 531}, "531 GB"), ({"cuda": "latest"}, "latest")],
)
def test_what_autodl_cannot_give_is_not_asked_for(
    script: Script, autodl: AutoDL, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlatformError, match=words):
        autodl.rent(Wanted(**{**WANTED.__dict__, **changes}), offer())
    assert script.asked == []


def test_cuda_is_written_as_autodl_does(script: Script, autodl: AutoDL) -> None:
    script.tell(f"POST {PRO}/create", ok(ID))
    autodl.rent(Wanted(**{**WANTED.__dict__, "cuda": ">=12.4", "region": "westDC3"}), offer())
    assert (script.asked[0].body["cuda_v_from"], script.asked[0].body["data_center_list"]) == (124, ["westDC3"])


# Offers


def priced(script: Script, prices: str) -> AutoDL:
    return AutoDL({"AUTODL_TOKEN": TOKEN, "AUTODL_API_BASE_URL": script.url, "AUTODL_PRICES": prices})


@pytest.mark.parametrize("gpu", ["v-48g", "RTX4090", "rtx 4090", "4090", "4090-48G", "RTX 4090 48G"])
def test_a_card_is_found_by_id_and_by_name(script: Script, gpu: str) -> None:
    found = priced(script, "v-48g=2.98 CNY,4090D=1.98 CNY").offers(Wanted(name="n", gpu=gpu, gpu_count=2))
    assert [(one.id, str(one.rate), one.stock) for one in found] == [("v-48g", "5.96 CNY", "unknown")]


def test_the_cheapest_declared_comes_first_and_unknown_ids_are_taken_as_typed(script: Script) -> None:
    autodl = priced(script, "next-gpu=3 CNY")
    assert [one.id for one in autodl.offers(Wanted(name="n", gpu="next-gpu"))] == ["next-gpu"]
    with pytest.raises(PlatformError):
        autodl.offers(Wanted(name="n", gpu="next-gpu", vram_gb=24))


def test_nothing_is_offered_at_an_unknown_price(script: Script) -> None:
    with pytest.raises(PlatformError, match="names no price") as caught:
        priced(script, "").offers(WANTED)
    assert "export AUTODL_PRICES='v-48g=" in caught.value.do


@pytest.mark.parametrize("prices", ["v-48g", "v-48g=", "v-48g=2.98", "v-48g=free CNY", "=2.98 CNY", "v-48g=-1 CNY"])
def test_a_price_that_cannot_be_read_is_named(script: Script, prices: str) -> None:
    with pytest.raises(PlatformError, match="AUTODL_PRICES holds") as caught:
        priced(script, prices).offers(WANTED)
    assert "export AUTODL_PRICES=" in caught.value.do


def test_more_cards_than_a_host_has(script: Script) -> None:
    with pytest.raises(NoCapacity, match="at most 4"):
        priced(script, "v-48g=1 CNY").offers(Wanted(name="n", gpu="v-48g", gpu_count=5))


# The end


def test_destroy_powers_off_waits_and_releases(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("running"), ok("shutting_down"), ok("shutdown"))
    script.tell(f"POST {PRO}/power_off", ok(None))
    script.tell(f"POST {PRO}/release", ok(None))
    assert "Success" in autodl.destroy(ID)
    assert [call.rpartition("/")[2] for call in script.calls()] == [
        "status", "power_off", "status", "status", "release",
    ]  # fmt: skip


def test_what_is_off_is_released_at_once(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("shutdown"))
    script.tell(f"POST {PRO}/release", ok(None))
    autodl.destroy(ID)
    assert f"POST {PRO}/power_off" not in script.calls()


def test_a_power_off_without_an_answer_is_judged_by_the_state(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("running"), ok("shutdown"))
    script.tell(f"POST {PRO}/power_off", "drop")
    script.tell(f"POST {PRO}/release", ok(None))
    assert "Success" in autodl.destroy(ID)


def test_nothing_is_released_that_does_not_power_off(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("running"))
    script.tell(f"POST {PRO}/power_off", ok(None))
    with pytest.raises(PlatformError, match="is running, 180 s after power_off"):
        autodl.destroy(ID)
    assert f"POST {PRO}/release" not in script.calls()


def test_a_release_without_an_answer_is_of_unknown_outcome(script: Script, autodl: AutoDL) -> None:
    script.tell(f"GET {PRO}/status", ok("shutdown"))
    script.tell(f"POST {PRO}/release", "drop")
    with pytest.raises(UnknownOutcome):
        autodl.destroy(ID)


@pytest.mark.parametrize("answer", [no("RecordNotFoundError"), ok("released")])
def test_what_is_gone_is_not_released_again(script: Script, autodl: AutoDL, answer: Any) -> None:
    script.tell(f"GET {PRO}/status", answer)
    assert autodl.destroy(ID)
    assert len(script.asked) == 1


# Money and secrets


def test_the_balance_is_what_can_be_spent(autodl: AutoDL) -> None:
    assert autodl.balance() == {
        "balance": {"amount": "12", "currency": "CNY"},
        "voucher": {"amount": "0.007", "currency": "CNY"},
        "burn_per_hour": None,
    }


def test_no_token_is_said_with_its_remedy() -> None:
    with pytest.raises(AuthError, match="AUTODL_TOKEN is not set") as caught:
        client("autodl", {})
    assert "export AUTODL_TOKEN=" in caught.value.do


def test_secrets_get_into_no_message(script: Script, autodl: AutoDL) -> None:
    leaks: list[Any] = [
        no("AuthorizeFailed", f"token {TOKEN} is unknown"),
        (200, {"code": "SomethingNew", "msg": "x", "data": {"root_password": "hunter2"}}),
        (200, '{"root_password": "hunter2"'),
        (500, {"root_password": "hunter2"}),
    ]
    for leak in leaks:
        script.tell(f"GET {PRO}/status", leak)
        with pytest.raises(PlatformError) as caught:
            autodl.show(ID)
        told = f"{caught.value.seen} {caught.value.means} {caught.value.do} {caught.value!r}"
        assert TOKEN not in told and "hunter2" not in told

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The RunPod client against answers that its server, a proxy or bad luck can give."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    PlatformError,
    RateLimited,
    Retired,
    UnknownOutcome,
    Volume,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.runpod import RunPod
from tests.unit.scripted import Script, scripted

KEY = "rpa_secret-key-nobody-may-see"
SHOW, LIST, CREATE = "GET /v2/pods/pod1", "GET /v2/pods", "POST /v2/pods"
KEYS, GPUS, VOLUMES = "GET /v2/account/ssh-keys", "GET /v2/catalog/gpus", "GET /v2/network-volumes"
WANTED = Wanted(name="digits-runpod-1-r1", gpu="RTX4090", image="an/image", disk_gb=10)
OFFER = Offer("NVIDIA GeForce RTX 4090", "RTX 4090", 1, 24, Money(Decimal("0.69"), "USD"), "US-KS-2", "high")


def problem(status: int, detail: str = "words") -> tuple[int, dict[str, Any]]:
    return status, {"title": "Error", "status": status, "detail": detail}


def pod(status: str = "RUNNING", **more: Any) -> dict[str, Any]:
    direct = {"host": "203.0.113.7", "port": 40022, "username": "root", "command": "ssh"}
    ssh = {"proxy": {**direct, "host": "ssh.runpod.io", "port": 22}, "direct": direct}
    return {"id": "pod1", "name": "n", "status": status, "cost": 0.69, "ssh": ssh, "env": {"TOKEN": "secret"}, **more}


def gpu(name: str = "NVIDIA GeForce RTX 4090", price: float = 0.69, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "name": name.removeprefix("NVIDIA GeForce "), "memory": 24, "secure": True, "community": True,
        "price": {"secure": price, "community": price / 2}, "maxCount": {"secure": 8, "community": 8},
        "availability": "HIGH", "dataCenters": [
            {"id": "EU-RO-1", "name": "x", "availability": "LOW"},
            {"id": "US-KS-2", "name": "y", "availability": "HIGH"},
        ], **more,
    }  # fmt: skip


@pytest.fixture
def server() -> Iterator[Script]:
    with scripted() as script:
        yield script


@pytest.fixture
def runpod(server: Script) -> RunPod:
    made = client(
        "runpod",
        {"RUNPOD_API_KEY": KEY, "RUNPOD_API_BASE_URL": server.url, "RUNPOD_GRAPHQL_URL": f"{server.url}/graphql"},
    )
    assert isinstance(made, RunPod)
    for one in (made._rest, made._graphql):
        one.budget, one.sleep = 4.0, lambda seconds: None
    return made


@pytest.mark.parametrize(
    ("status", "billing", "dead"),
    [
        ("PROVISIONING", "on", False), ("STARTING", "on", False), ("RUNNING", "on", False), ("ERROR", "on", True),
        ("EXITED", "disk_only", True), ("TERMINATED", "off", True), ("HIBERNATING", "unknown", False),
    ],
)  # fmt: skip
def test_states(server: Script, runpod: RunPod, status: str, billing: str, dead: bool) -> None:
    server.tell(SHOW, (200, pod(status)))
    seen = runpod.show("pod1")
    assert (seen.billing, seen.dead) == (billing, dead)
    assert (seen.endpoint is not None) == (status == "RUNNING")


def test_a_filled_proxy_block_is_not_readiness(server: Script, runpod: RunPod) -> None:
    server.tell(SHOW, (200, pod(ssh={"proxy": pod()["ssh"]["proxy"], "direct": None})))
    assert runpod.show("pod1").endpoint is None


@pytest.mark.parametrize("bad", ["", "a/b", "..", "a b", "x" * 65, "pod1?force=1"])
def test_an_id_is_checked_before_it_enters_a_path(server: Script, runpod: RunPod, bad: str) -> None:
    for call in (runpod.show, runpod.destroy, lambda one: runpod.delete_leftover("network_volume", one)):
        with pytest.raises(PlatformError):
            call(bad)
    assert server.asked == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(404), NotFound),
        ((404, "<html>not here</html>"), PlatformError),
        (problem(410), Retired),
        (problem(401), AuthError),
        (problem(403), AuthError),
        (problem(409), Conflict),
        (problem(429), RateLimited),
        ((200, "<html>welcome</html>"), PlatformError),
        ((200, {"pod": {}}), PlatformError),
    ],
)
def test_only_the_apis_own_404_says_gone(
    server: Script, runpod: RunPod, answer: Any, error: type[PlatformError]
) -> None:
    server.tell(SHOW, answer)
    with pytest.raises(PlatformError) as caught:
        runpod.show("pod1")
    assert type(caught.value) is error
    assert KEY not in f"{caught.value.seen}{caught.value.means}{caught.value.do}"


def test_a_read_is_tried_again_and_a_create_never(server: Script, runpod: RunPod) -> None:
    server.tell(SHOW, problem(503), "drop", (200, pod()))
    assert runpod.show("pod1").id == "pod1"
    server.tell(CREATE, "drop")
    with pytest.raises(UnknownOutcome):
        runpod.rent(WANTED, OFFER)
    server.tell(CREATE, (201, "<html>"))
    with pytest.raises(UnknownOutcome):
        runpod.rent(WANTED, OFFER)
    assert server.calls().count(CREATE) == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, "There are no longer any instances available with the requested specifications."), NoCapacity),
        (problem(400, "There are not enough free GPUs on the host machine to start this pod."), NoCapacity),
        (problem(400, "$: additional properties 'x' not allowed"), PlatformError),
        (problem(402, "insufficient funds"), PlatformError),
    ],
)
def test_create_refusals(server: Script, runpod: RunPod, answer: Any, error: type[PlatformError]) -> None:
    server.tell(CREATE, answer)
    with pytest.raises(PlatformError) as caught:
        runpod.rent(WANTED, OFFER)
    assert type(caught.value) is error
    if answer[0] == 402:
        assert "credit" in caught.value.means


def test_what_is_sent_has_ssh_and_its_port_and_only_known_fields(server: Script, runpod: RunPod) -> None:
    server.tell(CREATE, (201, pod("PROVISIONING")))
    volume = Volume("network_volume", "vol1", "data", 10, "EU-RO-1")
    wanted = Wanted(**{**WANTED.__dict__, "public_key": "ssh-ed25519 AAAA x", "volume": volume, "volume_path": "/w"})
    runpod.rent(wanted, OFFER)
    body = server.asked[0].body
    assert body["startSsh"] is True and body["ports"] == ["22/tcp"] and body["env"]["PUBLIC_KEY"].startswith("ssh-")
    assert body["mounts"] == {"network": [{"volumeId": "vol1", "path": "/w"}]}
    assert body["dataCenterIds"] == ["EU-RO-1"], "a volume is bound to its data centre"
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_half_list_or_a_paged_one_is_no_list(server: Script, runpod: RunPod) -> None:
    half: list[dict[str, Any]] = [
        {"items": []},
        {"pods": None},
        {"pods": [], "nextCursor": "a"},
        {"pods": [{"id": "x"}]},
    ]
    for answer in half:
        server.tell(LIST, (200, answer))
        with pytest.raises(PlatformError):
            runpod.list()


def test_offers_fit_are_in_stock_and_cheapest_first(server: Script, runpod: RunPod) -> None:
    entries = [
        gpu(price=0.99), gpu(price=0.69), gpu("NVIDIA H100 PCIe", 2.0), gpu(price=0.1, availability="NONE"),
        gpu(price=0.2, memory=12), gpu(price=0.3, secure=False),
    ]  # fmt: skip
    server.tell(GPUS, (200, {"gpus": entries}))
    wanted = Wanted(**{**WANTED.__dict__, "vram_gb": 24})
    assert [str(offer.rate.amount) for offer in runpod.offers(wanted)] == ["0.69", "0.99"]
    assert runpod.offers(wanted)[0].region == "US-KS-2", "the best stocked data centre"
    elsewhere = Wanted(**{**wanted.__dict__, "region": "AP-JP-1"})
    assert runpod.offers(elsewhere) == []


def test_the_accounts_keys_are_kept_when_one_is_added(server: Script, runpod: RunPod) -> None:
    server.tell(KEYS, (200, {"keys": ["ssh-ed25519 OLD me"]}))
    server.tell("PUT /v2/account/ssh-keys", (200, {"keys": []}))
    assert not runpod.ensure_key("ssh-ed25519 OLD another comment")
    assert runpod.ensure_key("ssh-ed25519 NEW us")
    assert server.asked[-1].body == {"keys": ["ssh-ed25519 OLD me", "ssh-ed25519 NEW us"]}


def test_graphql_errors_come_with_200(server: Script, runpod: RunPod) -> None:
    server.tell("POST /graphql", (200, {"errors": [{"message": "no"}], "data": None}))
    with pytest.raises(PlatformError, match="no"):
        runpod.balance()
    server.tell(
        "POST /graphql", (200, {"data": {"myself": {"id": "u1", "clientBalance": 435.85, "currentSpendPerHr": 0.1}}})
    )
    assert runpod.balance()["balance"] == {"amount": "435.85", "currency": "USD"}
    assert runpod.account() == "u1"


def test_two_volumes_of_one_name_are_told(server: Script, runpod: RunPod) -> None:
    row = {"id": "v1", "name": "data", "size": 10, "dataCenter": "EU-RO-1", "type": "STANDARD"}
    server.tell(VOLUMES, (200, {"networkVolumes": [row, {**row, "id": "v2"}]}))
    with pytest.raises(PlatformError, match="v1, v2"):
        runpod.find_volume("data")
    with pytest.raises(PlatformError, match="5 GB"):
        runpod.create_volume("data", 5, "EU-RO-1")


def test_a_delete_of_what_is_gone_is_no_error_and_no_proof(server: Script, runpod: RunPod) -> None:
    server.tell("DELETE /v2/pods/pod1", problem(404))
    assert "404" in runpod.destroy("pod1")
    server.tell(SHOW, problem(404))
    server.tell(LIST, (200, {"pods": [pod()]}))
    server.tell(KEYS, (200, {"keys": []}))
    assert verdict(runpod, "pod1", True)["state"] == "unknown"
    server.tell(LIST, (200, {"pods": []}))
    assert verdict(runpod, "pod1", True)["state"] == "off"


def test_without_a_key_it_says_which_variable() -> None:
    with pytest.raises(AuthError) as caught:
        client("runpod", {})
    assert "RUNPOD_API_KEY" in caught.value.seen

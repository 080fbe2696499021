# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Paperspace client against answers that its server, a proxy or bad luck can give."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
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
    UnknownOutcome,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.paperspace import Paperspace, _authorize
from tests.unit.scripted import Script, scripted

API_KEY = "the-key-nobody-may-see"
ID = "psx7f3k2a"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ tenant.gpu"
WANTED = Wanted(name="digits-paperspace-1-r1", gpu="A100-80G", image="tqqsxr6b", disk_gb=60)
OFFER = Offer("A100-80G", "A100-80G", 1, 80, Money.parse("3.18 USD") or Money(0, ""), None, "available")  # type: ignore[arg-type]


def items(*entries: Any, more: bool = False, following: str | None = None) -> tuple[int, dict[str, Any]]:
    return 200, {"items": list(entries), "hasMore": more, "nextPage": following}


def machine(**changes: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "name": "n",
        "state": "ready",
        "machineType": "A100-80Gx8",
        "publicIp": "203.0.113.9",
        "usageRate": 25.44,
        "storageRate": "0.0069",
        "networkId": "nabc123",
        "dtDeleted": None,
        **changes,
    }


def error(status: int, code: str, message: str = "m") -> tuple[int, dict[str, Any]]:
    return status, {"code": code, "message": message}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        script.tell("GET /auth/session", (200, {"team": {"namespace": "lab"}, "user": {"id": 1}}))
        script.tell("GET /billing/account-standing", (200, {"isInGoodStanding": True}))
        for path in ("machines", "os-templates", "custom-templates", "startup-scripts"):
            script.tell(f"GET /{path}", items())
        yield script


@pytest.fixture
def paperspace(script: Script) -> Paperspace:
    environ = {"PAPERSPACE_API_KEY": API_KEY, "PAPERSPACE_API_BASE_URL": script.url}
    made = Paperspace({**environ, "PAPERSPACE_PRICES": "A100-80G=3.18 USD"}, sleep=lambda seconds: None)
    made._http.budget = 0.0
    return made


# States and money


@pytest.mark.parametrize(
    ("state", "billing", "dead", "rate"),
    [
        ("provisioning", "disk_only", False, "0.0069 USD"),
        ("starting", "on", False, "25.4469 USD"),
        ("restarting", "on", False, "25.4469 USD"),
        ("serviceready", "on", False, "25.4469 USD"),
        ("upgrading", "on", False, "25.4469 USD"),
        ("ready", "on", False, "25.4469 USD"),
        ("stopping", "on", False, "25.4469 USD"),
        ("off", "disk_only", True, "0.0069 USD"),
        ("failed", "on", True, "25.4469 USD"),
        ("hibernating", "unknown", False, "25.4469 USD"),
    ],
)
def test_each_state_has_its_billing(
    script: Script, paperspace: Paperspace, state: str, billing: str, dead: bool, rate: str
) -> None:
    script.tell(f"GET /machines/{ID}", (200, machine(state=state)))
    seen = paperspace.show(ID)
    assert (seen.billing, seen.dead, str(seen.rate)) == (billing, dead, rate)
    assert (seen.gpu, seen.gpu_count) == ("A100-80G", 8)
    assert (seen.endpoint is not None) is (state == "ready")


def test_a_deletion_date_says_off_whatever_the_state(script: Script, paperspace: Paperspace) -> None:
    script.tell(f"GET /machines/{ID}", (200, machine(dtDeleted="2026-12-01T00:00:00.000Z")))
    seen = paperspace.show(ID)
    assert (seen.status, seen.billing, seen.dead, str(seen.rate)) == ("deleted", "off", True, "0 USD")


@pytest.mark.parametrize("untold", [{"usageRate": None}, {"storageRate": "n/a"}, {"usageRate": True}])
def test_half_a_rate_is_no_rate(script: Script, paperspace: Paperspace, untold: dict[str, Any]) -> None:
    script.tell(f"GET /machines/{ID}", (200, machine(**untold)))
    assert paperspace.show(ID).rate is None


def test_the_address_is_an_address(script: Script, paperspace: Paperspace) -> None:
    script.tell(f"GET /machines/{ID}", (200, machine()), (200, machine(publicIp=None)), (200, machine(publicIp="-oX")))
    there = paperspace.show(ID).endpoint
    assert there and (there.host, there.port, there.user) == ("203.0.113.9", 22, "paperspace")
    assert paperspace.show(ID).endpoint is None
    with pytest.raises(PlatformError, match="no address"):
        paperspace.show(ID)


def test_there_is_no_balance_but_a_standing(script: Script, paperspace: Paperspace) -> None:
    script.tell("GET /machines", items(machine(), machine(id="psother", state="off")))
    assert paperspace.balance() == {
        "balance": None,
        "burn_per_hour": {"amount": "25.4538", "currency": "USD"},
        "standing": "good",
    }
    assert "balance" not in paperspace.can


# Errors


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(401, "UNAUTHORIZED"), AuthError),
        (error(403, "FORBIDDEN"), AuthError),
        (error(404, "NOT_FOUND"), NotFound),
        (error(409, "CONFLICT"), Conflict),
        (error(429, "TOO_MANY_REQUESTS"), RateLimited),
        (error(400, "BAD_REQUEST"), PlatformError),
        (error(500, "INTERNAL_SERVER_ERROR"), PlatformError),
        ((404, "<html>"), PlatformError),
        ((200, "<html>"), PlatformError),
        ((200, "null"), PlatformError),
        ((200, {"id": ID}), PlatformError),
        ((200, {"state": "off"}), PlatformError),
        ((200, {**machine(), "id": ""}), PlatformError),
        ((200, '{"id": "ps'), PlatformError),
    ],
)
def test_errors_are_of_their_kind(
    script: Script, paperspace: Paperspace, answer: Any, kind: type[PlatformError]
) -> None:
    script.tell(f"GET /machines/{ID}", answer)
    with pytest.raises(PlatformError) as caught:
        paperspace.show(ID)
    assert type(caught.value) is kind
    assert API_KEY not in f"{caught.value.seen} {caught.value.means} {caught.value.do}"
    expected = "off" if kind is NotFound else "unknown"
    assert verdict(paperspace, ID, True)["state"] == expected


@pytest.mark.parametrize("session", ["null", {"user": {}}, {"team": None}, "[]"])
def test_a_session_of_nobody_is_no_key(script: Script, paperspace: Paperspace, session: Any) -> None:
    script.tell("GET /auth/session", (200, session))
    with pytest.raises(AuthError):
        paperspace.whoami()
    script.tell(f"GET /machines/{ID}", error(404, "NOT_FOUND"))
    assert verdict(paperspace, ID, True)["state"] == "unknown"


# The list


def test_every_page_is_read(script: Script, paperspace: Paperspace) -> None:
    script.tell("GET /machines", items(machine(id="psaaaa"), more=True, following="c1"), items(machine(id="psbbbb")))
    assert [one.id for one in paperspace.list()] == ["psaaaa", "psbbbb"]
    assert [one.query.get("after") for one in script.asked] == [None, "c1"]


@pytest.mark.parametrize(
    "answers",
    [
        [(200, {"items": None, "hasMore": False})],
        [(200, {"hasMore": False})],
        [(200, {"items": []})],
        [(200, "[]")],
        [(200, "null")],
        [items(more=True)],
        [items(more=True, following="c1"), items(more=True, following="c1")],
        [items("psaaaa")],
        [items({"id": "psaaaa"})],
        [items(machine(), more=True, following="c1"), error(500, "INTERNAL_SERVER_ERROR")],
        [items(machine(), more=True, following="c1"), error(404, "NOT_FOUND")],
    ],
)
def test_half_a_list_is_an_error(script: Script, paperspace: Paperspace, answers: list[Any]) -> None:
    script.tell("GET /machines", *answers)
    with pytest.raises(PlatformError):
        paperspace.list()
    script.tell("GET /machines", *answers)
    script.tell(f"GET /machines/{ID}", error(404, "NOT_FOUND"))
    assert verdict(paperspace, ID, True)["state"] == "unknown"


# Ids


@pytest.mark.parametrize("instance_id", ["", "..", "a/b", "ps x7f", "ps?x=1", "psx7\n", "abc"])
def test_a_strange_id_enters_no_path(script: Script, paperspace: Paperspace, instance_id: str) -> None:
    for verb in (paperspace.show, paperspace.destroy, paperspace.stop, paperspace.start):
        with pytest.raises(PlatformError, match="cannot be an instance id"):
            verb(instance_id)
    for kind in ("static_ip", "snapshot", "shared_drive", "moon"):
        with pytest.raises(PlatformError):
            paperspace.delete_leftover(kind, instance_id)
    assert script.asked == []


# Renting


def test_a_create_says_what_was_asked(script: Script, paperspace: Paperspace) -> None:
    script.tell("POST /machines", (200, {"data": machine(state="provisioning"), "event": {"id": "e1"}}))
    assert paperspace.rent(WANTED, OFFER).id == ID
    assert script.asked[-1].body == {
        "name": "digits-paperspace-1-r1",
        "machineType": "A100-80G",
        "templateId": "tqqsxr6b",
        "region": "East Coast (NY2)",
        "diskSize": 100,
        "publicIpType": "dynamic",
        "startOnCreate": True,
        "autoShutdownEnabled": False,
        "autoSnapshotEnabled": False,
        "emailPassword": False,
    }


def test_eight_cards_are_asked_for_with_nvlink(script: Script, paperspace: Paperspace) -> None:
    script.tell("POST /machines", (200, {"data": machine()}))
    paperspace.rent(WANTED, Offer("H100x8", "H100", 8, 80, OFFER.rate, None, "available"))
    assert script.asked[-1].body["enableNvlink"] is True


def test_the_key_travels_by_a_script_that_is_made_once(script: Script, paperspace: Paperspace) -> None:
    script.tell("POST /startup-scripts", (200, {"id": "sc12"}))
    script.tell("POST /machines", (200, {"data": machine()}))
    assert paperspace.ensure_key(PUBLIC) is True
    made = script.asked[-1].body
    assert PUBLIC in made["script"] and made["isRunOnce"] is True
    script.tell("GET /startup-scripts", items({"id": "other", "name": "x"}, {"id": "sc12", "name": made["name"]}))
    assert paperspace.ensure_key(PUBLIC) is False
    paperspace.rent(Wanted(**{**WANTED.__dict__, "public_key": PUBLIC}), OFFER)
    assert script.asked[-1].body["startupScriptId"] == "sc12"
    assert script.calls().count("POST /startup-scripts") == 1


def test_the_script_lets_the_key_in_once(tmp_path: Path) -> None:
    key = PUBLIC + " it's; touch /tmp/never $(id)"
    text = _authorize(key).replace("home=/home/paperspace", f"home={tmp_path}").replace("chown", "true chown")
    for _ in range(2):
        subprocess.run(["bash", "-c", text], check=True)
    known = tmp_path / ".ssh/authorized_keys"
    assert known.read_text() == f"{key}\n"
    assert known.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("answer", "kind", "definite"),
    [
        ("drop", UnknownOutcome, False),
        ((200, "<html>"), UnknownOutcome, False),
        ((200, {"event": {"id": "e1"}}), UnknownOutcome, False),
        ((200, {"data": {"id": ID}}), PlatformError, False),
        (error(500, "INTERNAL_SERVER_ERROR"), PlatformError, False),
        (error(408, "TIMEOUT"), UnknownOutcome, False),
        (error(400, "BAD_REQUEST", "We are currently out of capacity"), NoCapacity, True),
        (error(409, "CONFLICT", "Out of Capacity"), NoCapacity, True),
        (error(403, "FORBIDDEN"), AuthError, True),
        (error(400, "BAD_REQUEST"), PlatformError, True),
    ],
)
def test_a_create_is_never_repeated(
    script: Script, paperspace: Paperspace, answer: Any, kind: type[PlatformError], definite: bool
) -> None:
    script.tell("POST /machines", answer)
    with pytest.raises(PlatformError) as caught:
        paperspace.rent(WANTED, OFFER)
    assert type(caught.value) is kind
    assert script.calls().count("POST /machines") == 1
    assert (caught.value.code != "unknown_outcome" and (caught.value.status or 500) < 500) is definite


def test_nothing_is_rented_in_bad_standing(script: Script, paperspace: Paperspace) -> None:
    script.tell("GET /billing/account-standing", (200, {"isInGoodStanding": False}))
    with pytest.raises(PlatformError, match="good standing"):
        paperspace.rent(WANTED, OFFER)
    assert "POST /machines" not in script.calls()


def test_too_big_a_disk(script: Script, paperspace: Paperspace) -> None:
    with pytest.raises(PlatformError, match="2001 GB"):
        paperspace.rent(Wanted(**{**WANTED.__dict__, "disk_gb": 2001}), OFFER)
    assert "POST /machines" not in script.calls()


# Offers


def template(*labels: str, template_id: str = "tqqsxr6b", available: bool = True) -> dict[str, Any]:
    types = [{"machineTypeLabel": label, "isAvailable": available} for label in labels]
    return {"id": template_id, "name": "ML-in-a-Box", "availableMachineTypes": types}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"gpu": "A100-80G"}, ["A100-80G"]),
        ({"gpu": "a100-80gb"}, ["A100-80G"]),
        ({"gpu": "A100"}, ["A100", "A100-80G"]),
        ({"gpu": "A100", "vram_gb": 48}, ["A100-80G"]),
        ({"gpu": "A100-80G", "gpu_count": 8}, ["A100-80Gx8"]),
        ({"gpu": "A4000"}, []),
        ({"gpu": "Mystery", "vram_gb": 8}, []),
    ],
)
def test_types_that_are_there_and_priced(script: Script, wanted: dict[str, Any], found: list[str]) -> None:
    script.tell("GET /os-templates", items(template("A100", "A100-80G", "A100-80Gx8", "A100-80Gx4", "Mystery")))
    environ = {"PAPERSPACE_API_KEY": API_KEY, "PAPERSPACE_API_BASE_URL": script.url}
    declared = "A100-80G=3.18 USD,A100=3.09 USD,A100-80Gx8=25.44 USD,A4000=0.76 USD,Mystery=1 USD"
    offers = Paperspace({**environ, "PAPERSPACE_PRICES": declared}).offers(Wanted(name="n", image="tqqsxr6b", **wanted))
    assert [one.id for one in offers] == found


def test_what_is_not_available_is_not_offered(script: Script, paperspace: Paperspace) -> None:
    script.tell("GET /os-templates", items(template("A100-80G", available=False)))
    assert paperspace.offers(WANTED) == []


def test_no_price_and_no_template_are_said(script: Script, paperspace: Paperspace) -> None:
    script.tell("GET /os-templates", items(template("H100")))
    with pytest.raises(PlatformError, match="names no price for 'H100'") as caught:
        paperspace.offers(Wanted(name="n", gpu="H100", image="tqqsxr6b"))
    assert "export PAPERSPACE_PRICES='H100=" in caught.value.do
    with pytest.raises(PlatformError, match="no template 'none'"):
        paperspace.offers(Wanted(name="n", gpu="H100", image="none"))
    script.tell("GET /os-templates", items({"id": "tqqsxr6b", "availableMachineTypes": [{"isAvailable": True}]}))
    with pytest.raises(PlatformError, match="cannot be read"):
        paperspace.offers(WANTED)


# The end


def event(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "ev1", "name": "deactivate", "state": state, "error": None, **more}


def test_destroy_watches_its_event(script: Script, paperspace: Paperspace) -> None:
    script.tell(f"DELETE /machines/{ID}", (200, {"data": machine(), "event": event("new")}))
    script.tell("GET /machine-events/ev1", (200, event("in progress")), (200, event("done")))
    assert paperspace.destroy(ID) == "DELETE answered 200, event done"
    assert script.calls().count(f"DELETE /machines/{ID}") == 1


@pytest.mark.parametrize("state", ["error", "cancelled"])
def test_an_event_that_fails_is_an_error(script: Script, paperspace: Paperspace, state: str) -> None:
    script.tell(f"DELETE /machines/{ID}", (200, {"event": event("new")}))
    script.tell("GET /machine-events/ev1", (200, event(state, error="no way")))
    with pytest.raises(PlatformError, match=f"ended in {state} no way"):
        paperspace.destroy(ID)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"event": event("in progress")}), "in progress after 60 s"),
        ((200, {"event": None}), "without an event"),
        ((200, {"event": {"id": "../x", "state": "new"}}), "without an event"),
        ((200, ""), "without an event"),
        (error(404, "NOT_FOUND"), "404"),
    ],
)
def test_what_the_event_does_not_say_is_left_to_the_verdict(
    script: Script, paperspace: Paperspace, answer: Any, said: str
) -> None:
    script.tell(f"DELETE /machines/{ID}", answer)
    script.tell("GET /machine-events/ev1", (200, event("in progress")))
    assert said in paperspace.destroy(ID)


def test_an_unreadable_event_is_no_failure(script: Script, paperspace: Paperspace) -> None:
    script.tell(f"DELETE /machines/{ID}", (200, {"event": event("new")}))
    script.tell("GET /machine-events/ev1", error(500, "INTERNAL_SERVER_ERROR"))
    assert "could not be read" in paperspace.destroy(ID)


@pytest.mark.parametrize("answer", ["drop", (200, "<html>")])
def test_a_destroy_without_an_answer_is_of_unknown_outcome(script: Script, paperspace: Paperspace, answer: Any) -> None:
    script.tell(f"DELETE /machines/{ID}", answer)
    with pytest.raises(UnknownOutcome):
        paperspace.destroy(ID)


def test_actions_send_an_empty_object(script: Script, paperspace: Paperspace) -> None:
    for verb, act in (("start", paperspace.start), ("stop", paperspace.stop)):
        script.tell(f"PATCH /machines/{ID}/{verb}", (200, {"data": machine()}))
        act(ID)
        assert script.asked[-1].body == {}


def test_leftovers_are_the_machines_own_or_nobodys(script: Script, paperspace: Paperspace) -> None:
    script.tell(f"GET /machines/{ID}", (200, machine()))
    ours = {"ip": "203.0.113.9", "region": "r", "assignedMachineId": ID}
    script.tell(
        "GET /public-ips", items(ours, {"ip": "203.0.113.8"}, {"ip": "203.0.113.7", "assignedMachineId": "psb"})
    )
    script.tell("GET /snapshots", items({"id": "sn01", "machineId": ID}, {"id": "sn02", "machineId": "psother"}))
    drive = {"id": "dr01", "name": "data", "size": 500, "networkId": "nabc123", "password": "hunter2"}
    script.tell("GET /shared-drives", items(drive, {"id": "dr02", "networkId": "other"}))
    before = paperspace.show(ID)
    found = paperspace.leftovers(before)
    assert [(one.kind, one.id, one.size_gb) for one in found] == [
        ("static_ip", "203.0.113.9", 0),
        ("static_ip", "203.0.113.8", 0),
        ("snapshot", "sn01", 0),
        ("shared_drive", "dr01", 500),
    ]
    assert "hunter2" not in str([one.as_dict() for one in found])
    assert len(paperspace.leftovers(None)) == 7
    for kind, path in (("static_ip", "public-ips/203.0.113.9"), ("shared_drive", "shared-drives/dr01")):
        script.tell(f"DELETE /{path}", (200, {}))
        assert "200" in paperspace.delete_leftover(kind, path.partition("/")[2])


def test_no_key_is_said_with_its_remedy() -> None:
    with pytest.raises(AuthError, match="PAPERSPACE_API_KEY is not set") as caught:
        client("paperspace", {})
    assert "export PAPERSPACE_API_KEY=" in caught.value.do


def test_the_bearer_travels(script: Script, paperspace: Paperspace) -> None:
    assert "team lab" in paperspace.whoami()
    assert script.asked[0].headers["authorization"] == f"Bearer {API_KEY}"

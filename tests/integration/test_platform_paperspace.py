# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Paperspace client against the lab: real HTTP, a meter that runs, and lies of the API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Instance,
    NoCapacity,
    NotFound,
    PlatformError,
    UnknownOutcome,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.paperspace import Paperspace
from lab.api import Lab

pytestmark = pytest.mark.lab
TEMPLATE = "tqqsxr6b"


def client(lab: Lab, **environ: str) -> Paperspace:
    made = Paperspace({**lab.env(), **environ})
    made.poll_seconds, made.patience_seconds = 0.1, 5.0  # type: ignore[misc]  # an account's pace, quickened
    made._http.budget = 1.0
    return made


@pytest.fixture
def paperspace(lab: Lab) -> Iterator[Paperspace]:
    made = client(lab)
    yield made
    lab.clear()
    for rental in lab.rentals():
        if rental["state"] != "gone":
            lab.destroy(rental["id"])
    for left in made.leftovers(None):
        made.delete_leftover(left.kind, left.id)


def rent(paperspace: Paperspace, name: str = "digits-paperspace-1-r1", **wanted: Any) -> Instance:
    asked = Wanted(name=name, image=TEMPLATE, **{"gpu": "A4000", **wanted})
    return paperspace.rent(asked, paperspace.offers(asked)[0])


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return seen


def ready(paperspace: Paperspace, made: Instance) -> Instance:
    return until(lambda: (seen := paperspace.show(made.id)).endpoint and seen)


def state(paperspace: Paperspace, made: Instance, known: bool = True) -> str:
    return str(verdict(paperspace, made.id, known)["state"])


def lab_state(lab: Lab, made: Instance) -> str:
    return str(lab.rental(made.id)["state"])


def settled(lab: Lab) -> Any:
    """Wait out a destroy that a lie cut off from its event."""
    return until(lambda: all(rental["state"] == "gone" for rental in lab.rentals()))


# A rental's life


def test_rent_stop_start_and_destroy(lab: Lab, paperspace: Paperspace, public_key: str) -> None:
    made = rent(paperspace, gpu="A100-80G", gpu_count=8, disk_gb=60, public_key=public_key)
    assert (made.status, made.billing, made.gpu_count) == ("provisioning", "disk_only", 8)
    seen = ready(paperspace, made)
    assert seen.endpoint and (seen.endpoint.port, seen.endpoint.user) == (22, "paperspace")
    assert seen.rate and float(seen.rate.amount) == pytest.approx(8 * 3.18 + 100 * 0.10 / 720)
    assert state(paperspace, made) == "on"

    paperspace.stop(made.id)
    assert paperspace.show(made.id).status == "stopping"
    until(lambda: paperspace.show(made.id).status == "off")
    assert state(paperspace, made) == "disk_only"
    with pytest.raises(Conflict):
        paperspace.stop(made.id)
    paperspace.start(made.id)
    ready(paperspace, made)

    assert paperspace.destroy(made.id) == "DELETE answered 200, event done"
    assert (state(paperspace, made), state(paperspace, made, known=False)) == ("off", "unknown")
    assert lab_state(lab, made) == "gone"
    assert "404" in paperspace.destroy(made.id)


def test_the_startup_script_lets_the_key_in(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab()
    paperspace = client(lab)
    assert paperspace.ensure_key(public_key) is True
    assert paperspace.ensure_key(public_key) is False
    made = rent(paperspace, public_key=public_key)
    ready(paperspace, made)
    look = ["bash", "-c", "cat /home/paperspace*/.ssh/authorized_keys"]
    assert until(lambda: lab.exec(made.id, look)[1].decode()) == f"{public_key}\n"


def test_lists_are_paged_and_names_found(paperspace: Paperspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.tenant.gpu.plugins.module_utils._platforms import paperspace as module

    monkeypatch.setattr(module, "_PAGE_SIZE", 2)
    made = [rent(paperspace, f"digits-{number}").id for number in range(5)]
    assert [one.id for one in paperspace.list()] == made
    assert [one.id for one in paperspace.find("digits-4")] == made[-1:]


def test_account(lab: Lab, paperspace: Paperspace, make_lab: Callable[..., Lab]) -> None:
    assert "team lab" in paperspace.whoami()
    assert paperspace.balance()["standing"] == "good"
    with pytest.raises(AuthError, match="no team"):
        client(lab, PAPERSPACE_API_KEY="revoked").whoami()
    with pytest.raises(AuthError):
        client(lab, PAPERSPACE_API_KEY="revoked").list()
    looking = client(lab, PAPERSPACE_API_KEY=lab._platform("paperspace")["read_only_key"])
    with pytest.raises(AuthError, match="403"):
        rent(looking)
    with pytest.raises(PlatformError, match="good standing"):
        rent(client(make_lab(balance=0)))


def test_no_capacity_in_the_catalogue_and_at_the_create(lab: Lab, paperspace: Paperspace) -> None:
    wanted = Wanted(name="n", gpu="A4000", image=TEMPLATE)
    offer = paperspace.offers(wanted)[0]
    lab.fault("offer.none", {"platform": "paperspace"}, listed=False)
    assert paperspace.offers(wanted) == []
    with pytest.raises(NoCapacity, match="out of capacity"):
        paperspace.rent(wanted, offer)
    assert paperspace.list() == []


def test_leftovers_bill_on_until_they_are_deleted(lab: Lab, paperspace: Paperspace) -> None:
    made = rent(paperspace)
    ready(paperspace, made)
    post = paperspace._http.write
    ip = post("POST", "/public-ips", {"region": "East Coast (NY2)"}).data["ip"]
    post("PUT", f"/public-ips/{ip}", {"machineId": made.id})
    snapshot = post("POST", "/snapshots", {"machineId": made.id, "name": "before"}).data["data"]["id"]
    drive = {"name": "data", "size": 5, "networkId": "nabc123", "region": "East Coast (NY2)"}
    shared = post("POST", "/shared-drives", drive).data["id"]
    before = paperspace.show(made.id)
    paperspace.destroy(made.id)
    assert state(paperspace, made) == "off"
    found = {(one.kind, one.id) for one in paperspace.leftovers(before)}
    assert found == {("static_ip", ip), ("snapshot", snapshot)}, (
        "the drive is of a network that this machine was not on"
    )
    assert {("shared_drive", shared)} == {(one.kind, one.id) for one in paperspace.leftovers(None)} - found
    rate = float(lab.bill()["accounts"]["paperspace"]["rate_per_hour"])
    assert rate == pytest.approx(0.0045 + 50 * 0.29 / 720 + 5 * 0.10 / 720, rel=1e-3)
    for kind, leftover in sorted(found | {("shared_drive", shared)}):
        assert "200" in paperspace.delete_leftover(kind, leftover)
    assert paperspace.leftovers(None) == []
    assert float(lab.bill()["accounts"]["paperspace"]["rate_per_hour"]) == 0
    with pytest.raises(NotFound):
        paperspace.delete_leftover("snapshot", snapshot)


# The API lies

ONE, ALL = {"platform": "paperspace", "path": r"/machines/\w+$"}, {"platform": "paperspace", "path": "/machines$"}
GONE = {"code": "NOT_FOUND", "message": "Not found"}


@pytest.mark.parametrize(
    ("match", "answer"),
    [
        (ONE, {"status": 404, "body": GONE}),
        (ONE, {"status": 404, "body": "<html>no such site</html>"}),
        (ONE, {"status": 200, "body": "null"}),
        (ONE, {"status": 410, "body": GONE}),
        (ONE, {"status": 401, "body": {"code": "UNAUTHORIZED", "message": "Unauthorized"}}),
        (ONE, {"status": 429, "body": {"code": "TOO_MANY_REQUESTS", "message": "slow down"}}),
        (ONE, {"status": 200, "body": '{"id": "ps'}),
        (ALL, {"status": 200, "body": {"items": [], "hasMore": False, "nextPage": None}}),
        (ALL, {"status": 200, "body": {"items": None}}),
    ],
)
def test_a_lie_never_turns_the_meter_off(
    lab: Lab, paperspace: Paperspace, match: dict[str, str], answer: dict[str, Any]
) -> None:
    made = rent(paperspace)
    ready(paperspace, made)
    lab.fault("api.fail", match, **answer)
    assert lab_state(lab, made) == "running"
    assert state(paperspace, made) in ("on", "unknown")


def test_an_event_that_fails_leaves_the_machine(lab: Lab, paperspace: Paperspace) -> None:
    made = rent(paperspace)
    ready(paperspace, made)
    fault = lab.fault("paperspace.event_error", {"platform": "paperspace"})
    with pytest.raises(PlatformError, match="ended in error"):
        paperspace.destroy(made.id)
    assert state(paperspace, made) == "on"
    lab.clear(fault)
    paperspace.destroy(made.id)
    assert state(paperspace, made) == "off"


def test_a_destroy_that_was_swallowed_is_seen(lab: Lab, paperspace: Paperspace) -> None:
    made = rent(paperspace)
    ready(paperspace, made)
    lab.fault("api.fail", {"method": "DELETE", "platform": "paperspace"}, status=200, body={"data": {}, "event": None})
    assert "without an event" in paperspace.destroy(made.id)
    assert state(paperspace, made) == "on"


def test_a_destroy_without_an_answer_is_proven_by_the_next_look(lab: Lab, paperspace: Paperspace) -> None:
    made = rent(paperspace)
    lab.fault("api.drop", {"method": "DELETE", "platform": "paperspace"}, times=1)
    with pytest.raises(UnknownOutcome):
        paperspace.destroy(made.id)
    settled(lab)
    assert state(paperspace, made) == "off"


def test_a_create_that_answered_500_and_rented_is_found_by_name(lab: Lab, paperspace: Paperspace) -> None:
    lab.fault("api.fail", {"method": "POST", "path": "/machines$"}, status=500, body=GONE, executed=True, times=1)
    with pytest.raises(PlatformError) as caught:
        rent(paperspace, "answered-500")
    assert caught.value.status == 500
    assert len(paperspace.find("answered-500")) == 1
    creates = [one for one in lab.requests() if (one["method"], one["path"]) == ("POST", "/v1/machines")]
    assert creates[-1]["status"] == 500


def test_list_lag_and_a_machine_that_lingers(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(list_lag=0.8, linger=60.0)
    paperspace = client(lab)
    made = rent(paperspace, "late")
    assert paperspace.find("late") == []
    until(lambda: paperspace.find("late"))
    paperspace.destroy(made.id)
    assert paperspace.show(made.id).status == "deleted"
    assert state(paperspace, made) == "unknown", "it is still listed"
    until(lambda: state(paperspace, made) == "off")


def test_a_dead_host_bills_on(lab: Lab, paperspace: Paperspace) -> None:
    made = rent(paperspace)
    ready(paperspace, made)
    lab.kill_host(made.id)
    seen = paperspace.show(made.id)
    assert (seen.dead, seen.billing, seen.endpoint) == (True, "on", None)
    paperspace.destroy(made.id)
    assert state(paperspace, made) == "off"

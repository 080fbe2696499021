# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The vast.ai client against the lab: real HTTP, real boxes, a meter that runs, and lies of the API."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Instance,
    NoCapacity,
    PlatformError,
    Retired,
    UnknownOutcome,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.vastai import VastAi
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger
from ansible_collections.tenant.gpu.plugins.plugin_utils.rental import Renter, key_pair
from lab import launcher
from lab.api import Lab

pytestmark = pytest.mark.lab
NAME = "digits-vastai-1-r1"
Rent = Callable[..., Instance]


def client(lab: Lab, **environ: str) -> VastAi:
    made = VastAi({**lab.env(), **environ})
    made.proof_gap = 0.1
    made._http.budget = 1.0
    return made


@pytest.fixture
def vastai(lab: Lab) -> Iterator[VastAi]:
    yield client(lab)
    lab.clear()
    for rental in lab.rentals():
        if rental["state"] != "gone":
            lab.destroy(rental["id"])


@pytest.fixture
def rent(vastai: VastAi, public_key: str) -> Rent:
    def rent(name: str = NAME, **wanted: Any) -> Instance:
        vastai.ensure_key(public_key)
        asked = Wanted(name=name, image="pytorch/pytorch", **{"gpu": "RTX4090", "disk_gb": 40, **wanted})
        return vastai.rent(asked, vastai.offers(asked)[0])

    return rent


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def ready(vastai: VastAi, instance: Instance) -> Instance:
    def look() -> Instance | None:
        seen = vastai.show(instance.id)
        return seen if seen.endpoint else None

    found = until(look)
    assert isinstance(found, Instance)
    return found


def state(vastai: VastAi, instance: Instance, known: bool = True) -> str:
    return str(verdict(vastai, instance.id, known)["state"])


def bill(lab: Lab, instance: Instance) -> dict[str, Any]:
    found: dict[str, Any] = lab.bill()["rentals"][instance.id]
    return found


def billing(lab: Lab, instance: Instance) -> bool:
    return Decimal(bill(lab, instance)["rate_per_hour"]) > 0


def here(instance: Instance) -> dict[str, str]:
    """Where a fault strikes: every call that names the instance."""
    return {"platform": "vastai", "path": rf"/{instance.id}/?$"}


LIST = {"platform": "vastai", "method": "GET", "path": "/api/v1/instances"}


# A rental's life


def test_rent_reach_list_find_destroy_and_prove(lab: Lab, vastai: VastAi, rent: Rent, ssh_key: Path) -> None:
    made = rent()
    assert made.billing == "disk_only"
    assert [found.id for found in vastai.find(NAME)] == [made.id]
    seen = ready(vastai, made)
    assert (seen.status, seen.billing, seen.gpu, seen.disk_gb, seen.dead) == ("running", "on", "RTX 4090", 40, False)
    assert seen.rate is not None and f"{seen.rate.amount:.8f}" == bill(lab, made)["rate_per_hour"]
    assert made.rate is not None and abs(made.rate.amount - seen.rate.amount) < Decimal("0.0001")
    assert seen.endpoint is not None
    login = f"{seen.endpoint.user}@{seen.endpoint.host}"
    quiet = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    command = ["ssh", "-F", "none", "-i", str(ssh_key), *quiet, "-p", str(seen.endpoint.port), login, "hostname"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.stdout.strip() == made.id, done.stderr
    assert state(vastai, made) == "on"
    assert "success true" in vastai.destroy(made.id)
    proof = verdict(vastai, made.id, True)
    assert proof["state"] == "off"
    assert [line["call"] for line in proof["evidence"]] == ["show", "list", "whoami"]
    assert not billing(lab, made)
    assert "no_such_instance" in vastai.destroy(made.id)


def test_gone_is_not_off_for_an_id_that_was_never_seen(vastai: VastAi) -> None:
    assert verdict(vastai, "12345", False)["state"] == "unknown"


def test_stop_leaves_the_disk_billing_and_start_brings_it_back(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = ready(vastai, rent())
    vastai.stop(made.id)
    parked = vastai.show(made.id)
    assert (parked.status, parked.dead, parked.endpoint) == ("stopped", True, None)
    assert state(vastai, made) == "disk_only" and billing(lab, made)
    assert parked.rate is not None and f"{parked.rate.amount:.8f}" == bill(lab, made)["rate_per_hour"]
    vastai.start(made.id)
    assert ready(vastai, made).billing == "on"


def test_a_host_that_does_not_report_counts_as_billing(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = ready(vastai, rent())
    lab.kill_host(made.id)
    seen = vastai.show(made.id)
    assert (seen.status, seen.billing, seen.dead) == ("unknown", "on", True)


def test_offers_say_price_place_and_traffic(vastai: VastAi) -> None:
    found = vastai.offers(Wanted(name="n", gpu="A100", vram_gb=80, gpu_count=2, disk_gb=100, region="CA"))
    assert [(offer.gpu, offer.gpu_count, offer.region) for offer in found] == [("A100 SXM4", 2, "Quebec, CA")]
    assert abs(found[0].rate.amount - (Decimal("1.90") + Decimal(15) / 720)) < Decimal("0.0001")
    assert "traffic per GB" in found[0].stock
    assert vastai.offers(Wanted(name="n", gpu="RTX3090", cuda=">=12.6")) == []


def test_an_l40s_of_48_gb_is_found_though_it_says_45(vastai: VastAi) -> None:
    assert vastai.offers(Wanted(name="n", gpu="L40S", vram_gb=48))


def test_names_with_underscores_are_found_too(lab: Lab, vastai: VastAi) -> None:
    lab.fault("vastai.spaces", {"platform": "vastai"})
    assert vastai.offers(Wanted(name="n", gpu="RTX4090"))


def test_many_instances_come_on_pages(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = {rent(f"n{number}").id for number in range(3)}
    vastai.page = 2
    assert {found.id for found in vastai.list()} == made
    assert [found.name for found in vastai.find("n1")] == ["n1"]
    pages = [one for one in lab.requests() if one["path"] == "/api/v1/instances/" and "after_token" in one["query"]]
    assert pages


# Lies of the API


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"instances": None}),
        (404, {"success": False, "error": "no_such_instance", "msg": "x"}),
        (404, {"success": False, "error": "auth_error", "msg": "Invalid user key"}),
        (200, {}),
        (200, "<html>sign in</html>"),
        (410, {"success": False, "error": "deprecated_endpoint", "msg": "x"}),
        (429, {"detail": "API requests too frequent endpoint threshold=0.1"}),
        (500, {"success": False, "error": "server_error", "msg": "x"}),
    ],
    ids=["null", "404", "revoked-key", "empty", "html", "410", "429", "500"],
)
def test_a_live_instance_whose_read_lies_is_not_off(
    lab: Lab, vastai: VastAi, rent: Rent, status: int, body: Any
) -> None:
    made = rent()
    lab.fault("api.fail", {**here(made), "method": "GET"}, status=status, body=body)
    assert state(vastai, made) == "unknown" and billing(lab, made)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"success": True, "instances_found": 0, "total_instances": 1, "next_token": None, "instances": []}),
        (200, {"success": True}),
        (200, {"success": False, "error": "auth_error", "msg": "Invalid user key"}),
        (410, {"success": False, "error": "deprecated_endpoint", "msg": "x"}),
        (401, {"success": False, "error": "auth_error", "msg": "Invalid user key"}),
        (200, '{"success": true, "instances": ['),
    ],
    ids=["empty-but-counted", "no-list", "success-false", "410", "401", "cut"],
)
def test_a_list_that_lies_proves_nothing(lab: Lab, vastai: VastAi, rent: Rent, status: int, body: Any) -> None:
    made = rent()
    vastai.destroy(made.id)
    lab.fault("api.fail", LIST, status=status, body=body)
    assert state(vastai, made) == "unknown"
    lab.clear()
    assert state(vastai, made) == "off"


def test_a_destroy_that_said_yes_and_did_nothing_is_seen(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = rent()
    match = {**here(made), "method": "DELETE"}
    lab.fault("api.fail", match, times=1, status=200, body={"success": True, "msg": "destroyed"})
    vastai.destroy(made.id)
    assert state(vastai, made) == "disk_only" and billing(lab, made)


def test_a_destroy_that_says_no_with_200_is_an_error(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = rent()
    refused = {"success": False, "error": "invalid_args", "msg": "x"}
    lab.fault("api.fail", {**here(made), "method": "DELETE"}, times=1, status=200, body=refused)
    with pytest.raises(PlatformError, match="invalid_args"):
        vastai.destroy(made.id)


@pytest.mark.parametrize("kind", ["api.drop", "api.fail"])
def test_a_destroy_without_a_plain_answer_was_carried_out_all_the_same(
    lab: Lab, vastai: VastAi, rent: Rent, kind: str
) -> None:
    made = rent()
    params: dict[str, Any] = {"status": 500, "executed": True} if kind == "api.fail" else {}
    lab.fault(kind, {**here(made), "method": "DELETE"}, times=1, **params)
    with pytest.raises(PlatformError):
        vastai.destroy(made.id)
    assert state(vastai, made) == "off"
    deletes = [one for one in lab.requests() if one["method"] == "DELETE" and one["path"].endswith(f"{made.id}/")]
    assert len(deletes) == 1


@pytest.mark.parametrize("kind", ["api.drop", "api.fail"])
def test_a_create_without_a_plain_answer_is_found_by_name_and_never_repeated(
    lab: Lab, vastai: VastAi, rent: Rent, kind: str
) -> None:
    params: dict[str, Any] = {"status": 200, "executed": True, "body": "<html>ok</html>"} if kind == "api.fail" else {}
    lab.fault(kind, {"platform": "vastai", "path": "/asks/"}, times=1, **params)
    with pytest.raises(UnknownOutcome):
        rent(f"lost-{kind}")
    assert len(vastai.find(f"lost-{kind}")) == 1
    assert len([one for one in lab.rentals() if one["name"] == f"lost-{kind}"]) == 1


def test_what_a_refused_create_left_behind_is_destroyed(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    lab.fault("vastai.half_create", {"platform": "vastai"})
    with pytest.raises(PlatformError, match="insufficient_credit"):
        rent("half")
    assert [one["state"] for one in lab.rentals() if one["name"] == "half"] == ["gone"]


def test_an_offer_that_was_just_taken_is_no_capacity(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    lab.fault("offer.none", {"platform": "vastai"})
    with pytest.raises(NoCapacity):
        rent()
    lab.clear()
    lab.fault("offer.none", {"platform": "vastai"}, listed=False)
    assert vastai.offers(Wanted(name="n", gpu="RTX4090")) == []


def test_lists_that_lag_in_both_directions(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab(list_lag=0.8, linger=0.8)
    vastai = client(lab)
    vastai.ensure_key(public_key)
    wanted = Wanted(name=NAME, gpu="RTX4090", image="img")
    made = vastai.rent(wanted, vastai.offers(wanted)[0])
    assert vastai.find(NAME) == []
    until(lambda: vastai.find(NAME))
    vastai.destroy(made.id)
    seen = vastai.show(made.id)
    assert (seen.status, seen.billing) == ("exited", "disk_only"), "200 by id after the delete is not life"
    assert state(vastai, made) != "off"
    until(lambda: state(vastai, made) == "off", 5)


def test_no_credit_rents_nothing(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab(balance="0.000001")
    vastai = client(lab)
    vastai.ensure_key(public_key)
    wanted = Wanted(name=NAME, gpu="RTX4090", image="img")
    with pytest.raises(PlatformError, match="insufficient_credit"):
        vastai.rent(wanted, vastai.offers(wanted)[0])
    assert lab.rentals() == []


def test_a_bad_key_is_an_auth_error_whatever_the_status(lab: Lab) -> None:
    vastai = client(lab, VAST_API_KEY="wrong")
    for call in (vastai.whoami, vastai.list, lambda: vastai.show("12345"), lambda: vastai.destroy("12345")):
        with pytest.raises(AuthError):
            call()
    with pytest.raises(AuthError, match="404"):
        vastai.offers(Wanted(name="n", gpu="RTX4090"))


def test_the_key_of_a_box_can_touch_nothing_but_itself(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    one, other = rent("one"), rent("other")
    boxed = client(lab, VAST_API_KEY=f"vast_instance_{one.id}")
    with pytest.raises(AuthError):
        boxed.destroy(other.id)
    boxed.stop(one.id)
    assert vastai.show(one.id).status == "stopped"


def test_the_retired_list_answers_410(lab: Lab, vastai: VastAi) -> None:
    with pytest.raises(Retired):
        vastai._http.read("/api/v0/instances/")


# Behind the verb `instance`


def test_a_renter_finds_what_a_lost_answer_rented_and_proves_its_end(
    lab: Lab, vastai: VastAi, ssh_key: Path, tmp_path: Path
) -> None:
    renter = Renter(vastai, Ledger(tmp_path), "vastai-1", lambda text: None)
    resources = {"gpu": "A100", "gpu_count": 1, "vram_gb": None, "disk_gb": None, "cuda": None}
    limits = {"max_duration": 3600, "max_price": {"amount": "3", "currency": "USD"}, "max_cost": None}
    job = {
        "project": "digits",
        "resources": resources,
        "image": "pytorch/pytorch",
        "volumes": [],
        "region": None,
        **limits,
    }
    plan, wanted = renter.plan(job, "renter", {}, 60)
    name = plan.name
    assert name == "digits-vastai-1-renter"
    lab.fault("api.drop", {"platform": "vastai", "path": "/asks/"}, times=1)
    made = renter.rent(plan, wanted, "renter", key_pair(str(ssh_key)))
    assert renter.wait_ready(made, 30).endpoint is not None
    assert len([one for one in lab.rentals() if one["name"] == name]) == 1
    assert renter.destroy(made.id, 30)["state"] == "off"
    assert lab.rental(made.id)["state"] == "gone"


# Volumes


def test_a_volume_is_a_leftover_until_it_is_deleted(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    made = rent()
    vastai._change("PUT", "/api/v0/volumes/", {"id": 7_000_000, "size": 15})
    left = vastai.leftovers(vastai.show(made.id))
    assert [(volume.kind, volume.size_gb) for volume in left] == [("local_volume", 15)]
    assert left == vastai.leftovers(None)
    assert "success true" in vastai.delete_leftover("local_volume", left[0].id)
    assert vastai.leftovers(None) == []


def test_a_volume_in_use_is_not_this_instances_leftover_and_cannot_be_deleted(
    lab: Lab, vastai: VastAi, rent: Rent
) -> None:
    made = rent()
    new = {"create_new": True, "volume_id": 7_000_000, "size": 10, "mount_path": "/data"}
    answer = vastai._change("PUT", "/api/v0/asks/7000000/", {"image": "img", "label": "user", "volume_info": new})
    (volume,) = vastai.leftovers(None)
    assert vastai.leftovers(made) == []
    with pytest.raises(PlatformError, match="in use"):
        vastai.delete_leftover("local_volume", volume.id)
    vastai.destroy(str(answer.data["new_contract"]))
    vastai.delete_leftover("local_volume", volume.id)


# The lab against the vendor's specification

_SPECS = os.environ.get("TENANT_SPECS")
_URI = "urn:vastai"


def _specification() -> dict[str, Any]:
    text = Path(_SPECS or "", "vastai-openapi.yaml").read_text(encoding="utf-8")
    spec: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    # The file types it an array; by the vendor's own client it is an object of lists.
    del spec["components"]["schemas"]["Instance"]["properties"]["ports"]
    return spec


@pytest.mark.skipif(not _SPECS, reason="TENANT_SPECS names no folder with the vendor's specification")
def test_the_lab_answers_as_the_specification_says(lab: Lab, vastai: VastAi, rent: Rent) -> None:
    spec = _specification()
    registry: Registry[Any] = Registry().with_resource(_URI, DRAFT202012.create_resource(spec))
    checked = []

    def check(method: str, path: str, body: Any = None, key: str | None = None) -> None:
        template = re.sub(r"/\d+(?=/|$)", "/{id}", path.partition("?")[0]).rstrip("/")
        status, content = _plain_call(lab, method, path, body, key)
        content_schema = spec["paths"][template][method.lower()]["responses"][str(status)].get("content", {})
        schema = content_schema.get("application/json", {}).get("schema", {})
        place = "/".join(["", "paths", template.replace("~", "~0").replace("/", "~1"), method.lower(), "responses"])
        reference = f"{_URI}#{place}/{status}/content/application~1json/schema"
        if schema:
            Draft202012Validator({"$ref": reference}, registry=registry).validate(content)
        checked.append((method, template, status))

    made = ready(vastai, rent())
    gone = rent("gone")
    vastai.destroy(gone.id)
    check("GET", f"/api/v0/instances/{made.id}")
    check("GET", "/api/v1/instances")
    check("GET", "/api/v0/users/current")
    check("GET", "/api/v0/ssh")
    check("POST", "/api/v0/ssh", {"ssh_key": "ssh-ed25519 AAAA other"})
    check("GET", "/api/v0/volumes")
    check("POST", "/api/v0/bundles", {"num_gpus": {"eq": 1}})
    check("POST", "/api/v0/bundles", {"num_gpus": 1})
    check("PUT", f"/api/v0/instances/{made.id}", {"label": "other"})
    check("DELETE", f"/api/v0/instances/{gone.id}")
    check("PUT", "/api/v0/asks/99", {"image": "img"})
    check("PUT", "/api/v0/asks/7000000", {})
    check("DELETE", "/api/v0/volumes", {"id": 1})
    check("GET", "/api/v0/users/current", key="wrong")
    check("POST", "/api/v0/bundles", {}, key="wrong")
    check("DELETE", f"/api/v0/instances/{made.id}")
    assert len({status for _, _, status in checked}) >= 4


def _plain_call(lab: Lab, method: str, path: str, body: Any, key: str | None) -> tuple[int, Any]:
    place = launcher.read(lab.state_dir)["platforms"]["vastai"]
    headers = {"Authorization": f"Bearer {key or place['api_key']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(place["url"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Lambda client against the lab: real HTTP, real boxes, a meter that runs, and lies of the API."""

from __future__ import annotations

import base64
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Instance,
    NoCapacity,
    PlatformError,
    UnknownOutcome,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.lambda_cloud import Lambda
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger
from ansible_collections.tenant.gpu.plugins.plugin_utils.rental import Renter, key_pair
from lab import launcher
from lab.api import Lab

pytestmark = pytest.mark.lab
NAME = "digits-lambda-1-r1"
Rent = Callable[..., Instance]


def client(lab: Lab, **environ: str) -> Lambda:
    made = Lambda({**lab.env(), **environ})
    made._http.budget, made._http.pace = 1.0, {}
    return made


@pytest.fixture
def cloud(lab: Lab) -> Iterator[Lambda]:
    yield client(lab)
    lab.clear()
    for rental in lab.rentals():
        if rental["state"] != "gone":
            lab.destroy(rental["id"])


@pytest.fixture
def rent(cloud: Lambda, public_key: str) -> Rent:
    def rent(name: str = NAME, **wanted: Any) -> Instance:
        cloud.ensure_key(public_key)
        usual = {"gpu": "A100", "image": "lambda-stack", "public_key": public_key}
        asked = Wanted(name=name, **{**usual, **wanted})
        return cloud.rent(asked, cloud.offers(asked)[0])

    return rent


def until(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def ready(cloud: Lambda, instance: Instance) -> Instance:
    def look() -> Instance | None:
        seen = cloud.show(instance.id)
        return seen if seen.endpoint else None

    found = until(look)
    assert isinstance(found, Instance)
    return found


def state(cloud: Lambda, instance: Instance) -> str:
    return str(verdict(cloud, instance.id, True)["state"])


def billed(lab: Lab, instance: Instance) -> Decimal:
    return Decimal(lab.bill()["rentals"][instance.id]["rate_per_hour"])


def show_of(instance: Instance) -> dict[str, str]:
    return {"platform": "lambda", "method": "GET", "path": f"/instances/{instance.id}$"}


LIST = {"platform": "lambda", "method": "GET", "path": "/api/v1/instances$"}
LAUNCH = {"platform": "lambda", "path": "/launch$"}
TERMINATE = {"platform": "lambda", "path": "/terminate$"}


# A rental's life


def test_rent_reach_list_find_terminate_and_prove(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    made = rent()
    assert [found.id for found in cloud.find(NAME)] == [made.id]
    seen = ready(cloud, made)
    assert (seen.status, seen.billing, seen.gpu, seen.gpu_count) == ("active", "on", "A100 (40 GB SXM4)", 1)
    assert seen.rate is not None and seen.rate.amount == billed(lab, made) == Decimal("1.29")
    assert seen.endpoint is not None
    there = lab.rental(made.id)["endpoint"]
    assert (seen.endpoint.host, seen.endpoint.port, seen.endpoint.user) == (there["host"], there["port"], "ubuntu")
    assert state(cloud, made) == "on"
    assert "terminating" in cloud.destroy(made.id)
    proof = verdict(cloud, made.id, True)
    assert proof["state"] == "off"
    assert [line["call"] for line in proof["evidence"]] == ["show", "list", "whoami"]
    assert billed(lab, made) == 0
    assert "object-does-not-exist" in cloud.destroy(made.id)


def test_a_dead_host_is_unhealthy_and_bills_on(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    made = ready(cloud, rent())
    lab.kill_host(made.id)
    seen = cloud.show(made.id)
    assert (seen.status, seen.billing, seen.dead, seen.endpoint) == ("unhealthy", "on", True, None)
    assert state(cloud, made) == "on" and billed(lab, made) > 0


def test_preempted_is_unknown_and_can_still_be_terminated(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    made = ready(cloud, rent())
    lab.fault("lambda.preempt_shown", {"rental": made.id})
    assert state(cloud, made) == "unknown" and billed(lab, made) > 0
    cloud.destroy(made.id)
    assert state(cloud, made) == "off"


def test_offers_are_those_with_capacity(cloud: Lambda) -> None:
    found = cloud.offers(Wanted(name="n", gpu="A10", image="lambda-stack"))
    assert [(one.id, one.region) for one in found] == [
        ("gpu_1x_a10", place) for place in ("us-east-1", "us-west-1", "us-south-2")
    ]
    assert cloud.offers(Wanted(name="n", gpu="H100", gpu_count=8)) == []
    assert "aarch64" in cloud.offers(Wanted(name="n", gpu="GH200"))[0].stock


# Lies of the API


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, {"error": {"code": "global/object-does-not-exist", "message": "x"}}),
        (404, {"error": {"code": "global/not-found", "message": "x"}}),
        (404, "<html>no</html>"),
        (401, {"error": {"code": "global/invalid-api-key", "message": "x"}}),
        (200, {"data": None}),
        (200, "<html>sign in</html>"),
        (429, "slow down"),
        (503, {"error": {"code": "provider/internal-unavailable", "message": "x"}}),
    ],
    ids=["404", "no-such-path", "html-404", "401", "null", "html", "429", "503"],
)
def test_a_live_instance_whose_read_lies_is_not_off(
    lab: Lab, cloud: Lambda, rent: Rent, status: int, body: Any
) -> None:
    made = ready(cloud, rent())
    lab.fault("api.fail", show_of(made), status=status, body=body)
    assert state(cloud, made) == "unknown" and billed(lab, made) > 0


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {}),
        (200, {"data": None}),
        (200, {"data": [], "next_page_token": "t"}),
        (200, '{"data": ['),
        (401, {"error": {"code": "global/invalid-api-key", "message": "x"}}),
        (429, "slow down"),
    ],
    ids=["empty", "null", "paged", "cut", "401", "429"],
)
def test_a_list_that_lies_proves_nothing(lab: Lab, cloud: Lambda, rent: Rent, status: int, body: Any) -> None:
    made = rent()
    cloud.destroy(made.id)
    lab.fault("api.fail", LIST, status=status, body=body)
    assert state(cloud, made) == "unknown"
    lab.clear()
    assert state(cloud, made) == "off"


def test_a_terminate_that_said_yes_and_did_nothing_is_seen(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    made = ready(cloud, rent())
    body = {"data": {"terminated_instances": [{"id": made.id, "status": "terminating"}]}}
    lab.fault("api.fail", TERMINATE, times=1, status=200, body=body)
    cloud.destroy(made.id)
    assert state(cloud, made) == "on" and billed(lab, made) > 0


@pytest.mark.parametrize("kind", ["api.drop", "api.fail"])
def test_a_terminate_without_a_plain_answer_was_carried_out_and_is_not_repeated(
    lab: Lab, cloud: Lambda, rent: Rent, kind: str
) -> None:
    made = rent()
    params: dict[str, Any] = {"status": 500, "executed": True} if kind == "api.fail" else {}
    lab.fault(kind, TERMINATE, times=1, **params)
    before = len(lab.requests())
    with pytest.raises(PlatformError):
        cloud.destroy(made.id)
    assert len(lab.requests()) == before + 1
    assert state(cloud, made) == "off"


def test_a_terminate_that_hangs_ends_with_a_deadline(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    made = rent()
    lab.fault("api.delay", TERMINATE, times=1, seconds=2)
    cloud._http.timeout = 0.3
    with pytest.raises(UnknownOutcome):
        cloud.destroy(made.id)
    cloud._http.timeout = 10.0
    assert state(cloud, made) == "on", "it is read again before it is repeated"
    cloud.destroy(made.id)
    assert state(cloud, made) == "off"


def test_terminating_is_not_gone(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab(linger=0.8, list_lag=0.3)
    cloud = client(lab)
    cloud.ensure_key(public_key)
    wanted = Wanted(name=NAME, gpu="A10", public_key=public_key)
    made = cloud.rent(wanted, cloud.offers(wanted)[0])
    assert cloud.find(NAME) == []
    until(lambda: cloud.find(NAME))
    cloud.destroy(made.id)
    assert cloud.show(made.id).status == "terminating"
    assert state(cloud, made) == "on"
    until(lambda: state(cloud, made) == "off", 5)


@pytest.mark.parametrize("kind", ["api.drop", "api.fail"])
def test_a_launch_without_a_plain_answer_is_found_by_name_and_never_repeated(
    lab: Lab, cloud: Lambda, rent: Rent, kind: str
) -> None:
    params: dict[str, Any] = {"status": 200, "executed": True, "body": "<html>ok</html>"} if kind == "api.fail" else {}
    lab.fault(kind, LAUNCH, times=1, **params)
    with pytest.raises(UnknownOutcome):
        rent(f"lost-{kind}")
    assert len(cloud.find(f"lost-{kind}")) == 1
    assert len([one for one in lab.rentals() if one["name"] == f"lost-{kind}"]) == 1


def test_capacity_that_the_catalogue_shows_and_the_launch_refuses(lab: Lab, rent: Rent) -> None:
    lab.fault("offer.none", {"platform": "lambda"})
    with pytest.raises(NoCapacity):
        rent()


def test_the_pace_is_kept_where_the_platform_insists(lab: Lab, cloud: Lambda) -> None:
    lab.fault("lambda.pace", {"platform": "lambda"})
    time.sleep(1.1)
    paced = Lambda(lab.env())
    assert paced.whoami() and paced.list() == []
    statuses = [one["status"] for one in lab.requests() if one["platform"] == "lambda"][-2:]
    assert statuses == [200, 200]


def test_a_bad_key_is_an_auth_error(lab: Lab) -> None:
    cloud = client(lab, LAMBDA_API_KEY="wrong")
    for call in (cloud.whoami, cloud.list, lambda: cloud.show("a"), lambda: cloud.destroy("a")):
        with pytest.raises(AuthError):
            call()


# Behind the verb `instance`


def test_a_renter_finds_what_a_lost_answer_rented_and_proves_its_end(
    lab: Lab, cloud: Lambda, ssh_key: Path, tmp_path: Path
) -> None:
    renter = Renter(cloud, Ledger(tmp_path), "lambda-1", lambda text: None)
    resources = {"gpu": "A100", "gpu_count": 1, "vram_gb": None, "disk_gb": None, "cuda": None}
    limits = {"max_duration": 3600, "max_price": {"amount": "3", "currency": "USD"}, "max_cost": None}
    job = {
        "project": "digits",
        "resources": resources,
        "image": "lambda-stack",
        "volumes": [],
        "region": None,
        **limits,
    }
    plan, wanted = renter.plan(job, "renter", {"disk": "0"}, 60)
    name = plan.name
    assert name == "digits-lambda-1-renter"
    lab.fault("api.drop", LAUNCH, times=1)
    made = renter.rent(plan, wanted, "renter", key_pair(str(ssh_key)))
    assert renter.wait_ready(made, 30).endpoint is not None
    assert len([one for one in lab.rentals() if one["name"] == name]) == 1
    assert renter.destroy(made.id, 30)["state"] == "off"
    assert lab.rental(made.id)["state"] == "gone"


# Filesystems


def test_a_filesystem_outlives_its_instance_and_is_deleted_by_itself(lab: Lab, cloud: Lambda, rent: Rent) -> None:
    assert cloud.find_volume("data") is None
    volume = cloud.create_volume("data", 10, "us-south-2")
    assert cloud.find_volume("data") == volume
    made = rent(volume=volume, volume_path="/lambda/nfs/data")
    assert made.region == "us-south-2"
    seen = ready(cloud, made)
    assert seen.volume_ids == (volume.id,)
    with pytest.raises(Conflict):
        cloud.delete_leftover("filesystem", volume.id)
    cloud.destroy(made.id)
    assert cloud.leftovers(seen) == [volume]
    assert Decimal(lab.bill()["volumes"][volume.id]["rate_per_hour"]) > 0
    assert "deleted_ids" in cloud.delete_leftover("filesystem", volume.id)
    assert cloud.leftovers(None) == []


def test_a_filesystem_of_another_region_is_refused(cloud: Lambda, rent: Rent, public_key: str) -> None:
    volume = cloud.create_volume("far", 10, "us-east-1")
    cloud.ensure_key(public_key)
    (offer,) = cloud.offers(Wanted(name="n", gpu="A100", region="us-west-1"))
    with pytest.raises(PlatformError, match="file-system-in-wrong-region"):
        cloud.rent(Wanted(name="n", gpu="A100", public_key=public_key, volume=volume), offer)
    cloud.delete_leftover("filesystem", volume.id)


# The lab against the vendor's specification

_SPECS = os.environ.get("TENANT_SPECS")
_URI = "urn:lambda"


@pytest.mark.skipif(not _SPECS, reason="TENANT_SPECS names no folder with the vendor's specification")
def test_the_lab_answers_as_the_specification_says(lab: Lab, cloud: Lambda, rent: Rent, public_key: str) -> None:
    spec: dict[str, Any] = json.loads(Path(_SPECS or "", "lambda-openapi.json").read_text(encoding="utf-8"))
    registry: Registry[Any] = Registry().with_resource(_URI, DRAFT202012.create_resource(spec))
    checked = []

    def check(method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        template = re.sub(r"/(?:[0-9a-f]{32}|nowhere)$", "/{id}", path)
        status, content = _plain_call(lab, method, path, body, key)
        assert str(status) in spec["paths"][template][method.lower()]["responses"], (method, path, status)
        place = "/".join(["", "paths", template.replace("/", "~1"), method.lower(), "responses", str(status)])
        reference = f"{_URI}#{place}/content/application~1json/schema"
        Draft202012Validator({"$ref": reference}, registry=registry).validate(content)
        checked.append((method, template, status))
        return content

    launch = "/api/v1/instance-operations/launch"
    body = {"region_name": "us-west-1", "instance_type_name": "gpu_1x_a100_sxm4", "ssh_key_names": ["tenant"]}
    check("POST", "/api/v1/ssh-keys", {"name": "tenant", "public_key": public_key})
    check("POST", "/api/v1/ssh-keys", {"name": "made-there"})
    check("POST", "/api/v1/ssh-keys", {})
    check("GET", "/api/v1/ssh-keys")
    made = check("POST", launch, body)["data"]["instance_ids"][0]
    check("POST", launch, {})
    check("POST", launch, {**body, "quantity": 2})
    check("POST", launch, {**body, "instance_type_name": "gpu_8x_h100_sxm5"})
    check("POST", launch, {**body, "ssh_key_names": ["nobody"]})
    check("POST", launch, body, key="wrong")
    check("GET", f"/api/v1/instances/{made}")
    until(lambda: cloud.show(made).endpoint)
    check("GET", f"/api/v1/instances/{made}")
    check("GET", "/api/v1/instances/nowhere")
    check("GET", "/api/v1/instances")
    check("GET", "/api/v1/instances", key="wrong")
    check("POST", f"/api/v1/instances/{made}", {"name": "other"})
    check("GET", "/api/v1/instance-types")
    check("GET", "/api/v1/images")
    check("GET", "/api/v1/regions")
    check("POST", "/api/v1/instance-operations/restart", {"instance_ids": [made]})
    check("POST", "/api/v1/instance-operations/terminate", {"instance_ids": [made, "nowhere"]})
    check("POST", "/api/v1/instance-operations/terminate", {"instance_ids": [made]})
    filesystem = check("POST", "/api/v1/filesystems", {"name": "spec", "region": "us-east-1"})["data"]["id"]
    check("POST", "/api/v1/filesystems", {"name": "spec", "region": "us-east-1"})
    check("POST", "/api/v1/filesystems", {"name": "9", "region": "us-east-1"})
    check("GET", "/api/v1/file-systems")
    check("DELETE", f"/api/v1/filesystems/{filesystem}")
    check("DELETE", "/api/v1/filesystems/nowhere")
    assert {status for _, _, status in checked} == {200, 400, 401, 404}


def test_basic_authentication_serves_too(lab: Lab) -> None:
    place = launcher.read(lab.state_dir)["platforms"]["lambda"]
    word = base64.b64encode(f"{place['api_key']}:".encode()).decode()
    request = urllib.request.Request(f"{place['url']}/api/v1/instances", headers={"Authorization": f"Basic {word}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.loads(answer.read()) == {"data": []}


def _plain_call(lab: Lab, method: str, path: str, body: Any, key: str | None) -> tuple[int, Any]:
    place = launcher.read(lab.state_dir)["platforms"]["lambda"]
    headers = {"Authorization": f"Bearer {key or place['api_key']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(place["url"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())

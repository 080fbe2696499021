# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Lambda client against answers that its server, a proxy or bad luck can give."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Conflict,
    Endpoint,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    PlatformError,
    RateLimited,
    UnknownOutcome,
    Volume,
    Wanted,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.lambda_cloud import Lambda
from tests.unit.scripted import Script, scripted

KEY = "secret_lambda-key-nobody-may-see"
ID = "0920582c7ff041399e34823a0be62549"
SHOW, LIST = f"GET /api/v1/instances/{ID}", "GET /api/v1/instances"
KEYS, TYPES = "GET /api/v1/ssh-keys", "GET /api/v1/instance-types"
LAUNCH, TERMINATE = "POST /api/v1/instance-operations/launch", "POST /api/v1/instance-operations/terminate"
FILESYSTEMS = "GET /api/v1/file-systems"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ tenant.gpu"
WANTED = Wanted(name="digits-lambda-1-r1", gpu="A100", image="lambda-stack", public_key=PUBLIC_KEY)
OFFER = Offer("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", 1, 40, Money(Decimal("1.29"), "USD"), "us-west-1", "available")


def ok(data: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"data": data}


def no(status: int, code: str, message: str = "words that change") -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": code, "message": message}}


GONE = no(404, "global/object-does-not-exist")
BAD_KEY = no(401, "global/invalid-api-key")


def row(instance_id: str = ID, status: str = "active", **more: Any) -> dict[str, Any]:
    kind = {"gpu_description": "A100 (40 GB SXM4)", "price_cents_per_hour": 129, "specs": {"gpus": 1}}
    return {"id": instance_id, "status": status, "name": "n", "instance_type": kind, "region": {"name": "r"}, **more}


def kind(
    name: str, described: str, *regions: str, gpus: int = 1, cents: Any = 129, storage: int = 512
) -> dict[str, Any]:
    specs = {"gpus": gpus, "storage_gib": storage, "vcpus": 30, "memory_gib": 200}
    entry = {"name": name, "gpu_description": described, "price_cents_per_hour": cents, "specs": specs}
    return {"instance_type": entry, "regions_with_capacity_available": [{"name": region} for region in regions]}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        script.tell(KEYS, ok([{"id": "k", "name": "mine", "public_key": PUBLIC_KEY}]))
        script.tell(LIST, ok([]))
        yield script


@pytest.fixture
def cloud(script: Script) -> Lambda:
    made = Lambda({"LAMBDA_API_KEY": KEY, "LAMBDA_API_BASE_URL": script.url})
    made._http.budget, made._http.pace = 0.0, {}
    return made


# States


@pytest.mark.parametrize(
    ("status", "billing", "dead"),
    [
        ("booting", "on", False),
        ("active", "on", False),
        ("unhealthy", "on", True),
        ("terminating", "on", True),
        ("terminated", "off", True),
        ("preempted", "unknown", True),
        ("hibernating", "unknown", False),
    ],
)
def test_each_state_of_the_sheet_has_its_billing(
    script: Script, cloud: Lambda, status: str, billing: str, dead: bool
) -> None:
    script.tell(SHOW, ok(row(status=status)))
    seen = cloud.show(ID)
    assert (seen.billing, seen.dead) == (billing, dead)
    assert seen.rate == Money(Decimal("1.29"), "USD")
    assert verdict(cloud, ID, True)["state"] == billing


def test_terminated_and_still_listed_as_active_is_not_off(script: Script, cloud: Lambda) -> None:
    script.tell(SHOW, ok(row(status="terminated")))
    script.tell(LIST, ok([row()]))
    assert verdict(cloud, ID, True)["state"] == "unknown"
    script.tell(LIST, ok([row(status="terminated")]))
    assert verdict(cloud, ID, True)["state"] == "off"


@pytest.mark.parametrize(
    ("ip", "status", "endpoint"),
    [
        ("198.51.100.2", "active", Endpoint("198.51.100.2", 22, "ubuntu")),
        ("198.51.100.2", "booting", None),
        ("198.51.100.2", "unhealthy", None),
        (None, "active", None),
        ("127.0.0.1:40022", "active", Endpoint("127.0.0.1", 40022, "ubuntu")),
        ("127.0.0.1:99999", "active", None),
        ("-oProxyCommand=x", "active", None),
        (["198.51.100.2"], "active", None),
    ],
)
def test_the_address(script: Script, cloud: Lambda, ip: Any, status: str, endpoint: Endpoint | None) -> None:
    script.tell(SHOW, ok(row(status=status, ip=ip)))
    assert cloud.show(ID).endpoint == endpoint


# Ids


@pytest.mark.parametrize("wrong", ["", " ", "..", "a/b", "a?b", "-a", "a\n", "a" * 65, "é"])
def test_a_strange_id_never_enters_a_call(script: Script, cloud: Lambda, wrong: str) -> None:
    for call in (cloud.show, cloud.destroy, lambda text: cloud.delete_leftover("filesystem", text)):
        with pytest.raises(PlatformError, match="cannot be an instance id"):
            call(wrong)
    assert script.asked == []


# Gone, or not


def test_gone_is_off(script: Script, cloud: Lambda) -> None:
    script.tell(SHOW, GONE)
    assert verdict(cloud, ID, True)["state"] == "off"


@pytest.mark.parametrize(
    "answer",
    [
        no(404, "global/not-found"),
        (404, {}),
        (404, {"error": "gone"}),
        (404, "<html>no</html>"),
        BAD_KEY,
        no(403, "global/account-inactive"),
        (200, {}),
        (200, {"data": None}),
        (200, {"data": []}),
        ok(row("another")),
        ok({"id": ID}),
        (200, "<html>sign in</html>"),
        (200, '{"data": {"id"'),
        (200, ""),
        (429, {"message": "slow down"}),
        no(503, "provider/internal-unavailable"),
        "drop",
    ],
)
def test_anything_else_by_id_is_not_off(script: Script, cloud: Lambda, answer: Any) -> None:
    script.tell(SHOW, answer)
    assert verdict(cloud, ID, True)["state"] == "unknown"


@pytest.mark.parametrize(
    "answer",
    [
        ok([row()]),
        ok([row(status="terminating")]),
        ok({}),
        ok(None),
        (200, {}),
        (200, {"data": [], "next_page_token": "t"}),
        ok([{"id": "half"}]),
        BAD_KEY,
        (429, "slow down"),
        (200, "<html>"),
    ],
    ids=["listed", "terminating", "object", "null", "no-data", "paged", "half", "401", "429", "html"],
)
def test_a_list_that_is_not_whole_proves_nothing(script: Script, cloud: Lambda, answer: Any) -> None:
    script.tell(SHOW, GONE)
    script.tell(LIST, answer)
    assert verdict(cloud, ID, True)["state"] == "unknown"


def test_a_key_that_stopped_working_proves_nothing(script: Script, cloud: Lambda) -> None:
    script.tell(SHOW, GONE)
    script.tell(KEYS, BAD_KEY)
    assert verdict(cloud, ID, True)["state"] == "unknown"


# Terminate


def test_one_id_a_call(script: Script, cloud: Lambda) -> None:
    script.tell(TERMINATE, ok({"terminated_instances": [row(status="terminating")]}))
    assert "status terminating" in cloud.destroy(ID)
    assert script.asked[0].body == {"instance_ids": [ID]}


def test_terminating_what_is_gone_says_so(script: Script, cloud: Lambda) -> None:
    script.tell(TERMINATE, GONE)
    assert "object-does-not-exist" in cloud.destroy(ID)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok({"terminated_instances": []}), PlatformError),
        (ok({"terminated_instances": [row("another")]}), PlatformError),
        (ok({}), PlatformError),
        ((200, ""), PlatformError),
        (no(404, "global/not-found"), PlatformError),
        (BAD_KEY, AuthError),
        (no(409, "global/conflict"), Conflict),
        ((429, {}), RateLimited),
        (no(500, "global/internal-error"), PlatformError),
        ("drop", UnknownOutcome),
    ],
)
def test_a_terminate_that_was_not_confirmed_is_an_error_and_is_asked_once(
    script: Script, cloud: Lambda, answer: Any, kind: type[PlatformError]
) -> None:
    script.tell(TERMINATE, answer)
    with pytest.raises(kind):
        cloud.destroy(ID)
    assert script.calls() == [TERMINATE]


# Launch


def test_a_launch_sends_one_key_by_its_name_and_makes_no_call_after_it(script: Script, cloud: Lambda) -> None:
    script.tell(LAUNCH, ok({"instance_ids": [ID]}))
    made = cloud.rent(WANTED, OFFER)
    assert (made.id, made.billing, made.rate) == (ID, "on", OFFER.rate)
    assert script.calls() == [KEYS, LAUNCH]
    assert script.asked[-1].body == {
        "region_name": "us-west-1",
        "instance_type_name": "gpu_1x_a100_sxm4",
        "ssh_key_names": ["mine"],
        "name": WANTED.name,
    }


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("drop", UnknownOutcome),
        ((200, "<html>"), UnknownOutcome),
        ((200, ""), UnknownOutcome),
        (ok({}), UnknownOutcome),
        (ok([]), UnknownOutcome),
        (ok({"instance_ids": []}), UnknownOutcome),
        (ok({"instance_ids": [ID, "another"]}), UnknownOutcome),
        (ok({"instance_ids": ["../x"]}), UnknownOutcome),
        (no(500, "global/internal-error"), PlatformError),
        ((504, "<html>"), PlatformError),
        (no(400, "instance-operations/launch/insufficient-capacity"), NoCapacity),
        (no(400, "global/invalid-parameters", f"Requested too many instances. {KEY}"), PlatformError),
        (no(400, "global/quota-exceeded"), PlatformError),
        (no(404, "global/object-does-not-exist"), PlatformError),
        (no(403, "global/invalid-address"), AuthError),
        ((429, "slow down"), RateLimited),
    ],
)
def test_a_launch_is_never_repeated_and_tells_no_secret(
    script: Script, cloud: Lambda, answer: Any, kind: type[PlatformError]
) -> None:
    cloud._http.budget = 30.0
    script.tell(LAUNCH, answer)
    with pytest.raises(kind) as told:
        cloud.rent(WANTED, OFFER)
    assert type(told.value) is kind
    assert script.calls().count(LAUNCH) == 1
    assert KEY not in f"{told.value} {told.value.seen} {told.value.means} {told.value.do}"


def test_a_name_that_could_not_be_found_again_is_refused(script: Script, cloud: Lambda) -> None:
    with pytest.raises(PlatformError, match="65 characters"):
        cloud.rent(Wanted(name="n" * 65, gpu="A100", public_key=PUBLIC_KEY), OFFER)
    assert script.asked == []


def test_a_key_that_is_not_registered_rents_nothing(script: Script, cloud: Lambda) -> None:
    script.tell(KEYS, ok([]))
    with pytest.raises(PlatformError, match="not registered"):
        cloud.rent(WANTED, OFFER)
    assert script.calls() == [KEYS]


@pytest.mark.parametrize(
    ("image", "sent"),
    [
        ("lambda-stack", None),
        ("lambda-stack-24-04", {"family": "lambda-stack-24-04"}),
        (ID, {"id": ID}),
        ("ddaedf1b-7a0e-41ac-9817-11504493b242", {"id": "ddaedf1b-7a0e-41ac-9817-11504493b242"}),
    ],
)
def test_images(script: Script, cloud: Lambda, image: str, sent: Any) -> None:
    script.tell(LAUNCH, ok({"instance_ids": [ID]}))
    cloud.rent(Wanted(name="n", gpu="A100", image=image, public_key=PUBLIC_KEY), OFFER)
    assert script.asked[-1].body.get("image") == sent


def test_a_container_image_is_refused_before_anything_is_asked(script: Script, cloud: Lambda) -> None:
    with pytest.raises(PlatformError, match="pytorch/pytorch") as told:
        cloud.offers(Wanted(name="n", gpu="A100", image="pytorch/pytorch:2.4"))
    assert "lambda-stack" in told.value.do
    assert script.asked == []


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (None, {"file_system_names": ["data"]}),
        ("/lambda/nfs/data", {"file_system_mounts": [{"mount_point": "/lambda/nfs/data", "file_system_id": "f1"}]}),
    ],
)
def test_a_filesystem_is_attached_at_launch(script: Script, cloud: Lambda, path: Any, sent: dict[str, Any]) -> None:
    script.tell(LAUNCH, ok({"instance_ids": [ID]}))
    volume = Volume("filesystem", "f1", "data", 0, "us-west-1")
    made = cloud.rent(Wanted(**{**WANTED.__dict__, "volume": volume, "volume_path": path}), OFFER)
    assert made.volume_ids == ("f1",)
    assert sent.items() <= script.asked[-1].body.items()


def test_a_mount_elsewhere_is_refused(script: Script, cloud: Lambda) -> None:
    volume = Volume("filesystem", "f1", "data", 0, "us-west-1")
    with pytest.raises(PlatformError, match="/workspace") as told:
        cloud.rent(Wanted(**{**WANTED.__dict__, "volume": volume, "volume_path": "/workspace"}), OFFER)
    assert "/lambda/nfs/data" in told.value.do
    assert LAUNCH not in script.calls()


# Offers


def test_an_offer_for_each_region_with_capacity_cheapest_first(script: Script, cloud: Lambda) -> None:
    types = {
        "a": kind("gpu_1x_a100", "A100 (40 GB PCIe)", "us-east-1", "us-west-1", cents=199),
        "b": kind("gpu_1x_a100_sxm4", "A100 (40 GB SXM4)", "us-west-1"),
        "c": kind("gpu_8x_a100", "A100 (40 GB SXM4)", "us-west-1", gpus=8, cents=1032),
        "d": kind("gpu_1x_a10", "A10 (24 GB PCIe)", "us-west-1", cents=75),
        "e": kind("gpu_1x_h100", "H100 (80 GB PCIe)", cents=249),
    }
    script.tell(TYPES, ok(types))
    found = cloud.offers(WANTED)
    assert [(one.id, one.region, str(one.rate)) for one in found] == [
        ("gpu_1x_a100_sxm4", "us-west-1", "1.29 USD"),
        ("gpu_1x_a100", "us-east-1", "1.99 USD"),
        ("gpu_1x_a100", "us-west-1", "1.99 USD"),
    ]
    assert [one.vram_gb for one in found] == [40, 40, 40]
    near = Volume("filesystem", "f1", "data", 0, "us-east-1")
    assert [one.region for one in cloud.offers(Wanted(name="n", gpu="A100", volume=near))] == ["us-east-1"]
    assert cloud.offers(Wanted(name="n", gpu="A100", vram_gb=80)) == []
    assert cloud.offers(Wanted(name="n", gpu="A100", disk_gb=1000)) == []
    assert cloud.offers(Wanted(name="n", gpu="H100")) == []


@pytest.mark.parametrize(
    ("asked", "described", "fits"),
    [
        ("A100", "A100 (40 GB SXM4)", True),
        ("a100 80gb", "A100 (80 GB SXM4)", True),
        ("A100 80GB", "A100 (40 GB SXM4)", False),
        ("A10", "A100 (40 GB SXM4)", False),
        ("A100", "A10 (24 GB PCIe)", False),
        ("H100SXM", "H100 (80 GB SXM5)", True),
        ("H100 PCIe", "H100 (80 GB SXM5)", False),
        ("RTX A6000", "A6000 (48 GB)", True),
        ("RTX6000", "RTX 6000 (24 GB)", True),
        ("A6000", "RTX 6000 (24 GB)", False),
        ("V100", "Tesla V100 (16 GB)", True),
        ("gpu_1x_x", "B200 (180 GB SXM6)", True),
    ],
)
def test_card_names(script: Script, cloud: Lambda, asked: str, described: str, fits: bool) -> None:
    script.tell(TYPES, ok({"x": kind("gpu_1x_x", described, "us-west-1")}))
    assert bool(cloud.offers(Wanted(name="n", gpu=asked))) is fits


@pytest.mark.parametrize("cents", [None, "129", 1.29, True])
def test_a_price_that_is_not_understood_is_an_error(script: Script, cloud: Lambda, cents: Any) -> None:
    script.tell(TYPES, ok({"x": kind("x", "A100 (40 GB)", "us-west-1", cents=cents)}))
    with pytest.raises(PlatformError):
        cloud.offers(WANTED)


# Pace, errors, account


def test_calls_keep_the_pace_that_the_platform_asks_for(script: Script) -> None:
    slept: list[float] = []
    cloud = Lambda({"LAMBDA_API_KEY": KEY, "LAMBDA_API_BASE_URL": script.url})
    cloud._http.sleep = slept.append
    cloud.whoami()
    cloud.list()
    assert len(slept) == 1 and 0.5 < slept[0] <= 1.1
    script.tell(LAUNCH, no(400, "instance-operations/launch/insufficient-capacity"))
    for _ in range(2):
        with pytest.raises(NoCapacity):
            cloud.rent(WANTED, OFFER)
    assert max(slept) > 9


def test_reads_wait_out_a_429(script: Script, cloud: Lambda) -> None:
    cloud._http.budget, cloud._http.sleep = 30.0, lambda seconds: None
    script.tell(LIST, (429, "slow down"), ok([row()]))
    assert [one.id for one in cloud.list()] == [ID]


def test_a_balance_is_not_made_up(script: Script, cloud: Lambda) -> None:
    assert "balance" not in cloud.can
    with pytest.raises(PlatformError) as told:
        cloud.balance()
    assert told.value.code == "unsupported"
    assert script.asked == []


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_there_is_no_stop(cloud: Lambda, verb: str) -> None:
    assert verb not in cloud.can


def test_a_key_is_registered_once_and_never_made_by_the_service(script: Script, cloud: Lambda) -> None:
    script.tell("POST /api/v1/ssh-keys", ok({"id": "k", "name": "x", "public_key": PUBLIC_KEY}))
    assert cloud.ensure_key(PUBLIC_KEY + "-other-comment") is False
    script.tell(KEYS, ok([]))
    assert cloud.ensure_key(PUBLIC_KEY) is True
    assert script.asked[-1].body["public_key"] == PUBLIC_KEY


def test_secrets_of_an_instance_are_dropped(script: Script, cloud: Lambda) -> None:
    script.tell(SHOW, ok(row(jupyter_token=KEY, jupyter_url=f"https://x/?token={KEY}")))
    assert KEY not in json.dumps(cloud.show(ID).as_dict())


@pytest.mark.parametrize(
    ("name", "region"), [("9data", "r"), ("my_data", "r"), ("", "r"), ("a" * 61, "r"), ("data", None)]
)
def test_a_filesystem_that_the_platform_would_refuse_is_not_asked_for(
    script: Script, cloud: Lambda, name: str, region: str | None
) -> None:
    with pytest.raises(PlatformError):
        cloud.create_volume(name, 10, region)
    assert script.asked == []


def test_leftovers_are_the_filesystems_of_the_instance(script: Script, cloud: Lambda) -> None:
    entries = [
        {"id": "f1", "name": "one", "bytes_used": 5, "region": {"name": "us-east-1"}},
        {"id": "f2", "name": "two"},
        {"id": "f3", "name": "three"},
    ]
    script.tell(FILESYSTEMS, ok(entries))
    mounts = [{"mount_point": "/data", "file_system_id": "f1"}]
    script.tell(SHOW, ok(row(file_system_mounts=mounts)), ok(row(file_system_names=["two"])))
    assert [(one.id, one.size_gb, one.region) for one in cloud.leftovers(cloud.show(ID))] == [("f1", 1, "us-east-1")]
    assert [one.id for one in cloud.leftovers(cloud.show(ID))] == ["f2"]
    assert len(cloud.leftovers(None)) == 3


def test_a_filesystem_in_use_is_a_conflict(script: Script, cloud: Lambda) -> None:
    script.tell("DELETE /api/v1/filesystems/f1", no(400, "filesystems/filesystem-in-use"), ok({"deleted_ids": []}))
    with pytest.raises(Conflict):
        cloud.delete_leftover("filesystem", "f1")
    with pytest.raises(PlatformError, match="without this id"):
        cloud.delete_leftover("filesystem", "f1")
    with pytest.raises(PlatformError, match="no leftovers of kind"):
        cloud.delete_leftover("volume", "f1")


def test_not_found_is_only_for_what_the_api_itself_does_not_know(script: Script, cloud: Lambda) -> None:
    script.tell(SHOW, GONE, no(404, "global/not-found"))
    with pytest.raises(NotFound):
        cloud.show(ID)
    with pytest.raises(PlatformError) as told:
        cloud.show(ID)
    assert not isinstance(told.value, NotFound)


def test_keys_come_from_the_environment_or_the_key_file(script: Script, tmp_path: Path) -> None:
    with pytest.raises(AuthError) as told:
        client("lambda", {})
    assert "LAMBDA_API_KEY" in told.value.do
    place = tmp_path / ".lambda_cloud/lambda_keys"
    place.parent.mkdir()
    place.write_text(f"api_key = {KEY}\n")
    made = client("lambda", {"HOME": str(tmp_path), "LAMBDA_API_BASE_URL": f"{script.url}/api/v1/"})
    assert "1 ssh keys" in made.whoami()
    assert script.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert script.asked[0].headers["user-agent"].startswith("tenant.gpu")

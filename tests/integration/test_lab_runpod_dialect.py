# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab speaks RunPod's REST v2 and GraphQL to the letter of the vendor's specification and fact sheet."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.api import Lab
from lab.dialects.runpod.schemas import CREATE_POD, UPDATE_POD
from lab.schema import violations
from tests.integration.runpod_client import GPU, RunPodClient, pod_request, specification, ssh

pytestmark = pytest.mark.lab

NO_INSTANCES = "There are no longer any instances available with the requested specifications"
HOST_FULL = "There are not enough free GPUs on the host machine to start this pod."


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The answer is an error of this status in the vendor's form."""
    assert answer.status == status, answer.text
    assert answer.content_type == "application/problem+json"
    assert answer.data["status"] == status
    return answer.data


# A pod's life


def test_a_pod_is_provisioned_starts_and_runs_before_ssh_is_published(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(provisioning=0.4, starting=0.4, ssh=1.5)
    api = RunPodClient(lab.url, lab.api_key)
    pod = api.create("ssh-ed25519 AAAA test", name="life")
    assert (pod["status"], pod["actions"]) == ("PROVISIONING", ["stop", "terminate"])
    assert pod["ssh"] == {"proxy": None, "direct": None}
    assert pod["runtime"] is None
    assert pod["cost"] == 0.69
    seen = []
    while not (pod["status"] == "RUNNING" and pod["ssh"]["direct"]):
        seen.append((pod["status"], pod["ssh"]["proxy"] is not None, pod["runtime"] is not None))
        time.sleep(0.05)
        pod = api.pod(pod["id"])
    assert list(dict.fromkeys(seen)) == [
        ("PROVISIONING", False, False),
        ("STARTING", True, False),
        ("RUNNING", True, False),
    ]
    assert pod["actions"] == ["stop", "restart", "terminate"]
    assert pod["runtime"]["ports"] == [
        {"private": 22, "public": pod["ssh"]["direct"]["port"], "type": "tcp", "ip": pod["ssh"]["direct"]["host"]}
    ]
    assert pod["ssh"]["direct"]["username"] == "root"


def test_stop_loses_the_container_disk_and_start_changes_port_and_host_key(
    api: RunPodClient, ssh_key: Path, public_key: str
) -> None:
    volume = api.volume()
    mounts = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    first = api.ready(api.create(public_key, mounts=mounts, env={"MODE": "train"})["id"])
    there = "hostname; touch /root/kept /workspace/kept; tr '\\0' '\\n' </proc/1/environ; echo here=$MODE"
    done = ssh(first, ssh_key, there)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == first["id"]
    assert {"MODE=train", f"RUNPOD_POD_ID={first['id']}", f"RUNPOD_VOLUME_ID={volume['id']}"} <= set(lines)
    assert f"RUNPOD_TCP_PORT_22={first['ssh']['direct']['port']}" in lines
    assert lines[-1] == "here=", "pod env must not be seen by an SSH session"
    host_key = _host_key(first)

    stopped = api.act(first["id"], "stop")
    assert stopped.status == 200
    assert (stopped.data["status"], stopped.data["cost"], stopped.data["runtime"]) == ("EXITED", 0.0, None)
    assert stopped.data["actions"] == ["start", "terminate"]
    assert stopped.data["ssh"]["direct"] is None
    assert stopped.data["cudaVersion"] == "12.8"

    assert api.act(first["id"], "start").status == 200
    again = api.ready(first["id"])
    assert again["ssh"]["direct"]["port"] != first["ssh"]["direct"]["port"]
    assert _host_key(again) != host_key
    assert ssh(again, ssh_key, "ls /root/kept").returncode != 0
    assert ssh(again, ssh_key, "ls /workspace/kept").returncode == 0
    assert ssh({"ssh": first["ssh"]}, ssh_key, "true").returncode == 255, "the old port still answers"


def _host_key(pod: dict[str, Any]) -> str:
    import subprocess

    there = pod["ssh"]["direct"]
    scan = ["ssh-keyscan", "-T", "5", "-p", str(there["port"]), "-t", "ed25519", there["host"]]
    return subprocess.run(scan, capture_output=True, text=True, check=True).stdout.split()[2]


def test_a_persistent_disk_survives_stop_and_restart_but_not_the_pod(
    api: RunPodClient, ssh_key: Path, public_key: str
) -> None:
    pod = api.ready(api.create(public_key, mounts={"persistent": {"size": 10, "path": "/workspace"}})["id"])
    assert ssh(pod, ssh_key, "echo 1 > /workspace/kept; echo 2 > /root/lost").returncode == 0
    assert api.act(pod["id"], "restart").status == 200
    again = api.ready(pod["id"])
    assert ssh(again, ssh_key, "cat /workspace/kept; ls /root/lost").stdout == "1\n"
    assert api.ask("DELETE", f"/v2/pods/{pod['id']}").status == 204


def test_a_deleted_pod_is_gone_from_every_read(api: RunPodClient, public_key: str) -> None:
    pod = api.create(public_key)
    answer = api.ask("DELETE", f"/v2/pods/{pod['id']}")
    assert (answer.status, answer.text) == (204, "")
    assert problem(api.ask("GET", f"/v2/pods/{pod['id']}"), 404)["detail"] == "resource not found"
    assert pod["id"] not in [listed["id"] for listed in api.ask("GET", "/v2/pods").data["pods"]]
    problem(api.ask("DELETE", f"/v2/pods/{pod['id']}"), 404)
    problem(api.act(pod["id"], "start"), 404)


def test_terminate_is_the_same_as_delete(api: RunPodClient, public_key: str) -> None:
    pod = api.create(public_key)
    answer = api.act(pod["id"], "terminate")
    assert (answer.status, answer.text) == (204, "")
    problem(api.ask("GET", f"/v2/pods/{pod['id']}"), 404)


def test_a_deleted_pod_may_linger_as_terminated(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(linger=1.0)
    api = RunPodClient(lab.url, lab.api_key)
    pod = api.create("ssh-ed25519 AAAA test")
    api.ask("DELETE", f"/v2/pods/{pod['id']}")
    lingering = api.pod(pod["id"])
    assert (lingering["status"], lingering["actions"], lingering["cost"]) == ("TERMINATED", [], 0.0)
    assert api.ask("GET", "/v2/pods").data == {"pods": []}
    time.sleep(1.1)
    problem(api.ask("GET", f"/v2/pods/{pod['id']}"), 404)


@pytest.mark.parametrize(
    ("before", "action"), [(None, "start"), (None, "restart"), ("stop", "stop"), ("stop", "restart")]
)
def test_an_action_that_the_status_does_not_allow_is_a_conflict(
    api: RunPodClient, before: str | None, action: str
) -> None:
    pod = api.create("ssh-ed25519 AAAA test")
    if before:
        assert api.act(pod["id"], before).status == 200
    assert action not in api.pod(pod["id"])["actions"]
    problem(api.act(pod["id"], action), 409)


def test_a_locked_pod_cannot_be_stopped(api: RunPodClient) -> None:
    pod = api.create("ssh-ed25519 AAAA test")
    changed = api.ask("PATCH", f"/v2/pods/{pod['id']}", {"locked": True, "name": "renamed"})
    assert (changed.data["locked"], changed.data["name"]) == (True, "renamed")
    problem(api.act(pod["id"], "stop"), 409)
    problem(api.ask("PATCH", f"/v2/pods/{pod['id']}", {"gpu": {"id": GPU}}), 422)


def test_logs_are_server_sent_events(api: RunPodClient) -> None:
    pod = api.ready(api.create("ssh-ed25519 AAAA test")["id"])
    answer = api.ask("GET", f"/v2/pods/{pod['id']}/logs")
    assert answer.content_type == "text/event-stream"
    assert '"line": "pod is RUNNING"' in answer.text


# SSH


def test_without_start_ssh_the_mapped_port_answers_nobody(api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    pod = api.ready(api.create(public_key, startSsh=False)["id"])
    done = ssh(pod, ssh_key, "true")
    assert done.returncode == 255
    assert "refused" in done.stderr


def test_without_port_22_there_is_no_direct_ssh(api: RunPodClient, public_key: str) -> None:
    pod = api.create(public_key, ports=["8888/http"])
    running = api.until(pod["id"], lambda now: now["runtime"])
    assert running["ssh"]["direct"] is None
    assert running["runtime"]["ports"] == [{"private": 8888, "public": None, "type": "http", "ip": None}]


def test_account_keys_open_a_pod_and_put_replaces_them_all(api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    assert api.ask("PUT", "/v2/account/ssh-keys", {"keys": ["ssh-rsa AAAA old"]}).status == 200
    assert api.ask("PUT", "/v2/account/ssh-keys", {"keys": [public_key]}).data == {"keys": [public_key]}
    assert api.ask("GET", "/v2/account/ssh-keys").data == {"keys": [public_key]}
    pod = api.ready(api.create()["id"])
    assert ssh(pod, ssh_key, "id -u").stdout == "0\n"
    other = api.ready(
        api.create("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILXGDN/SclOozk1xsDztpmhGiKkkrfQB9SKoO8dSIQQZ x")["id"]
    )
    assert "Permission denied" in ssh(other, ssh_key, "true").stderr
    assert api.ask("PUT", "/v2/account/ssh-keys", {"keys": []}).data == {"keys": []}
    problem(api.ask("PUT", "/v2/account/ssh-keys", {"keys": ["not a key"]}), 422)


# Who asks


def test_a_missing_or_wrong_key_is_401(api: RunPodClient) -> None:
    assert problem(api.with_key(None).ask("GET", "/v2/pods"), 401)["detail"] == "missing bearer token"
    problem(api.with_key("wrong").ask("GET", "/v2/pods"), 401)
    assert api.with_key("wrong").ask("POST", "/graphql", {"query": "{ myself { id } }"}).status == 401


def test_a_read_only_key_may_look_but_not_touch(lab: Lab, api: RunPodClient) -> None:
    reader = api.with_key(lab.read_only_key)
    assert reader.ask("GET", "/v2/pods").status == 200
    assert problem(reader.ask("POST", "/v2/pods", pod_request()), 403)["detail"] == "access denied"
    problem(reader.ask("DELETE", "/v2/pods/whatever"), 403)


def test_the_key_inside_a_pod_opens_only_that_pod(lab: Lab, api: RunPodClient, public_key: str) -> None:
    pod, other = api.ready(api.create(public_key)["id"]), api.create(public_key)
    _, environment, _ = lab.exec(pod["id"], ["cat", "/proc/1/environ"])
    key = dict(item.split("=", 1) for item in environment.decode().split("\0") if item)["RUNPOD_API_KEY"]
    assert api.with_key(key).pod(pod["id"])["id"] == pod["id"]
    problem(api.with_key(key).ask("GET", f"/v2/pods/{other['id']}"), 403)
    problem(api.with_key(key).ask("GET", "/v2/pods"), 403)


def test_the_quota_is_told_and_kept(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(rate_limit=3)
    api = RunPodClient(lab.url, lab.api_key)
    answers = [api.ask("GET", "/v2/pods") for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers["ratelimit"].startswith('"minute";r=2;t=')
    assert answers[0].headers["ratelimit-policy"].startswith('"minute";q=3;w=60, "hour";')
    assert problem(answers[3], 429)["detail"] == "rate limit exceeded for the minute window"
    assert 0 < int(answers[3].headers["retry-after"]) <= 60
    assert api.with_key(lab.read_only_key).ask("GET", "/v2/pods").status == 200, "the quota is per key"


# What is refused


def test_an_unknown_property_is_named_in_the_words_of_the_specification(api: RunPodClient) -> None:
    answer = problem(api.ask("POST", "/v2/pods", pod_request(bogus=1)), 422)
    assert answer["errors"] == ["$: additional properties 'bogus' not allowed"]
    nested = problem(api.ask("POST", "/v2/pods", pod_request(gpu={"id": GPU, "type": "x"})), 422)
    assert nested["errors"] == ["$.gpu: additional properties 'type' not allowed"]
    assert api.ask("GET", "/v2/pods").data == {"pods": []}


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"name": ""}, 422, "minLength: got 0, want 1"),
        ({"disk": "10"}, 422, "got string, want integer"),
        ({"cloud": "MOON"}, 422, "value must be one of 'SECURE', 'COMMUNITY'"),
        ({"env": {"A": 1}}, 422, "$.env.A: got integer, want string"),
        ({"cpu": {"id": "cpu3c", "vcpuCount": 2}}, 400, "exactly one of gpu or cpu"),
        ({"gpu": {"id": "NVIDIA Imaginary 1"}}, 400, "is not offered"),
        ({"gpu": {"id": GPU, "count": 64}}, 400, NO_INSTANCES),
        ({"gpu": {"id": "NVIDIA B200"}}, 400, NO_INSTANCES),
        ({"gpu": {"id": GPU, "minCudaVersion": "13.0"}}, 400, NO_INSTANCES),
        ({"gpu": {"id": GPU, "minCudaVersion": "12.1", "allowedCudaVersions": ["12.8"]}}, 400, "mutually exclusive"),
        ({"dataCenterIds": ["MOON-1"]}, 400, "does not exist"),
        ({"ports": ["ssh"]}, 400, "invalid port"),
        ({"templateId": "t1"}, 404, "not found"),
        ({"mounts": {"network": [{"volumeId": "nope", "path": "/workspace"}]}}, 404, "not found"),
    ],
)
def test_a_bad_order_is_refused_and_nothing_is_rented(
    api: RunPodClient, change: dict[str, Any], status: int, text: str
) -> None:
    answer = problem(api.ask("POST", "/v2/pods", pod_request(**change)), status)
    assert text in " ".join([answer["detail"], *answer.get("errors", [])])
    assert api.ask("GET", "/v2/pods").data == {"pods": []}


def test_an_order_that_is_no_json_is_refused(api: RunPodClient) -> None:
    problem(api.ask("POST", "/v2/pods", raw=b"{"), 400)
    problem(api.ask("POST", "/v2/pods", []), 422)


def test_what_is_not_there_is_json_too(api: RunPodClient) -> None:
    problem(api.ask("GET", "/v2/nowhere"), 404)
    assert "GET" in api.ask("DELETE", "/v2/pods").headers["allow"]
    problem(api.ask("DELETE", "/v2/pods"), 405)


def test_too_little_credit_is_402(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(balance="0.50")
    api = RunPodClient(lab.url, lab.api_key)
    assert "Insufficient balance" in problem(api.ask("POST", "/v2/pods", pod_request()), 402)["detail"]
    assert api.ask("POST", "/v2/pods", pod_request(cloud="COMMUNITY")).status == 201


def test_a_full_host_refuses_to_start(lab: Lab, api: RunPodClient) -> None:
    pod = api.create("ssh-ed25519 AAAA test")
    api.act(pod["id"], "stop")
    lab.fault("offer.none", {"rental": pod["id"], "verb": "start"}, times=1)
    assert problem(api.act(pod["id"], "start"), 400)["detail"] == HOST_FULL
    assert api.pod(pod["id"])["status"] == "EXITED"
    assert api.act(pod["id"], "start").status == 200


# Catalogue


def test_the_catalogue_tells_prices_and_stock_only_when_asked(api: RunPodClient) -> None:
    plain = api.ask("GET", "/v2/catalog/gpus").data["gpus"]
    assert {"NVIDIA GeForce RTX 4090", "NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3"} <= {gpu["id"] for gpu in plain}
    assert not any("availability" in gpu for gpu in plain)
    asked = api.ask("GET", "/v2/catalog/gpus", include="AVAILABILITY", product="POD").data["gpus"]
    by_id = {gpu["id"]: gpu for gpu in asked}
    assert by_id[GPU]["price"] == {"secure": 0.69, "community": 0.34}
    assert by_id[GPU]["availability"] == "HIGH"
    assert by_id["NVIDIA B200"]["availability"] == "NONE"
    assert "dataCenters" not in by_id["NVIDIA B200"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"include": "AVAILABILITY"}, 400),
        ({"product": "POD"}, 400),
        ({"count": "2"}, 400),
        ({"include": "EVERYTHING", "product": "POD"}, 422),
        ({"include": "AVAILABILITY", "product": "POD", "count": "0"}, 422),
        ({"include": "AVAILABILITY", "product": "POD", "minCudaVersion": "12.1", "cudaVersions": "12.8"}, 400),
    ],
)
def test_catalogue_filters_that_do_not_go_together(api: RunPodClient, query: dict[str, Any], status: int) -> None:
    problem(api.ask("GET", "/v2/catalog/gpus", **query), status)


def test_catalogue_filters_narrow_the_stock(api: RunPodClient) -> None:
    def stock(**query: Any) -> dict[str, Any]:
        path = "/v2/catalog/gpus/" + GPU.replace(" ", "%20")
        return api.ask("GET", path, include="AVAILABILITY", product="POD", **query).data

    assert stock(count=16)["availability"] == "NONE"
    assert stock(minCudaVersion="13")["availability"] == "NONE"
    assert [centre["id"] for centre in stock(countryCodes="RO")["dataCenters"]] == ["EU-RO-1"]
    problem(api.ask("GET", "/v2/catalog/gpus/none"), 404)


def test_data_centres_tell_their_gpus(api: RunPodClient) -> None:
    answer = api.ask("GET", "/v2/catalog/datacenters", include="GPU_AVAILABILITY", regions="EUROPE").data
    assert {centre["id"] for centre in answer["dataCenters"]} == {"EU-RO-1", "EUR-IS-1"}
    assert all(centre["gpuAvailability"] for centre in answer["dataCenters"])
    assert api.ask("GET", "/v2/catalog/cpus").data == {"cpus": []}


# Network volumes


def test_a_volume_lives_apart_from_its_pods(api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    volume = api.volume("weights", 12)
    assert volume == {"id": volume["id"], "name": "weights", "size": 12, "dataCenter": "US-KS-2", "type": "STANDARD"}
    mounts = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    first = api.ready(api.create(public_key, mounts=mounts)["id"])
    assert (first["dataCenterId"], first["mounts"]) == ("US-KS-2", mounts)
    assert ssh(first, ssh_key, "echo kept > /workspace/file").returncode == 0
    assert first["id"] in problem(api.ask("DELETE", f"/v2/network-volumes/{volume['id']}"), 400)["detail"]
    assert api.ask("DELETE", f"/v2/pods/{first['id']}").status == 204
    second = api.ready(api.create(public_key, mounts=mounts)["id"])
    assert ssh(second, ssh_key, "cat /workspace/file").stdout == "kept\n"
    size = int(ssh(second, ssh_key, "df -B1 --output=size /workspace | tail -1").stdout)
    assert size == 12 << 30
    api.ask("DELETE", f"/v2/pods/{second['id']}")
    answer = api.ask("DELETE", f"/v2/network-volumes/{volume['id']}")
    assert (answer.status, answer.text) == (204, "")
    problem(api.ask("GET", f"/v2/network-volumes/{volume['id']}"), 404)
    assert api.ask("GET", "/v2/network-volumes").data == {"networkVolumes": []}


def test_volume_rules(api: RunPodClient) -> None:
    volume = api.volume()
    network = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    problem(api.ask("POST", "/v2/pods", pod_request(mounts=network, cloud="COMMUNITY")), 400)
    problem(api.ask("POST", "/v2/pods", pod_request(mounts=network, dataCenterIds=["EU-RO-1"])), 400)
    both = {**network, "persistent": {"size": 10, "path": "/data"}}
    problem(api.ask("POST", "/v2/pods", pod_request(mounts=both)), 400)
    problem(api.ask("POST", "/v2/network-volumes", {"name": "a", "size": 9, "dataCenter": "US-KS-2"}), 422)
    problem(api.ask("POST", "/v2/network-volumes", {"name": "a", "size": 10}), 422)
    problem(api.ask("POST", "/v2/network-volumes", {"name": "a", "size": 10, "dataCenter": "MOON-1"}), 400)
    path = f"/v2/network-volumes/{volume['id']}"
    assert api.ask("PATCH", path, {"name": "other"}).data["name"] == "other"
    problem(api.ask("PATCH", path, {}), 422)
    problem(api.ask("PATCH", path, {"size": 10, "type": "STANDARD"}), 422)


# Money


def test_graphql_tells_balance_and_spend(lab: Lab, api: RunPodClient, public_key: str) -> None:
    def myself(fields: str) -> dict[str, Any]:
        return api.ask("POST", "/graphql", {"query": f"query {{ myself {{ {fields} }} }}"}).data["data"]["myself"]

    before = myself("id email clientBalance currentSpendPerHr spendLimit notifyLowBalance")
    assert before["currentSpendPerHr"] == 0
    assert before["spendLimit"] == 80
    pod = api.ready(api.create(public_key, name="old")["id"])
    now = myself(
        "clientBalance currentSpendPerHr pods { id name desiredStatus costPerHr runtime { ports { publicPort } } }"
    )
    assert now["clientBalance"] < before["clientBalance"]
    assert now["currentSpendPerHr"] == pytest.approx(0.69 + 10 * 0.10 / 720)
    (told,) = now["pods"]
    assert (told["id"], told["desiredStatus"], told["costPerHr"]) == (pod["id"], "RUNNING", 0.69)
    assert told["runtime"]["ports"][0]["publicPort"] == pod["ssh"]["direct"]["port"]
    assert float(lab.bill()["accounts"]["runpod"]["balance"]) == pytest.approx(now["clientBalance"], abs=0.001)


def test_graphql_errors_come_with_status_200(api: RunPodClient) -> None:
    answer = api.ask("POST", "/graphql", {"query": "{ myself { shoeSize } }"})
    assert answer.status == 200
    assert "Cannot query field 'shoeSize'" in answer.data["errors"][0]["message"]
    assert api.ask("POST", "/graphql", raw=b"nonsense").data["errors"]


def test_billing_agrees_with_the_meter(lab: Lab, api: RunPodClient) -> None:
    volume = api.volume()
    pod = api.create("ssh-ed25519 AAAA test")
    time.sleep(0.5)
    api.ask("DELETE", f"/v2/pods/{pod['id']}")
    answer = api.ask("GET", "/v2/billing/pods", bucketSize="hour", podId=pod["id"]).data
    told = sum(record["totalAmount"] for record in answer["records"])
    assert told == pytest.approx(float(lab.bill()["rentals"][pod["id"]]["total"]), rel=1e-3)
    assert answer["metadata"]["totals"]["totalAmount"] == pytest.approx(told)
    volumes = api.ask("GET", "/v2/billing/network-volumes", lastN=2, networkVolumeId=volume["id"]).data
    assert volumes["metadata"]["uniqueNetworkVolumeCount"] == 1
    problem(api.ask("GET", "/v2/billing/pods", bucketSize="minute"), 422)
    problem(api.ask("GET", "/v2/billing/pods", lastN=2, startTime="2026-01-01T00:00:00Z"), 400)


# The specification


def test_answers_were_held_against_the_specification(api: RunPodClient) -> None:
    """Every other test of this module checks its answers too; this one says so, or is skipped."""
    if specification() is None:
        pytest.skip("TENANT_SPECS names no folder with the vendor's specification: answers were not checked against it")
    pod = api.create("ssh-ed25519 AAAA test")
    volume = api.volume()
    for path in (
        "/v2/account/ssh-keys",
        "/v2/pods",
        f"/v2/pods/{pod['id']}",
        "/v2/catalog/gpus",
        "/v2/catalog/datacenters",
        "/v2/network-volumes",
        f"/v2/network-volumes/{volume['id']}",
        "/v2/billing/pods",
        "/v2/billing/network-volumes",
    ):
        assert api.ask("GET", path).status == 200
    assert len(api.checked) == 11


_PATHS = st.sampled_from(["/workspace", "", 3])
_MOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "persistent": st.fixed_dictionaries({"size": st.sampled_from([9, 10, "10"])}, optional={"path": _PATHS}),
        "network": st.lists(
            st.fixed_dictionaries(
                {"volumeId": st.sampled_from(["v", None])}, optional={"path": _PATHS, "x": st.none()}
            ),
            max_size=2,
        ),
        "other": st.none(),
    },
)
_GPUS = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from([GPU, 1]),
            "count": st.sampled_from([0, 1, 1.0, 2.5, True]),
            "minCudaVersion": st.sampled_from(["12", "12.8", 12.8]),
            "allowedCudaVersions": st.lists(st.sampled_from(["12.8", "new"]), max_size=2),
            "minRamPerGpu": st.just(8),
        },
    ),
)
_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["job", "", None]),
        "image": st.sampled_from(["image", "", 1]),
        "templateId": st.sampled_from(["t", ""]),
        "gpu": _GPUS,
        "cpu": st.fixed_dictionaries({}, optional={"id": st.just("cpu3c"), "vcpuCount": st.sampled_from([1, 2])}),
        "mounts": _MOUNTS,
        "cloud": st.sampled_from(["SECURE", "secure", None]),
        "disk": st.sampled_from([0, 1, 10.0, "1"]),
        "env": st.sampled_from([{}, {"A": "1"}, {"A": None}, []]),
        "ports": st.sampled_from([[], ["22/tcp"], [22], "22/tcp"]),
        "registry": st.sampled_from([None, "r", 1]),
        "args": st.sampled_from(["", 1]),
        "dataCenterIds": st.sampled_from([[], ["US-KS-2"], [None]]),
        "startSsh": st.sampled_from([True, "yes"]),
        "startJupyter": st.booleans(),
        "globalNetworking": st.sampled_from([False, 0]),
        "locked": st.booleans(),
        "spot": st.just(True),
    },
)


@pytest.mark.skipif(specification() is None, reason="TENANT_SPECS names no folder with the vendor's specification")
@pytest.mark.parametrize(("ours", "theirs"), [(CREATE_POD, "CreatePodRequest"), (UPDATE_POD, "UpdatePodRequest")])
def test_orders_are_refused_exactly_where_the_specification_refuses_them(ours: dict[str, Any], theirs: str) -> None:
    judge = specification()
    assert judge is not None
    validator = judge.schema(f"/components/schemas/{theirs}")

    @settings(max_examples=500, deadline=None)
    @given(_BODIES)
    def same(body: dict[str, Any]) -> None:
        assert bool(violations(body, ours)) == (not validator.is_valid(body)), violations(body, ours)

    same()

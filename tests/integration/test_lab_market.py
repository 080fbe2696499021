# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The market behind the dialects: meter, faults, what happens to boxes, the lab's own life and death."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lab import launcher
from lab.api import Lab, LabError, bill
from lab.dialects.runpod import PLATFORM
from lab.faults import KINDS, FaultError, Faults
from lab.market import Market, Options, Order
from lab.meter import Clock, Rate, Span, charge, money, per_month
from tests.integration.runpod_client import GPU, RunPodClient, pod_request, ssh

pytestmark = pytest.mark.lab


def until(true: Callable[[], Any], seconds: float = 10) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"not true after {seconds} s"
        time.sleep(0.02)
    return value


# The meter


def test_a_charge_is_rate_times_time_per_state() -> None:
    running, stopped = Rate(Decimal("0.36"), Decimal("0.036")), Rate(disk=Decimal("0.072"))
    spans = [Span(100, "running", running), Span(110, "stopped", stopped), Span(130, "gone", Rate())]
    cost = charge(spans, 0, 1000)
    assert cost.compute == Decimal("0.001")
    assert cost.disk == Decimal("0.0001") + Decimal("0.0004")
    assert cost.seconds == {"running": 10, "stopped": 20, "gone": 870}
    assert charge(spans, 105, 120).compute == Decimal("0.0005")
    assert charge(spans, 0, 50).total == 0


def test_disk_prices_of_the_platform() -> None:
    assert PLATFORM.volume_rate(2000, "STANDARD").disk == per_month(1000, "0.07") + per_month(1000, "0.05")
    assert PLATFORM.volume_rate(100, "HIGH_PERFORMANCE").disk == per_month(100, "0.14")
    assert money(Decimal("1E-10")) == "0.00000000"


def test_the_bill_is_the_rate_times_wall_clock(lab: Lab, api: RunPodClient) -> None:
    began = time.time()
    pod = api.create("ssh-ed25519 AAAA test", disk=100, mounts={"persistent": {"size": 50, "path": "/workspace"}})
    api.until(pod["id"], lambda now: now["status"] == "RUNNING")
    time.sleep(0.6)
    api.act(pod["id"], "stop")
    stopped = time.time()
    time.sleep(0.6)
    api.ask("DELETE", f"/v2/pods/{pod['id']}")
    ended = time.time()
    time.sleep(0.3)
    item = lab.bill()["rentals"][pod["id"]]
    on = sum(lasted for state, lasted in item["seconds"].items() if state != "stopped")
    assert on == pytest.approx(stopped - began, abs=0.1)
    assert item["seconds"]["stopped"] == pytest.approx(ended - stopped, abs=0.1)
    assert float(item["compute"]) == pytest.approx(0.69 / 3600 * on, abs=2e-8)
    disk = (100 * 0.10 + 50 * 0.10) / 720 / 3600 * on + 50 * 0.20 / 720 / 3600 * item["seconds"]["stopped"]
    assert float(item["disk"]) == pytest.approx(disk, abs=2e-8)
    assert Decimal(item["total"]) == pytest.approx(
        Decimal(item["compute"]) + Decimal(item["disk"]), abs=Decimal("2e-8")
    )
    assert item["state"] == "gone"
    assert item["rate_per_hour"] == money(Decimal(0))
    assert lab.bill()["rentals"][pod["id"]]["total"] == item["total"], "a destroyed pod costs nothing more"


def test_a_volume_costs_until_it_is_deleted(lab: Lab, api: RunPodClient) -> None:
    volume = api.volume(size=1000)
    time.sleep(0.3)
    api.ask("DELETE", f"/v2/network-volumes/{volume['id']}")
    item = lab.bill()["volumes"][volume["id"]]
    assert float(item["total"]) == pytest.approx(1000 * 0.07 / 720 / 3600 * item["seconds"], abs=2e-8)
    assert 0.3 <= item["seconds"] < 0.6


class _Jumping(Clock):
    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_an_empty_account_loses_its_pods(tmp_path: Path) -> None:
    clock = _Jumping()
    options = Options.from_dict({"provisioning": 3600, "balance": "2"})
    market = Market(PLATFORM, options, tmp_path, clock, Faults(clock.now), lambda: None)
    volume = await market.create_volume("data", 10, "US-KS-2", "STANDARD")
    bare = await market.rent(Order("bare", GPU, "image"))
    kept = await market.rent(Order("kept", GPU, "image", volume=(volume.id, "/workspace")))
    watching = asyncio.create_task(market.run())
    clock.ahead = 2 * 3600
    async with asyncio.timeout(5):
        while bare.state != "gone" or kept.state != "stopped":
            await asyncio.sleep(0.05)
    watching.cancel()
    await market.close()


# What happens to boxes


def test_a_dead_host_keeps_billing_and_its_volume_survives(
    lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str
) -> None:
    volume = api.volume()
    mounts = {"network": [{"volumeId": volume["id"], "path": "/workspace"}]}
    pod = api.ready(api.create(public_key, mounts=mounts)["id"])
    assert ssh(pod, ssh_key, "echo step-120 > /workspace/checkpoint; sync").returncode == 0
    there = pod["ssh"]["direct"]
    watching = _ssh_process(there, ssh_key, "sleep 60")
    until(lambda: lab.exec(pod["id"], ["pgrep", "-x", "sleep"])[0] == 0)

    began = time.monotonic()
    lab.kill_host(pod["id"])
    assert time.monotonic() - began < 2
    assert watching.wait(5) == 255, "an open connection must break"
    with pytest.raises(OSError), socket.create_connection((there["host"], there["port"]), timeout=2):
        pass
    dead = api.pod(pod["id"])
    assert (dead["status"], dead["actions"]) == ("ERROR", ["start", "terminate"])
    assert (dead["runtime"], dead["ssh"]["direct"], dead["cost"]) == (None, None, 0.69)
    refused = api.act(pod["id"], "start")
    assert (refused.status, "not enough free GPUs" in refused.data["detail"]) == (400, True)

    before = lab.bill()["rentals"][pod["id"]]
    time.sleep(0.3)
    after = lab.bill()["rentals"][pod["id"]]
    assert Decimal(after["compute"]) > Decimal(before["compute"])
    assert after["seconds"]["failed"] >= 0.3
    assert api.ask("DELETE", f"/v2/pods/{pod['id']}").status == 204

    fresh = api.ready(api.create(public_key, mounts=mounts)["id"])
    assert ssh(fresh, ssh_key, "cat /workspace/checkpoint").stdout == "step-120\n"


def _ssh_process(there: dict[str, Any], key: Path, command: str) -> subprocess.Popen[bytes]:
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    argv = ["ssh", *options, "-i", str(key), "-p", str(there["port"]), f"root@{there['host']}", command]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_the_platform_may_notice_late_that_a_host_is_dead(lab: Lab, api: RunPodClient, public_key: str) -> None:
    pod = api.ready(api.create(public_key)["id"])
    lab.fault("box.kill_host", {"rental": pod["id"]}, notice_after=0.8)
    there = pod["ssh"]["direct"]
    until(lambda: socket.socket().connect_ex((there["host"], there["port"])) != 0)
    assert api.pod(pod["id"])["status"] == "RUNNING"
    assert api.pod(pod["id"])["ssh"]["direct"] == there
    assert api.until(pod["id"], lambda now: now["status"] == "ERROR")["ssh"]["direct"] is None


def test_preemption_lets_processes_say_goodbye(lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    volume = api.volume()
    pod = api.ready(
        api.create(public_key, mounts={"network": [{"volumeId": volume["id"], "path": "/workspace"}]})["id"]
    )
    script = 'trap "echo term > /workspace/seen; exit" TERM; touch /workspace/up; while :; do sleep 0.05; done'
    assert ssh(pod, ssh_key, f"setsid sh -c '{script}' </dev/null >/dev/null 2>&1 &").returncode == 0
    until(lambda: lab.exec(pod["id"], ["ls", "/workspace/up"])[0] == 0)
    lab.preempt(pod["id"])
    assert api.pod(pod["id"])["status"] == "EXITED"
    api.act(pod["id"], "start")
    again = api.ready(pod["id"])
    assert ssh(again, ssh_key, "cat /workspace/seen").stdout == "term\n"


def test_destroying_while_it_starts_leaves_nothing(lab: Lab, api: RunPodClient, public_key: str) -> None:
    for wait in (0.0, 0.12, 0.2, 0.3, 0.45):
        pod = api.create(public_key)
        time.sleep(wait)
        assert api.ask("DELETE", f"/v2/pods/{pod['id']}").status == 204
    time.sleep(0.5)
    assert _processes_of(lab, "lab.boxes.sshd") == []


def _processes_of(lab: Lab, text: str) -> list[str]:
    """Command lines of processes below the lab that contain a text."""
    table = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()[1:]]
    family, grown = {lab.pid}, True
    while grown:
        fresh = {int(pid) for pid, parent, _ in rows if int(parent) in family} - family
        family |= fresh
        grown = bool(fresh)
    return [args for pid, _, args in rows if int(pid) in family and text in args]


# Faults


def test_a_slow_answer(lab: Lab, api: RunPodClient) -> None:
    lab.fault("api.delay", {"path": "ssh-keys$"}, seconds=0.5, times=1)
    began = time.monotonic()
    api.ask("GET", "/v2/account/ssh-keys")
    assert time.monotonic() - began >= 0.5
    began = time.monotonic()
    api.ask("GET", "/v2/account/ssh-keys")
    assert time.monotonic() - began < 0.4, "it strikes once"


def test_a_failing_answer_of_any_kind(lab: Lab, api: RunPodClient) -> None:
    lab.fault("api.fail", {"method": "GET", "path": "^/v2/pods$"}, times=1, status=503)
    assert api.ask("GET", "/v2/pods").status == 503
    client = _unchecked(api)
    lab.fault("api.fail", {"path": "^/v2/pods"}, status=404, body="<html>gone fishing</html>", times=1)
    answer = client("GET", "/v2/pods/x")
    assert (answer[0], answer[1], answer[2]) == (404, "text/html; charset=utf-8", "<html>gone fishing</html>")
    lab.fault("api.fail", {"path": "^/v2/pods"}, status=200, body={"oops": 1}, times=1)
    assert client("GET", "/v2/pods")[2] == '{"oops": 1}'


def _unchecked(api: RunPodClient) -> Callable[[str, str], tuple[int, str, str]]:
    """Requests whose answers are meant to break the specification."""
    import urllib.error
    import urllib.request

    def ask(method: str, path: str) -> tuple[int, str, str]:
        headers = {"Authorization": f"Bearer {api.key}"}
        request = urllib.request.Request(api.url + path, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.headers["Content-Type"], response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    return ask


def test_a_request_that_is_executed_but_answered_with_an_error(lab: Lab, api: RunPodClient) -> None:
    lab.fault("api.fail", {"method": "POST", "path": "^/v2/pods$"}, status=502, executed=True, times=1)
    assert api.ask("POST", "/v2/pods", pod_request(name="ambiguous")).status == 502
    assert [pod["name"] for pod in api.ask("GET", "/v2/pods").data["pods"]] == ["ambiguous"]


def test_an_answer_that_never_comes(lab: Lab, api: RunPodClient) -> None:
    lab.fault("api.drop", {"method": "POST"}, times=1)
    with pytest.raises(OSError):
        api.ask("POST", "/v2/pods", pod_request(name="dropped"))
    assert [pod["name"] for pod in api.ask("GET", "/v2/pods").data["pods"]] == ["dropped"]
    dropped = [entry for entry in lab.requests() if entry["method"] == "POST" and entry["path"] == "/v2/pods"][-1]
    assert dropped["status"] is None


def test_stale_reads_answer_from_when_the_fault_was_set(lab: Lab, api: RunPodClient) -> None:
    old = api.create("ssh-ed25519 AAAA test", name="old")
    fault = lab.fault("api.stale", {"method": "GET"})
    new = api.create("ssh-ed25519 AAAA test", name="new")
    api.ask("DELETE", f"/v2/pods/{old['id']}")
    assert [pod["name"] for pod in api.ask("GET", "/v2/pods").data["pods"]] == ["old"]
    assert api.ask("GET", f"/v2/pods/{new['id']}").status == 404
    assert api.pod(old["id"])["status"] == "PROVISIONING"
    lab.clear(fault)
    assert [pod["name"] for pod in api.ask("GET", "/v2/pods").data["pods"]] == ["new"]


def test_lists_may_lag_behind(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(list_lag=0.6)
    api = RunPodClient(lab.url, lab.api_key)
    pod = api.create("ssh-ed25519 AAAA test")
    assert api.ask("GET", "/v2/pods").data == {"pods": []}
    assert api.pod(pod["id"])["id"] == pod["id"]
    until(lambda: api.ask("GET", "/v2/pods").data["pods"], 2)


def test_no_capacity(lab: Lab, api: RunPodClient) -> None:
    fault = lab.fault("offer.none", {"gpu": "4090"}, listed=False)
    answer = api.ask("POST", "/v2/pods", pod_request())
    assert (answer.status, "no longer any instances available" in answer.data["detail"]) == (400, True)
    gpus = api.ask("GET", "/v2/catalog/gpus", include="AVAILABILITY", product="POD").data["gpus"]
    stock = {gpu["id"]: gpu["availability"] for gpu in gpus}
    assert (stock[GPU], stock["NVIDIA L40S"]) == ("NONE", "HIGH")
    assert api.ask("POST", "/v2/pods", pod_request(gpu={"id": "NVIDIA L40S"})).status == 201
    lab.clear(fault)
    assert api.ask("POST", "/v2/pods", pod_request()).status == 201


def test_ssh_that_never_comes_up(lab: Lab, api: RunPodClient, public_key: str) -> None:
    fault = lab.fault("box.never_ssh", {"name": "^mute$"})
    mute, other = api.create(public_key, name="mute"), api.create(public_key, name="other")
    api.ready(other["id"])
    time.sleep(0.5)
    pod = api.pod(mute["id"])
    assert (pod["status"], pod["ssh"]["direct"], pod["runtime"]) == ("RUNNING", None, None)
    lab.clear(fault)
    api.ready(mute["id"])


def test_a_reboot_ends_processes_and_keeps_the_port(
    lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str
) -> None:
    pod = api.ready(api.create(public_key)["id"])
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = ssh(pod, ssh_key, boot).stdout
    lab.fault("box.reboot", {"rental": pod["id"]})
    after = until(lambda: _changed(ssh(pod, ssh_key, boot).stdout, before))
    assert len(after.strip()) == 36
    assert api.pod(pod["id"])["ssh"]["direct"] == pod["ssh"]["direct"]
    time.sleep(0.3)
    assert ssh(pod, ssh_key, boot).stdout == after, "it strikes once"


def _changed(now: str, before: str) -> str:
    return now if now and now != before else ""


def test_a_box_loses_its_gpu_and_gets_it_back(lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    fault = lab.fault("box.lose_gpu", {"name": "blind"})
    pod = api.ready(api.create(public_key, name="blind")["id"])
    until(lambda: "No devices were found" in ssh(pod, ssh_key, "nvidia-smi").stdout)
    lab.clear(fault)
    assert GPU in ssh(pod, ssh_key, "nvidia-smi -L").stdout


def test_a_link_is_cut_and_mended(lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    pod = api.ready(api.create(public_key)["id"])
    fault = lab.fault("link.cut", {"rental": pod["id"]})
    until(lambda: lab.faults()[0]["struck"] == 1)
    with pytest.raises(subprocess.TimeoutExpired):
        ssh(pod, ssh_key, "true", timeout=1.5)
    assert api.pod(pod["id"])["status"] == "RUNNING"
    assert lab.exec(pod["id"], ["true"])[0] == 0
    lab.clear(fault)
    assert ssh(pod, ssh_key, "true").returncode == 0


def test_a_link_is_slow(lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    pod = api.ready(api.create(public_key)["id"])
    read = "head -c 400000 /dev/urandom"
    lab.fault("link.slow", {"rental": pod["id"]}, rate_bytes_per_second=200_000)
    until(lambda: lab.faults()[0]["struck"] == 1)
    began = time.monotonic()
    assert len(_raw(pod, ssh_key, read)) == 400_000
    assert time.monotonic() - began > 1.5
    lab.clear()
    began = time.monotonic()
    _raw(pod, ssh_key, read)
    assert time.monotonic() - began < 1.5


def _raw(pod: dict[str, Any], key: Path, command: str) -> bytes:
    there = pod["ssh"]["direct"]
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    argv = ["ssh", *options, "-i", str(key), "-p", str(there["port"]), f"root@{there['host']}", command]
    return subprocess.run(argv, capture_output=True, timeout=20, check=True).stdout


def test_a_fault_can_wait_and_can_expire(lab: Lab, api: RunPodClient, public_key: str) -> None:
    pod = api.ready(api.create(public_key)["id"])
    lab.fault("box.kill_host", {"rental": pod["id"]}, after=0.5)
    assert api.pod(pod["id"])["status"] == "RUNNING"
    api.until(pod["id"], lambda now: now["status"] == "ERROR")
    lab.fault("api.fail", {"path": "ssh-keys"}, seconds_long=0.3, status=500)
    assert api.ask("GET", "/v2/account/ssh-keys").status == 500
    time.sleep(0.35)
    assert api.ask("GET", "/v2/account/ssh-keys").status == 200


def test_bad_faults_are_refused_with_what_there_is(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"unknown fault kind 'box\.explode'; known: api\.delay"):
        lab.fault("box.explode")
    with pytest.raises(LabError, match="unknown matcher 'colour'"):
        lab.fault("api.drop", {"colour": "red"})
    with pytest.raises(LabError, match=r"api\.delay has no parameter 'minutes'; it has: seconds"):
        lab.fault("api.delay", minutes=1)
    with pytest.raises(LabError, match=r"api\.delay needs the parameter 'seconds'"):
        lab.fault("api.delay")
    with pytest.raises(LabError, match="no regular expression"):
        lab.fault("api.drop", {"path": "("})
    with pytest.raises(LabError, match="no fault 'fault-999'"):
        lab.clear("fault-999")
    with pytest.raises(FaultError):
        Faults(time.time).remove("x")
    assert lab.faults() == []
    assert all(kind.says for kind in KINDS.values())


# The Python interface


def test_rent_and_look_inside_without_http(lab: Lab, api: RunPodClient, ssh_key: Path, public_key: str) -> None:
    volume = lab.create_volume("data")
    rental = lab.rent("direct", [public_key], volume=(volume["id"], "/workspace"), disk_gb=5)
    there = lab.wait(rental["id"])["endpoint"]
    assert ssh({"ssh": {"direct": there}}, ssh_key, "hostname").stdout.strip() == rental["id"]
    assert lab.exec(rental["id"], ["sh", "-c", "echo out; echo err >&2; exit 3"]) == (3, b"out\n", b"err\n")
    environment = lab.env()
    assert environment["RUNPOD_API_BASE_URL"] == lab.url
    assert environment["RUNPOD_GRAPHQL_URL"] == lab.graphql_url
    assert environment["RUNPOD_API_KEY"] == lab.api_key
    lab.stop_rental(rental["id"])
    assert lab.wait(rental["id"], "stopped")["endpoint"] is None
    with pytest.raises(LabError, match="no running box: it is stopped"):
        lab.exec(rental["id"], ["true"])
    lab.start_rental(rental["id"])
    assert lab.wait(rental["id"])["generation"] == 2
    with pytest.raises(LabError, match="no rental 'nope'"):
        lab.destroy("nope")
    with pytest.raises(LabError, match="unexpected keyword argument 'colour'"):
        lab.rent("x", colour="red")


def test_requests_are_recorded(lab: Lab, api: RunPodClient) -> None:
    before = len(lab.requests())
    api.ask("GET", "/v2/catalog/gpus", include="AVAILABILITY", product="POD")
    api.with_key("wrong").ask("DELETE", "/v2/pods/x")
    seen = lab.requests()[before:]
    assert [(entry["method"], entry["path"], entry["status"]) for entry in seen] == [
        ("GET", "/v2/catalog/gpus", 200),
        ("DELETE", "/v2/pods/x", 401),
    ]
    assert seen[0]["query"] == {"include": "AVAILABILITY", "product": "POD"}
    assert abs(seen[0]["at"] - time.time()) < 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timing": "warp"}, "unknown timing 'warp'; known: instant, fast"),
        ({"colour": 1}, "unknown option 'colour'; known: balance"),
        ({"balance": "much"}, "'much' is no amount of money"),
    ],
)
def test_bad_options_are_refused_with_what_there_is(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(LabError, match=text):
        Lab(tmp_path, **options).start()
    assert not launcher.running(tmp_path)


# The lab's own life


def test_two_labs_side_by_side_know_nothing_of_each_other(make_lab: Callable[..., Lab], public_key: str) -> None:
    one, two = make_lab(), make_lab()
    pod = RunPodClient(one.url, one.api_key).create(public_key)
    assert RunPodClient(two.url, two.api_key).ask("GET", "/v2/pods").data == {"pods": []}
    assert RunPodClient(two.url, one.api_key).ask("GET", "/v2/pods").status == 401
    with pytest.raises(LabError, match=r"a lab runs in .* already"):
        Lab(one.state_dir).start()
    two.stop()
    assert RunPodClient(one.url, one.api_key).pod(pod["id"])


def test_the_bill_outlives_the_lab(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab()
    pod = RunPodClient(lab.url, lab.api_key).create(public_key)
    lab.stop()
    assert Decimal(bill(lab.state_dir)["rentals"][pod["id"]]["compute"]) > 0
    assert lab.bill() == bill(lab.state_dir)
    with pytest.raises(LabError, match="no lab answers in"):
        lab.rentals()


def test_a_folder_whose_lab_was_killed_is_used_again(
    make_lab: Callable[..., Lab], tmp_path: Path, public_key: str
) -> None:
    lab = make_lab()
    api = RunPodClient(lab.url, lab.api_key)
    port = api.ready(api.create(public_key)["id"])["ssh"]["direct"]["port"]
    os.kill(lab.pid, signal.SIGKILL)
    until(lambda: not launcher.running(lab.state_dir))
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) != 0)
    assert launcher.described(lab.state_dir).exists(), "it had no time to tidy up"
    with Lab(lab.state_dir, timing="fast") as again:
        assert again.rentals() == []


def test_a_state_folder_may_lie_deep(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-long-folder-name"] * 8)
    assert len(str(deep)) > 108
    with Lab(deep, timing="instant") as lab:
        assert lab.rentals() == []


PARENT = """
import sys, threading, time
from lab.api import Lab

def run():
    lab = Lab(sys.argv[1], timing="fast").start()
    rental = lab.rent("orphan", ["ssh-ed25519 AAAA test"])
    print(lab.pid, lab.wait(rental["id"])["endpoint"]["port"], flush=True)

if sys.argv[2] == "thread":
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
else:
    run()
time.sleep(60)
"""


@pytest.mark.parametrize("started_in", ["main", "thread"])
def test_the_lab_dies_with_its_parent(tmp_path: Path, root: Path, started_in: str) -> None:
    argv = [sys.executable, "-c", PARENT, str(tmp_path), started_in]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout
        pid, port = (int(word) for word in parent.stdout.readline().split())
        assert socket.socket().connect_ex(("127.0.0.1", port)) == 0, "it must live longer than the thread"
        parent.kill()
    until(lambda: not launcher.running(tmp_path))
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) != 0)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_ending_leaves_no_process(make_lab: Callable[..., Lab], public_key: str) -> None:
    lab = make_lab()
    rental = lab.rent("busy", [public_key])
    lab.wait(rental["id"])
    marker = f"lab-leftover-{os.getpid()}"
    lab.exec(rental["id"], ["sh", "-c", f"setsid sh -c 'exec -a {marker} sleep 300' >/dev/null 2>&1 </dev/null &"])
    lab.exec(rental["id"], ["bash", "-c", f"(exec -a {marker} setsid sleep 300) >/dev/null 2>&1 </dev/null &"])
    lab.stop()
    table = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert marker not in table
    assert str(lab.state_dir) not in table


def test_without_namespaces_boxes_are_plain_directories(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch, ssh_key: Path, public_key: str
) -> None:
    monkeypatch.setenv("TENANT_LAB_PLAIN", "1")
    from lab.boxes import namespaces

    namespaces.namespaces_available.cache_clear()
    try:
        lab = make_lab()
    finally:
        namespaces.namespaces_available.cache_clear()
    assert not lab.namespaces
    api = RunPodClient(lab.url, lab.api_key)
    pod = api.ready(api.create(public_key)["id"])
    assert ssh(pod, ssh_key, "echo here").stdout == "here\n"
    assert "namespaces not permitted: boxes are plain directories" in (lab.state_dir / "site.log").read_text()
    lab.stop()
    assert socket.socket().connect_ex((pod["ssh"]["direct"]["host"], pod["ssh"]["direct"]["port"])) != 0


# The command line


@pytest.fixture
def cli(tmp_path: Path, root: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lab", "--state", str(tmp_path / "state"), *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, check=False)

    yield run
    run("down")


def test_the_command_line_from_up_to_down(cli: Callable[..., subprocess.CompletedProcess[str]], ssh_key: Path) -> None:
    up = cli("up", "--timing", "fast", "--balance", "20")
    assert up.returncode == 0, up.stderr
    exports = dict(line.removeprefix("export ").split("=", 1) for line in up.stdout.splitlines())
    assert {"RUNPOD_API_BASE_URL", "RUNPOD_GRAPHQL_URL", "RUNPOD_API_KEY"} <= set(exports)
    assert cli("env").stdout == up.stdout
    again = cli("up")
    assert (again.returncode, again.stdout, "already" in again.stderr) == (0, up.stdout, True)
    assert "nothing is rented" in cli("status").stdout

    rented = cli("rent", "--name", "hand", "--volume", "10", "--key", str(ssh_key.with_suffix(".pub")))
    assert rented.returncode == 0, rented.stderr
    rental, command = rented.stdout.splitlines()
    words = command.split()
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", str(ssh_key)]
    done = subprocess.run([*words[:1], *options, *words[1:], "hostname"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == rental
    (line,) = [line for line in cli("status").stdout.splitlines() if line.startswith(rental)]
    assert "running" in line
    assert command in line

    api = RunPodClient(exports["RUNPOD_API_BASE_URL"], exports["RUNPOD_API_KEY"])
    for verb, states in (("stop", {"EXITED"}), ("start", {"PROVISIONING", "STARTING"})):
        assert cli(verb, rental).returncode == 0
        assert api.pod(rental)["status"] in states
    api.ready(rental)
    fault = cli("fault", "box.kill_host", "--rental", rental)
    assert fault.returncode == 0
    api.until(rental, lambda pod: pod["status"] == "ERROR")
    listed = cli("faults").stdout
    assert f"{fault.stdout.strip()}  box.kill_host" in listed
    assert "link.cut" in listed
    assert cli("clear").stdout.startswith("cleared: fault-1")
    assert cli("destroy", rental).returncode == 0
    assert json.loads(cli("status", "--json").stdout)["rentals"][0]["state"] == "gone"
    assert f"DELETE /v2/pods/{rental}" not in cli("requests").stdout

    assert "has ended" in cli("down").stdout
    assert rental in cli("bill").stdout
    assert json.loads(cli("bill", "--json").stdout)["rentals"][rental]["state"] == "gone"
    assert "no lab runs in" in cli("down").stdout


def test_the_command_line_says_what_is_wrong(cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    absent = cli("status")
    assert absent.returncode == 1
    assert "no lab answers in" in absent.stderr
    assert "python -m lab up" in absent.stderr
    assert "there is no bill" in cli("bill").stderr
    cli("up", "--timing", "instant")
    assert "no rental 'x'" in cli("stop", "x").stderr
    assert "'slow' is no parameter; write NAME=VALUE" in cli("fault", "api.delay", "slow").stderr
    assert "no public key at /nowhere" in cli("rent", "--key", "/nowhere").stderr


def test_starting_in_a_thread_does_not_tie_the_lab_to_the_thread(tmp_path: Path) -> None:
    lab = Lab(tmp_path, timing="instant")
    thread = threading.Thread(target=lab.start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert lab.rentals() == []
    lab.stop()


def test_options_can_be_told_apart_from_timing() -> None:
    options = Options.from_dict({"timing": "fast", "ssh": 9, "list_lag": 2})
    assert (options.timing.ssh, options.timing.starting, options.list_lag) == (9, 0.2, 2)
    assert dataclasses.replace(options, linger=1).linger == 1

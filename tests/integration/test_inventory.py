# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The inventory of live rentals, through ansible-inventory and a real connection."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.api import Lab
from tests.integration.tenant import ROOT, Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

BIN = Path(sys.executable).parent


def run(folder: Path, lab: Lab, command: list[str], env: dict[str, str] | None = None, **options: Any) -> Any:
    (folder / "rentals.yml").write_text(yaml.safe_dump({"plugin": "tenant.gpu.rentals", **options}))
    return subprocess.run(
        [str(BIN / command[0]), "-i", str(folder / "rentals.yml"), *command[1:]],
        cwd=ROOT,
        env={**os.environ, **lab.env(), "TENANT_HOME": str(folder / "home"), **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
    )


def parsed(text: str) -> dict[str, Any]:
    """ansible-inventory marks what came from outside: a template in it is not run."""
    found: dict[str, Any] = json.loads(text, object_hook=lambda inner: inner.get("__ansible_unsafe", inner))
    return found


def listed(folder: Path, lab: Lab, env: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    done = run(folder, lab, ["ansible-inventory", "--list"], env, **options)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def test_a_slot_and_a_stranger_are_told_apart(tenant: Tenant, public_key: str) -> None:
    tenant.ok("train")
    lab = tenant.lab
    relayed = lab.rent("made-in-the-console", keys=[public_key], ports=["8888/http"], ssh=False)["id"]
    other = lab.rent("over-there", keys=[public_key], platform="vastai")["id"]
    for one in (relayed, other):
        lab.wait(one, "running")
    found = listed(
        tenant.folder,
        lab,
        keyed_groups=[{"key": "tenant_billing", "prefix": "meter"}],
        groups={"dear": "tenant_rate.amount | float > 0.01"},
    )
    mine = found["_meta"]["hostvars"]["runpod-1"]
    assert mine["tenant_instance_id"] == tenant.instance() and mine["tenant_run_id"] == tenant.run_id()
    assert (mine["tenant_billing"], mine["tenant_status"]) == ("on", "RUNNING") and mine["ansible_port"] > 0
    assert "runpod-1" in found["tenant_runpod"]["hosts"] and "runpod-1" in found["tenant_on"]["hosts"]
    assert "runpod-1" in found["dear"]["hosts"] and "runpod-1" in found["meter_on"]["hosts"]
    assert set(found["tenant_strangers"]["hosts"]) == {"runpod_made-in-the-console", "vastai_over-there"}
    assert "lab_" not in json.dumps(found), "a key in the inventory"
    ping = run(tenant.folder, lab, ["ansible", "runpod-1", "-m", "ansible.builtin.raw", "-a", "echo works-$((40+2))"])
    assert ping.returncode == 0 and "works-42" in ping.stdout, ping.stdout + ping.stderr


def test_booting_and_unlisted_ones_are_not_dropped(tmp_path: Path, lab: Lab, tenant: Tenant, public_key: str) -> None:
    tenant.ok("train")
    lab.fault("api.fail", match={"platform": "vastai"}, status=401, body={"error": "auth_error", "msg": "no"})
    done = run(tenant.folder, lab, ["ansible-inventory", "--list"], platforms=["vastai", "lambda"])
    assert "vastai could not be listed" in done.stderr
    mine = parsed(done.stdout)["_meta"]["hostvars"]["runpod-1"]
    assert mine["tenant_billing"] == "unknown" and "does not list it" in mine["tenant_unreachable_why"]
    failed = run(tenant.folder, lab, ["ansible-inventory", "--list"], platforms=["vastai"], required=True)
    assert failed.returncode != 0 and "Means:" in failed.stderr and "Traceback" not in failed.stderr
    lab.clear()
    lab.fault("box.never_ssh", match={"name": "boots"})
    lab.rent("boots", keys=[public_key])
    found = listed(tenant.folder, lab)["_meta"]["hostvars"]
    assert found["runpod-1"]["tenant_billing"] == "on"
    assert re.search("names no address|22/tcp", found["runpod_boots"]["tenant_unreachable_why"])
    assert "ansible_host" not in found["runpod_boots"]


def test_two_of_one_name_are_two_hosts(lab: Lab, tmp_path: Path, public_key: str, tenant: Tenant) -> None:
    ids = {lab.rent("twin", keys=[public_key])["id"] for _ in range(2)}
    assert set(listed(tmp_path, lab)["_meta"]["hostvars"]) == {f"runpod_{one}" for one in ids}


def test_the_cache_is_used_and_refreshed(lab: Lab, tmp_path: Path, public_key: str, tenant: Tenant) -> None:
    cached: dict[str, Any] = {
        "cache": True,
        "cache_plugin": "ansible.builtin.jsonfile",
        "cache_connection": str(tmp_path / "cache"),
        "cache_timeout": 600,
    }
    one = lab.rent("one", keys=[public_key])["id"]
    assert "runpod_one" in listed(tmp_path, lab, **cached)["_meta"]["hostvars"]
    before = len(lab.requests())
    again = listed(tmp_path, lab, **cached)["_meta"]["hostvars"]
    assert "runpod_one" in again and again["runpod_one"]["tenant_instance_id"] == one
    assert len(lab.requests()) == before, "the platform was asked although the cache is fresh"
    lab.destroy(one)
    done = run(tmp_path, lab, ["ansible-inventory", "--list", "--flush-cache"], **cached)
    assert "runpod_one" not in done.stdout


def test_a_hostile_id_stops_it(lab: Lab, tmp_path: Path, tenant: Tenant) -> None:
    pod = {"id": "x -o ProxyCommand=id", "status": "RUNNING", "name": "a", "desiredStatus": "RUNNING"}
    lab.fault("api.fail", match={"path": "^/v2/pods$"}, status=200, body={"pods": [pod]})
    done = run(tmp_path, lab, ["ansible-inventory", "--list"], platforms=["runpod"])
    assert "cannot be an instance id" in done.stderr and "ProxyCommand" not in done.stdout

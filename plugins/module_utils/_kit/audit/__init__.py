# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb ``audit``: measure the box before anything is paid for twice. Changes nothing but a probe file it removes."""

from __future__ import annotations

import os
import shutil

from .. import release
from . import cgroup, disk, gpu, torch

_GIB = 1 << 30


def audit(request: dict) -> dict:
    """Facts of the box, ``failures`` that stop a launch and ``warnings`` that do not.

    Request: ``{root, data_dir, durable_dir, separate_durable, python, floors, wanted, tools}``.
    """
    root = request["root"]
    os.makedirs(root, exist_ok=True)
    devices, why = gpu.devices()
    spaces = [disk.space(path) for path in sorted({root, request.get("durable_dir") or root, "/", "/tmp"})]
    failures = _disk_failures(request, spaces) + gpu.mismatches(devices, why, request.get("wanted") or {})
    found_torch = torch.facts(request["python"]) if request.get("wanted", {}).get("torch") else None
    if found_torch and found_torch["installed"] and not found_torch["works"]:
        failures.append("torch cannot use the GPU: {}".format(found_torch.get("error", "no device")))
    limits = cgroup.facts()
    return {
        "disk": spaces,
        "cgroup": limits,
        "gpus": devices,
        "gpu_note": why,
        "torch": found_torch,
        "tools": {name: shutil.which(name) for name in request.get("tools", ())},
        "releases": release.releases(root),
        "failures": failures,
        "warnings": _warnings(limits),
    }


def _disk_failures(request: dict, spaces: list[dict]) -> list[str]:
    failures = []
    places = {request["root"], request.get("durable_dir") or request["root"]}
    for found in spaces:
        if found["path"] in places:
            failures += disk.below_floor(found, request.get("floors") or {})
    for place in sorted(places):
        trouble = disk.writable(place)
        if trouble:
            failures.append(f"{place} cannot be written: {trouble}")
    durable = request.get("durable_dir")
    if durable and request.get("separate_durable"):
        own, system = disk.space(durable)["device"], disk.space("/")["device"]
        if own == system:
            failures.append(f"{durable} is only a folder of the system disk: what is written there dies with the box")
    return failures


def _warnings(limits: dict) -> list[str]:
    try:
        shm = disk.space("/dev/shm")["total_bytes"]
    except OSError:
        return ["/dev/shm is missing: data loaders with workers will fail"]
    if shm < _GIB:
        return [f"/dev/shm has only {shm >> 20} MiB: data loaders with many workers may die with a bus error"]
    return []

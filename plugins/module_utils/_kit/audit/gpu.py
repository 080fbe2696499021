# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The GPUs that are really there, from nvidia-smi; what it cannot say is None, never 0."""

from __future__ import annotations

import re
import subprocess

_FIELDS = (
    "index",
    "name",
    "uuid",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "driver_version",
)
_TIMEOUT = 15


def _smi(arguments: list[str]) -> tuple[list[list[str]] | None, str]:
    """Rows of a CSV query, and why there are none."""
    command = ["nvidia-smi", *arguments, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT
        )
    except FileNotFoundError:
        return None, "nvidia-smi is not installed"
    except OSError as problem:  # a closed folder on PATH is enough
        return None, f"nvidia-smi cannot be run: {problem.strerror}"
    except subprocess.TimeoutExpired:
        return None, f"nvidia-smi did not answer in {_TIMEOUT} s"
    text = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode:
        return None, text.splitlines()[0][:200] if text else f"nvidia-smi ended with {done.returncode}"
    return [[word.strip() for word in line.split(",")] for line in text.splitlines() if line.strip()], ""


def _number(text: str) -> int | None:
    return int(float(text)) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def devices() -> tuple[list[dict], str]:
    """GPUs as ``{index, name, uuid, memory_total_mib, …}``, and why the list is empty."""
    rows, why = _smi(["--query-gpu=" + ",".join(_FIELDS)])
    found = []
    for row in rows or []:
        if len(row) != len(_FIELDS):
            return [], "nvidia-smi answered in an unknown form: {}".format(",".join(row)[:120])
        found.append(
            {
                "index": _number(row[0]),
                "name": row[1],
                "uuid": row[2],
                "memory_total_mib": _number(row[3]),
                "memory_used_mib": _number(row[4]),
                "utilization_percent": _number(row[5]),
                "temperature_c": _number(row[6]),
                "driver": row[7],
            }
        )
    return found, why


def holders() -> list[dict]:
    """Processes that hold a GPU, as far as this container may see them."""
    rows, _ = _smi(["--query-compute-apps=pid,used_memory,name"])
    return [
        {"pid": int(row[0]), "memory_mib": _number(row[1]), "name": row[2]}
        for row in rows or []
        if len(row) == 3 and row[0].isdigit()
    ]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def mismatches(found: list[dict], why: str, wanted: dict) -> list[str]:
    """Where the real devices differ from ``wanted`` (``{gpu, gpu_count, vram_gb}``), as want/have sentences."""
    if not wanted.get("gpu"):
        return []
    if not found:
        return ["want {}, have no GPU ({})".format(wanted["gpu"], why or "none listed")]
    reasons = []
    if len(found) < wanted.get("gpu_count", 1):
        reasons.append(f"want {wanted['gpu_count']} GPUs, have {len(found)}")
    # The catalogue's name may be longer or shorter than the driver's ("RTX 4090" against "NVIDIA GeForce RTX 4090").
    words = [_plain(name) for name in (wanted["gpu"], wanted.get("offered")) if name]
    for device in found:
        have = _plain(device["name"])
        if not any(word in have or have in word for word in words):
            reasons.append("want {}, have {}".format(wanted["gpu"], device["name"]))
        memory = device["memory_total_mib"]
        if wanted.get("vram_gb") and memory is not None and memory < wanted["vram_gb"] * 1000:
            reasons.append(f"want {wanted['vram_gb']} GB of VRAM, have {memory} MiB")
    return reasons

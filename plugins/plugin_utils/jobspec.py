# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The job as the user wrote it, made whole: aliases, flat twins, units and defaults (contracts, "Job")."""

from __future__ import annotations

import itertools
import os
import re
import typing as t

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import Money

from .errors import Refused

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,99}")


def _bad(field: str, value: t.Any, do: str) -> Refused:
    return Refused("job", f"job_{field} is {value!r}", "The job cannot be understood as it is.", do)


def seconds(field: str, value: t.Any) -> int | None:
    """``6h``, ``30m``, ``90`` to seconds; None stays None."""
    if value in (None, ""):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", str(value))
    if not match or float(match[1]) <= 0:
        raise _bad(field, value, "Write a duration such as 90s, 30m, 6h or 2d.")
    return int(float(match[1]) * _UNITS[match[2] or "s"])


def money(field: str, value: t.Any) -> dict[str, str] | None:
    try:
        parsed = Money.parse(value, f"job_{field}")
    except ValueError as problem:
        raise _bad(field, value, "Write an amount with its currency, for example '0.80 USD'.") from problem
    return parsed.as_dict() if parsed else None


def resolve(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The whole job from the ``job_*`` values without their prefix. Raises Refused naming the field at fault."""
    source = _source(given)
    command = given.get("command") or given.get("run")
    if not command:
        raise _bad("command", command, "Say what to run: job_command: [python, train.py].")
    name = str(
        given.get("name") or os.path.basename(os.path.abspath(source.get("path") or source["git"].removesuffix(".git")))
    )
    project = str(given.get("project") or name)
    for field, value in (("name", name), ("project", project)):
        if not _NAME.fullmatch(value):
            raise _bad(field, value, "Use 1 to 40 lower-case letters, digits and hyphens.")
    job = {
        "name": name,
        "project": project,
        "source": source,
        "command": command,
        "setup": given.get("setup"),
        "requirements": given.get("requirements"),
        "smoke": {place: _smoke(place, (given.get("smoke") or {}).get(place)) for place in ("local", "box")},
        "env": {str(key): str(value) for key, value in (given.get("env") or {}).items()},
        "secrets": list(given.get("secrets") or []),
        "resources": _resources(given),
        "platforms": list(given.get("platforms") or []),
        "image": given.get("image"),
        "region": given.get("region"),
        "spot": _bool(given.get("spot")),
        "volumes": [_volume(entry) for entry in given.get("volumes") or []],
        "max_price": money("max_price", given.get("max_price")),
        "max_cost": money("max_cost", given.get("max_cost")),
        "max_duration": seconds("max_duration", given.get("max_duration")),
        "file_mounts": dict(given.get("file_mounts") or {}),
        "checkpoints": _checkpoints(given.get("checkpoints") or {}),
        "durable": given.get("durable"),
        "artifacts": [_artifact(entry) for entry in given.get("artifacts") or []],
        "progress": _progress(given.get("progress") or {}),
        "stall_seconds": int(given.get("stall_seconds") or 1800),
        "retry": {"on_events": ["interruption", "no_capacity", "transient"], "max": 3, **(given.get("retry") or {})},
        "recover": {"discard_superseded": False, **(given.get("recover") or {})},
        "when_done": _choice("when_done", given.get("when_done") or "keep", ("keep", "park", "teardown")),
        "notify": list(given.get("notify") or []),
        "cells": _cells(given.get("sweep")),
    }
    _refuse_unsupported(job)
    return job


def _refuse_unsupported(job: dict[str, t.Any]) -> None:
    """What the contracts name and this version does not do is refused, never silently left out."""
    later = {
        "file_mounts": job["file_mounts"],
        "spot": job["spot"],
        "durable": job["durable"],
        "notify": job["notify"],
        "when_done": job["when_done"] == "park" and "park",
    }
    for field, value in later.items():
        if value:
            raise Refused(
                "job_unsupported",
                f"job_{field} is {value!r}",
                "This version cannot do that yet, and leaving it out silently would be worse.",
                f"Remove job_{field}; see the table in README.md for what works today.",
            )
    if len(job["volumes"]) > 1:
        raise _bad("volumes", job["volumes"], "Name one volume: a box can mount only one.")


def _bool(value: t.Any) -> bool:
    return str(value).strip().lower() in ("true", "yes", "1", "on")


def _choice(field: str, value: t.Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise _bad(field, value, f"Use one of: {', '.join(choices)}.")
    return str(value)


def _source(given: dict[str, t.Any]) -> dict[str, t.Any]:
    source = given.get("source") or given.get("workdir")
    if given.get("git"):
        source = {"git": given["git"], "ref": given.get("ref")}
    if isinstance(source, dict):
        if not source.get("git") or not source.get("ref"):
            raise _bad("source", source, "Give both git (a URL) and ref (a commit): a moving branch is no source.")
        return {"git": str(source["git"]), "ref": str(source["ref"])}
    # Absolute, since a later tick may run from another folder.
    return {"path": os.path.abspath(os.path.expanduser(str(source or ".")))}


def _smoke(place: str, value: t.Any) -> dict[str, t.Any] | None:
    """``20`` (seconds of the job's own command) or ``{command, seconds}``."""
    if value in (None, "", 0):
        return None
    if isinstance(value, dict):
        return {"command": value.get("command"), "seconds": seconds("smoke", value.get("seconds", 60))}
    return {"command": None, "seconds": seconds(f"smoke.{place}", value)}


def _resources(given: dict[str, t.Any]) -> dict[str, t.Any]:
    wanted = dict(given.get("resources") or {})
    for flat in ("gpu", "disk_gb", "vram_gb"):
        if given.get(flat) not in (None, ""):
            wanted[flat] = given[flat]
    unknown = set(wanted) - {"gpu", "vram_gb", "disk_gb", "shm_gb", "cuda"}
    if unknown:
        raise _bad("resources", wanted, f"Remove {', '.join(sorted(unknown))}: no such resource.")
    gpu, _, count = str(wanted.get("gpu") or "").rpartition(":")
    if gpu and not count.isdigit():
        raise _bad("resources.gpu", wanted["gpu"], "Write the name and the count: 'RTX4090:1'.")
    numbers = {}
    for field in ("vram_gb", "disk_gb", "shm_gb"):
        value = wanted.get(field)
        if value not in (None, "") and not str(value).isdigit():
            raise _bad(f"resources.{field}", value, "Write whole GB, for example 40.")
        numbers[field] = int(value) if value not in (None, "") else None
    name = gpu or (count if not count.isdigit() else "")
    return {"gpu": name, "gpu_count": int(count) if gpu else 1, "cuda": wanted.get("cuda"), **numbers}


def _volume(entry: t.Any) -> dict[str, t.Any]:
    if not isinstance(entry, dict) or not entry.get("name") or not str(entry.get("size_gb", "")).isdigit():
        raise _bad("volumes", entry, "Each volume needs a name and size_gb: {name: data, size_gb: 10}.")
    return {"name": str(entry["name"]), "size_gb": int(entry["size_gb"]), "path": entry.get("path")}


def _relative(field: str, path: t.Any) -> str:
    text = str(path or "")
    if not text or text.startswith("/") or ".." in text.split("/"):
        raise _bad(field, path, "Give a path relative to the cell's folder, without '..'.")
    return text


def _checkpoints(given: dict[str, t.Any]) -> dict[str, t.Any]:
    return {
        "path": _relative("checkpoints.path", given.get("path") or "checkpoints"),
        "pattern": str(given.get("pattern") or "*.pt"),
        "keep_last": int(given.get("keep_last") or 2),
        "keep_best": given.get("keep_best"),
        "size_bytes": given.get("size_bytes"),
        "seconds": seconds("checkpoints.seconds", given.get("seconds")),
    }


def _artifact(entry: t.Any) -> dict[str, t.Any]:
    entry = {"path": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, dict):
        raise _bad("artifacts", entry, "Each artifact is {path: …, format: …}.")
    unknown = set(entry) - {"path", "format", "keys", "finite", "cell"}
    if unknown:
        raise _bad("artifacts", entry, f"Remove {', '.join(sorted(unknown))}: no such field.")
    kept = {"path": _relative("artifacts.path", entry.get("path")), "format": entry.get("format")}
    kept |= {"keys": list(entry.get("keys") or []), "finite": list(entry.get("finite") or [])}
    return kept | ({"cell": entry["cell"]} if entry.get("cell") else {})


def _progress(given: dict[str, t.Any]) -> dict[str, t.Any]:
    regex = given.get("regex")
    if regex:
        try:
            groups = re.compile(regex).groupindex
        except re.error as problem:
            raise _bad("progress.regex", regex, f"It is not a regular expression: {problem}.") from problem
        if "step" not in groups:
            raise _bad("progress.regex", regex, "Name the step: step (?P<step>\\d+)/(?P<total>\\d+).")
    return {"regex": regex, "metrics": given.get("metrics")}


def _cells(sweep: t.Any) -> list[dict[str, t.Any]]:
    """The points of a sweep; without one, the single cell ``main``."""
    if not sweep:
        return [{"cell": "main", "params": {}}]
    if isinstance(sweep, dict) and isinstance(sweep.get("matrix"), dict) and sweep["matrix"]:
        names = list(sweep["matrix"])
        points = itertools.product(*(sweep["matrix"][name] for name in names))
        cells = [dict(zip(names, point, strict=True)) for point in points]
    elif isinstance(sweep, dict) and isinstance(sweep.get("cells"), list):
        cells = sweep["cells"]
    else:
        raise _bad("sweep", sweep, "Give matrix: {name: [values]} or cells: [{name: value}].")
    rows = [{"cell": _cell_name(params), "params": params} for params in cells]
    names = [row["cell"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad("sweep", twice, "Two cells have the same name: make their parameters differ.")
    return rows


def _cell_name(params: dict[str, t.Any]) -> str:
    name = ",".join(f"{key}={value}" for key, value in params.items()).replace("/", "_").replace(",", "-")
    if not _CELL.fullmatch(name):
        raise _bad("sweep", params, "Parameters become folder names: use letters, digits, dots and hyphens.")
    return name


def refuse_missing_secrets(names: list[str]) -> None:
    """Before anything is paid for: a secret that is not there would be missed on a box that bills."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise Refused(
            "secret_missing",
            f"job_secrets names {', '.join(missing)}, not set in this environment",
            "The job would run without it and lose its tracking. Nothing was rented or launched.",
            f"Type: export {missing[0]}=… ; then run the same command again.",
        )

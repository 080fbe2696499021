# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb ``status``: every run of every project on this box, with liveness checked now; and foreign work.

How a state is derived (first row that fits):

====================================================  ===========================
runner or command lives, by its recorded start time   running or stalled, as its heartbeat says
state.json holds a final state                        that state (the exit record stands behind it)
no process, no final state, another boot              dead, class reboot
no process, no final state, same boot                 dead, class killed_external
====================================================  ===========================
"""

from __future__ import annotations

import calendar
import os
import re
import time

from .._artifacts import roster
from .audit import gpu
from .backends import tmux
from .state import RunDir, boot_id, live_commands, read_json, run_alive

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
FINAL = ("finished", "failed", "preempted", "stopped")


def derive(state: dict, runner_alive: bool, boot: str) -> tuple[str, str | None]:
    """The state and, where the runner died without a record, the class."""
    if runner_alive:
        return ("stalled" if state.get("state") == "stalled" else "running"), None
    if state.get("state") in FINAL:
        return state["state"], None
    return "dead", ("reboot" if state.get("runner", {}).get("boot_id") != boot else "killed_external")


def status(request: dict) -> dict:
    """``{runs: [...], foreign: [...]}``; request: ``{root}`` (its parent holds every project)."""
    runs: list[dict] = []
    ours: set[int] = set()
    for root, project, run_id in _run_places(request["root"]):
        try:
            runs.append(_row(root, project, run_id, ours))
        except (TypeError, ValueError, KeyError, AttributeError, OSError):
            # Whatever lies there is not as we wrote it: a damaged disk, or somebody's own folder named alike.
            runs.append(_bare_row(project, run_id, "unknown"))
    return {"runs": runs, "foreign": _foreign(ours)}


def _run_places(root: str) -> list[tuple[str, str, str]]:
    """(root of the project, project, run id) of each run below the data directory, ours first or not."""
    data = os.path.dirname(root)
    found = []
    for project in sorted(os.listdir(data)) if os.path.isdir(data) else []:
        runs = os.path.join(data, project, "runs")
        for run_id in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
            if _RUN_ID.fullmatch(run_id):
                found.append((os.path.join(data, project), project, run_id))
    return found


def _row(root: str, project: str, run_id: str, ours: set[int]) -> dict:
    directory = RunDir(root, run_id)
    run, state = read_json(directory.run_json), read_json(directory.state_json)
    if not isinstance(run, dict):
        return _bare_row(project, run_id, "unknown")
    cells = [cell["cell"] for cell in run["cells"]]
    if not isinstance(state, dict):
        started = any(directory.attempts(cell) for cell in cells)
        return _bare_row(project, run_id, "unknown" if started else "queued")
    lives = run_alive(state)
    if lives:
        ours.update([state["runner"]["pid"], *live_commands(state)])
    word, why = derive(state, lives, boot_id())
    now = time.time()
    return {
        "run_id": run_id,
        "project": project,
        "state": word,
        "class": why,
        "alive": lives,
        "instance_id": state.get("instance_id"),
        "runner": state.get("runner"),
        "cells": state.get("cells", []),
        "heartbeat_age": round(now - state.get("heartbeat_epoch", now), 1),
        "progress_age": _progress_age(state, now),
        "newest_mtime_ns": _newest(directory, run, cells),
    }


def _bare_row(project: str, run_id: str, state: str) -> dict:
    """``queued``: asked for, and never started. ``unknown``: it did something, and what is there cannot be read."""
    return {
        "run_id": run_id,
        "project": project,
        "state": state,
        "class": None,
        "alive": False,
        "instance_id": None,
        "runner": None,
        "cells": [],
        "heartbeat_age": None,
        "progress_age": None,
        "newest_mtime_ns": None,
    }


def _progress_age(state: dict, now: float) -> float | None:
    """Seconds since any cell last moved, by this box's clock."""
    stamps = [cell["last_progress_at"] for cell in state.get("cells", []) if cell.get("last_progress_at")]
    if not stamps:
        return None
    moment = time.strptime(max(stamps)[:19], "%Y-%m-%dT%H:%M:%S")
    return round(max(0.0, now - calendar.timegm(moment)), 1)


def _newest(directory: RunDir, run: dict, cells: list[str]) -> int | None:
    try:
        found = roster.collect(directory.path, cells, run.get("artifacts", []), run.get("checkpoints", {}))
    except (OSError, KeyError, ValueError):
        return None
    return found.newest_mtime_ns


def _foreign(ours: set[int]) -> list[str]:
    """Work on this box that is not ours, in words: other tmux sessions, other GPU users, people at a terminal."""
    found = [f"tmux session {name}" for name in tmux.foreign_sessions()]
    for holder in gpu.holders():
        if not ours & _ancestors(holder["pid"]):
            found.append(f"process {holder['pid']} ({holder['name']}) holds the GPU")
    return found + _people(ours)


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _ancestors(pid: int) -> set[int]:
    """The process and its parents, as far as they can be seen."""
    chain = set()
    while pid > 1 and pid not in chain:
        chain.add(pid)
        fields = _stat(pid)
        if fields is None:
            break
        pid = int(fields[1])
    return chain


def _people(ours: set[int]) -> list[str]:
    """Interactive shells: processes that lead a session with a terminal, other than ours and our own connection."""
    mine = _ancestors(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        # Process 1 is the container itself: images started with a terminal give it one.
        fields = _stat(int(name)) if name.isdigit() and name != "1" else None
        if fields is None or int(fields[4]) == 0 or int(fields[3]) != int(name):
            continue
        chain = _ancestors(int(name))
        if int(name) in mine or ours & chain or _is_ours(int(name)):
            continue
        found.append(f"a login shell is open (process {name})")
    return found


def _is_ours(pid: int) -> bool:
    """A pane of our own tmux server (its runner may have ended a moment ago)."""
    for ancestor in _ancestors(pid):
        try:
            with open(f"/proc/{ancestor}/cmdline", "rb") as stream:
                words = stream.read().split(b"\0")
        except OSError:
            continue
        if b"-L" in words and tmux.SOCKET.encode() in words:
            return True
    return False

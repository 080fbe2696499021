# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verbs ``launch`` and ``stop``: hand a run to a detached runner, once; ask it to end, gracefully."""

from __future__ import annotations

import os
import signal
import time

from . import backends, release
from .errors import KitError
from .state import RunDir, alive, boot_id, live_commands, read_json, run_alive, utc, write_json
from .status import FINAL, derive

_FOREIGN_HEARTBEAT_SECONDS = 60


def launch(request: dict) -> dict:
    """Start the run unless it lives or is done. Launching twice never makes two trainers.

    Request: ``{root, run, instance_id, python, kit, detach, secrets, secret_dir, env, takeover: [instance ids],
    wait_seconds}``; ``run`` becomes run.json and never changes.
    """
    root, run = request["root"], request["run"]
    directory = RunDir(root, run["run_id"])
    release.check(root, run["release"])
    os.makedirs(directory.path, exist_ok=True)
    _write_run(directory, run)
    state = read_json(directory.state_json)
    if isinstance(state, dict):
        if run_alive(state):
            note = "already running" if alive(state.get("runner")) else "its command lives on without a runner"
            return _answer(directory, started=False, note=note)
        if state.get("state") == "finished":
            return _answer(directory, started=False, note="already finished")
        _refuse_if_alive_elsewhere(state, [request["instance_id"], *(request.get("takeover") or [])])
    if os.path.exists(directory.stop_json):
        os.replace(directory.stop_json, f"{directory.stop_json}.{int(time.time())}")
    before = _beat_of(state)
    _write_place(directory, request)
    log = os.path.join(directory.path, "runner.log")
    argv = [request["python"], "-I", request["kit"], "supervise", root, run["run_id"]]
    place = read_json(os.path.join(directory.path, "place.json"))
    place["detach"] = backends.start(request.get("detach") or [], argv, run["run_id"], log)
    write_json(os.path.join(directory.path, "place.json"), place)
    _wait(directory, before, request.get("wait_seconds", 20), log)
    return _answer(directory, started=True, note="launched")


def _write_run(directory: RunDir, run: dict) -> None:
    known = read_json(directory.run_json)
    if known is None:
        write_json(directory.run_json, run)
    elif known != run:
        differing = sorted(key for key in set(known) | set(run) if known.get(key) != run.get(key))
        raise KitError(
            "run_changed",
            "run {} is on this box with another {}".format(run["run_id"], ", ".join(differing)),
            "A run is resumed with the identical command, or its results could not be attributed.",
            "Put the job back as it was, or start a new run with -e run_id=new.",
        )


def _refuse_if_alive_elsewhere(state: dict, takeover: list) -> None:
    """A shared volume shows the heartbeat of a runner on another machine: it may still be writing.

    ``takeover``: instances whose runner is known to be gone; this one too, since its processes were just looked at.
    """
    elsewhere = state.get("runner", {}).get("boot_id") != boot_id()
    if not elsewhere or state.get("instance_id") in takeover or state.get("state") in FINAL:
        return
    age = time.time() - state.get("heartbeat_epoch", 0)
    if age < _FOREIGN_HEARTBEAT_SECONDS:
        raise KitError(
            "alive_elsewhere",
            f"instance {state.get('instance_id')} wrote a heartbeat of this run {int(age)} s ago",
            "Two trainers in one directory would corrupt the checkpoints.",
            "Wait a minute, or prove that the other box is gone.",
        )


def _write_place(directory: RunDir, request: dict) -> None:
    """What belongs to this box and this start alone; secrets go into a file of their own, never a durable one."""
    secrets = None
    if request.get("secrets"):
        folder = os.path.expanduser(request["secret_dir"])
        os.makedirs(folder, mode=0o700, exist_ok=True)
        secrets = os.path.join(folder, request["run"]["run_id"] + ".json")
        previous = os.umask(0o077)
        try:
            write_json(secrets, request["secrets"])
        finally:
            os.umask(previous)
    place = {
        "instance_id": request["instance_id"],
        "python": request["python"],
        "kit": os.path.basename(request["kit"]),
    }
    place.update(secrets=secrets, env=request.get("env") or {}, detach=None)
    write_json(os.path.join(directory.path, "place.json"), place)


def _beat_of(state: object) -> float:
    return state.get("heartbeat_epoch", 0) if isinstance(state, dict) else 0


def _wait(directory: RunDir, before: float, seconds: float, log: str) -> None:
    """Until the first progress, the end, or the limit; a runner that never breathes is an error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = read_json(directory.state_json)
        if _beat_of(state) > before and isinstance(state, dict):
            cell = (state.get("cells") or [{}])[0]
            if state["state"] in FINAL or cell.get("step") is not None:
                return
        time.sleep(0.2)
    if _beat_of(read_json(directory.state_json)) <= before:
        with open(log, "rb") as stream:
            text = stream.read()[-400:].decode("utf-8", "replace")
        raise KitError(
            "runner_silent",
            f"the runner wrote no heartbeat in {seconds} s: {text}",
            "It did not start, or it cannot write its directory.",
            "Run the same command again; look for a full disk.",
        )


def _answer(directory: RunDir, started: bool, note: str) -> dict:
    state = read_json(directory.state_json) or {}
    word, why = derive(state, run_alive(state), boot_id())
    row = {"state": word, "class": why, "cells": state.get("cells", []), "runner": state.get("runner")}
    return {"changed": started, "note": note, **row}


def _end_orphans(state: dict, deadline: float) -> None:
    """Commands whose runner died: SIGTERM to each group, and SIGKILL near the end of the time."""
    for number, until in ((signal.SIGTERM, deadline - 5), (signal.SIGKILL, deadline)):
        for pid in live_commands(state):
            os.killpg(pid, number)
        while time.monotonic() < until and live_commands(state):
            time.sleep(0.2)


def stop(request: dict) -> dict:
    """Ask one run to end: SIGTERM to its runner, which passes it on and records the exit. Waits ``wait_seconds``.

    A run that has ended already is left as it is.
    """
    directory = RunDir(request["root"], request["run_id"])
    state = read_json(directory.state_json)
    if not isinstance(state, dict):
        raise KitError(
            "no_such_run",
            "there is no run {} in {}".format(request["run_id"], directory.path),
            "Nothing was stopped.",
            "See which runs are on the box: ansible-playbook playbooks/watch.yml -l <slot>.",
        )
    if not run_alive(state):
        return _answer(directory, started=False, note="was not running")
    write_json(directory.stop_json, {"by": "user", "at": utc()})
    deadline = time.monotonic() + request.get("wait_seconds", 45)
    if alive(state.get("runner")):
        os.kill(state["runner"]["pid"], signal.SIGTERM)
    else:
        _end_orphans(state, deadline)
    while time.monotonic() < deadline and run_alive(state):
        time.sleep(0.2)
    answer = _answer(directory, started=True, note="stopped")
    if answer["state"] not in FINAL:
        answer["note"] = "asked to stop; it has not ended yet"
    return answer

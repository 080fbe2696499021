# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb ``supervise``: the runner. It owns the cells' processes, their start times, their exit records, the heartbeat.

Started detached by ``launch``; it needs neither the controller nor a terminal, and ends when its cells have ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
import typing as t

from .._artifacts import roster
from . import checkpoints, release, triage
from .audit import cgroup, disk, gpu
from .progress import Progress
from .state import HEARTBEAT_SECONDS, RunDir, append_line, identity, read_json, utc, write_json

_POLL_SECONDS = 0.5
_SAMPLE_SECONDS = 30
_SAMPLES_LIMIT = 4 << 20
_STOP_GRACE_SECONDS = 30


class Runner:
    """One run on one box. ``run`` is run.json as launched; ``place`` what belongs to this box alone."""

    def __init__(self, root: str, run_id: str) -> None:
        self.directory = RunDir(root, run_id)
        self.root = root
        self.run = read_json(self.directory.run_json)
        self.place = read_json(os.path.join(self.directory.path, "place.json"))
        self.stop: dict | None = None
        self.cells = [{"cell": cell["cell"], "state": "queued", "attempt": None} for cell in self.run["cells"]]
        self.started_monotonic = time.monotonic()
        self._next_sample = 0.0

    def request_stop(self, by: str) -> None:
        """Remember who asked, once; the loop does the rest."""
        if self.stop is None:
            self.stop = {"by": by, "at": utc()}

    def main(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self.request_stop(self._who_stops()))
        signal.signal(signal.SIGINT, lambda *_: self.request_stop("user"))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.event("runner_started", **identity(os.getpid()), instance_id=self.place["instance_id"])
        self.heartbeat("running")
        worst = 0
        if self._set_up():
            for row, cell in zip(self.cells, self.run["cells"]):
                if self.stop:
                    break
                worst = max(worst, self._run_cell(row, cell))
        else:
            worst = 1
        final = self._final_state()
        self.heartbeat(final)
        self.event("runner_ended", state=final)
        return worst

    def _who_stops(self) -> str:
        record = read_json(self.directory.stop_json)
        return record["by"] if isinstance(record, dict) and "by" in record else "preemption"

    def _final_state(self) -> str:
        states = [row["state"] for row in self.cells]
        for word in ("failed", "preempted", "stopped", "queued"):
            if word in states:
                return "stopped" if word == "queued" else word
        return "finished"

    def heartbeat(self, state: str) -> None:
        """Rewrite state.json. A full disk must not end the runner, or the trainer would be left without one."""
        try:
            self._write_state(state)
        except OSError as problem:
            sys.stderr.write(f"heartbeat not written: {problem}\n")

    def event(self, kind: str, **facts: object) -> None:
        try:
            self.directory.event(kind, **facts)
        except OSError as problem:
            sys.stderr.write(f"event {kind} not written: {problem}\n")

    def _write_state(self, state: str) -> None:
        write_json(
            self.directory.state_json,
            {
                "schema": "tenant.gpu/state/1",
                "run_id": self.run["run_id"],
                "instance_id": self.place["instance_id"],
                "runner": {**identity(os.getpid()), "digest": self.place["kit"], "detach": self.place["detach"]},
                "state": state,
                "cells": self.cells,
                "clock": {"box": utc(), "monotonic": time.monotonic() - self.started_monotonic},
                "heartbeat_epoch": time.time(),
            },
        )

    def _sample(self) -> None:
        if time.monotonic() < self._next_sample:
            return
        self._next_sample = time.monotonic() + _SAMPLE_SECONDS
        try:
            self._write_sample()
        except OSError as problem:
            sys.stderr.write(f"sample not written: {problem}\n")

    def _write_sample(self) -> None:
        path = self.directory.samples
        if os.path.exists(path) and os.path.getsize(path) > _SAMPLES_LIMIT:
            os.replace(path, path + ".1")
        space = disk.space(self.directory.path)
        append_line(
            path,
            {
                "at": utc(),
                "gpus": gpu.devices()[0],
                "memory_used_bytes": cgroup.memory_used(),
                "oom_kills": cgroup.oom_kills(),
                "free_bytes": space["free_bytes"],
                "free_inodes": space["free_inodes"],
            },
        )

    def _set_up(self) -> bool:
        """The job's own preparation, once an instance; False where it failed."""
        marker = os.path.join(self.directory.path, "setup-{}.done".format(self.place["instance_id"]))
        commands = [command for command in (self._requirements(), self.run.get("setup")) if command]
        if not commands or os.path.exists(marker):
            return True
        log = os.path.join(self.directory.path, "setup.log")
        for command in commands:
            with open(log, "ab") as out:
                done = self._follow(self._spawn(command, self._environment({}), out))
            if done or self.stop:
                for row in self.cells:
                    row.update(state="failed", **{"class": "setup_failed"})
                self.event("setup_failed", exit_code=done, log=log)
                return False
        write_json(marker, {"at": utc()})
        return True

    def _follow(self, process: subprocess.Popen) -> int:
        """Until a command of the set-up ends, breathing meanwhile; a stop ends it too."""
        next_beat = 0.0
        while process.poll() is None:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + HEARTBEAT_SECONDS
                self.heartbeat("running")
            if self.stop:
                _signal_group(process.pid, signal.SIGTERM)
            time.sleep(_POLL_SECONDS)
        return process.returncode

    def _requirements(self) -> list[str] | None:
        """Install the job's requirements without touching the image's framework: its versions become constraints."""
        name = self.run.get("requirements")
        if not name:
            return None
        guard = os.path.join(self.directory.path, "constraints.txt")
        listed = subprocess.run([self.place["python"], "-m", "pip", "freeze"], stdout=subprocess.PIPE).stdout.decode()
        kept = [line for line in listed.splitlines() if re.match(r"(torch\w*|triton|nvidia-[\w-]+|jax\w*)==", line)]
        with open(guard, "w") as stream:
            stream.write("\n".join(kept) + "\n")
        return [self.place["python"], "-m", "pip", "install", "-r", name, "-c", guard]

    def _environment(self, extra: dict) -> dict:
        environment = dict(os.environ)
        threads = str(cgroup.vcpus())
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
            environment.setdefault(name, threads)
        environment["PYTHONUNBUFFERED"] = "1"
        environment.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        environment["PATH"] = os.path.dirname(self.place["python"]) + os.pathsep + environment.get("PATH", os.defpath)
        environment.update(self.place.get("env") or {})
        environment.update(self.run.get("env") or {})
        environment.update(read_json(self.place["secrets"]) or {} if self.place.get("secrets") else {})
        environment.update(extra)
        return {name: str(value) for name, value in environment.items()}

    def _spawn(self, command: str | list[str], environment: dict, out: t.IO[bytes]) -> subprocess.Popen:
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if argv[0] in ("python", "python3"):
            argv[0] = self.place["python"]
        return subprocess.Popen(
            argv,
            cwd=release.release_path(self.root, self.run["release"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def _run_cell(self, row: dict, cell: dict) -> int:
        last = self.directory.attempts(cell["cell"])
        if last and _succeeded(self.directory.attempt(cell["cell"], last[-1])):
            row.update(_row_of(read_json(os.path.join(self.directory.attempt(cell["cell"], last[-1]), "result.json"))))
            return 0
        reasons = disk.below_floor(disk.space(self.directory.path), self.run.get("floors") or {})
        if reasons:
            row.update(state="failed", **{"class": "disk_gate"})
            self.event("disk_gate", cell=cell["cell"], reasons=reasons)
            return 1
        return Attempt(self, row, cell, (last[-1] if last else 0) + 1).run()


class Attempt:
    """One start of one cell, from its environment to its exit record."""

    def __init__(self, runner: Runner, row: dict, cell: dict, number: int) -> None:
        self.runner, self.row, self.cell, self.number = runner, row, cell, number
        run, base = runner.run, runner.directory.cell(cell["cell"])
        self.folder = runner.directory.attempt(cell["cell"], number)
        self.output = os.path.join(base, "out")
        self.checkpoints = os.path.join(base, run["checkpoints"]["path"])
        self.spec = run["checkpoints"]
        for path in (self.folder, self.output, self.checkpoints):
            os.makedirs(path, exist_ok=True)
        self.resumed = checkpoints.newest_valid(self.checkpoints, self.spec)
        self.log = os.path.join(self.folder, "log")
        metrics = run["progress"].get("metrics")
        self.progress = Progress(
            self.log, os.path.join(self.output, metrics) if metrics else None, run["progress"].get("regex")
        )
        self.oom_before = cgroup.oom_kills()
        self.started = time.time()
        self._known_checkpoint = ""

    def run(self) -> int:
        run = self.runner.run
        extra = {
            "TENANT_RUN_ID": run["run_id"],
            "TENANT_CELL": self.cell["cell"],
            "TENANT_ATTEMPT": self.number,
            "TENANT_OUTPUT_DIR": self.output,
            "TENANT_CHECKPOINT_DIR": self.checkpoints,
            "TENANT_CHECKPOINT_SECONDS": run["checkpoints"].get("seconds") or "",
            "TENANT_RESUME_FROM": self.resumed["path"],
        }
        extra.update(("CELL_" + name.upper(), value) for name, value in self.cell.get("params", {}).items())
        self.row.update(state="running", attempt=self.number, resumed_from=self.resumed["path"] or None)
        self.row.update(resumed_from_step=self.resumed["step"], started_at=utc(self.started))
        self.runner.event("cell_started", cell=self.cell["cell"], attempt=self.number, resumed=self.resumed)
        with open(self.log, "ab", buffering=0) as out:
            try:
                process = self.runner._spawn(_filled(run["command"], self.cell), self.runner._environment(extra), out)
            except OSError as problem:
                out.write((f"{problem}\n").encode())
                return self._record(127, None)
            self._watch(process)
        status = process.returncode
        _end_group(process.pid)
        return self._record(status if status >= 0 else None, -status if status < 0 else None)

    def _watch(self, process: subprocess.Popen) -> None:
        deadline = self.runner.run.get("max_duration")
        next_beat, terminated_at = 0.0, None
        self.row["pid"] = identity(process.pid)
        while process.poll() is None:
            now = time.monotonic()
            self.progress.update(time.time())
            if now >= next_beat:
                next_beat = now + HEARTBEAT_SECONDS
                self._beat()
            if deadline and now - self.runner.started_monotonic > deadline:
                self.runner.request_stop("max_duration")
            if self.runner.stop and terminated_at is None:
                terminated_at = now
                _signal_group(process.pid, signal.SIGTERM)
            if terminated_at is not None and now - terminated_at > _STOP_GRACE_SECONDS:
                _signal_group(process.pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def _beat(self) -> None:
        stall = self.runner.run.get("stall_seconds")
        since = self.progress.last_progress_at or self.started
        silent = stall and time.time() - since > stall
        self._fill_row("stalled" if silent else "running")
        self.runner.heartbeat("stalled" if silent else "running")
        self.runner._sample()

    def _fill_row(self, state: str) -> None:
        last = self.progress.last_progress_at
        self.row.update(
            state=state,
            step=self.progress.step,
            total=self.progress.total,
            last_progress_at=utc(last) if last else None,
            first_line=self.progress.first_line,
        )
        newest = (checkpoints.candidates(self.checkpoints, self.spec) or [""])[0]
        if newest and newest != self._known_checkpoint:
            self._known_checkpoint = newest
            # Headers only: reading a large file whole would hold up the heartbeat, and a stop with it.
            found = checkpoints.newest_valid(self.checkpoints, self.spec, deep=False)
            if found["path"]:
                self.row["checkpoint"] = {"path": found["path"], "step": found["step"], "verified_at": utc()}

    def _record(self, code: int | None, number: int | None) -> int:
        self.progress.update(time.time())
        run = self.runner.run
        missing = [
            "{} ({})".format(entry["artifact"], entry["reason"])
            for entry in roster.collect(
                self.runner.directory.path, [self.cell["cell"]], run["artifacts"], run["checkpoints"]
            ).missing
        ]
        before, after = self.oom_before, cgroup.oom_kills()
        found = triage.classify(
            {
                "exit_code": code,
                "signal": number,
                "stop": self.runner.stop,
                "oom_delta": after - before if after is not None and before is not None else None,
                "missing": missing,
                "log_tail": "\n".join(self.progress.tail),
            }
        )
        state = _STATES.get(found["class"], "failed")
        self._fill_row(state)
        result = {
            "schema": "tenant.gpu/result/1",
            "run_id": run["run_id"],
            "cell": self.cell["cell"],
            "attempt": self.number,
            "state": state,
            "exit_code": code,
            "signal": number,
            "started_at": utc(self.started),
            "ended_at": utc(),
            "resumed_from": self.resumed,
            "step": self.progress.step,
            "total": self.progress.total,
            "missing": missing,
            "instance_id": self.runner.place["instance_id"],
            "boot_id": identity(os.getpid())["boot_id"],
            **found,
        }
        write_json(os.path.join(self.folder, "result.json"), result)
        self.row.update(_row_of(result))
        self.row["log_tail"] = self.progress.tail[-10:] if state == "failed" else []
        self.runner.event("cell_ended", cell=self.cell["cell"], attempt=self.number, **found)
        return 0 if state == "finished" else 1


_STATES = {"ok": "finished", "stopped_by_user": "stopped", "max_duration": "stopped", "preempted": "preempted"}


def _row_of(result: dict) -> dict:
    names = ("state", "attempt", "step", "total", "class", "evidence", "do", "retryable", "exit_code", "signal")
    return {
        **{name: result[name] for name in names},
        "started_at": result["started_at"],
        "ended_at": result["ended_at"],
    }


def _succeeded(attempt: str) -> bool:
    result = read_json(os.path.join(attempt, "result.json"))
    return isinstance(result, dict) and result.get("class") == "ok"


def _filled(command: str | list[str], cell: dict) -> str | list[str]:
    """The command with ``{name}`` of the cell's parameters filled in; other braces stay as they are."""
    params = cell.get("params", {})

    def fill(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: str(params.get(match[1], match[0])), text)

    return fill(command) if isinstance(command, str) else [fill(word) for word in command]


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _end_group(pid: int) -> None:
    """Workers that outlived their parent hold the GPU: they end with it."""
    _signal_group(pid, signal.SIGKILL)


def supervise(root: str, run_id: str) -> int:
    """Entry of the detached process; a second runner of the same run finds the lock held and ends."""
    lock = os.open(os.path.join(RunDir(root, run_id).path, "lock"), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.stderr.write("another runner holds this run\n")
        return 3
    return Runner(root, run_id).main()

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kit: its parts by themselves, and the zipapp as a box runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._kit import (
    checkpoints,
    frame,
    progress,
    release,
    smoke,
    triage,
)
from ansible_collections.tenant.gpu.plugins.module_utils._kit import state as kit_state
from ansible_collections.tenant.gpu.plugins.module_utils._kit.audit import disk, gpu
from ansible_collections.tenant.gpu.plugins.module_utils._kit.errors import KitError
from ansible_collections.tenant.gpu.plugins.module_utils._kit.status import derive
from ansible_collections.tenant.gpu.plugins.plugin_utils import kit

OLDEST = Path(os.environ.get("PYENV_ROOT", "/nonexistent")) / "versions"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project folder with a sealed release of a quick script."""
    path = tmp_path / "data" / "project"
    incoming = path / "releases" / ".incoming-x"
    incoming.mkdir(parents=True)
    (incoming / "job.py").write_text(
        "import json, os, sys, time\n"
        "for step in range(1, 4):\n"
        "    print(f'step {step}/3', flush=True); time.sleep(float(os.environ.get('PAUSE', '0')))\n"
        "json.dump({'loss': 1.0}, open(os.environ['TENANT_OUTPUT_DIR'] + '/metrics.json', 'w'))\n"
    )
    digest = release.tree_digest(str(incoming))
    incoming.rename(incoming.with_name(f".incoming-{digest}"))
    assert release.seal({"root": str(path), "digest": digest})["changed"]
    (path / "digest").write_text(digest)
    return path


def _interpreters() -> list[str]:
    """This Python, and the oldest that has to serve where one is here."""
    # Another user's folder of interpreters may be named and closed.
    old = sorted(OLDEST.glob("3.8.*/bin/python3.8")) if os.access(OLDEST, os.R_OK | os.X_OK) else []
    return [sys.executable, *map(str, old)]


def _call(interpreter: str, root: Path, verb: str, noise: bool = False, **request: t.Any) -> dict[str, t.Any]:
    """One verb as a box runs it: no HOME, no locale, hardly an environment."""
    archive = root / "bin" / kit.build().name
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(kit.build().content)
    command = f"{interpreter} -I {archive} {verb}"
    script = f"echo Welcome; echo noise >&2; {command}; echo bye" if noise else command
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        input=json.dumps({"root": str(root), **request}).encode(),
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
    )
    answer = frame.unframe(done.stdout.decode())
    assert answer is not None, done.stderr.decode()
    return answer


def _run(root: Path, **changes: t.Any) -> dict[str, t.Any]:
    return {
        "schema": "tenant.gpu/run/1", "run_id": "run-1", "release": (root / "digest").read_text(), "project": "project",
        "command": ["python", "job.py"], "env": {}, "cells": [{"cell": "main", "params": {}}], "floors": {},
        "artifacts": [{"path": "metrics.json", "format": "json", "keys": [], "finite": ["loss"]}],
        "checkpoints": {"path": "checkpoints", "pattern": "*.pt"}, "stall_seconds": 1800, "max_duration": 60,
        "progress": {"regex": r"step (?P<step>\d+)/(?P<total>\d+)", "metrics": None}, **changes,
    }  # fmt: skip


def _launch(python: str, root: Path, run: dict[str, t.Any], **request: t.Any) -> dict[str, t.Any]:
    archive = str(root / "bin" / kit.build().name)
    given = {"instance_id": "i1", "python": python, "kit": archive, "detach": ["nohup"], "wait_seconds": 20}
    return _call(python, root, "launch", run=run, **{**given, **request})


@pytest.mark.parametrize("python", _interpreters())
def test_launch_status_manifest_as_a_box_runs_them(root: Path, python: str) -> None:
    answer = _launch(python, root, _run(root))
    assert answer["ok"] and answer["changed"], answer
    deadline = time.monotonic() + 20
    while (row := _call(python, root, "status")["runs"][0])["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (row["state"], row["cells"][0]["class"], row["cells"][0]["step"]) == ("finished", "ok", 3)
    again = _launch(python, root, _run(root))
    assert again["ok"] and not again["changed"] and again["note"] == "already finished"
    made = _call(python, root, "manifest", noise=True, run_id="run-1", instance_id="i1")
    names = {entry["path"] for entry in made["manifest"]["files"]}
    assert {"cells/main/out/metrics.json", "cells/main/attempt-1/result.json", "run.json"} <= names
    assert made["manifest"]["missing"] == []


def test_a_trainer_that_outlived_its_runner_is_alive_and_gets_no_second(root: Path) -> None:
    run = _run(root, env={"PAUSE": "10"})
    first = _launch(sys.executable, root, run)
    os.kill(first["runner"]["pid"], signal.SIGKILL)
    time.sleep(0.3)
    row = _call(sys.executable, root, "status")["runs"][0]
    assert row["alive"] and row["state"] == "running"
    again = _launch(sys.executable, root, run)
    assert not again["changed"] and "without a runner" in again["note"]
    _call(sys.executable, root, "stop", run_id="run-1", wait_seconds=8)
    assert not _call(sys.executable, root, "status")["runs"][0]["alive"]


def test_damaged_and_foreign_run_folders_are_told_apart_from_queued_ones(root: Path) -> None:
    runs = root / "runs"
    for name, state in (("damaged", '{"state": '), ("strange", "[1]"), ("My_Run", "{}")):
        (runs / name / "cells" / "main" / "attempt-1").mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"cells": [{"cell": "main"}]}))
        (runs / name / "state.json").write_text(state)
    (runs / "foreign").mkdir()
    (runs / "foreign" / "run.json").write_text('{"cells": ["a"]}')
    (runs / "queued-one").mkdir()
    (runs / "queued-one" / "run.json").write_text(json.dumps(_run(root)))
    rows = {row["run_id"]: row["state"] for row in _call(sys.executable, root, "status")["runs"]}
    assert rows == {"damaged": "unknown", "strange": "unknown", "foreign": "unknown", "queued-one": "queued"}


def test_launching_twice_makes_one_trainer_and_another_command_is_refused(root: Path) -> None:
    run = _run(root, env={"PAUSE": "10"})
    assert _launch(sys.executable, root, run)["changed"]
    again = _launch(sys.executable, root, run)
    assert not again["changed"] and again["note"] == "already running"
    other = _launch(sys.executable, root, {**run, "command": ["python", "other.py"]})
    assert other["error"]["code"] == "run_changed" and "command" in other["error"]["seen"]
    stopped = _call(sys.executable, root, "stop", run_id="run-1", wait_seconds=20)
    assert stopped["state"] == "stopped" and stopped["cells"][0]["class"] == "stopped_by_user"
    assert not _call(sys.executable, root, "stop", run_id="run-1")["changed"]


def test_a_heartbeat_from_another_machine_blocks_unless_that_one_is_known_dead(root: Path) -> None:
    directory = kit_state.RunDir(str(root), "run-1")
    os.makedirs(directory.path)
    runner = {"pid": 1, "start_ticks": 1, "boot_id": "another"}
    fresh = {"runner": runner, "state": "running", "instance_id": "i0", "heartbeat_epoch": time.time(), "cells": []}
    kit_state.write_json(directory.state_json, fresh)
    assert _launch(sys.executable, root, _run(root))["error"]["code"] == "alive_elsewhere"
    assert _launch(sys.executable, root, _run(root), takeover=["i0"])["changed"]


def test_a_release_that_was_changed_is_not_launched(root: Path) -> None:
    script = root / "releases" / (root / "digest").read_text() / "job.py"
    script.chmod(0o644)
    script.write_text("print('other')\n")
    assert _launch(sys.executable, root, _run(root))["error"]["code"] == "release_changed"


def test_an_incomplete_push_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "releases" / ".incoming-abc").mkdir(parents=True)
    with pytest.raises(KitError, match="expected abc"):
        release.seal({"root": str(tmp_path), "digest": "abc"})


def test_the_kit_is_built_alike_each_time_and_named_by_what_it_holds() -> None:
    first = kit.build()
    kit.build.cache_clear()
    assert kit.build() == first


def test_frame_survives_noise_and_refuses_halves(capsys: pytest.CaptureFixture[str]) -> None:
    frame.write_answer({"ok": True, "text": "ä\n=====\x1b[2J"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert frame.unframe(f"Welcome!\n{text}\nbye") == {"ok": True, "text": "ä\n=====\x1b[2J"}
    assert frame.unframe(text[: len(text) // 2]) is None
    assert frame.unframe("nothing") is None


@pytest.mark.parametrize(
    ("state", "alive", "boot", "expected"),
    [
        ({"state": "running"}, True, "b", ("running", None)),
        ({"state": "stalled"}, True, "b", ("stalled", None)),
        ({"state": "finished"}, True, "b", ("running", None)),
        ({"state": "finished"}, False, "b", ("finished", None)),
        ({"state": "preempted"}, False, "b", ("preempted", None)),
        ({"state": "running", "runner": {"boot_id": "a"}}, False, "b", ("dead", "reboot")),
        ({"state": "running", "runner": {"boot_id": "b"}}, False, "b", ("dead", "killed_external")),
    ],
)
def test_state_table(state: dict[str, t.Any], alive: bool, boot: str, expected: tuple[str, str | None]) -> None:
    assert derive(state, alive, boot) == expected


def test_a_reused_pid_is_not_the_same_process() -> None:
    me = kit_state.identity(os.getpid())
    assert kit_state.alive(me)
    assert not kit_state.alive({**me, "start_ticks": me["start_ticks"] + 1})
    assert not kit_state.alive({**me, "boot_id": "another"})


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"exit_code": 0, "missing": []}, "ok"),
        ({"exit_code": 0, "missing": ["best.pt (no such file)"]}, "incomplete_success"),
        ({"exit_code": 0, "missing": [], "stop": {"by": "user"}}, "ok"),
        ({"exit_code": 143, "stop": {"by": "user"}}, "stopped_by_user"),
        ({"exit_code": None, "signal": 15, "stop": {"by": "preemption"}}, "preempted"),
        ({"exit_code": None, "signal": 9, "oom_delta": 1}, "host_oom"),
        ({"exit_code": None, "signal": 9, "oom_delta": 0}, "killed_external"),
        ({"exit_code": 127}, "command_missing"),
        ({"exit_code": 1, "log_tail": "RuntimeError: CUDA out of memory. Tried to allocate 50 MiB"}, "oom_capacity"),
        ({"exit_code": 1, "log_tail": "ERROR: Unexpected bus error encountered in worker."}, "shm_exhausted"),
        ({"exit_code": 1, "log_tail": "OSError: [Errno 28] No space left on device: '/x'"}, "disk_full"),
        ({"exit_code": 1, "log_tail": "ModuleNotFoundError: No module named 'x'"}, "code_or_config"),
        ({"exit_code": 3, "log_tail": "hm"}, "unknown"),
    ],
)
def test_classes(facts: dict[str, t.Any], expected: str) -> None:
    found = triage.classify(facts)
    assert found["class"] == expected and found["evidence"]


def test_progress_reads_log_and_metrics_and_ignores_garbage(tmp_path: Path) -> None:
    log, metrics = tmp_path / "log", tmp_path / "metrics.jsonl"
    seen = progress.Progress(str(log), str(metrics), r"step (?P<step>\d+)/(?P<total>\d+)")
    assert not seen.update(1.0)
    log.write_bytes(b"hello\n\xff\xfe garbage\nstep 3/10\nstep 4")
    assert seen.update(2.0) and (seen.step, seen.total, seen.last_progress_at) == (3, 10, 2.0)
    metrics.write_text('{"step": 5}\nnot json\n{"step": "NaN"}\n[1]\n')
    assert seen.update(3.0) and seen.step == 5
    assert not seen.update(4.0) and seen.last_progress_at == 3.0


def test_checkpoints_are_ordered_by_number_and_only_whole_ones_count(tmp_path: Path) -> None:
    for step in (900, 1000, 50):
        (tmp_path / f"step-{step}.json").write_text('{"step": 1}')
    (tmp_path / "step-2000.json").write_text('{"step": ')
    (tmp_path / "step-3000.json.tmp").write_text("{}")
    for name in ("step-4000.json-tmp", "step-best-9999.json"):
        (tmp_path / name).write_text("{}")
    found = checkpoints.newest_valid(str(tmp_path), {"pattern": "step-*", "keep_best": "*best*"})
    assert found["path"].endswith("step-1000.json") and found["step"] == 1000
    assert [row["path"].rpartition("/")[2] for row in found["rejected"]] == ["step-2000.json"]


def test_floors_name_the_dimension_that_is_short() -> None:
    found = {"path": "/data", "sure": True, "free_bytes": 10, "inodes_limited": True, "free_inodes": 5}
    floors = {"free_bytes": 100, "free_inodes": 10}
    reasons = disk.below_floor(found, floors)
    assert "bytes" in reasons[0] and "inodes" in reasons[1]
    assert disk.below_floor({**found, "inodes_limited": False, "free_bytes": 1000}, floors) == []
    assert disk.below_floor({**found, "sure": False}, floors) == []


def test_want_and_have_of_gpus() -> None:
    have = [{"name": "NVIDIA GeForce RTX 4090", "memory_total_mib": 24564}]
    assert gpu.mismatches(have, "", {"gpu": "RTX4090", "gpu_count": 1, "vram_gb": 24}) == []
    assert "have NVIDIA GeForce" in gpu.mismatches(have, "", {"gpu": "B200", "gpu_count": 1})[0]
    assert "2 GPUs, have 1" in gpu.mismatches(have, "", {"gpu": "RTX 4090", "gpu_count": 2})[0]
    assert "No devices" in gpu.mismatches([], "No devices were found", {"gpu": "RTX4090"})[0]
    unified = [{"name": "NVIDIA GB10", "memory_total_mib": None}]
    assert gpu.mismatches(unified, "", {"gpu": "GB10", "gpu_count": 1, "vram_gb": 64}) == []


def test_smoke_ends_what_it_started_and_leaves_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "left"
    command = f"(sleep 30; touch {marker}) & echo started; sleep 30"
    request = {"command": command, "seconds": 1, "may_outlive": False}
    answer = smoke.run(request, str(tmp_path), sys.executable)
    assert (answer["passed"], answer["exit_code"], answer["log_tail"]) == (False, None, ["started"])
    assert smoke.run({**request, "may_outlive": True}, str(tmp_path), sys.executable)["passed"]
    assert smoke.run({**request, "command": ["./no-such"]}, str(tmp_path), sys.executable)["exit_code"] == 127

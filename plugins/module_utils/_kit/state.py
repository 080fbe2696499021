# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The run directory (contracts, "On the box"): paths, atomic files, and who is alive.

A process is known by its pid *and* its start time in clock ticks *and* the boot it belongs to: a pid alone is reused.
"""

from __future__ import annotations

import json
import os
import tempfile
import time

HEARTBEAT_SECONDS = 5


def utc(seconds: float | None = None) -> str:
    moment = time.time() if seconds is None else seconds
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1000):03d}Z"


def write_json(path: str, value: object) -> None:
    """Replace a file whole: temporary file beside it, fsync, rename, fsync of the folder."""
    folder = os.path.dirname(path)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix="." + os.path.basename(path) + ".")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(value, stream, sort_keys=True, allow_nan=False)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder_handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_handle)
    finally:
        os.close(folder_handle)


def read_json(path: str):  # type: ignore[no-untyped-def]  # any JSON value; None where there is no whole file
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def append_line(path: str, value: dict) -> None:
    line = json.dumps(value, sort_keys=True, allow_nan=False).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip()
    except OSError:
        return "unknown"


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat (proc(5)); None where there is no such process or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def identity(pid: int) -> dict:
    return {"pid": pid, "start_ticks": start_ticks(pid), "boot_id": boot_id()}


def alive(who: object) -> bool:
    """Whether exactly that process lives on this box, now."""
    if not isinstance(who, dict) or not isinstance(who.get("pid"), int):
        return False
    ticks = start_ticks(who["pid"])
    return ticks is not None and ticks == who.get("start_ticks") and who.get("boot_id") == boot_id()


def run_alive(state: object) -> bool:
    """Whether anything of a run lives: its runner, or a command that outlived its runner."""
    if not isinstance(state, dict):
        return False
    return alive(state.get("runner")) or bool(live_commands(state))


def live_commands(state: dict) -> list[int]:
    """Process ids of the run's commands that live."""
    cells = [cell for cell in state.get("cells") or [] if isinstance(cell, dict)]
    return [cell["pid"]["pid"] for cell in cells if alive(cell.get("pid"))]


class RunDir:
    """Paths of one run below ``<root>/runs/<run_id>``."""

    def __init__(self, root: str, run_id: str) -> None:
        self.path = os.path.join(root, "runs", run_id)
        self.run_json = os.path.join(self.path, "run.json")
        self.state_json = os.path.join(self.path, "state.json")
        self.stop_json = os.path.join(self.path, "stop.json")
        self.events = os.path.join(self.path, "events.jsonl")
        self.samples = os.path.join(self.path, "samples.jsonl")

    def cell(self, cell: str) -> str:
        return os.path.join(self.path, "cells", cell)

    def attempt(self, cell: str, number: int) -> str:
        return os.path.join(self.cell(cell), f"attempt-{number}")

    def attempts(self, cell: str) -> list:
        """Numbers of the attempts so far, ascending."""
        try:
            names = os.listdir(self.cell(cell))
        except OSError:
            return []
        found = [name[8:] for name in names if name.startswith("attempt-")]
        return sorted(int(number) for number in found if number.isdigit())

    def event(self, kind: str, **facts: object) -> None:
        append_line(self.events, {"at": utc(), "event": kind, **facts})

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start and end a lab's root process, in namespaces of its own where they are permitted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lab import control
from lab.boxes import enter_argv, namespaces_available
from lab.control import LabError

STATE_VARIABLE = "TENANT_LAB_STATE"
START_SECONDS = 30.0
END_SECONDS = 15.0
_LOG_LINES = 15


def default_folder() -> Path:
    return Path(os.environ.get(STATE_VARIABLE) or ".lab").absolute()


def start(folder: Path, options: dict[str, Any], with_parent: bool = False) -> subprocess.Popen[bytes]:
    """Start a lab and return once it answers. With a parent it ends when this process does.

    Raises LabError when a lab runs in the folder already, or when it does not come up; its log is then quoted.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if running(folder):
        raise LabError(f"a lab runs in {folder} already; `python -m lab down` ends it")
    described(folder).unlink(missing_ok=True)
    process = _spawn(folder, options, with_parent)
    try:
        _wait_until_up(folder, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    _add_pid(folder, process.pid)
    return process


def end(folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
    """End the lab of this folder and everything in it; no lab there is fine."""
    pid = read(folder).get("pid") if described(folder).exists() else None
    with contextlib.suppress(LabError):
        control.call(folder, "down")
    deadline = time.monotonic() + END_SECONDS
    while running(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    if running(folder) and pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process is not None:
        _reap(process)
    described(folder).unlink(missing_ok=True)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def running(folder: Path) -> bool:
    """Whether a lab holds this folder: its lock is held for as long as its process lives."""
    try:
        with open(folder / "lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def described(folder: Path) -> Path:
    return folder / "lab.json"


def read(folder: Path) -> dict[str, Any]:
    """What the lab of this folder says about itself: pid, URLs, keys. Raises LabError where none runs."""
    try:
        return json.loads(described(folder).read_text())
    except FileNotFoundError as absent:
        raise LabError(f"no lab runs in {folder}; start one with `python -m lab up`") from absent


def read_bill(folder: Path) -> dict[str, Any]:
    """The last bill that the lab of this folder wrote. Raises LabError where there is none."""
    try:
        return json.loads((folder / "bill.json").read_text())
    except FileNotFoundError as absent:
        raise LabError(f"there is no bill in {folder}; no lab has run there") from absent


def write_json(path: Path, content: Any) -> None:
    """Replace the file as a whole; a reader never sees half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        json.dump(content, stream, indent=1)
        stream.write("\n")
    fresh.replace(path)


def _spawn(folder: Path, options: dict[str, Any], with_parent: bool) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "lab.site", "--state", str(folder), "--options", json.dumps(options)]
    if with_parent:
        argv.append("--with-parent")
    if namespaces_available()[0]:
        argv = enter_argv(argv)
    # The kernel's signal follows the thread that started the process, so only the main thread may ask for it; the
    # pipe on stdin, whose end tells the lab that the parent is gone, works from every thread.
    if with_parent and threading.current_thread() is threading.main_thread() and shutil.which("setpriv"):
        argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
    with open(folder / "site.log", "ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if with_parent else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": _python_path()},
            cwd=folder,
            start_new_session=True,
        )


def _python_path() -> str:
    clone = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [clone, os.environ.get("PYTHONPATH", "")]))


def _wait_until_up(folder: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not described(folder).exists():
        if process.poll() is not None:
            raise LabError(f"the lab ended at once (status {process.returncode}); its log says:\n{_log_tail(folder)}")
        if time.monotonic() > deadline:
            raise LabError(f"the lab did not come up within {START_SECONDS:.0f} s; its log says:\n{_log_tail(folder)}")
        time.sleep(0.01)


def _log_tail(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return "\n".join((folder / "site.log").read_text(errors="replace").splitlines()[-_LOG_LINES:])
    return "(no log)"


def _add_pid(folder: Path, pid: int) -> None:
    write_json(described(folder), {**read(folder), "pid": pid})

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb ``smoke``: a command for a few seconds, in a throw-away directory, trackers off, its processes ended with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time

from . import release

_TAIL_BYTES, _TAIL_LINES = 2000, 15


def smoke(request: dict) -> dict:
    """``run`` in a sealed release. Request: ``{root, release, python, command, seconds, may_outlive, env}``."""
    release.check(request["root"], request["release"])
    return run(request, release.release_path(request["root"], request["release"]), request["python"])


def run(request: dict, directory: str, python: str) -> dict:
    """``{passed, exit_code, seconds, log_tail}``; ``exit_code`` is None where the limit ended it.

    It passes by ending with 0, or by living until the limit where ``may_outlive`` says so.
    """
    scratch = tempfile.mkdtemp(prefix="tenant-smoke-")
    started = time.monotonic()
    try:
        code, tail = _try(request, directory, python, scratch)
    except OSError as problem:
        code, tail = 127, [str(problem)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    passed = code == 0 or (code is None and bool(request.get("may_outlive")))
    return {"passed": passed, "exit_code": code, "seconds": round(time.monotonic() - started, 1), "log_tail": tail}


def _environment(request: dict, scratch: str) -> dict:
    environment = dict(os.environ, WANDB_MODE="disabled", TENANT_SMOKE="1", PYTHONUNBUFFERED="1")
    for name, folder in (("TENANT_OUTPUT_DIR", "out"), ("TENANT_CHECKPOINT_DIR", "checkpoints")):
        environment[name] = os.path.join(scratch, folder)
        os.mkdir(environment[name])
    environment.update({name: str(value) for name, value in (request.get("env") or {}).items()})
    environment["TENANT_RESUME_FROM"] = ""
    return environment


def _try(request: dict, directory: str, python: str, scratch: str) -> tuple[int | None, list[str]]:
    command = request["command"]
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if argv[0] in ("python", "python3"):
        argv[0] = python
    log = os.path.join(scratch, "log")
    with open(log, "wb") as out:
        process = subprocess.Popen(
            argv,
            cwd=directory,
            env=_environment(request, scratch),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(request["seconds"])
        except subprocess.TimeoutExpired:
            code = None
        _end_group(process)
    with open(log, "rb") as stream:
        text = stream.read()[-_TAIL_BYTES:].decode("utf-8", "replace")
    return code, text.splitlines()[-_TAIL_LINES:]


def _end_group(process: subprocess.Popen) -> None:
    """Whatever it left running holds the GPU that the job needs."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()

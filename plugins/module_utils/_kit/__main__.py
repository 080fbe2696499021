# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kit's verbs: one JSON request on stdin, one framed JSON answer on stdout; status 0 when an answer was given."""

from __future__ import annotations

import json
import os
import signal
import sys

from .._artifacts import manifest
from . import audit, launch, release, smoke, status, supervise
from .errors import KitError
from .frame import write_answer
from .state import boot_id, read_json, utc

_DEFAULT_DEADLINE = 120


def _manifest(request: dict) -> dict:
    """Verb ``manifest``: roster, sizes and hashes of one run, made here on the box."""
    directory = os.path.join(request["root"], "runs", request["run_id"])
    run = read_json(os.path.join(directory, "run.json"))
    if not isinstance(run, dict):
        raise KitError(
            "no_such_run",
            "there is no run {} in {}".format(request["run_id"], request["root"]),
            "There is nothing to collect.",
            "See which runs are on the box: ansible-playbook playbooks/watch.yml -l <slot>.",
        )
    built = manifest.build(
        directory,
        run["run_id"],
        request["instance_id"],
        [cell["cell"] for cell in run["cells"]],
        run["artifacts"],
        run["checkpoints"],
        boot_id=boot_id(),
        host=os.uname().nodename,
    )
    return {"manifest": built, "directory": directory}


VERBS = {
    "audit": audit.audit,
    "release": release.seal,
    "smoke": smoke.smoke,
    "launch": launch.launch,
    "stop": launch.stop,
    "status": status.status,
    "manifest": _manifest,
}


def _too_late(*_: object) -> None:
    raise KitError(
        "deadline",
        "the box did not finish in the time it was given",
        "It is slow, or something on it hangs (a network disk, nvidia-smi).",
        "Run the same command again; if it repeats, look at the box.",
    )


def _box() -> dict:
    return {"boot_id": boot_id(), "clock": utc(), "python": sys.executable}


def main(words: list[str]) -> int:
    if words[:1] == ["supervise"]:
        return supervise.supervise(words[1], words[2])
    request = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(int(request.get("deadline", _DEFAULT_DEADLINE)))
    answer: dict = {"schema": "tenant.gpu/answer/1", "box": _box()}
    try:
        answer.update(VERBS[words[0]](request), ok=True)
    except KitError as problem:
        answer.update(ok=False, error=problem.as_dict())
    except OSError as problem:
        seen = f"{problem.filename or words[0]}: {problem.strerror or problem}"
        do = "Free space or inodes on that disk, or give the user the right to write there."
        error = {"code": "os_error", "seen": seen, "means": "The box refused a file operation.", "do": do}
        answer.update(ok=False, error=error)
    signal.alarm(0)
    write_answer(answer)
    return 0

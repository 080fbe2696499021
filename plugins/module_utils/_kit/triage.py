# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why a cell ended, in the order of the evidence: our stop record, exit status, cgroup counters, this attempt's log.

A class is named only with its evidence; what is not known is ``unknown``. Classes: behaviours, failure classification.
"""

from __future__ import annotations

import re

_LOG_CLASSES = (
    # (class, what the log says, what to do). Only the end of this attempt's own log is read.
    ("oom_capacity", r"CUDA out of memory", "make the step smaller, cheapest first: batch, then activations"),
    ("shm_exhausted", r"Unexpected bus error|out of shared memory", "fewer workers, or a larger /dev/shm"),
    ("disk_full", r"No space left on device", "free bytes or inodes on the disk that the path names"),
    ("cuda_mismatch", r"no kernel image is available|CUDA driver version is insufficient", "use a matching image"),
    ("ckpt_corrupt", r"PytorchStreamReader failed", "resume from the checkpoint before it"),
    ("port_collision", r"Address already in use", "choose a free port"),
    ("auth_model_hub", r"gated repo|401 Client Error|403 Client Error", "check the token and its access"),
    (
        "code_or_config",
        r"(?m)^(\w+\.)*(KeyError|AttributeError|ImportError|ModuleNotFoundError|NameError|"
        r"TypeError|SyntaxError|FileNotFoundError|ValueError)\b|error: unrecognized arguments",
        "fix the job, then launch",
    ),
)
_RETRYABLE = frozenset({"reboot", "preempted", "killed_external", "hangup", "port_collision", "ckpt_corrupt"})


def classify(facts: dict) -> dict:
    """``{class, evidence, do, retryable}`` from ``{exit_code, signal, stop, oom_delta, missing, log_tail}``.

    ``exit_code`` is None where a signal ended the command; ``stop`` is the stop record or None.
    """
    word, evidence, do = _decide(facts)
    return {"class": word, "evidence": evidence, "do": do, "retryable": word in _RETRYABLE}


def _decide(facts: dict) -> tuple[str, str, str]:
    code, signal, stop = facts.get("exit_code"), facts.get("signal"), facts.get("stop")
    ended = f"ended by signal {signal}" if signal else f"exit code {code}"
    if code == 0 and not facts.get("missing"):
        return "ok", ended, ""
    if stop:
        return _STOPS.get(stop.get("by"), "stopped_by_user"), "{} after a stop by {}".format(ended, stop.get("by")), ""
    if code == 0:
        return "incomplete_success", "exit code 0, missing: " + "; ".join(facts["missing"]), "look at the save path"
    if facts.get("oom_delta"):
        return "host_oom", f"{ended} and {facts['oom_delta']} oom kills", "fewer workers; leave the batch alone"
    if code in (126, 127):
        return "command_missing", ended, "check job_command: it must exist in the release or on the box"
    return _from_log(facts.get("log_tail") or "") or _from_signal(code, signal, ended)


_STOPS = {"user": "stopped_by_user", "preemption": "preempted", "max_duration": "max_duration"}


def _from_log(tail: str) -> tuple[str, str, str] | None:
    for word, pattern, do in _LOG_CLASSES:
        match = re.search(pattern, tail)
        if match:
            line = next(line for line in tail.splitlines() if match.group(0).splitlines()[0] in line)
            return word, "log: " + line.strip()[:300], do
    return None


def _from_signal(code: int | None, signal: int | None, ended: str) -> tuple[str, str, str]:
    if signal == 1 or code == 129:
        return "hangup", ended, "launch again"
    if signal == 9 or code == 137:
        return "killed_external", ended + ", no oom kill counted", "ask the platform; launch again"
    if signal == 15 or code == 143:
        return "killed_external", ended + ", not by us", "ask the platform; launch again"
    return "unknown", ended, "read the log"

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is due for a slot: one pure decision from what was seen (architecture §4.6). Nothing here acts."""

from __future__ import annotations

import typing as t

_TERMINAL = ("finished", "failed", "stopped")
#: Ends that a new attempt of the identical command can mend.
_INTERRUPTED = ("preempted", "dead")


def due(seen: dict[str, t.Any]) -> dict[str, t.Any]:
    """``{recover, collect, teardown, why}`` from ``{record, run, reachable, instance, receipt}``.

    ``run`` is the box's row or None; ``instance`` what the platform shows or None; ``receipt`` of the run or None.
    An unreachable box is recovered only when the platform itself says that the instance is dead: one signal never is.
    """
    record = seen.get("record")
    if not record or record.get("closed"):
        return _nothing("no open run on this slot")
    run, receipt = seen.get("run"), seen.get("receipt")
    if not seen.get("reachable"):
        return _unreachable(seen)
    if run is None:
        return _nothing("the run was never launched here; run train.yml again")
    if run["state"] in _INTERRUPTED:
        return _recover(record, f"run is {run['state']} ({run.get('class') or 'preempted'})", seen)
    if run["state"] not in _TERMINAL:
        return _nothing(f"run is {run['state']}")
    if receipt is None or not receipt.get("complete"):
        return {**_nothing(f"run is {run['state']} and not collected"), "collect": True, **_when_done(record, run)}
    return {**_nothing(f"run is {run['state']} and collected"), **_when_done(record, run)}


def _nothing(why: str) -> dict[str, t.Any]:
    return {"recover": False, "collect": False, "teardown": False, "why": why}


def _when_done(record: dict[str, t.Any], run: dict[str, t.Any]) -> dict[str, bool]:
    """Unattended teardown: only of a finished run, only as its job says, only with the approval given at launch."""
    wanted = record["job"]["when_done"] == "teardown" and record.get("teardown_standing") == record["run_id"]
    return {"teardown": wanted and run["state"] == "finished"}


def _unreachable(seen: dict[str, t.Any]) -> dict[str, t.Any]:
    instance, trouble = seen.get("instance"), seen.get("trouble")
    if instance and instance.get("dead"):
        return _recover(seen["record"], f"{instance['id']} is {instance['status']} and does not answer", seen)
    if not instance and trouble and trouble.get("code") == "not_found":
        return _recover(
            seen["record"], "the platform does not know the instance any more, and it does not answer", seen
        )
    return _nothing("the box does not answer, and the platform does not call it dead: unknown, so it is let be")


def _recover(record: dict[str, t.Any], why: str, seen: dict[str, t.Any]) -> dict[str, t.Any]:
    retry = record["job"]["retry"]
    if "interruption" not in retry["on_events"]:
        return _nothing(f"{why}; job_retry does not name interruption")
    if seen.get("fruitless", 0) >= int(retry["max"]):
        return _nothing(f"{why}; {seen['fruitless']} attempts in a row brought no progress, so it is not tried again")
    return {**_nothing(why), "recover": True}


def fruitless(steps: list[int | None]) -> int:
    """How many of the newest attempts began no further than the ones before them.

    ``steps`` is where each attempt began (None: from the start), oldest first: the first one counts for nothing.
    """
    count, best = 0, -2
    for step in steps:
        reached = -1 if step is None else step
        count = 0 if reached > best else count + 1
        best = max(best, reached)
    return count

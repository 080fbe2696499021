# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate before an irreversible verb (architecture §4.4): it asks the box, then the receipts, then the approval.

It runs in the task that makes the call, just before it. Every refusal says what to type instead.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import receipt as receipts

from .errors import Refused
from .files import read_json

_NEVER_LIVED = ("queued",)


@dataclass
class Question:
    """What is to be destroyed, what is known of it, and what the user has approved.

    ``recorded_runs`` were served by the instance, ``launched_runs`` last launched on it, as the controller knows.
    """

    instance_id: str
    approve: str
    discard: str
    results_dir: Path
    status: dict[str, t.Any] | None
    why_unreachable: str
    recorded_runs: list[str] = field(default_factory=list)
    launched_runs: list[str] = field(default_factory=list)
    data_survives: bool = False


def decide(question: Question) -> list[str]:
    """Return what was checked, in words, or raise Refused."""
    if question.discard:
        return _discard(question)
    if question.status is None:
        raise Refused(
            "box_unreachable",
            f"instance {question.instance_id} does not answer: {question.why_unreachable}",
            "Nobody can tell whether a job runs on it or results are left. Nothing was destroyed; it may be billing.",
            "Bring it back, or give up what is on it by name: "
            f"ansible-playbook playbooks/teardown.yml -l <slot> -e discard={question.instance_id}",
        )
    _refuse_live_work(question)
    _refuse_unreadable(question)
    proven = [_proven(question, row) for row in _runs_here(question)]
    _refuse_without_approval(question, proven)
    return [f"box asked: no live run, no foreign work, {len(proven)} runs", *[words for _, words in proven]]


def _discard(question: Question) -> list[str]:
    if question.discard != question.instance_id:
        raise Refused(
            "discard_other",
            f"discard names {question.discard}, the instance is {question.instance_id}",
            "A discard gives up exactly one instance. Nothing was destroyed.",
            f"Type -e discard={question.instance_id} if that is the one to give up.",
        )
    if question.status is None:
        return [f"discard: {question.instance_id} is given up unseen ({question.why_unreachable})"]
    lost = [f"discard: run {row['run_id']} ({row['state']}) is given up" for row in _runs_here(question)]
    return lost or [f"discard: {question.instance_id} holds no run"]


def _runs_here(question: Question) -> list[dict[str, t.Any]]:
    """Runs whose results go with this instance: those it ran, and all others unless the data outlives it."""
    rows = [row for row in (question.status or {}).get("runs", []) if row["state"] not in _NEVER_LIVED]
    if question.data_survives:
        rows = [row for row in rows if row["instance_id"] in (question.instance_id, None)]
    return rows


def _refuse_live_work(question: Question) -> None:
    status = question.status or {}
    live = [row["run_id"] for row in status.get("runs", []) if row["alive"]]
    if live:
        raise Refused(
            "live_run",
            f"run {', '.join(live)} is running on {question.instance_id}",
            "Destroying the box would kill it. Nothing was destroyed.",
            "Wait for it (watch.yml), or stop it: ansible-playbook playbooks/stop.yml -l <slot>",
        )
    if status.get("foreign"):
        raise Refused(
            "foreign_work",
            f"on {question.instance_id}: {'; '.join(status['foreign'])}",
            "Somebody else's work, or your own by hand, is going on there. Nothing was destroyed.",
            "End it, then run the same command again.",
        )


def _refuse_unreadable(question: Question) -> None:
    """A run whose files cannot be read, or that was launched here and is not seen, may hold results all the same."""
    rows = (question.status or {}).get("runs", [])
    broken = [row["run_id"] for row in rows if row["state"] == "unknown"]
    absent = sorted(set(question.launched_runs) - {row["run_id"] for row in rows})
    if broken or absent:
        raise Refused(
            "run_unreadable",
            f"on {question.instance_id}: {', '.join(broken) or 'none'} unreadable; "
            f"{', '.join(absent) or 'none'} launched there and not to be found",
            "A volume may not be mounted, or a disk may be damaged. Nothing was destroyed.",
            "Look at the box; to give up what is on it: "
            f"ansible-playbook playbooks/teardown.yml -l <slot> -e discard={question.instance_id}",
        )


def _proven(question: Question, row: dict[str, t.Any]) -> tuple[str, str]:
    """(run id, what its receipt says), or Refused."""
    run_id = row["run_id"]
    folder = question.results_dir / run_id
    receipt, manifest = read_json(folder / "RECEIPT.json"), read_json(folder / "MANIFEST.json")
    if receipt is None or manifest is None:
        raise Refused(
            "no_receipt",
            f"there is no receipt for run {run_id} in {folder}",
            "Its results were not pulled and verified from here. Nothing was destroyed.",
            "Collect them: ansible-playbook playbooks/collect.yml -l <slot>",
        )
    try:
        receipts.check(receipt, manifest=manifest, instance_id=question.instance_id, run_ids=[run_id], root=str(folder))
    except receipts.ReceiptError as problem:
        raise Refused("receipt", problem.seen, problem.means, problem.do) from problem
    if receipt["level"] != "loaded":
        raise Refused(
            "receipt_level",
            f"the receipt of {run_id} says {receipt['level']}",
            "Not every artifact was loaded whole, so an irreversible step stays shut.",
            "Collect again where the loaders are installed, or discard by name.",
        )
    newest = row.get("newest_mtime_ns")
    if newest is None or newest > manifest["newest_mtime_ns"]:
        raise Refused(
            "newer_on_box",
            f"run {run_id} has files on the box that are newer than its receipt",
            "They were not pulled. Nothing was destroyed.",
            "Collect again: ansible-playbook playbooks/collect.yml -l <slot>",
        )
    return run_id, f"receipt of {run_id}: {receipt['files']} files, {receipt['level']}, complete {receipt['complete']}"


def _refuse_without_approval(question: Question, proven: list[tuple[str, str]]) -> None:
    named = [word.strip() for word in question.approve.split(",") if word.strip()]
    runs = {run_id for run_id, _ in proven} | set(question.recorded_runs)
    if question.instance_id in named or (runs and runs <= set(named)):
        return
    raise Refused(
        "not_approved",
        f"{question.instance_id} is ready to be destroyed; {'; '.join(words for _, words in proven) or 'empty'}",
        "Destroying cannot be undone, so it waits for your word. Nothing was destroyed; it bills on.",
        f"ansible-playbook playbooks/teardown.yml -l <slot> -e teardown_approve={question.instance_id}",
    )

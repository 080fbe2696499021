# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb job_info: see plugins/modules/job_info.py."""

from __future__ import annotations

import fcntl
import os
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._kit.state import alive, identity
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import now
from ansible_collections.tenant.gpu.plugins.plugin_utils import card, care, kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import read_json, write_json
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, cost_of_run, seconds_between
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        book = Runs(args["tenant_home"])
        record = book.get(args["run_id"]) if args["run_id"] else None
        if args["hold"] and record and not self.check:
            self._hold(book, record["run_id"])
        answer, why = self._ask(args)
        rows = answer["runs"] if answer else []
        for row in rows if not self.check else []:
            book.saw(row["run_id"], row)
        run = next((row for row in rows if row["run_id"] == args["run_id"]), None)
        seen = {
            "record": record,
            "run": run,
            "reachable": answer is not None,
            "instance": args["instance"],
            "trouble": args["trouble"],
            "receipt": read_json(Path(args["results_dir"]).expanduser() / (args["run_id"] or "-") / "RECEIPT.json"),
            "fruitless": care.fruitless((record or {}).get("attempt_steps") or []),
        }
        due = care.due(seen)
        lines = self._lines(args, rows, record, book, why)
        beside = Ledger(args["tenant_home"]).open_beside(self.slot)
        lines += [card.still_open(self.slot, rental) for rental in beside]
        for line in lines:
            self.say(line)
        return {
            "changed": False,
            "reachable": answer is not None,
            "why": why,
            "run": run,
            "runs": rows,
            "foreign": answer["foreign"] if answer else [],
            "due": due,
            "lines": lines,
        }

    def _ask(self, args: dict[str, t.Any]) -> tuple[dict[str, t.Any] | None, str]:
        try:
            return kit.call(self, args["box"], "status", {}, args["deadline"]), ""
        except kit.Unreachable as problem:
            return None, str(problem)
        except Refused as problem:
            return None, problem.seen

    def _lines(
        self,
        args: dict[str, t.Any],
        rows: list[dict[str, t.Any]],
        record: dict[str, t.Any] | None,
        book: Runs,
        why: str,
    ) -> list[str]:
        """One line a run; for a box out of reach, what was last known and how old that is."""
        ledger = Ledger(args["tenant_home"])
        if rows:
            return [_line(row, _money(ledger, row["run_id"])) for row in rows]
        if record is None:
            return ["no run on this slot"]
        money = _money(ledger, record["run_id"])
        if record.get("closed"):
            return [f"{record['run_id']}  closed: {record['closed']['why']}  {money}"]
        known = book.last_seen(record["run_id"])
        if known is None:
            return [f"{record['run_id']}  not launched  {money}"]
        age = seconds_between(known["at"], now())
        instance = args["instance"] or {}
        says = f"platform says {instance.get('status', 'nothing')}"
        cells = known["run"].get("cells") or [{}]
        return [
            f"{record['run_id']}  UNREACHABLE, last known {known['run']['state']} step {cells[0].get('step')} "
            f"{age:.0f} s ago; {says}; {money}  ({' '.join(why.split())[-120:]})"
        ]

    def _hold(self, book: Runs, run_id: str) -> None:
        """One tick at a time: the lock belongs to the ansible-playbook process, and ends with it."""
        path = book.path(run_id).with_name("tick.json")
        with open(path.with_suffix(".lock"), "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            holder = read_json(path)
            mine = identity(os.getppid())
            if holder and holder != mine and alive(holder):
                raise Refused(
                    "tick_running",
                    f"process {holder['pid']} is already taking care of run {run_id}",
                    "Two ticks at once could rent twice. Nothing was done.",
                    "Let it end; the next tick sees what is left.",
                )
            write_json(path, mine)


def _money(ledger: Ledger, run_id: str) -> str:
    spent = cost_of_run(ledger, run_id)
    return "cost unknown" if spent["amount"] is None else f"cost {float(spent['amount']):.4f} {spent['currency']}"


def _line(row: dict[str, t.Any], money: str) -> str:
    cells = []
    for cell in row["cells"]:
        step = f" step {cell['step']}/{cell.get('total') or '?'}" if cell.get("step") is not None else ""
        name = "" if len(row["cells"]) == 1 else f"{cell['cell']}: "
        cells.append(f"{name}{cell['state']}{step}" if len(row["cells"]) > 1 else step.strip() or cell["state"])
    age = f"progress {row['progress_age']:.0f} s ago" if row.get("progress_age") is not None else "no progress yet"
    why = f" ({row['class']})" if row.get("class") else ""
    return f"{row['run_id']}  {row['state']}{why}  {'; '.join(cells)}  {age}  {money}"

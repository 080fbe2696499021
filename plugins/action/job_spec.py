# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb job_spec: see plugins/modules/job_spec.py."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import now
from ansible_collections.tenant.gpu.plugins.plugin_utils import jobspec, runs
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        book = runs.Runs(args["tenant_home"])
        if args["purpose"] == "care":
            record = book.get(args["run_id"]) if args["run_id"] else book.current(self.slot)
            return self._answer(record, changed=False)
        self._one_slot(args)
        job = jobspec.resolve(args["job"])
        jobspec.refuse_missing_secrets(job["secrets"])
        return self._to_launch(book, job, args)

    def _one_slot(self, args: dict[str, t.Any]) -> None:
        """A job takes one slot; several matching ones are the user's choice, not ours."""
        hosts = list(self.task_vars.get("ansible_play_hosts_all") or [self.slot])
        if len(hosts) > 1:
            raise Refused(
                "several_slots",
                f"{len(hosts)} slots match: {', '.join(hosts)}",
                "Nothing was rented: each would train everything. This version runs all cells of a sweep on one box.",
                f"Name one: -l {hosts[0]}",
            )

    def _to_launch(self, book: runs.Runs, job: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        digest = runs.digest(job)
        current = book.current(self.slot)
        wanted = args["run_id"]
        if wanted and wanted != "new":
            current = book.get(wanted)
            self._refuse_taken(current)
        elif wanted == "new" or (current and current.get("closed")):
            current = None
        if current is None:
            run_id = runs.check_run_id(wanted) if wanted and wanted != "new" else runs.mint(job["project"])
            return self._mint(book, run_id, job, digest)
        if current["job_digest"] != digest:
            differing = sorted(key for key in job if job[key] != current["job"].get(key))
            raise Refused(
                "other_run_open",
                f"slot {self.slot} has the open run {current['run_id']}; the job differs in {', '.join(differing)}",
                "A run is resumed with the identical job, and its results are not collected yet.",
                f"Finish it (tick.yml, collect.yml), or start another with -e run_id=new. Slot: {current['slot']}.",
            )
        return self._answer(current, changed=False)

    def _refuse_taken(self, record: dict[str, t.Any] | None) -> None:
        if record and (record["slot"] != self.slot or record.get("closed")):
            what = "is closed" if record.get("closed") else f"belongs to slot {record['slot']}"
            raise Refused(
                "run_taken",
                f"run {record['run_id']} {what}",
                "A run id is used once: two runs of one name would mix their results.",
                f"Name that slot (-l {record['slot']}), or leave run_id out.",
            )

    def _mint(self, book: runs.Runs, run_id: str, job: dict[str, t.Any], digest: str) -> dict[str, t.Any]:
        record = {
            "run_id": run_id,
            "slot": self.slot,
            "project": job["project"],
            "job": job,
            "job_digest": digest,
            "directory": os.getcwd(),
            "created_at": now(),
            "closed": None,
        }
        if not self.check:
            book.put(record)
        self.say(f"job {job['name']}: run {run_id}")
        return self._answer(record, changed=True)

    def _answer(self, record: dict[str, t.Any] | None, changed: bool) -> dict[str, t.Any]:
        job = record["job"] if record else None
        run_id = record["run_id"] if record else None
        diff = difference(changed, "", f"run {run_id}\n")
        return {"changed": changed, "job": job, "run_id": run_id, "record": record, **diff}

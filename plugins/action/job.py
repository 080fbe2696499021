# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb job: see plugins/modules/job.py."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.tenant.gpu.plugins.plugin_utils import card, kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.jobspec import refuse_missing_secrets
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs

_LOST = "The box went out of reach. What runs on it goes on without us."
#: Fields of the job that the box needs; prices and approvals are none of its business.
_TOLD = (
    "name", "project", "command", "setup", "requirements", "env", "artifacts", "checkpoints", "progress",
    "stall_seconds", "max_duration", "cells",
)  # fmt: skip


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        try:
            return self._stopped(args) if args["state"] == "stopped" else self._started(args)
        except kit.Unreachable as problem:
            raise Refused("unreachable", str(problem), _LOST, "Run the same command again.") from problem

    def _started(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        run, box = self._run(args), args["box"]
        if self.check:
            planned = {"run_id": run["run_id"], "state": "queued", "cells": []}
            return {
                "changed": True,
                "run": planned,
                "note": "check",
                **difference(True, "", f"{run['run_id']} running\n"),
            }
        request = {
            "run": run,
            "instance_id": args["instance_id"],
            "python": box.get("python"),
            "kit": box.get("kit"),
            "detach": args["detach"],
            "secrets": self._secrets(args),
            "secret_dir": args["secret_dir"],
            "env": args["env"],
            "takeover": [args["takeover"]] if args["takeover"] else [],
            "wait_seconds": args["wait"],
        }
        answer = kit.call(self, box, "launch", request, args["wait"] + args["deadline"])
        self._remember(args, answer)
        self._refuse_stillborn(run, answer)
        cell = (answer["cells"] or [{}])[0]
        if answer["changed"]:
            resumed = cell.get("resumed_from_step")
            start = f"resumed from step {resumed}" if resumed is not None else "from the start"
            self.say(f"run {run['run_id']} attempt {cell.get('attempt')} {start}, detached: it needs nobody now")
            if (answer.get("runner") or {}).get("detach") == "nohup":
                self.say("tmux is missing on the box: the run is detached the weaker way (nohup)")
        else:
            self.say(f"run {run['run_id']}: {answer['note']}")
        for line in card.next_after_launch(self.slot):
            self.say(line)
        diff = difference(answer["changed"], "", f"{run['run_id']} {answer['state']}\n")
        return {"changed": answer["changed"], "run": _row(run["run_id"], answer), "note": answer["note"], **diff}

    def _run(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        job = args["job"]
        told = {name: job[name] for name in _TOLD}
        return {
            "schema": "tenant.gpu/run/1",
            "run_id": args["run_id"],
            "release": args["release"],
            "floors": args["floors"],
            "secret_names": job["secrets"],
            **told,
        }

    def _secrets(self, args: dict[str, t.Any]) -> dict[str, str]:
        """Values from the controller's environment; they travel on stdin, into a file that is not durable."""
        names = args["job"]["secrets"]
        refuse_missing_secrets(names)
        for place in args["secret_forbidden"] if names else []:
            if (args["secret_dir"] + "/").startswith(place.rstrip("/") + "/"):
                raise Refused(
                    "secret_place",
                    f"profile_secret_dir {args['secret_dir']} lies on {place}",
                    "Secrets would outlive the box on storage that others may read. Nothing was launched.",
                    "Choose a folder on the box's own disk.",
                )
        return {name: os.environ[name] for name in names}

    def _remember(self, args: dict[str, t.Any], answer: dict[str, t.Any]) -> None:
        book = Runs(args["tenant_home"])
        changes: dict[str, t.Any] = {"instance_id": args["instance_id"]}
        if answer["changed"]:
            began = (answer["cells"] or [{}])[0].get("resumed_from_step")
            changes["attempt_steps"] = [*((book.get(args["run_id"]) or {}).get("attempt_steps") or []), began]
        if args["standing"]:
            changes["teardown_standing"] = args["standing"]
        book.update(args["run_id"], **changes)
        book.saw(args["run_id"], _row(args["run_id"], answer))

    @staticmethod
    def _refuse_stillborn(run: dict[str, t.Any], answer: dict[str, t.Any]) -> None:
        """A job that failed while we looked on: say why at once, with its own last words."""
        failed = [cell for cell in answer["cells"] if cell.get("state") == "failed"]
        if answer["changed"] and failed:
            cell = failed[0]
            tail = " | ".join(cell.get("log_tail") or [])[-600:]
            raise Refused(
                str(cell.get("class", "failed")),
                f"cell {cell['cell']} of {run['run_id']} ended at once: {cell.get('evidence')}. Log: {tail or 'empty'}",
                "The job does not run as it is; the box is up and bills.",
                f"{cell.get('do') or 'Mend the job'}. Then train.yml with -e run_id=new, or teardown.yml.",
                run=_row(run["run_id"], answer),
            )

    def _stopped(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        if self.check:
            rows = kit.call(self, args["box"], "status", {}, args["deadline"])["runs"]
            alive = any(row["alive"] for row in rows if row["run_id"] == args["run_id"])
            return {"changed": alive, "run": {"run_id": args["run_id"]}, "note": "check"}
        request = {"run_id": args["run_id"], "wait_seconds": args["wait"]}
        answer = kit.call(self, args["box"], "stop", request, args["wait"] + args["deadline"])
        Runs(args["tenant_home"]).saw(args["run_id"], _row(args["run_id"], answer))
        self.say(f"run {args['run_id']}: {answer['note']}, state {answer['state']}; the box bills on")
        diff = difference(answer["changed"], f"{args['run_id']} running\n", f"{args['run_id']} {answer['state']}\n")
        return {"changed": answer["changed"], "run": _row(args["run_id"], answer), "note": answer["note"], **diff}


def _row(run_id: str, answer: dict[str, t.Any]) -> dict[str, t.Any]:
    return {"run_id": run_id, **{key: answer.get(key) for key in ("state", "class", "cells", "runner")}}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb smoke: see plugins/modules/smoke.py."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._kit import smoke as kit_smoke
from ansible_collections.tenant.gpu.plugins.plugin_utils import kit, source
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import read_json, write_json
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import digest


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        job, where = args["job"], args["where"]
        wanted = job["smoke"]["local" if where == "controller" else "box"]
        if not wanted:
            return {"changed": False, "ran": False, "passed": None, "log_tail": []}
        request = {
            "command": wanted["command"] or job["command"],
            "seconds": wanted["seconds"],
            "may_outlive": wanted["command"] is None,
            "env": job["env"],
        }
        if self.check:
            return {"changed": False, "ran": False, "passed": None, "log_tail": []}
        answer = self._here(request, job, args) if where == "controller" else self._there(request, args)
        if not answer["passed"]:
            code = answer["exit_code"]
            ended = "did not end in its time" if code is None else f"ended with {code}"
            raise Refused(
                "smoke_timeout" if code is None else "smoke_failed",
                f"the smoke on the {where} {ended}: {' | '.join(answer['log_tail'][-4:])}",
                "The job would fail the same way at the full price. Nothing was "
                + ("rented." if where == "controller" else "launched; the box bills."),
                "Mend the job, then run the same command again.",
                **answer,
            )
        if not answer.get("cached"):
            self.say(f"smoke on the {where} passed in {answer['seconds']} s")
        return {"changed": False, "ran": True, **{key: answer[key] for key in ("passed", "log_tail")}}

    def _there(self, request: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        box = args["box"] or {}
        request |= {"release": args["release"], "python": box.get("python")}
        try:
            return kit.call(self, box, "smoke", request, request["seconds"] + 60)
        except kit.Unreachable as problem:
            raise Refused(
                "unreachable",
                str(problem),
                "The box went out of reach during its smoke.",
                "Run the same command again.",
            ) from problem

    def _here(self, request: dict[str, t.Any], job: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        """On a copy of the same files, without a GPU; a pass is remembered by the source and the command."""
        home = Path(args["tenant_home"]).expanduser()
        tree = source.read(job["source"], home / "sources")
        passed = home / "smoke" / f"{digest({'release': tree.digest, **request})}.json"
        known = read_json(passed)
        if known:
            return {**known, "cached": True}
        with tempfile.TemporaryDirectory(prefix="tenant-smoke-") as scratch:
            for name in tree.names:
                target = Path(scratch) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree.root / name, target, follow_symlinks=False)
            request["env"] = {**request["env"], "CUDA_VISIBLE_DEVICES": ""}
            answer = kit_smoke.run(request, scratch, os.environ.get("TENANT_SMOKE_PYTHON") or sys.executable)
        if answer["passed"]:
            write_json(passed, answer)
        return answer

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb box_info: see plugins/modules/box_info.py."""

from __future__ import annotations

import typing as t

from ansible_collections.tenant.gpu.plugins.plugin_utils import kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused

_TOOLS = ("tmux", "rsync", "git", "nvidia-smi")


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        box = args["box"]
        if self.check and not box.get("reachable"):
            return {"changed": False, "reachable": False, "facts": {}, "failures": [], "warnings": []}
        durable = self._durable_dir(args)
        request = {
            "data_dir": box.get("data_dir"),
            "durable_dir": durable,
            "separate_durable": args["separate_durable"] and durable is not None,
            "python": box.get("python"),
            "floors": args["floors"],
            "wanted": args["wanted"],
            "tools": _TOOLS,
        }
        try:
            answer = kit.call(self, box, "audit", request, args["deadline"])
        except kit.Unreachable as problem:
            return {"changed": False, "reachable": False, "why": str(problem), "facts": {}, "failures": [],
                    "warnings": []}  # fmt: skip
        self._report(answer)
        if answer["failures"] and args["strict"]:
            raise Refused(
                "audit",
                "; ".join(answer["failures"]),
                "The box is not what the job needs, or is about to fail it. Nothing was launched; it bills.",
                f"Mend it, or give the box back: ansible-playbook playbooks/teardown.yml -l {self.slot}",
                reachable=True,
                facts=answer,
            )
        return {
            "changed": False,
            "reachable": True,
            "facts": answer,
            "failures": answer["failures"],
            "warnings": answer["warnings"],
        }

    def _durable_dir(self, args: dict[str, t.Any]) -> str | None:
        """Where results must lie to outlive the box; a plan that would lose them is refused before anything is paid."""
        durable = args["durable"]
        if durable.get("kind") != "mount":
            return None
        path = str(durable["path"])
        lost = [mount for mount in args["mounts"] if _holds(mount["path"], path)]
        mount = max(lost, key=lambda one: len(one["path"]), default=None)
        if mount is not None and not mount.get("survives_destroy") and not args["volume_mounted"]:
            survivors = [one["path"] for one in args["mounts"] if one.get("survives_destroy")]
            self.say(
                f"{path} goes with the box when it is destroyed; "
                f"{'surviving: ' + ', '.join(survivors) if survivors else 'collect before teardown'}"
            )
        return path

    def _report(self, answer: dict[str, t.Any]) -> None:
        gpus = answer["gpus"]
        names = f"{len(gpus)} x {gpus[0]['name']}" if gpus else f"no GPU ({answer['gpu_note']})"
        limit = answer["cgroup"]["memory_limit_bytes"]
        memory = f"{limit >> 30} GiB" if limit else "no limit"
        space = max(answer["disk"], key=lambda one: len(one["path"]))
        inodes = space["free_inodes"] if space["inodes_limited"] else "not limited"
        self.say(
            f"{names}, {answer['cgroup']['vcpus']} vCPU, memory {memory}; {space['path']}: "
            f"{space['free_bytes'] >> 30} GiB and {inodes} inodes free"
        )
        for warning in answer["warnings"]:
            self.say(f"warning: {warning}")


def _holds(mount: str, path: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")

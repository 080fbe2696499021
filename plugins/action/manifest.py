# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb manifest: see plugins/modules/manifest.py."""

from __future__ import annotations

import typing as t

from ansible_collections.tenant.gpu.plugins.plugin_utils import kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        request = {"run_id": args["run_id"], "instance_id": args["instance_id"]}
        try:
            answer = kit.call(self, args["box"], "manifest", request, args["deadline"])
        except kit.Unreachable as problem:
            raise Refused(
                "unreachable", str(problem), "Without the box there is no manifest.", "Run the same command again."
            ) from problem
        return {"changed": False, "manifest": answer["manifest"], "directory": answer["directory"]}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb artifact_verify: see plugins/modules/artifact_verify.py."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.manifest import Manifest, ManifestError, validate
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused, as_result

#: the verdicts that fail the task, by ``fail_on``
_FAIL_ON = {
    "never": frozenset(),
    "suspect": verify.FAILED,
    "structural_only": verify.FAILED | {"structural_only"},
}
_MAX_MANIFEST = 512 << 20


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        path = os.path.abspath(os.path.expanduser(args["path"]))
        found = self._with_manifest(path, args) if args["manifest"] else self._alone(path, args)
        # `failed` is the word by which Ansible knows a failed task, so the count goes by another name.
        result = {"changed": False, "path": path, "worst": verify.worst(found["artifacts"]), **found}
        result["failed_count"] = result.pop("failed")
        bad = self._bad(found, args["fail_on"])
        if not bad:
            return {**result, "msg": f"{len(found['artifacts'])} artifacts, worst verdict {result['worst']}"}
        return as_result(
            "artifact_not_whole",
            "; ".join(bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else ""),
            "What is named is not a whole, usable result.",
            "Fetch it again (collect.yml), or write it again on the box. fail_on: never only reports.",
            result,
        )

    def _alone(self, path: str, args: dict[str, t.Any]) -> dict[str, t.Any]:
        try:
            return verify.verify_path(
                path, format=args["format"], keys=args["keys"], finite=args["finite"], jobs=args["jobs"]
            )
        except OSError as problem:
            raise Refused(
                "no_such_path",
                f"{path}: {problem.strerror}",
                "There is nothing to verify on this controller; the verb reads no file on the box.",
                "Give the path of a pulled file or folder.",
            ) from problem

    def _with_manifest(self, path: str, args: dict[str, t.Any]) -> dict[str, t.Any]:
        if not os.path.isdir(path):
            raise Refused(
                "no_such_folder",
                f"{path} is no folder",
                "A manifest is verified against the folder that its paths are relative to.",
                "Give the run's folder as path, as results/<run_id>.",
            )
        try:
            return verify.verify_tree(path, _manifest(args["manifest"]), self._artifacts(args), args["jobs"])
        except ManifestError as problem:
            raise Refused("manifest", problem.seen, problem.means, problem.do) from problem

    def _artifacts(self, args: dict[str, t.Any]) -> list[dict[str, t.Any]]:
        """What the job wants of each artifact; ``format``, ``keys`` and ``finite`` fill in what an entry leaves out."""
        common = {"format": args["format"], "keys": args["keys"], "finite": args["finite"]}
        return [{**common, **{key: value for key, value in row.items() if value}} for row in args["artifacts"]]

    def _bad(self, found: dict[str, t.Any], fail_on: str) -> list[str]:
        if fail_on == "never":
            return []
        rows = [row for row in found["artifacts"] if row["verdict"] in _FAIL_ON[fail_on]]
        words = [f"{verify.safe_text(row['path'])} is {row['verdict']}: {row['detail']}" for row in rows]
        words += [f"{verify.safe_text(path)} differs from the manifest" for path in found["mismatched"]]
        return words + [f"{verify.safe_text(path)} is in the manifest, but not here" for path in found["missing"]]


def _manifest(path: str) -> Manifest:
    """Raises Refused or ManifestError."""
    full = os.path.abspath(os.path.expanduser(path))
    try:
        if os.path.getsize(full) > _MAX_MANIFEST:
            raise ValueError(f"larger than {_MAX_MANIFEST} bytes")
        with open(full, "rb") as stream:
            return validate(json.load(stream))
    except (OSError, ValueError, RecursionError) as problem:
        raise Refused(
            "no_manifest",
            f"{full}: {verify.safe_text(problem)}",
            "It cannot be read as a manifest.",
            "Give the MANIFEST.json that collect.yml wrote into the run's folder.",
        ) from problem

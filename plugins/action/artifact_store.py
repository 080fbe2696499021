# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb artifact_store: see plugins/modules/artifact_store.py."""

from __future__ import annotations

import shutil
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import read_json, write_json
from ansible_collections.tenant.gpu.plugins.plugin_utils.remote import Remote

_RECEIPT = "RECEIPT.json"
_SPARE_BYTES = 64 << 20


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        folder = Path(args["folder"]).expanduser().absolute()
        self.artifacts = args["artifacts"]
        manifest, checked, receipt = _collected(folder)
        # One place for each set of files, so that a later pull never writes over an earlier one.
        remote = Remote(args["to"], self.environ()).below(receipt["run_id"], manifests.digest(manifest)[:12])
        answer = {"remote": remote.place, "receipt": receipt, "files": len(checked.files)}
        if {"remote": remote.place} in receipt["copies"] and _in_full(remote, checked):
            return {"changed": False, **answer}
        if not self.check:
            self.say(f"copying {len(checked.files)} files, {checked.bytes} bytes, to {remote.place}")
            self._store(folder, checked, remote)
            answer["receipt"] = _vouch(folder, receipt, remote)
            self.say(f"{remote.place}: every file loaded again from there")
        return {"changed": True, **answer, **difference(True, "", f"{remote.place}\n")}

    def _store(self, folder: Path, checked: manifests.Manifest, remote: Remote) -> None:
        """Copy, then load from there; what does not come back the same is sent once more, whatever it looks like."""
        remote.put(folder, without=_RECEIPT)
        wrong = self._differs(folder, checked, remote)
        if wrong:
            self.say(f"{len(wrong)} files came back from {remote.place} different: sending them again")
            remote.put(folder, without=_RECEIPT, again=True)
            wrong = self._differs(folder, checked, remote)
        if wrong:
            raise Refused(
                "remote_differs",
                f"{len(wrong)} files come back from {remote.place} different: {', '.join(wrong[:5])}",
                "That copy counts for nothing. The copy on this controller is whole and stays.",
                "Check the store (quota, gateway, another writer), then run the same command again.",
            )

    def _differs(self, folder: Path, checked: manifests.Manifest, remote: Remote) -> list[str]:
        """What is missing, other than the manifest says, or does not load, of the copy that comes back."""
        _room_for(folder.parent, checked)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.back.", dir=folder.parent) as back:
            remote.get(Path(back))
            found = verify.verify_tree(back, checked, self.artifacts)
        bad = [row["path"] for row in found["artifacts"] if row["verdict"] in verify.FAILED]
        return sorted({*found["missing"], *found["mismatched"], *bad})


def _collected(folder: Path) -> tuple[dict[str, t.Any], manifests.Manifest, dict[str, t.Any]]:
    """Manifest, the same checked, and receipt of a pulled folder; Refused where they do not belong together."""
    manifest, receipt = read_json(folder / "MANIFEST.json"), read_json(folder / _RECEIPT)
    if manifest is None or receipt is None:
        raise Refused(
            "not_collected",
            f"{folder} holds no {'MANIFEST.json' if manifest is None else _RECEIPT}",
            "Only what was pulled and verified is copied on.",
            "Collect first: ansible-playbook playbooks/collect.yml -l <slot>",
        )
    try:
        checked = manifests.validate(manifest)
    except manifests.ManifestError as problem:
        raise Refused("manifest", problem.seen, problem.means, problem.do) from problem
    if receipt.get("manifest_sha256") != manifests.digest(manifest):
        raise Refused(
            "receipt",
            f"the receipt in {folder} was made for another manifest",
            "What it proves is not what lies there. Nothing was copied.",
            "Collect again: ansible-playbook playbooks/collect.yml -l <slot>",
        )
    return manifest, checked, receipt


def _in_full(remote: Remote, checked: manifests.Manifest) -> bool:
    """Whether the store still lists every file with its size, the receipt among them."""
    there = remote.sizes()
    return _RECEIPT in there and all(there.get(one.path) == one.size for one in checked.files)


def _vouch(folder: Path, receipt: dict[str, t.Any], remote: Remote) -> dict[str, t.Any]:
    """The receipt names the new copy from now on, here and, last, there."""
    copy = {"remote": remote.place}
    named = {**receipt, "copies": [*(one for one in receipt["copies"] if one != copy), copy]}
    write_json(folder / _RECEIPT, named, 0o644)
    remote.put_file(folder / _RECEIPT)
    return named


def _room_for(folder: Path, checked: manifests.Manifest) -> None:
    free = shutil.disk_usage(folder).free
    if free < checked.bytes + _SPARE_BYTES:
        raise Refused(
            "no_room",
            f"{folder} has {free} bytes free; {checked.bytes} are due to come back from the store for a look",
            "The copy there cannot be proven from here.",
            "Free space, or choose another results_dir; then run the same command again.",
        )

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb pull: see plugins/modules/pull.py."""

from __future__ import annotations

import os
import platform
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import receipt as receipts
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.plugin_utils import card, kit, transfer
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import read_json, sync_folder, write_bytes, write_json
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs

_OWN_FILES = frozenset({"MANIFEST.json", "RECEIPT.json", "CARD.md"})
_ROUNDS = 3
_SPARE_BYTES = 64 << 20


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        results = Path(args["results_dir"]).expanduser().absolute()
        self.final = results / args["run_id"]
        self.stage = results / f".{args['run_id']}.partial"
        self.limit, self.specs = args["slice"], args["artifacts"]
        try:
            made = self._manifest(args)
        except kit.Unreachable as problem:
            raise self._lost(problem) from problem
        known = self._standing(made, args)
        if known is not None:
            self.say(f"{self.final}: collected and verified already")
            return self._answer(False, known, made)
        if self.check:
            return {"changed": True, "complete": False, "folder": str(self.final), "receipt": None, "artifacts": [],
                    "left_behind": made["manifest"]["left_behind"]}  # fmt: skip
        return self._collect(made, args)

    def _manifest(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        request = {"run_id": args["run_id"], "instance_id": args["instance_id"]}
        made = kit.call(self, args["box"], "manifest", request, args["deadline"])
        try:
            manifests.validate(made["manifest"])
        except manifests.ManifestError as problem:
            raise Refused("manifest", problem.seen, problem.means, problem.do) from problem
        if made["manifest"]["run_id"] != args["run_id"] or made["manifest"]["instance_id"] != args["instance_id"]:
            raise Refused(
                "manifest",
                "the box's manifest names another run or instance",
                "It cannot vouch for this one. Nothing was pulled.",
                "See what is on the box: watch.yml.",
            )
        return made

    def _standing(self, made: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any] | None:
        """The receipt of an earlier pull, if it still holds for exactly these files."""
        receipt, old = read_json(self.final / "RECEIPT.json"), read_json(self.final / "MANIFEST.json")
        if receipt is None or old is None or _content(old) != _content(made["manifest"]):
            return None
        try:
            receipts.check(
                receipt, manifest=old, instance_id=args["instance_id"], run_ids=[args["run_id"]], root=str(self.final)
            )
        except receipts.ReceiptError:
            return None
        wanted = set(args["accept_missing"])
        return t.cast("dict[str, t.Any]", receipt) if wanted <= set(receipt["accepted_missing"]) else None

    def _collect(self, made: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        manifest = made["manifest"]
        size = sum(entry["size"] for entry in manifest["files"])
        self._refuse_unknown_cells(manifest, args["accept_missing"])
        self._room_for(size, len(manifest["files"]))
        self.say(f"pulling {len(manifest['files'])} files, {size} bytes")
        names = [entry["path"] for entry in manifest["files"]]
        if not self._fetch(made["directory"], names, by_content=False):
            self.say("the slice is over; the next one goes on where this one ended")
            return {"changed": True, "complete": False, "folder": str(self.stage), "receipt": None, "artifacts": [],
                    "left_behind": manifest["left_behind"]}  # fmt: skip
        found = self._verified(made)
        receipt = self._receipt(manifest, found, args)
        self._refuse_bad(found, receipt)
        self._publish(made, receipt, args)
        return self._answer(True, receipt, made)

    @staticmethod
    def _refuse_unknown_cells(manifest: dict[str, t.Any], accepted: list[str]) -> None:
        lacking = {str(row["cell"]) for row in manifest["missing"]}
        wrong = sorted(set(accepted) - lacking)
        if wrong:
            raise Refused(
                "accept_missing",
                f"collect_accept_missing names {', '.join(wrong)}; cells that lack something: "
                f"{', '.join(sorted(lacking)) or 'none'}",
                "Accepting what is not missing hides a typing error. Nothing was pulled.",
                "Correct the names, separated by commas.",
            )

    def _room_for(self, size: int, files: int) -> None:
        self.stage.mkdir(parents=True, exist_ok=True)
        about = os.statvfs(self.stage)
        free, inodes = about.f_bavail * about.f_frsize, about.f_favail if about.f_files else None
        if free < size + _SPARE_BYTES or (inodes is not None and inodes < files + 100):
            raise Refused(
                "no_room",
                f"{self.stage.parent} has {free} bytes and {inodes} inodes free; {size} bytes in {files} files are due",
                "The pull would stop in the middle. Nothing was pulled, and the box bills.",
                "Free space, or choose another results_dir.",
            )

    def _fetch(self, directory: str, names: list[str], *, by_content: bool) -> bool:
        """rsync the named files into the stage; False where the slice ended first."""
        arguments = ["--times", "--perms", "--chmod=u+rw,go-w", "--from0", "--files-from=-", "--no-implied-dirs"]
        arguments += ["--checksum"] if by_content else []
        if self.final.is_dir():
            arguments.append(f"--copy-dest={self.final}")
        feed = "\0".join(names).encode("utf-8", "surrogateescape")
        for attempt in range(_ROUNDS):
            try:
                route = transfer.route(self)
            except kit.Unreachable as problem:
                raise self._lost(problem) from problem
            source = f"{route.target}:{directory}/"
            code, text = transfer.rsync(route, [*arguments, source, f"{self.stage}/"], limit=self.limit, feed=feed)
            if code == 0:
                return True
            if text == "the slice ended":
                return False
            if code == 24 or (code == 23 and "vanished" in text):
                raise transfer.refusal(24, text)
            if code not in transfer.RETRYABLE or attempt == _ROUNDS - 1:
                raise transfer.refusal(code, text)
        return False

    def _verified(self, made: dict[str, t.Any]) -> dict[str, t.Any]:
        """Hash and load everything; what differs is fetched again by content, never by size and time."""
        manifest = made["manifest"]
        for attempt in range(_ROUNDS):
            found = verify.verify_tree(str(self.stage), manifest, self.specs)
            wrong = found["mismatched"] + found["missing"]
            if not wrong:
                break
            if attempt == _ROUNDS - 1:
                raise Refused(
                    "moved_source",
                    f"{len(wrong)} files differ from the manifest after {_ROUNDS} tries: {', '.join(wrong[:5])}",
                    "They changed on the box since it was made, or the disk here is bad.",
                    "See that nothing writes there any more, then collect again.",
                )
            self._fetch(made["directory"], wrong, by_content=True)
        self._move_strangers(found["strangers"])
        return found

    def _move_strangers(self, names: list[str]) -> None:
        """Files the manifest does not name are kept, beside the results."""
        for name in names:
            if name in _OWN_FILES:
                continue
            target = self.stage.with_name(f".{self.final.name}.strangers") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.stage / name, target)

    def _receipt(self, manifest: dict[str, t.Any], found: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        copies = [{"host": platform.node(), "path": str(self.final)}]
        verifier = f"tenant.gpu on {platform.node()}, Python {platform.python_version()}"
        return receipts.make(manifest, found, copies, verifier, args["accept_missing"])

    def _refuse_bad(self, found: dict[str, t.Any], receipt: dict[str, t.Any]) -> None:
        if not found["failed"]:
            return
        bad = [
            f"{entry['path']}: {entry['verdict']}, {entry['detail']}"
            for entry in found["artifacts"]
            if entry["verdict"] in ("suspect", "corrupt", "truncated")
        ]
        raise Refused(
            "artifact",
            "; ".join(bad[:5]) or f"{found['failed']} artifacts failed",
            f"They arrived as they are on the box, and do not load. No receipt was made; they lie in {self.stage}.",
            "Look at the run's log; correct job_artifacts if the demand is wrong.",
            artifacts=receipt["artifacts"],
        )

    def _publish(self, made: dict[str, t.Any], receipt: dict[str, t.Any], args: dict[str, t.Any]) -> None:
        """Manifest and card, then the receipt last; the final folder appears by one rename."""
        write_json(self.stage / "MANIFEST.json", made["manifest"], 0o644)
        write_bytes(self.stage / "CARD.md", card.render(args["run_id"], self.slot, receipt).encode(), 0o644)
        write_json(self.stage / "RECEIPT.json", receipt, 0o644)
        if self.final.exists():
            kept = self.final.with_name(f".{self.final.name}.{receipt['verified_at'].replace(':', '')}")
            os.rename(self.final, kept)
            self.say(f"the earlier pull is kept in {kept}")
        os.rename(self.stage, self.final)
        sync_folder(self.final.parent)
        Ledger(args["tenant_home"]).append(
            "collected",
            slot=self.slot,
            instance_id=args["instance_id"],
            run_id=args["run_id"],
            receipt=str(self.final / "RECEIPT.json"),
        )
        if receipt["complete"] and args["final"]:
            Runs(args["tenant_home"]).close(args["run_id"], "collected and verified")

    def _answer(self, changed: bool, receipt: dict[str, t.Any], made: dict[str, t.Any]) -> dict[str, t.Any]:
        if changed:
            for line in card.table(receipt, made["manifest"]):
                self.say(line)
            for line in card.next_after_collect(self.slot, receipt):
                self.say(line)
        return {
            "changed": changed,
            "complete": True,
            "folder": str(self.final),
            "receipt": receipt,
            "artifacts": receipt["artifacts"],
            "left_behind": made["manifest"]["left_behind"],
        }

    @staticmethod
    def _lost(problem: Exception) -> Refused:
        return Refused(
            "unreachable",
            str(problem),
            "The box went out of reach. What has arrived is kept.",
            "Run the same command again: it goes on where it ended.",
        )


def _content(manifest: dict[str, t.Any]) -> list[tuple[str, int, str]]:
    return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in manifest["files"])

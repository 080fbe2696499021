# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb pull: see plugins/modules/pull.py."""

from __future__ import annotations

import os
import platform
import time
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest as manifests
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import receipt as receipts
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.plugin_utils import card, kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.fetch import Fetcher, Teller, drop_partials
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import read_json, sync_folder, write_bytes, write_json
from ansible_collections.tenant.gpu.plugins.plugin_utils.landing import Landing
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs

_ROUNDS = 3
_SPARE_BYTES = 64 << 20
_FRESH_SECONDS = 900


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        results = Path(args["results_dir"]).expanduser().absolute()
        self.final = results / args["run_id"]
        self.stage = results / f".{args['run_id']}.partial"
        self.specs = args["artifacts"]
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
        made = self._of_the_last_slice(args)
        if made is not None:
            return made
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

    def _of_the_last_slice(self, args: dict[str, t.Any]) -> dict[str, t.Any] | None:
        """The manifest that a slice ended with a moment ago: the box need not hash everything anew for the next."""
        path = self.stage / "MANIFEST.json"
        manifest = read_json(path)
        if manifest is None or time.time() - path.stat().st_mtime > _FRESH_SECONDS:
            return None
        if (manifest["run_id"], manifest["instance_id"]) != (args["run_id"], args["instance_id"]):
            return None
        return {"manifest": manifest, "directory": f"{args['box']['root']}/runs/{args['run_id']}"}

    def _standing(self, made: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any] | None:
        """The receipt of an earlier pull, if it still holds for exactly these files."""
        receipt, old = read_json(self.final / "RECEIPT.json"), read_json(self.final / "MANIFEST.json")
        if receipt is None or old is None or _content(old) != _content(made["manifest"]):
            return None
        if not set(args["accept_missing"]) <= set(receipt["accepted_missing"]):
            return None
        if receipt.get("complete") is False and old["missing"] == made["manifest"]["missing"]:
            return t.cast("dict[str, t.Any]", receipt)  # nothing came since, so nothing can be added
        try:
            receipts.check(
                receipt, manifest=old, instance_id=args["instance_id"], run_ids=[args["run_id"]], root=str(self.final)
            )
        except receipts.ReceiptError:
            return None
        return t.cast("dict[str, t.Any]", receipt)

    def _collect(self, made: dict[str, t.Any], args: dict[str, t.Any]) -> dict[str, t.Any]:
        manifest = made["manifest"]
        checked = manifests.validate(manifest)
        self._refuse_unknown_cells(manifest, args["accept_missing"])
        self._room_for(checked.bytes, len(checked.files))
        rental = Ledger(args["tenant_home"]).rental(args["instance_id"])
        self.say(f"pulling {len(checked.files)} files, {_size(checked.bytes)}; {_price(rental)}")
        fetcher = Fetcher(self, made["directory"], self.stage, self.final, args["slice"])
        with Landing(self.stage, checked, self.specs) as landing:
            started = time.monotonic()
            with Teller(
                lambda: self.say(_progress(landing.arrived(), checked.bytes, time.monotonic() - started, rental))
            ):
                whole = self._fetch(fetcher, [one.name for one in checked.files], by_content=False)
            if not whole:
                self.say(_progress(landing.arrived(), checked.bytes, time.monotonic() - started, rental))
                write_json(self.stage / "MANIFEST.json", manifest, 0o644)
                return {"changed": True, "complete": False, "folder": str(self.stage), "receipt": None,
                        "artifacts": [], "left_behind": manifest["left_behind"]}  # fmt: skip
            found = self._verified(fetcher, checked, landing)
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

    def _fetch(self, fetcher: Fetcher, names: list[bytes], *, by_content: bool) -> bool:
        try:
            return fetcher.fetch(names, by_content=by_content)
        except kit.Unreachable as problem:
            raise self._lost(problem) from problem

    def _verified(self, fetcher: Fetcher, manifest: manifests.Manifest, landing: Landing) -> dict[str, t.Any]:
        """Hash and load everything; what differs is fetched again by content, never by size and time."""
        for attempt in range(_ROUNDS):
            found = verify.verify_tree(str(self.stage), manifest, self.specs, pool=landing)
            wrong = found["mismatched"] + found["missing"]
            if not wrong:
                break
            if attempt == _ROUNDS - 1:
                (self.stage / "MANIFEST.json").unlink(missing_ok=True)
                raise Refused(
                    "moved_source",
                    f"{len(wrong)} files differ from the manifest after {_ROUNDS} tries: {', '.join(wrong[:5])}",
                    "They changed on the box since it was made, or the disk here is bad.",
                    "See that nothing writes there any more, then collect again.",
                )
            self._fetch(fetcher, [verify.to_bytes(path) for path in wrong], by_content=True)
        drop_partials(self.stage)
        self._move_strangers(verify.strangers(self.stage, manifest))
        return found

    def _move_strangers(self, names: list[str]) -> None:
        """Files the manifest does not name are kept, beside the results."""
        for name in names:
            path = os.fsdecode(verify.to_bytes(name))
            target = self.stage.with_name(f".{self.final.name}.strangers") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.stage / path, target)

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
            Runs(args["tenant_home"]).close(args["run_id"], "collected and verified", proven=True)

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
            **difference(changed, "", "".join(f"{entry['path']}\n" for entry in made["manifest"]["files"])),
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


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _price(rental: Rental | None) -> str:
    if rental is None or rental.rate is None:
        return "what the box costs meanwhile is unknown"
    return f"the box costs {float(rental.rate['amount']):.4f} {rental.rate['currency']} an hour meanwhile"


def _progress(arrived: int, total: int, seconds: float, rental: Rental | None) -> str:
    """How far, how fast, how long still, and what that costs."""
    pace = arrived / seconds if seconds > 0 else 0.0
    line = f"{_size(arrived)} of {_size(total)} arrived and looked at, {pace / 1e6:.1f} MB/s"
    if pace == 0:
        return line
    left = (total - arrived) / pace
    cost = (
        ""
        if rental is None or rental.rate is None
        else (f", {float(rental.rate['amount']) * left / 3600:.4f} {rental.rate['currency']} more")
    )
    return f"{line}, about {left:.0f} s left{cost}"

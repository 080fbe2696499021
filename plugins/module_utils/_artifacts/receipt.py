# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The receipt: proof that the pulled artifacts equal the manifest and load, bound to instance, run and manifest.

``make`` writes what was seen, ``check`` is the gate's question. A receipt dies when its manifest, its instance, its run
or its last copy goes.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import time
import typing as t

from .loaders.base import FAILED, VERDICTS
from .manifest import File, Manifest, ManifestError, digest, shown, validate

SCHEMA = "tenant.gpu/receipt/1"
LEVELS = ("loaded", "structural_only")
safe_text = shown


class ReceiptError(Exception):
    """A receipt that opens nothing: ``seen``, ``means``, ``do``."""

    def __init__(self, seen: str, means: str, do: str) -> None:
        super().__init__(seen)
        self.seen, self.means, self.do = seen, means, do


def make(
    manifest: dict[str, t.Any],
    results: dict[str, t.Any],
    copies: t.Sequence[dict[str, str]],
    verifier: str | None,
    accepted_missing: t.Sequence[str] = (),
) -> dict[str, t.Any]:
    """A RECEIPT as in contracts from a manifest and what ``verify.verify_tree`` answered.

    ``copies``: ``{host, path}`` or ``{remote}`` of each full copy, ``path`` the run's folder. ``verifier``: this host
    where it is not given. ``accepted_missing``: cells whose missing artifacts the user gave up. ``complete`` is false
    while something is missing that was not given up, moved while it was hashed, or failed. Raises ManifestError.
    """
    checked = validate(manifest)
    accepted = sorted(set(accepted_missing))
    open_gaps = [row for row in checked.missing if row.get("cell") not in accepted]
    failed = _failed(checked, results)
    return {
        "schema": SCHEMA,
        "run_id": checked.run_id,
        "instance_id": checked.instance_id,
        "manifest_sha256": digest(manifest),
        "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "verifier": verifier or socket.gethostname(),
        "producer": (manifest.get("made_on") or {}).get("host"),
        "level": _level(results["artifacts"]),
        "complete": not open_gaps and not checked.moved and not failed,
        "missing": open_gaps,
        "accepted_missing": accepted,
        "copies": [dict(copy) for copy in copies],
        "files": len(checked.files),
        "bytes": checked.bytes,
        "artifacts": [
            {key: row[key] for key in ("path", "format", "verdict", "detail")} for row in results["artifacts"]
        ],
        "failed": failed,
    }


def _failed(manifest: Manifest, results: dict[str, t.Any]) -> int:
    """What failed; a file of the manifest that the results do not speak of has failed too."""
    unseen = len(manifest.files) - results.get("files", 0) - len(results["missing"])
    return int(results["failed"]) + max(0, unseen)


def _level(rows: t.Sequence[dict[str, t.Any]]) -> str:
    """``loaded`` where every artifact was loaded, or vouched for by its hash; what failed is counted apart."""
    return "structural_only" if any(row["verdict"] == "structural_only" for row in rows) else "loaded"


def check(
    receipt: t.Any,
    *,
    manifest: t.Any = None,
    instance_id: str | None,
    run_ids: t.Sequence[str],
    root: t.Any = None,
    rehash: bool = False,
) -> None:
    """Return when the receipt proves the run; raise ReceiptError when it does not.

    ``root``: the run's folder here, which must be one of the receipt's copies and hold every file of ``manifest`` with
    its size; ``rehash`` reads them all again. The level is the caller's question.
    """
    _check_shape(receipt)
    _check_bound(receipt, instance_id, run_ids)
    _check_outcome(receipt)
    if manifest is None:
        raise _refused("there is no manifest beside the receipt", "What it proves cannot be known.")
    checked = _check_manifest(receipt, manifest)
    _check_copies(receipt, checked, root, rehash)


def _refused(seen: str, means: str) -> ReceiptError:
    do = "Collect again: ansible-playbook playbooks/collect.yml -l <slot>"
    return ReceiptError(seen, f"{means} Nothing was destroyed.", do)


_SHAPE: dict[str, type | tuple[type, ...]] = {
    "run_id": str, "manifest_sha256": str, "verified_at": str, "verifier": str, "level": str, "complete": bool,
    "accepted_missing": list, "copies": list, "files": int, "bytes": int, "artifacts": list, "failed": int,
}  # fmt: skip


def _check_shape(receipt: t.Any) -> None:
    if not isinstance(receipt, dict) or receipt.get("schema") != SCHEMA:
        raise _refused("the receipt has no schema tenant.gpu/receipt/1", "It is no receipt, or of another version.")
    for key, kind in _SHAPE.items():
        value = receipt.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _refused(f"the receipt's {key} is {shown(value)}", "It is damaged.")
    if receipt["level"] not in LEVELS:
        raise _refused(f"the receipt's level is {shown(receipt['level'])}", "It is damaged.")


def _check_bound(receipt: dict[str, t.Any], instance_id: str | None, run_ids: t.Sequence[str]) -> None:
    if receipt.get("instance_id") != instance_id:
        seen = f"the receipt is for instance {shown(receipt.get('instance_id'))}, not {shown(instance_id)}"
        raise _refused(seen, "It proves nothing about this box.")
    if receipt["run_id"] not in run_ids:
        seen = f"the receipt is for run {shown(receipt['run_id'])}, not {', '.join(map(shown, run_ids))}"
        raise _refused(seen, "It proves nothing about this run.")


def _check_outcome(receipt: dict[str, t.Any]) -> None:
    bad = [row for row in receipt["artifacts"] if not isinstance(row, dict) or row.get("verdict") not in VERDICTS]
    failed = [row for row in receipt["artifacts"] if isinstance(row, dict) and row.get("verdict") in FAILED]
    if bad:
        raise _refused(f"the receipt lists {shown(bad[0])}", "It is damaged.")
    if receipt["failed"] or failed:
        what = f": {shown(failed[0].get('path'))} is {failed[0]['verdict']}" if failed else ""
        raise _refused(f"the receipt counts {receipt['failed']} failed{what}", "Not every artifact came whole.")
    if receipt["level"] == "loaded" and any(row["verdict"] == "structural_only" for row in receipt["artifacts"]):
        raise _refused("the receipt says loaded, an artifact in it is structural_only", "It is damaged.")
    if not receipt["complete"]:
        gaps = [f"{shown(row.get('artifact'))} of {shown(row.get('cell'))}" for row in receipt.get("missing") or []]
        seen = f"the receipt is not complete: {', '.join(gaps[:3]) or 'files changed while they were hashed'}"
        refused = _refused(seen, "Something of the run was not collected.")
        refused.do += ", or give those cells up by name: -e collect_accept_missing=<cell>"
        raise refused


def _check_manifest(receipt: dict[str, t.Any], manifest: t.Any) -> Manifest:
    try:
        found = digest(manifest)
        checked = validate(manifest)
    except (ManifestError, ValueError, TypeError) as problem:
        raise _refused(
            f"the manifest beside the receipt is damaged: {shown(problem)}", "It proves nothing."
        ) from problem
    if found != receipt["manifest_sha256"]:
        seen = f"the manifest is {found[:12]}…, the receipt was made for {shown(receipt['manifest_sha256'])[:12]}…"
        raise _refused(seen, "The manifest changed after the verification.")
    if checked.run_id != receipt["run_id"] or checked.instance_id != receipt.get("instance_id"):
        raise _refused("manifest and receipt name different runs or instances", "They do not belong together.")
    if len(checked.files) != receipt["files"] or checked.bytes != receipt["bytes"]:
        raise _refused("manifest and receipt count different files", "They do not belong together.")
    open_gaps = [row for row in checked.missing if row.get("cell") not in receipt["accepted_missing"]]
    if open_gaps or checked.moved:
        raise _refused("the manifest has gaps that the receipt calls complete", "It is damaged.")
    return checked


def _check_copies(receipt: dict[str, t.Any], manifest: Manifest, root: t.Any, rehash: bool) -> None:
    """At least one copy that can be looked at from here is there in full."""
    places = [
        copy["path"] for copy in receipt["copies"] if isinstance(copy, dict) and isinstance(copy.get("path"), str)
    ]
    wanted = os.path.realpath(root) if root is not None else None
    here = [path for path in places if wanted is None or os.path.realpath(path) == wanted]
    if not here:
        seen = (
            f"the receipt names no copy in {shown(wanted)}"
            if wanted
            else "the receipt names no copy on this controller"
        )
        raise _refused(seen, "Nothing shows that the results are still there.")
    gaps = [_first_gap(os.fsencode(path), manifest, rehash) for path in here]
    if all(gap is not None for gap in gaps):
        raise _refused(f"the copy in {shown(here[0])}: {gaps[0]}", "The pulled results are not there in full any more.")


def _first_gap(root: bytes, manifest: Manifest, rehash: bool) -> str | None:
    for one in manifest.files:
        words = _gap(root, one, rehash)
        if words:
            return f"{shown(one.path)} {words}"
    return None


def _gap(root: bytes, one: File, rehash: bool) -> str | None:
    full = os.path.join(root, one.name)
    try:
        state = os.lstat(full)
        if not stat.S_ISREG(state.st_mode):
            return "is no file"
        if state.st_size != one.size:
            return f"has {state.st_size} bytes, not {one.size}"
        if rehash:
            with open(full, "rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != one.sha256:
                    return "has other bytes than the manifest says"
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    return None

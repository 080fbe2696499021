# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a person reads about collected results: the table at the end of a pull, and CARD.md beside them."""

from __future__ import annotations

import typing as t

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.receipt import safe_text

from .ledger import Rental, spent


def table(receipt: dict[str, t.Any], manifest: dict[str, t.Any]) -> list[str]:
    """One line an artifact, then what was left behind. Names come from the box and are made safe to print."""
    rows = [(entry["path"], entry["format"], entry["verdict"], entry["detail"]) for entry in receipt["artifacts"]]
    width = max((len(safe_text(row[0])) for row in rows), default=0)
    lines = [
        f"{safe_text(path):<{width}}  {kind:<12} {word:<16} {safe_text(detail)}" for path, kind, word, detail in rows
    ]
    left = manifest["left_behind"]
    if left:
        size = sum(entry["size"] or 0 for entry in left)
        names = ", ".join(safe_text(entry["path"]) for entry in left[:3])
        lines.append(f"left behind: {len(left)} files, {size} bytes ({names}{', …' if len(left) > 3 else ''})")
    for entry in manifest["missing"]:
        lines.append(
            f"MISSING {safe_text(str(entry['artifact']))} of cell {entry['cell']}: {safe_text(entry['reason'])}"
        )
    whole = "complete" if receipt["complete"] else "INCOMPLETE"
    lines.append(f"receipt: {receipt['files']} files, {receipt['bytes']} bytes, {receipt['level']}, {whole}")
    return lines


def still_open(slot: str, rental: Rental) -> str:
    amount = spent(rental)
    money = "unknown" if amount is None or rental.rate is None else f"{amount:.4f} {rental.rate['currency']}"
    return (
        f"STILL OPEN: {rental.instance_id} is not proven off (cost so far {money}). "
        f"ansible-playbook playbooks/teardown.yml -l {slot} -e discard={rental.instance_id}"
    )


def still_bills(kind: str, storage_id: str, name: str) -> str:
    return f"STILL BILLS: {kind} {storage_id} ({name}). Delete it with -e leftovers_approve={kind}:{storage_id}"


def next_after_launch(slot: str) -> list[str]:
    return [
        f"next: ansible-playbook playbooks/watch.yml -l {slot}    # how is it; changes nothing",
        f"next: ansible-playbook playbooks/tick.yml -l {slot}     # recover, collect; safe from cron",
    ]


def next_after_collect(slot: str, receipt: dict[str, t.Any]) -> list[str]:
    if not receipt["complete"]:
        cells = ",".join(sorted({str(row["cell"]) for row in receipt["missing"]}))
        return [f"next: ansible-playbook playbooks/collect.yml -l {slot} -e collect_accept_missing={cells}"]
    approve = f"-e teardown_approve={receipt['run_id']}"
    return [f"next: ansible-playbook playbooks/teardown.yml -l {slot} {approve}    # ends the bill"]


def render(run_id: str, slot: str, receipt: dict[str, t.Any]) -> str:
    """The recovery card: what this is, and the next commands, for whoever finds it in a month."""
    rows = "\n".join(f"| `{safe_text(e['path'])}` | {e['format']} | {e['verdict']} |" for e in receipt["artifacts"])
    whole = "complete" if receipt["complete"] else "INCOMPLETE"
    return f"""# {run_id}

Collected from instance `{receipt["instance_id"]}` (slot `{slot}`) and verified on {receipt["verified_at"]}:
{receipt["files"]} files, {receipt["bytes"]} bytes, level `{receipt["level"]}`, {whole}.

| artifact | format | verdict |
|---|---|---|
{rows}

Next, from the collection's folder:

    ansible-playbook playbooks/watch.yml -l {slot}      # how is it
    ansible-playbook playbooks/collect.yml -l {slot}    # pull again what is newer
    # destroy the box and prove the meter off:
    ansible-playbook playbooks/teardown.yml -l {slot} -e teardown_approve={run_id}

`MANIFEST.json` lists every file with its SHA-256 as taken on the box; `RECEIPT.json` is the proof made here.
"""

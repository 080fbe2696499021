# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The ledger: append-only JSON Lines of every rental action and what was seen (contracts, ``ledger.jsonl``).

It is the only memory of what is rented; slots, costs and open rentals are all read from it.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import typing as t
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import OFF, now

from .errors import Refused

FIELDS = [
    "slot",
    "platform",
    "account",
    "instance_id",
    "name",
    "action",
    "rate",
    "endpoint",
    "clock",
    "request_id",
    "saw",
    "verdict",
    "run_id",
    "receipt",
    "note",
]


@dataclass(frozen=True)
class Span:
    """A stretch of a rental's bill: from ``since`` on at ``rate`` an hour (None: unknown), running or parked.

    ``clock`` is the danger clock that the park started: ``{id, due, text, text_zh}``, ``due`` as ISO-8601 UTC.
    """

    since: str
    parked: bool
    rate: dict[str, str] | None
    clock: dict[str, str] | None = None


@dataclass
class Rental:
    """One instance as the ledger tells it; ``ended_at`` is when the platform accepted the delete.

    ``reached``: it named an SSH address at least once, so something of the user's may be on it. ``rate`` is the rate
    while it runs; ``spans`` say what it cost when, oldest first.
    """

    instance_id: str
    slot: str
    platform: str
    name: str
    run_id: str | None
    rate: dict[str, str] | None
    created_at: str
    ended_at: str | None = None
    verdict: str | None = None
    superseded_by: str | None = None
    reached: bool = False
    account: str | None = None
    served: list[tuple[str | None, str]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.spans:
            self.spans.append(Span(self.created_at, False, self.rate))

    @property
    def parked_since(self) -> str | None:
        """Since when it has been parked; None while it runs, or when it has ended."""
        return self.spans[-1].since if self.spans[-1].parked and not self.ended_at else None

    @property
    def clock(self) -> dict[str, str] | None:
        """The danger clock that runs since it was parked."""
        return self.spans[-1].clock if self.parked_since else None

    def intervals(self, run_id: str) -> list[tuple[str, str | None]]:
        """From when to when (None: until now) it served that run; an instance can serve several, one after another."""
        ends: list[str | None] = [since for _, since in self.served[1:]]
        ends.append(self.ended_at)
        return [(since, end) for (run, since), end in zip(self.served, ends, strict=True) if run == run_id]

    @property
    def open(self) -> bool:
        """True until a verdict ``off``: whatever is not proven off counts as billing."""
        return self.verdict != OFF


@dataclass
class VolumeRental:
    volume_id: str
    platform: str
    name: str
    rate: dict[str, str] | None
    created_at: str
    ended_at: str | None = None


class Ledger:
    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.path = Path(home).expanduser() / "ledger.jsonl"

    def append(self, action: str, **fields: t.Any) -> dict[str, t.Any]:
        """One line, one write, one fsync, under a lock. Raises Refused where the home cannot be written."""
        unknown = set(fields) - set(FIELDS)
        if unknown:
            raise ValueError(f"not ledger fields: {sorted(unknown)}")
        entry = {"schema": "tenant.gpu/ledger/1", "at": now(), "user": getpass.getuser(), "host": socket.gethostname()}
        entry |= {"action": action, **{name: fields[name] for name in FIELDS if fields.get(name) is not None}}
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                _write_whole(handle, _after_a_cut(self.path) + line)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as problem:
            raise Refused(
                "ledger",
                f"the ledger {self.path} cannot be written: {problem.strerror}",
                "A rental that is not written down can be lost while it bills, so nothing was done.",
                "Set tenant_home to a folder that is kept and can be written.",
            ) from problem
        return entry

    def entries(self) -> list[dict[str, t.Any]]:
        """All lines, oldest first. A line cut short by a crash is left out; any other bad line is an error."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        found = []
        for number, line in enumerate(lines[:-1], 1):
            if not line.strip() or _was_cut(line):
                continue
            try:
                found.append(json.loads(line))
            except ValueError as problem:
                raise Refused(
                    "ledger",
                    f"line {number} of {self.path} is not JSON",
                    "The list of rentals cannot be trusted as it is.",
                    "Repair or move that line by hand; keep a copy. Then run the same command again.",
                ) from problem
        return found

    def rentals(self) -> list[Rental]:
        """Every instance ever rented or adopted here, oldest first."""
        known: dict[str, Rental] = {}
        for entry in self.entries():
            instance_id = entry.get("instance_id")
            if not instance_id:
                continue
            if entry["action"] in ("created", "adopted"):
                known[instance_id] = Rental(
                    instance_id,
                    entry.get("slot", ""),
                    entry.get("platform", ""),
                    entry.get("name", ""),
                    entry.get("run_id"),
                    entry.get("rate"),
                    entry["at"],
                    served=[(entry.get("run_id"), entry["at"])],
                    account=entry.get("account"),
                )
            elif instance_id in known:
                _update(known[instance_id], entry)
        return list(known.values())

    def bound(self, slot: str) -> Rental | None:
        """The rental that a slot stands for now: its newest that is open and not superseded."""
        of_slot = [rental for rental in self.rentals() if rental.slot == slot and not rental.superseded_by]
        return of_slot[-1] if of_slot and of_slot[-1].open else None

    def open_beside(self, slot: str) -> list[Rental]:
        """Rentals of a slot that are not proven off and that it does not stand for: replaced ones that still bill."""
        bound = self.bound(slot)
        known = bound.instance_id if bound else None
        return [one for one in self.rentals() if one.slot == slot and one.open and one.instance_id != known]

    def rental(self, instance_id: str) -> Rental | None:
        return next((rental for rental in self.rentals() if rental.instance_id == instance_id), None)

    def pending_intent(self, slot: str) -> dict[str, t.Any] | None:
        """The last create_intent of a slot whose outcome was never written down."""
        pending = None
        for entry in self.entries():
            if entry.get("slot") != slot:
                continue
            if entry["action"] == "create_intent":
                pending = entry
            elif entry["action"] in ("created", "adopted", "create_failed"):
                pending = None
        return pending

    def volumes(self) -> list[VolumeRental]:
        known: dict[str, VolumeRental] = {}
        for entry in self.entries():
            volume_id = entry.get("instance_id", "")
            if entry["action"] == "volume_created":
                known[volume_id] = VolumeRental(
                    volume_id, entry.get("platform", ""), entry.get("name", ""), entry.get("rate"), entry["at"]
                )
            elif entry["action"] == "leftover_deleted" and volume_id in known:
                known[volume_id].ended_at = entry["at"]
        return list(known.values())


def _was_cut(line: bytes) -> bool:
    """The beginning of a line of ours without its end: what a crash leaves."""
    return line.startswith(b'{"schema": "tenant.gpu/ledger/1"') and not line.endswith(b"}")


def _after_a_cut(path: Path) -> bytes:
    """A newline where the file's last line was cut short by a crash, so that the next one stands by itself."""
    with path.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return b""
        stream.seek(-1, os.SEEK_END)
        return b"" if stream.read(1) == b"\n" else b"\n"


def _write_whole(handle: int, content: bytes) -> None:
    if os.write(handle, content) != len(content):
        raise OSError(28, "the line was not written whole")


def _update(rental: Rental, entry: dict[str, t.Any]) -> None:
    if entry["action"] == "destroyed":
        rental.ended_at = rental.ended_at or entry["at"]
    elif entry["action"] == "ready":
        rental.reached = True
    elif entry["action"] == "stopped":
        rental.spans.append(Span(entry["at"], True, entry.get("rate"), entry.get("clock")))
    elif entry["action"] == "started":
        rental.spans.append(Span(entry["at"], False, entry.get("rate") or rental.rate))
    elif entry["action"] == "account":
        rental.account = entry.get("account")
    elif entry["action"] == "superseded":
        rental.superseded_by = entry.get("note")
    elif entry["action"] == "bound":
        rental.run_id = entry.get("run_id")
        rental.served.append((rental.run_id, entry["at"]))
    if entry.get("verdict"):
        rental.verdict = entry["verdict"]
        if rental.verdict == OFF:
            rental.ended_at = rental.ended_at or entry["at"]


def seconds_between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def cost(rate: dict[str, str] | None, start: str, end: str | None) -> Decimal | None:
    """What was billed from ``start`` to ``end`` (None: now); None where the rate is unknown, never 0."""
    if rate is None:
        return None
    hours = Decimal(str(max(0.0, seconds_between(start, end or now())))) / 3600
    return Decimal(rate["amount"]) * hours


def spent(rental: Rental, start: str | None = None, end: str | None = None) -> Decimal | None:
    """What an instance cost from ``start`` to ``end`` (None: all of it, until now); None where a rate is unknown."""
    until = min(filter(None, (end, rental.ended_at)), default=now())
    since = start or rental.created_at
    ends = [span.since for span in rental.spans[1:]] + [until]
    total = Decimal(0)
    for span, over in zip(rental.spans, ends, strict=True):
        first, last = max(span.since, since), min(over, until)
        if last <= first and len(rental.spans) > 1:
            continue
        part = cost(span.rate, first, last)
        if part is None:
            return None
        total += part
    return total


def cost_of_run(ledger: Ledger, run_id: str, currency: str = "USD") -> dict[str, t.Any]:
    """The instances of one run, and what they cost so far: ``{amount, currency, rentals: [...]}``.

    ``amount`` is None as soon as one rate is unknown.
    """
    rows = []
    total: Decimal | None = Decimal(0)
    for rental in ledger.rentals():
        intervals = rental.intervals(run_id)
        if not intervals:
            continue
        parts = [spent(rental, since, end) for since, end in intervals]
        known = None if None in parts else sum((part for part in parts if part is not None), Decimal(0))
        rows.append({"instance_id": rental.instance_id, "cost": None if known is None else f"{known:.6f}"})
        total = None if total is None or known is None else total + known
        currency = (rental.rate or {}).get("currency", currency)
    return {"amount": None if total is None else f"{total:.6f}", "currency": currency, "rentals": rows}

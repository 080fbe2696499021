# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The bill as the ledger tells it: what each slot cost so far, what it costs now, and what it will cost.

Reads files alone and asks no platform. Amounts are decimal strings; what is not known is None, never 0.
"""

from __future__ import annotations

import typing as t
from decimal import Decimal

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import now

from .ledger import Ledger, Rental, cost, seconds_between, spent
from .runs import Runs

SCHEMA = "tenant.gpu/bill/1"


def bill(home: str, slots: t.Collection[str], since: str) -> dict[str, t.Any]:
    """The bill of ``slots``: their rentals that are open, or ended after ``since`` (ISO-8601 UTC).

    ``{schema, at, rentals, elsewhere, storage, totals}``: ``elsewhere`` are open rentals of other slots, ``totals`` the
    sums by currency, ``{currency: {spent, per_hour}}``, of ``rentals``; a sum is None as soon as one part is unknown.
    """
    ledger, runs = Ledger(home), Runs(home)
    known = ledger.rentals()
    shown = [one for one in known if one.slot in slots and (one.open or (one.ended_at or "") >= since)]
    rows = [_row(one, runs) for one in shown]
    return {
        "schema": SCHEMA,
        "at": now(),
        "rentals": rows,
        "elsewhere": [_row(one, runs) for one in known if one.open and one.slot not in slots],
        "storage": [
            {"id": one.volume_id, "platform": one.platform, "name": one.name, "rate": one.rate}
            for one in ledger.volumes()
            if one.ended_at is None
        ],
        "totals": _totals(rows),
    }


def _row(rental: Rental, runs: Runs) -> dict[str, t.Any]:
    span = rental.spans[-1]
    rate = span.rate if rental.open and not rental.ended_at else {**(rental.rate or {}), "amount": "0"}
    parked = rental.parked_since
    return {
        "slot": rental.slot,
        "instance_id": rental.instance_id,
        "platform": rental.platform,
        "run_id": rental.run_id,
        "state": _state(rental),
        "currency": (rental.rate or span.rate or {}).get("currency"),
        "spent": _text(spent(rental)),
        "spent_parked": _text(_parked(rental)),
        "per_hour": rate["amount"] if rate else None,
        "projected": _text(_projected(rental, runs)),
        "parked_since": parked,
        "parked_days": None if parked is None else round(seconds_between(parked, now()) / 86400, 2),
        "per_day": _text(Decimal(rate["amount"]) * 24) if rate else None,
        "clock": rental.clock,
    }


def _state(rental: Rental) -> str:
    """``off`` alone is proven; a rental whose delete was accepted and not proven counts as billing."""
    if not rental.open:
        return "off"
    if rental.ended_at:
        return f"{rental.verdict or 'unknown'}: not proven off"
    return "parked" if rental.parked_since else "running"


def _parked(rental: Rental) -> Decimal | None:
    """The part of the cost that fell while it was parked."""
    ends = [span.since for span in rental.spans[1:]] + [rental.ended_at or now()]
    parts = [cost(span.rate, span.since, end) for span, end in zip(rental.spans, ends, strict=True) if span.parked]
    return None if None in parts else sum((part for part in parts if part is not None), Decimal(0))


def _projected(rental: Rental, runs: Runs) -> Decimal | None:
    """The cost of the whole rental if its run goes on until ``max_duration``; None where that cannot be told."""
    record = runs.get(rental.run_id) if rental.run_id else None
    longest = ((record or {}).get("job") or {}).get("max_duration")
    so_far = spent(rental)
    if longest is None or so_far is None or rental.rate is None or rental.ended_at or rental.parked_since:
        return None
    served = seconds_between(rental.served[-1][1], now())
    return so_far + Decimal(rental.rate["amount"]) * Decimal(str(max(0.0, longest - served))) / 3600


def _totals(rows: list[dict[str, t.Any]]) -> dict[str, dict[str, str | None]]:
    found: dict[str, dict[str, str | None]] = {}
    for currency in sorted({row["currency"] or "unknown" for row in rows}):
        mine = [row for row in rows if (row["currency"] or "unknown") == currency]
        found[currency] = {key: _sum([row[key] for row in mine]) for key in ("spent", "per_hour")}
    return found


def _sum(parts: list[str | None]) -> str | None:
    return None if None in parts else _text(sum((Decimal(part) for part in parts if part), Decimal(0)))


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:.6f}"


def lines(found: dict[str, t.Any]) -> list[str]:
    """The bill for a terminal; empty where no rental was touched."""
    if not found["rentals"]:
        return []
    out = [_line(row) for row in found["rentals"]]
    for currency, sums in found["totals"].items():
        out.append(f"total: {_money(sums['spent'], currency)} so far, {_money(sums['per_hour'], currency)} an hour")
    for row in found["storage"]:
        rate = row["rate"] or {}
        price = _money(rate.get("amount"), rate.get("currency"), 6)
        out.append(f"storage {row['name']} ({row['platform']} {row['id']}): {price} an hour until it is deleted")
    if found["elsewhere"]:
        slots = ", ".join(sorted({row["slot"] for row in found["elsewhere"]}))
        out.append(f"and {len(found['elsewhere'])} more open on other slots: {slots}")
    return out


def _line(row: dict[str, t.Any]) -> str:
    currency = row["currency"]
    words = [f"{row['slot']}  {row['instance_id']}  {row['state']}  {_money(row['spent'], currency)} so far"]
    if row["state"] == "parked":
        words.append(f"parked {row['parked_days']} days at {_money(row['per_day'], currency)} a day")
    elif row["state"] != "off":
        words.append(f"{_money(row['per_hour'], currency)} an hour")
    if row["projected"] is not None:
        words.append(f"{_money(row['projected'], currency)} at job_max_duration")
    if row["clock"]:
        words.append(f"{row['clock']['id']} on {row['clock']['due'][:10]}")
    return ", ".join(words)


def _money(amount: str | None, currency: str | None, digits: int = 4) -> str:
    return "unknown" if amount is None else f"{Decimal(amount):.{digits}f} {currency or ''}".rstrip()

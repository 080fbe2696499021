# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Billing records in time buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from aiohttp import web

from lab import market as m
from lab.dialects.runpod.problems import Problem
from lab.market import Market, Rental, Volume
from lab.meter import Charge, charge
from lab.wire import rfc3339

Thing = TypeVar("Thing", Rental, Volume)


class Billing:
    """What every pod or volume cost, one record a bucket in which it existed."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def bill_pods(self, request: web.Request) -> web.Response:
        def amounts(rental: Rental, cost: Charge) -> dict[str, float]:
            return _pod_amounts(float(cost.compute), float(cost.disk))

        rentals = self._market.records.rentals
        return self._answer(request, "podId", "uniquePodCount", rentals, amounts, _pod_amounts(0, 0))

    async def bill_volumes(self, request: web.Request) -> web.Response:
        def amounts(volume: Volume, cost: Charge) -> dict[str, float]:
            return _volume_amounts(volume.kind, float(cost.disk))

        volumes, nothing = self._market.records.volumes, _volume_amounts("STANDARD", 0)
        return self._answer(request, "networkVolumeId", "uniqueNetworkVolumeCount", volumes, amounts, nothing)

    def _answer(
        self,
        request: web.Request,
        id_name: str,
        count_name: str,
        things: dict[str, Thing],
        amounts: Callable[[Thing, Charge], dict[str, float]],
        nothing: dict[str, float],
    ) -> web.Response:
        now, wanted = self._market.clock.now(), request.query.get(id_name)
        window = _Window.of(request, now)
        records: list[dict[str, Any]] = [
            {id_name: thing.id, **_range(start, end), **amounts(thing, cost)}
            for thing in things.values()
            if wanted in (None, thing.id)
            for start, end in window.buckets()
            if (cost := charge(thing.spans, start, min(end, now))).seconds.keys() - {m.GONE}
        ]
        metadata = {
            "query": {**window.echo(), id_name: wanted},
            "recordCount": len(records),
            count_name: len({record[id_name] for record in records}),
            "totals": {name: sum(record[name] for record in records) for name in nothing},
        }
        return web.json_response({"records": records, "metadata": metadata})


_FIXED_BUCKETS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}


@dataclass(frozen=True)
class _Window:
    start: datetime
    end: datetime
    size: str

    @classmethod
    def of(cls, request: web.Request, now: float) -> _Window:
        query, size = request.query, request.query.get("bucketSize", "day")
        if size not in (*_FIXED_BUCKETS, "month", "year"):
            raise Problem(422, "Request validation failed.", [f"bucketSize: unknown value {size!r}"])
        today = datetime.fromtimestamp(now, UTC)
        if "lastN" in query:
            if "startTime" in query or "endTime" in query:
                raise Problem(400, "lastN is mutually exclusive with startTime and endTime")
            start = _bucket_start(today, size)
            for _ in range(int(query["lastN"]) - 1):
                start = _bucket_start(start - timedelta(seconds=1), size)
            return cls(start, _bucket_end(today, size), size)
        start = _time(query["startTime"]) if "startTime" in query else today - timedelta(days=30)
        end = _time(query["endTime"]) if "endTime" in query else today
        return cls(_bucket_start(start, size), _bucket_end(end, size), size)

    def buckets(self) -> Iterator[tuple[float, float]]:
        start = self.start
        while start < self.end:
            end = _bucket_end(start, self.size)
            yield start.timestamp(), end.timestamp()
            start = end

    def echo(self) -> dict[str, Any]:
        return {**_range(self.start.timestamp(), self.end.timestamp()), "bucketSize": self.size}


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError as wrong:
        raise Problem(422, "Request validation failed.", [f"{text!r} is not a valid date-time"]) from wrong


def _bucket_start(at: datetime, size: str) -> datetime:
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    match size:
        case "hour":
            return at.replace(minute=0, second=0, microsecond=0)
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "year":
            return day.replace(month=1, day=1)
        case _:
            return day


def _bucket_end(at: datetime, size: str) -> datetime:
    start = _bucket_start(at, size)
    if size in _FIXED_BUCKETS:
        return start + _FIXED_BUCKETS[size]
    return _bucket_start(start + timedelta(days=32 if size == "month" else 370), size)


def _range(start: float, end: float) -> dict[str, str]:
    return {"startTime": rfc3339(start), "endTime": rfc3339(end)}


def _pod_amounts(gpu: float, disk: float) -> dict[str, float]:
    return {"totalAmount": gpu + disk, "gpuAmount": gpu, "cpuAmount": 0.0, "diskAmount": disk}


def _volume_amounts(kind: str, amount: float) -> dict[str, float]:
    standard, fast = (0.0, amount) if kind == "HIGH_PERFORMANCE" else (amount, 0.0)
    return {"totalAmount": amount, "standardAmount": standard, "highPerformanceAmount": fast}

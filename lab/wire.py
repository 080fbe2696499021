# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every dialect's HTTP server shares: the record of requests, faults around them, quotas, the server itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lab.faults import Exchange
from lab.market import Market

MAX_RECORDED = 50_000


@dataclass
class RequestLog:
    """Every request that reached the lab, in order; `status` is None where no answer was given."""

    entries: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **entry: Any) -> None:
        self.entries.append(entry)
        del self.entries[:-MAX_RECORDED]


def outermost(market: Market, requests: RequestLog) -> Middleware:
    """Record the request and execute it under the faults that match it."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        at = market.clock.now()
        status: int | None = None
        try:
            exchange = Exchange(request, market, lambda: handler(request))
            response = await market.faults.around(exchange, _facts(market, request))
            closed = request.transport is None or request.transport.is_closing()
            status = None if closed else response.status
            return response
        finally:
            requests.add(
                platform=market.platform.name,
                method=request.method,
                path=request.path,
                query=dict(request.query),
                status=status,
                at=at,
                seconds=round(market.clock.now() - at, 6),
            )

    return middleware


def _facts(market: Market, request: web.Request) -> dict[str, str | None]:
    facts: dict[str, str | None] = {"method": request.method, "path": request.path, "platform": market.platform.name}
    named = set(request.path.split("/"))
    for rental in market.records.rentals.values():
        if rental.id in named:
            facts |= market.facts(rental)
    return facts


@dataclass
class _Window:
    name: str
    quota: int
    seconds: int
    started: float = 0.0
    used: int = 0

    def roll(self, now: float) -> None:
        if now - self.started >= self.seconds:
            self.started, self.used = now, 0

    def left(self) -> int:
        return max(0, self.quota - self.used)

    def resets_in(self, now: float) -> int:
        return max(1, math.ceil(self.started + self.seconds - now))


class Quota:
    """Fixed windows of requests per key, told in the headers of the IETF rate-limit draft."""

    def __init__(self, per_minute: int) -> None:
        self._shape = (("minute", per_minute, 60), ("hour", per_minute * 50, 3600), ("day", per_minute * 800, 86400))
        self._windows: dict[str, list[_Window]] = {}

    def use(self, key: str, now: float) -> tuple[dict[str, str], _Window | None]:
        """Count one request: the headers to send, and the window that is used up, if one is."""
        windows = self._windows.setdefault(key, [_Window(*shape) for shape in self._shape])
        for window in windows:
            window.roll(now)
        exceeded = next((window for window in windows if not window.left()), None)
        if exceeded is None:
            for window in windows:
                window.used += 1
        headers = {
            "RateLimit": ", ".join(f'"{item.name}";r={item.left()};t={item.resets_in(now)}' for item in windows),
            "RateLimit-Policy": ", ".join(f'"{item.name}";q={item.quota};w={item.seconds}' for item in windows),
        }
        return headers, exceeded


def rfc3339(at: float) -> str:
    """Seconds since the epoch as JSON APIs write them, in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def serve(app: web.Application) -> tuple[web.AppRunner, int]:
    """Serve on a free port of loopback."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Featurize: the one call of its token API that matters to a rental, the return (归还).

Facts: the vendor's CLI package 0.0.27 (2024-03). Boxes are rented in the console, which in the lab is
`lab.api.Lab.rent(…, platform="featurize")`. What a bad token gets was never seen: 401 is chosen here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from lab import market as m
from lab.market import GpuType, Market, Rental
from lab.meter import Rate, per_month
from lab.wire import RequestLog, outermost

_REGIONS = ("cn-1",)
_BASE = "/bus/api/v1"


def _card(name: str, memory: int, price: str) -> GpuType:
    return GpuType(f"NVIDIA GeForce {name}", name, memory, {"SECURE": Decimal(price)}, {"SECURE": 4}, {"cn-1": "HIGH"})


@dataclass(frozen=True)
class FeaturizePlatform:
    name: str = "featurize"
    currency: str = "CNY"
    regions: tuple[str, ...] = _REGIONS
    catalogue: tuple[GpuType, ...] = (_card("RTX 4090", 24, "1.87"), _card("RTX 3090", 24, "1.27"))

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        """There is no stopped state: it bills until it is returned."""
        return Rate() if state == m.GONE else Rate(compute=rental.gpu.prices["SECURE"] * rental.order.gpu_count)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        return Rate(disk=per_month(max(0, size_gb - 30), "0.30"))

    def credit_needed(self, rate: Rate) -> Decimal:
        return rate.total

    def when_broke(self, rental: Rental) -> str:
        return "destroy"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        return {"FEATURIZE_INSTANCE_ID": rental.id, "FEATURIZE_USER_ID": "lab"}


PLATFORM = FeaturizePlatform()


def exports(url: str, key: str) -> dict[str, str]:
    return {"FEATURIZE_API_BASE_URL": f"{url}{_BASE}", "FEATURIZE_TOKEN": key}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""

    async def release(request: web.Request) -> web.Response:
        await market.destroy(request.match_info["id"])
        return _answer(0, "success")

    app = web.Application(middlewares=[outermost(market, requests), _guard(market)])
    app.add_routes([web.post(f"{_BASE}/virtual_machine/{{id}}/release", release)])
    return app


def _answer(status: int, message: str, http_status: int = 200) -> web.Response:
    """`status` other than 0 is an error of the service, also with HTTP 200."""
    return web.json_response({"status": status, "message": message, "data": None}, status=http_status)


def _guard(market: Market) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if market.keys.get(request.headers.get("Token", "")) != "all":
            return _answer(1, "invalid token", 401)
        try:
            return await handler(request)
        except m.MarketError as refusal:
            return _answer(10001, str(refusal))

    return middleware

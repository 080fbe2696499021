# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's root process: the platforms' servers, the control socket and the boxes, in one event loop.

It runs as the first process of PID and mount namespaces of its own where those are permitted; when it ends,
everything in the lab ends with it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from aiohttp import web

from lab import control
from lab.boxes import BoxError, drop_volume, namespaces_available
from lab.control import LabError
from lab.dialects import DIALECTS
from lab.faults import KINDS, FaultError, Faults
from lab.launcher import described, write_json
from lab.market import Market, MarketError, Options, Order, Rental, Unknown, Volume
from lab.meter import Clock, money
from lab.wire import RequestLog, serve

log = logging.getLogger("lab")

_ORDER_LISTS = ("regions", "ports", "keys", "disk", "volume")


class Site:
    """One lab. Every method named `do_…` is a verb of the control channel."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder, self.options = folder, options
        self.clock = Clock()
        self.faults = Faults(self.clock.now)
        self.requests = RequestLog()
        self.urls: dict[str, str] = {}
        self.ended = asyncio.Event()
        self.markets = {
            name: Market(dialect.PLATFORM, options, folder, self.clock, self.faults, self.write_bill)
            for name, dialect in DIALECTS.items()
        }

    async def run(self) -> None:
        """Until `ended` is set."""
        runners = [await self._serve(name) for name in self.markets]
        verbs = {name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")}
        server = await control.serve(
            self.folder, verbs, (MarketError, FaultError, BoxError, LabError, ValueError, TypeError)
        )
        self.write_bill()
        write_json(described(self.folder), self.description())
        watchers = [asyncio.create_task(market.run()) for market in self.markets.values()]
        log.info("up: %s", ", ".join(f"{name} {url}" for name, url in self.urls.items()))
        await self.ended.wait()
        log.info("ending")
        server.close()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*(market.close() for market in self.markets.values()))
        self.write_bill()
        await asyncio.gather(*(runner.cleanup() for runner in runners))

    async def _serve(self, name: str) -> web.AppRunner:
        runner, port = await serve(DIALECTS[name].routes(self.markets[name], self.requests))
        self.urls[name] = f"http://127.0.0.1:{port}"
        return runner

    def description(self) -> dict[str, Any]:
        available, reason = namespaces_available()
        platforms = {
            name: {
                "url": self.urls[name],
                "api_key": market.api_key,
                "read_only_key": next(key for key, scope in market.keys.items() if scope == "read"),
                "env": DIALECTS[name].exports(self.urls[name], market.api_key),
            }
            for name, market in self.markets.items()
        }
        return {
            "schema": "tenant.gpu/lab/1",
            "state": str(self.folder),
            "started_at": self.clock.now(),
            "namespaces": available,
            "reason": reason,
            "platforms": platforms,
        }

    def bill(self) -> dict[str, Any]:
        """All accounts. Totals are kept per currency; `total` is null where money was spent in several."""
        accounts = {name: market.bill() for name, market in self.markets.items()}
        rentals = [account.pop("rentals") for account in accounts.values()]
        volumes = [account.pop("volumes") for account in accounts.values()]
        totals: dict[str, Decimal] = {}
        for market in self.markets.values():
            currency = market.platform.currency
            totals[currency] = totals.get(currency, Decimal(0)) + market.spent()
        used = [currency for currency, spent in totals.items() if spent] or list(totals)[:1]
        return {
            "schema": "tenant.gpu/lab-bill/1",
            "at": self.clock.now(),
            "rentals": {key: item for account in rentals for key, item in account.items()},
            "volumes": {key: item for account in volumes for key, item in account.items()},
            "accounts": accounts,
            "totals": {currency: money(spent) for currency, spent in totals.items()},
            "total": money(totals[used[0]]) if len(used) == 1 else None,
            "currency": used[0] if len(used) == 1 else None,
        }

    def write_bill(self) -> None:
        write_json(self.folder / "bill.json", self.bill())

    def market_of(self, rental_id: str) -> Market:
        for market in self.markets.values():
            with contextlib.suppress(Unknown):
                market.rental(rental_id)
                return market
        raise Unknown(f"no rental {rental_id!r}; `python -m lab status` lists them")

    # Verbs.

    async def do_down(self) -> None:
        self.ended.set()

    async def do_env(self) -> dict[str, str]:
        platforms = self.description()["platforms"].values()
        return {name: value for platform in platforms for name, value in platform["env"].items()}

    async def do_bill(self) -> dict[str, Any]:
        return self.bill()

    async def do_requests(self, since: int = 0) -> list[dict[str, Any]]:
        return self.requests.entries[since:]

    async def do_rentals(self) -> list[dict[str, Any]]:
        return [_told(market, item) for market in self.markets.values() for item in market.records.rentals.values()]

    async def do_volumes(self) -> list[dict[str, Any]]:
        return [_volume_told(market, v) for market in self.markets.values() for v in market.records.volumes.values()]

    async def do_rent(self, platform: str = "runpod", **order: Any) -> dict[str, Any]:
        market = self._market(platform)
        for name in _ORDER_LISTS:
            if order.get(name) is not None:
                order[name] = tuple(order[name])
        return _told(market, await market.rent(Order(**order)))

    async def do_create_volume(
        self, name: str, size_gb: int, region: str, kind: str = "STANDARD", platform: str = "runpod"
    ) -> dict[str, Any]:
        market = self._market(platform)
        return _volume_told(market, await market.create_volume(name, size_gb, region, kind))

    async def do_delete_volume(self, volume_id: str) -> None:
        for market in self.markets.values():
            if volume_id in market.records.volumes:
                return await market.delete_volume(volume_id)
        raise Unknown(f"no volume {volume_id!r}; `python -m lab status` lists them")

    async def do_start(self, rental_id: str) -> None:
        await self.market_of(rental_id).start(rental_id)

    async def do_stop(self, rental_id: str) -> None:
        await self.market_of(rental_id).stop(rental_id)

    async def do_restart(self, rental_id: str) -> None:
        await self.market_of(rental_id).restart(rental_id)

    async def do_destroy(self, rental_id: str) -> None:
        await self.market_of(rental_id).destroy(rental_id)

    async def do_preempt(self, rental_id: str) -> None:
        await self.market_of(rental_id).preempt(rental_id)

    async def do_kill_host(self, rental_id: str, notice_after: float = 0.0) -> None:
        await self.market_of(rental_id).fail_host(rental_id, notice_after)

    async def do_reboot(self, rental_id: str) -> None:
        await self.market_of(rental_id).reboot(rental_id)

    async def do_exec(self, rental_id: str, argv: list[str]) -> dict[str, Any]:
        status, out, err = await self.market_of(rental_id).box(rental_id).exec(argv)
        return {"rc": status, "out": base64.b64encode(out).decode(), "err": base64.b64encode(err).decode()}

    async def do_fault(
        self,
        kind: str,
        match: dict[str, str] | None = None,
        params: dict[str, Any] | None = None,
        times: int | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        fault = self.faults.add(kind, match, params, times, seconds)
        for market in self.markets.values():
            await market.apply_faults()
        return fault.as_dict()

    async def do_faults(self) -> list[dict[str, Any]]:
        return [fault.as_dict() for fault in self.faults.listed()]

    async def do_fault_kinds(self) -> list[dict[str, Any]]:
        return [
            {"kind": kind.name, "says": kind.says, "params": [_param(*item) for item in kind.params.items()]}
            for kind in KINDS.values()
        ]

    async def do_clear(self, fault_id: str | None = None) -> list[str]:
        wanted = [fault_id] if fault_id else [fault.id for fault in self.faults.listed()]
        for each in wanted:
            fault = self.faults.remove(each)
            undo = KINDS[fault.kind].undo
            for market in self.markets.values():
                if undo:
                    await market.undo_fault(fault, undo)
        return wanted

    def _market(self, platform: str) -> Market:
        if platform not in self.markets:
            raise LabError(f"the lab has no platform {platform!r}; it has: {', '.join(self.markets)}")
        return self.markets[platform]


def _param(name: str, default: Any) -> str:
    return name if default is ... else f"{name}={default}"


def _told(market: Market, rental: Rental) -> dict[str, Any]:
    order = rental.order
    host, port = rental.endpoint or (None, None)
    return {
        "id": rental.id,
        "name": order.name,
        "platform": market.platform.name,
        "state": rental.state,
        "reason": rental.reason,
        "gpu": rental.gpu.id,
        "gpu_count": order.gpu_count,
        "region": rental.region,
        "endpoint": {"host": host, "port": port, "user": "root"} if host else None,
        "volume": order.volume[0] if order.volume else None,
        "generation": rental.generation,
        "rate_per_hour": str(rental.rate.total),
        "cost": str(market.charge_of(rental).total),
        "created_at": rental.created_at,
    }


def _volume_told(market: Market, volume: Volume) -> dict[str, Any]:
    return {
        "id": volume.id,
        "name": volume.name,
        "platform": market.platform.name,
        "size_gb": volume.size_gb,
        "region": volume.region,
        "state": volume.state,
        "users": market.users_of(volume.id),
    }


def _hold(folder: Path) -> Any:
    """Lock the state folder for as long as this process lives."""
    lock = open(folder / "lock", "wb")  # noqa: SIM115  (it stays open on purpose)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"a lab runs in {folder} already")
    return lock


def _drop_volumes(folder: Path) -> None:
    for place in ("volumes", "disks"):
        for left in (folder / place).glob("*"):
            drop_volume(left)


def _watch_parent(end: Callable[[], None]) -> None:
    """End when the pipe on stdin does: the process that started us is gone."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            end()

    loop.add_reader(0, readable)


async def _run(folder: Path, options: Options, with_parent: bool) -> None:
    site = Site(folder, options)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, site.ended.set)
    if with_parent:
        _watch_parent(site.ended.set)
    await site.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.site", description="used by `python -m lab up`")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--with-parent", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    lock = _hold(given.state)
    # What a lab that was killed left behind.
    _drop_volumes(given.state)
    shutil.rmtree(given.state / "boxes", ignore_errors=True)
    available, reason = namespaces_available()
    if not available:
        log.warning("namespaces not permitted: boxes are plain directories (%s)", reason)
    try:
        options = Options.from_dict(given.options)
    except ValueError as wrong:
        sys.exit(str(wrong))
    asyncio.run(_run(given.state, options, given.with_parent))
    _drop_volumes(given.state)
    described(given.state).unlink(missing_ok=True)
    (given.state / control.SOCKET_NAME).unlink(missing_ok=True)
    lock.close()


if __name__ == "__main__":
    main()

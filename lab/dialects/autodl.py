# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""AutoDL 容器实例 Pro and the wallet.

Facts: the vendor's pages of 2026-10 and clients of 2026 for paths, envelope, codes, texts, states and rows. What they
do not say is chosen here, to the tenant's harm: an instance that is off pays for its disk. Prices are of the order of
the console's. Unlike AutoDL, which keeps the whole system disk over a power-off, the lab keeps one folder of it, runs
the start command again, and gives the box a new host key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from lab import market as m
from lab.boxes import BoxError
from lab.market import GpuType, Market, Order, Rental
from lab.meter import Rate, per_month
from lab.wire import RequestLog, outermost

_STATUS = {
    m.PLACING: "creating",
    m.STARTING: "starting",
    m.RUNNING: "running",
    m.STOPPED: "shutdown",
    m.FAILED: "failed",
}
_CLOUD = "SECURE"  # the market's word for its only kind of hosts
_REGIONS = ("westDC2", "westDC3", "beijingDC1", "beijingDC2", "neimengDC1", "neimengDC3", "foshanDC1", "chongqingDC1")
_SYSTEM_DISK_GB, _DISK_OFF = 30, "0.20"  # CNY per GB and month while it is off: the lab's own choice
_KEPT = "/root/tenant"
_PAGE_LIMIT = 100
_BEIJING = timezone(timedelta(hours=8))
# The key that the account's owner registered in the console (设置SSH免密登录); nobody in the lab holds its other half.
_CONSOLE_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ console"

log = logging.getLogger(__name__)


def _card(spec: str, device: str, memory: int, price: str, stock: str = "HIGH") -> GpuType:
    """The market names a card as nvidia-smi does; its other name is AutoDL's specification."""
    return GpuType(device, spec, memory, {_CLOUD: Decimal(price)}, {_CLOUD: 4}, dict.fromkeys(_REGIONS, stock))


@dataclass(frozen=True)
class AutoDLPlatform:
    name: str = "autodl"
    currency: str = "CNY"
    regions: tuple[str, ...] = _REGIONS
    catalogue: tuple[GpuType, ...] = (
        _card("h800", "NVIDIA H800", 80, "9.98", "LOW"),
        _card("v-48g", "NVIDIA GeForce RTX 4090", 48, "2.98"),
        _card("pro6000-p", "NVIDIA RTX PRO 6000", 96, "5.98"),
        _card("v-32g-p", "NVIDIA GeForce RTX 4080 SUPER", 32, "1.88"),
        _card("v-48g-350w", "NVIDIA GeForce RTX 3090", 48, "1.97"),
        _card("5090-p", "NVIDIA GeForce RTX 5090", 32, "3.28"),
        _card("4090D", "NVIDIA GeForce RTX 4090 D", 24, "1.98"),
    )

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        if state == m.GONE:
            return Rate()
        if state in (m.STOPPED, m.FAILED):
            return Rate(disk=per_month(_SYSTEM_DISK_GB + rental.order.extra.get("expand", 0), _DISK_OFF))
        return Rate(compute=rental.gpu.prices[_CLOUD] * rental.order.gpu_count)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        """File storage: 0.01 CNY a GB and day above 20 GB."""
        return Rate(disk=per_month(max(0, size_gb - 20), "0.30"))

    def credit_needed(self, rate: Rate) -> Decimal:
        return rate.total

    def when_broke(self, rental: Rental) -> str:
        return "stop"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        return {"AutoDLContainerUUID": _uuid(rental), "AutoDLDataCenter": rental.region}


PLATFORM = AutoDLPlatform()


def exports(url: str, key: str) -> dict[str, str]:
    """The lab's owner has looked the prices up, as a customer does in the console."""
    prices = ",".join(f"{card.name}={card.prices[_CLOUD]} CNY" for card in PLATFORM.catalogue)
    return {"AUTODL_API_BASE_URL": url, "AUTODL_TOKEN": key, "AUTODL_PRICES": prices}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""
    app = web.Application(middlewares=[outermost(market, requests), _enveloped])
    api = _Api(market)
    pro = "/api/v1/dev/instance/pro"
    app.add_routes(
        [
            web.post("/api/v1/dev/wallet/balance", api.balance),
            web.post(f"{pro}/create", api.create),
            web.get(f"{pro}/status", api.status),
            web.get(f"{pro}/snapshot", api.snapshot),
            web.post(f"{pro}/list", api.list),
            web.post(f"{pro}/power_on", api.power_on),
            web.post(f"{pro}/power_off", api.power_off),
            web.post(f"{pro}/release", api.release),
        ]
    )
    return app


# Answers: HTTP 200, whatever happened; the code tells.


class Refusal(Exception):
    def __init__(self, code: str, msg: str) -> None:
        super().__init__(msg)
        self.code, self.msg = code, msg


def _answer(code: str, msg: str, data: Any) -> web.Response:
    body = {"code": code, "msg": msg, "data": data, "request_id": secrets.token_hex(16)}
    return web.json_response(body, dumps=lambda value: json.dumps(value, ensure_ascii=False))


@web.middleware
async def _enveloped(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        return _answer(refusal.code, refusal.msg, None)
    except m.NoCapacity:
        return _answer("InternalError", "当前算力规格暂无库存", None)
    except m.NoCredit:
        return _answer("InternalError", "账户余额不足，请先充值", None)
    except m.Unknown:
        return _answer("RecordNotFoundError", "记录不存在", None)
    except m.Conflict:
        return _answer("InternalError", "当前实例状态不支持该操作", None)
    except m.Invalid as wrong:
        return _answer("RequestParameterIsWrong", str(wrong), None)


def _wrong(name: str) -> Refusal:
    return Refusal("RequestParameterIsWrong", f"请求参数错误: {name}")


def _uuid(rental: Rental) -> str:
    return f"pro-{rental.id}"


class _Api:
    def __init__(self, market: Market) -> None:
        self._market = market
        self._greeting: set[str] = set()  # rentals whose start command has not run yet
        self._tasks: set[asyncio.Task[None]] = set()

    async def balance(self, request: web.Request) -> web.Response:
        self._admit(request, write=False)
        amounts = {
            "assets": _thousandths(self._market.balance()),
            "blocked_asset": 0,
            "accumulate": _thousandths(self._market.spent()),
            "voucher_balance": 0,
        }
        return _answer("Success", "", amounts)

    async def create(self, request: web.Request) -> web.Response:
        self._admit(request, write=True)
        body = await _body(request)
        order = _order(body)
        rental = await self._market.rent(order)
        self._greet(rental, body.get("start_command"))
        return _answer("Success", "", _uuid(rental))

    async def status(self, request: web.Request) -> web.Response:
        self._admit(request, write=False)
        return _answer("Success", "", self._status(self._seen(_asked(request))))

    async def snapshot(self, request: web.Request) -> web.Response:
        self._admit(request, write=False)
        rental = self._seen(_asked(request))
        if rental.state == m.GONE:
            raise m.Unknown(rental.id)
        there = None if rental.id in self._greeting else rental.endpoint
        host, port = there or ("", 0)
        price = _thousandths(rental.gpu.prices[_CLOUD] * rental.order.gpu_count)
        return _answer(
            "Success",
            "",
            {
                "ssh_command": f"ssh -p {port} root@{host}" if there else "",
                "proxy_host": host,
                "ssh_port": port,
                "root_password": f"pw_{rental.id[::-1]}",
                "jupyter_domain": f"a{rental.id}.{rental.region}.lab.invalid",
                "jupyter_token": f"jupyter-{rental.id}",
                "jupyter_port": 8888,
                "service_6006_domain": "",
                "service_6006_port": 6006,
                "service_6008_domain": "",
                "service_6008_port": 6008,
                "payg_price": price,
                "origin_pay_price": price,
                "snapshot_gpu_alias_name": rental.gpu.id.removeprefix("NVIDIA GeForce ").removeprefix("NVIDIA "),
                "region_sign": rental.region,
                "usage_info": {"valid": bool(there)},
            },
        )

    async def list(self, request: web.Request) -> web.Response:
        self._admit(request, write=False)
        body = await _body(request)
        index, size = _number(body, "page_index", 1), _number(body, "page_size", 1, _PAGE_LIMIT)
        seen = self._market.view(self._market.options.list_lag).rentals.values()
        rows = [self._row(rental) for rental in seen if rental.state != m.GONE]
        page = rows[(index - 1) * size : index * size]
        data = {"list": page, "page_index": index, "page_size": size, "max_page": math.ceil(len(rows) / size)}
        return _answer("Success", "", {**data, "offset": (index - 1) * size, "result_total": len(rows)})

    async def power_on(self, request: web.Request) -> web.Response:
        self._admit(request, write=True)
        body = await _body(request)
        if body.get("payload") != "gpu":
            raise _wrong("payload")
        rental = self._rental(body)
        if self._status(rental) != "shutdown":
            raise Refusal("InternalError", "请确保实例是关机状态")
        await self._market.start(rental.id)
        self._greet(rental, body.get("start_command") or rental.order.extra.get("start_command"))
        return _answer("Success", "", None)

    async def power_off(self, request: web.Request) -> web.Response:
        self._admit(request, write=True)
        rental = self._rental(await _body(request))
        await self._market.stop(rental.id)
        return _answer("Success", "", None)

    async def release(self, request: web.Request) -> web.Response:
        self._admit(request, write=True)
        rental = self._rental(await _body(request))
        if self._status(rental) not in ("shutdown", "failed"):
            raise Refusal("InternalError", "请确保实例是关机状态")
        await self._market.destroy(rental.id)
        return _answer("Success", "", None)

    def _admit(self, request: web.Request, write: bool) -> None:
        """The raw token; with a scheme before it, it is another one."""
        scope = self._market.keys.get(request.headers.get("Authorization", ""))
        if scope is None:
            raise Refusal("AuthorizeFailed", "登录超时，请重新登录")
        if write and scope != "all":
            raise Refusal("PermissionDenied", "无当前资源访问权限")

    def _rental(self, body: dict[str, Any]) -> Rental:
        uuid = body.get("instance_uuid")
        if not isinstance(uuid, str) or not uuid:
            raise _wrong("instance_uuid")
        return self._market.rental(_own_id(uuid))

    def _seen(self, uuid: str) -> Rental:
        """As reads see it; one that is gone is told of for a while, where the lab is set up so."""
        rental = self._market.view().rentals.get(_own_id(uuid))
        if rental is None or (rental.state == m.GONE and self._age(rental) >= self._market.options.linger):
            raise m.Unknown(uuid)
        return rental

    def _age(self, rental: Rental) -> float:
        return self._market.clock.now() - rental.spans[-1].at

    def _status(self, rental: Rental) -> str:
        if rental.state == m.GONE:
            return "released"
        if rental.state == m.STOPPED and self._age(rental) < self._market.options.timing.stop_grace:
            return "shutting_down"
        return _STATUS[rental.state]

    def _row(self, rental: Rental) -> dict[str, Any]:
        return {
            "uuid": _uuid(rental),
            "name": rental.name,
            "status": self._status(rental),
            "sub_status": "",
            "start_mode": "gpu",
            "charge_type": "payg",
            "region_sign": rental.region,
            "region_name": rental.region,
            "gpu_spec_uuid": rental.gpu.name,
            "req_gpu_amount": rental.order.gpu_count,
            "created_at": _when(rental.created_at),
            "started_at": {"Time": _when(rental.started_at or 0), "Valid": rental.started_at is not None},
            "stopped_at": {"Time": _when(rental.spans[-1].at), "Valid": rental.state == m.STOPPED},
        }

    def _greet(self, rental: Rental, command: Any) -> None:
        """Run the start command in the box when it is up; whether it succeeds is nobody's business."""
        rental.order.extra["start_command"] = command
        if not command:
            return
        self._greeting.add(rental.id)
        task = asyncio.create_task(self._run(rental, rental.generation, str(command)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, rental: Rental, generation: int, command: str) -> None:
        try:
            while rental.endpoint is None:
                if rental.generation != generation or rental.state not in (m.PLACING, m.STARTING, m.RUNNING):
                    return
                await asyncio.sleep(0.05)
            with contextlib.suppress(BoxError, m.MarketError):
                status, _, errors = await self._market.box(rental.id).exec(["/bin/bash", "-c", command])
                log.info("start command of %s: %s %s", rental.id, status, errors.decode(errors="replace").strip())
        finally:
            if rental.generation == generation:
                self._greeting.discard(rental.id)


def _order(body: dict[str, Any]) -> Order:
    gpus, more = _number(body, "req_gpu_amount", 1, 4), _number(body, "expand_system_disk_by_gb", 0, 500)
    _number(body, "cuda_v_from", 0)
    for name in ("gpu_spec_uuid", "image_uuid"):
        if not isinstance(body.get(name), str) or not body[name]:
            raise _wrong(name)
    cards = {card.name: card.id for card in PLATFORM.catalogue}
    if body["gpu_spec_uuid"] not in cards:
        raise _wrong("gpu_spec_uuid")
    return Order(
        name=str(body.get("instance_name") or ""),
        gpu=cards[body["gpu_spec_uuid"]],
        gpu_count=gpus,
        image=body["image_uuid"],
        cloud=_CLOUD,
        regions=tuple(body.get("data_center_list") or ()),
        disk_gb=_SYSTEM_DISK_GB,
        keys=(_CONSOLE_KEY,),
        disk=(_SYSTEM_DISK_GB + more, _KEPT),
        extra={"expand": more},
    )


def _asked(request: web.Request) -> str:
    """A GET is asked in the query string; a body, as the vendor's pages show it, is not read."""
    uuid = request.query.get("instance_uuid")
    if not uuid:
        raise _wrong("instance_uuid")
    return uuid


def _own_id(uuid: str) -> str:
    if not uuid.startswith("pro-"):
        raise m.Unknown(uuid)  # an ordinary instance
    return uuid.removeprefix("pro-")


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError as wrong:
        raise _wrong("body") from wrong
    if not isinstance(body, dict):
        raise _wrong("body")
    return body


def _number(body: dict[str, Any], name: str, least: int, most: int | None = None) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        raise _wrong(name)
    return value


def _thousandths(amount: Decimal) -> int:
    return int(amount * 1000)


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, _BEIJING).isoformat(timespec="seconds")

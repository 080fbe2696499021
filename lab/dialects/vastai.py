# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""vast.ai: the v0 verbs and the paged v1 list; 200 for nearly everything, `success` in the body.

Facts: the vendor's OpenAPI file (2026-07) for paths and codes; its CLI 1.9.1 for what the file has wrong (`ports`,
`env`, `instances` of one instance); vendor pages of 2026-08 for billing. Not in the lab: relays (`ssh_host`), traffic
cost, bids won and lost, logs, templates. A container's disk is kept over a stop under /workspace only.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lab import market as m
from lab.faults import rule
from lab.market import GpuType, Market, Order, Rental, Volume
from lab.meter import Rate, per_month
from lab.schema import Schema, violations
from lab.wire import RequestLog, outermost

_CLOUD = "SECURE"
_STORAGE = "0.15"  # USD per GB and month, running or not
_VOLUME_STORAGE = "0.10"
_DEFAULT_DISK_GB = 10
_PAGE, _PAGE_WHEN_WRONG = 25, 5
_ASK_BASE, _MACHINE_BASE = 7_000_000, 40_000
_YEAR = 365 * 86400
_TRAFFIC = {"inet_up_cost": 0.004, "inet_down_cost": 0.002}  # USD per GB
_REGIONS = {"SE": "Sweden, SE", "US": "California, US", "CA": "Quebec, CA", "KR": "South Korea, KR"}

rule("vastai.half_create", "a create is refused, and leaves a stopped instance that bills for its disk", times=1)
rule("vastai.spaces", "the search knows gpu_name with underscores only")


def _card(
    gpu_id: str, name: str, memory: int, price: str, stock: str = "HIGH", cuda: str = "12.8", at: str = "SE US CA KR"
) -> GpuType:
    return GpuType(
        gpu_id, name, memory, {_CLOUD: Decimal(price)}, {_CLOUD: 8}, dict.fromkeys(at.split(), stock), cuda=cuda
    )


@dataclass(frozen=True)
class VastPlatform:
    name: str = "vastai"
    currency: str = "USD"
    regions: tuple[str, ...] = tuple(_REGIONS)
    catalogue: tuple[GpuType, ...] = (
        _card("NVIDIA GeForce RTX 3090", "RTX 3090", 24, "0.18", cuda="12.4"),
        _card("NVIDIA GeForce RTX 4090", "RTX 4090", 24, "0.35"),
        _card("NVIDIA GeForce RTX 5090", "RTX 5090", 32, "0.52", "MEDIUM"),
        _card("NVIDIA RTX A6000", "RTX A6000", 48, "0.41"),
        _card("NVIDIA L40S", "L40S", 45, "0.61"),
        _card("NVIDIA A100-SXM4-80GB", "A100 SXM4", 80, "0.95", "MEDIUM", at="US CA"),
        _card("NVIDIA H100 80GB HBM3", "H100 SXM", 80, "1.87", "LOW", at="US KR"),
    )

    def new_id(self) -> str:
        """vast.ai's ids are positive integers."""
        return str(secrets.randbelow(80_000_000) + 10_000_000)

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        """Compute while the host may be running it; the disk in every state, until destroy."""
        if state == m.GONE:
            return Rate()
        disk = per_month(rental.order.disk_gb, _STORAGE)
        if state not in (m.RUNNING, m.FAILED):
            return Rate(disk=disk)
        return Rate(rental.gpu.prices[_CLOUD] * rental.order.gpu_count, disk)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        return Rate(disk=per_month(size_gb, _VOLUME_STORAGE))

    def credit_needed(self, rate: Rate) -> Decimal:
        return rate.total  # one hour of it

    def when_broke(self, rental: Rental) -> str:
        return "stop"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        return {
            "CONTAINER_ID": rental.id,
            "CONTAINER_API_KEY": _instance_key(rental.id),
            "PUBLIC_IPADDR": host,
            "VAST_CONTAINERLABEL": f"C.{rental.id}",
            "VAST_TCP_PORT_22": str(port),
            "GPU_COUNT": str(rental.order.gpu_count),
            "DATA_DIRECTORY": "/workspace",
            "SSH_PUBLIC_KEY": "\n".join(rental.order.keys),
        }


PLATFORM = VastPlatform()


def exports(url: str, key: str) -> dict[str, str]:
    return {"VAST_API_BASE_URL": url, "VAST_API_KEY": key}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""
    market._new_id = PLATFORM.new_id  # type: ignore[method-assign]  # the market names things in letters
    app = web.Application(middlewares=[outermost(market, requests), _refusals, _guard(market)])
    api = _Api(market)
    for method, path, handler in (
        ("POST", "/api/v0/bundles", api.search_offers),
        ("PUT", "/api/v0/asks/{id}", api.create),
        ("GET", "/api/v1/instances", api.list_instances),
        ("GET", "/api/v0/instances", api.retired_list),
        ("PUT", "/api/v0/instances", api.manage_many),
        ("DELETE", "/api/v0/instances", api.destroy_many),
        ("GET", "/api/v0/instances/pending-price-increases", api.price_increases),
        ("GET", "/api/v0/instances/{id}", api.show),
        ("PUT", "/api/v0/instances/{id}", api.manage),
        ("DELETE", "/api/v0/instances/{id}", api.destroy),
        ("PUT", "/api/v0/instances/reboot/{id}", api.reboot),
        ("PUT", "/api/v0/instances/recycle/{id}", api.recycle),
        ("GET", "/api/v0/users/current", api.user),
        ("GET", "/api/v0/ssh", api.get_keys),
        ("POST", "/api/v0/ssh", api.add_key),
        ("DELETE", "/api/v0/ssh/{id}", api.drop_key),
        ("POST", "/api/v0/volumes/search", api.search_volumes),
        ("GET", "/api/v0/volumes", api.list_volumes),
        ("PUT", "/api/v0/volumes", api.create_volume),
        ("DELETE", "/api/v0/volumes", api.delete_volume),
    ):
        # The vendor's client writes a slash at the end, its specification none.
        app.router.add_route(method, path, handler)
        app.router.add_route(method, f"{path}/", handler)
    return app


# Errors: {"success": false, "error": code, "msg": text}.


class Refusal(Exception):
    def __init__(self, status: int, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.body = status, {"success": False, "error": code, "msg": text, **more}


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except (Refusal, m.MarketError) as problem:
        refusal = problem if isinstance(problem, Refusal) else _refusal_of(problem)
        return web.json_response(refusal.body, status=refusal.status)
    except web.HTTPException as other:
        # Whatever is no path of the API is answered by the edge in front of it.
        return web.Response(status=other.status, text=f"<html>{other.status}</html>", content_type="text/html")


def _refusal_of(problem: m.MarketError) -> Refusal:
    match problem:
        case m.Unknown():
            return Refusal(404, "no_such_instance", str(problem))
        case m.NoCapacity():
            return Refusal(410, "no_such_ask", "error 410/3907: no_such_ask Instance type is no longer available.")
        case _:
            return Refusal(400, "invalid_args", f"error 400/3467: Invalid args: {problem}")


def _guard(market: Market) -> Middleware:
    """Bearer authentication; an instance's own key may touch that instance only."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        scope = _scope(market, key.strip()) if scheme.lower() == "bearer" else None
        if scope is None:
            # The search alone answers a bad key with 404 (specification).
            status = 404 if request.path.startswith("/api/v0/bundles") else 401
            raise Refusal(status, "auth_error", "Invalid user key")
        searching = request.path.startswith("/api/v0/bundles")
        if scope == "read" and not (request.method == "GET" or searching):
            raise Refusal(403, "forbidden", "the key has no right to do this")
        if scope not in ("all", "read") and request.match_info.get("id") != scope:
            raise Refusal(403, "forbidden", "the key has no right to do this")
        return await handler(request)

    return middleware


def _instance_key(rental_id: str) -> str:
    return f"vast_instance_{rental_id}"


def _scope(market: Market, key: str) -> str | None:
    """`all`, `read`, or the id of the only instance that the key may touch; None for an unknown key."""
    if key in market.keys:
        return market.keys[key]
    alive = (rental.id for rental in market.records.rentals.values() if rental.state != m.GONE)
    return next((rental_id for rental_id in alive if key == _instance_key(rental_id)), None)


# Offers: one ask for each card, region and number of cards.


@dataclass(frozen=True)
class _Ask:
    id: int
    gpu: GpuType
    count: int
    region: str

    @property
    def machine_id(self) -> int:
        return _MACHINE_BASE + self.id - _ASK_BASE

    def entry(self, allocated_gb: float, now: float) -> dict[str, Any]:
        base = self.gpu.prices[_CLOUD] * self.count
        storage = per_month(1, _STORAGE) * Decimal(str(allocated_gb))
        return {
            "id": self.id,
            "ask_contract_id": self.id,
            "machine_id": self.machine_id,
            "host_id": self.machine_id + 1000,
            "gpu_name": self.gpu.name,
            "num_gpus": self.count,
            "gpu_ram": self.gpu.memory_gb * 1024 - 12,  # a card says a little less than its nominal memory
            "gpu_total_ram": (self.gpu.memory_gb * 1024 - 12) * self.count,
            "cpu_ram": 32768,
            "cpu_cores": 16,
            "cpu_cores_effective": 4.0,
            "disk_space": 900.0,
            "dph_base": float(base),
            "dph_total": float(base + storage),
            "min_bid": float(base / 2),
            "storage_cost": float(_STORAGE),
            **_TRAFFIC,
            "inet_up": 900.0,
            "inet_down": 900.0,
            "reliability": 0.997,
            "reliability2": 0.997,
            "verification": "verified",
            "direct_port_count": 64,
            "cuda_max_good": float(self.gpu.cuda),
            "driver_version": "570.124.06",
            "geolocation": _REGIONS[self.region],
            "duration": float(_YEAR),
            "end_date": now + _YEAR,
            "static_ip": False,
            "rentable": True,
            "rented": False,
            "is_bid": False,
            "external": None,
            "public_ipaddr": "127.0.0.1",
            "compute_cap": 890,
        }


_ASKS = tuple(
    _Ask(_ASK_BASE + number, gpu, count, region)
    for number, (gpu, count, region) in enumerate(
        (gpu, count, region) for gpu in PLATFORM.catalogue for region in gpu.stock for count in (1, 2, 4, 8)
    )
)

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: value == wanted,
    "neq": lambda value, wanted: value != wanted,
    "gt": lambda value, wanted: value is not None and value > wanted,
    "gte": lambda value, wanted: value is not None and value >= wanted,
    "lt": lambda value, wanted: value is not None and value < wanted,
    "lte": lambda value, wanted: value is not None and value <= wanted,
    "in": lambda value, wanted: value in wanted,
    "notin": lambda value, wanted: value not in wanted,
}
_NO_FILTERS = ("type", "order", "limit", "allocated_storage")


def _passes(entry: dict[str, Any], filters: dict[str, Any]) -> bool:
    return all(
        _OPERATORS[operator](entry.get(name), wanted)
        for name, conditions in filters.items()
        for operator, wanted in conditions.items()
    )


def _checked_filters(filters: dict[str, Any]) -> dict[str, Any]:
    for name, conditions in filters.items():
        if not isinstance(conditions, dict) or set(conditions) - set(_OPERATORS):
            raise Refusal(400, "invalid_request", f"invalid filter for {name}")
    return filters


def _searchable(entry: dict[str, Any]) -> dict[str, Any]:
    """As the filters see it: the country's two letters, yes and no where the answer has words or null."""
    return {
        **entry,
        "geolocation": entry["geolocation"][-2:],
        "verified": entry["verification"] == "verified",
        "external": bool(entry["external"]),
    }


# Instances.

_ACTUAL = {
    m.PLACING: None,
    m.STARTING: "loading",
    m.RUNNING: "running",
    m.STOPPED: "stopped",
    m.FAILED: "unknown",
    m.GONE: "exited",  # what is shown by id for a while after a destroy
}
_CONTRACT = {m.STOPPED: "stopped", m.PLACING: "unloaded", m.STARTING: "unloaded"}
_FILTERABLE = ("id", "label", "actual_status", "gpu_name", "verification", "machine_id", "host_id")
_CREATE: Schema = {
    "type": "object",
    "properties": {
        "client_id": {"type": "string"},
        "image": {"type": "string", "minLength": 1},
        "disk": {"type": "number", "minimum": 1},
        "label": {"type": ["string", "null"]},
        "env": {"type": ["object", "string"]},
        "onstart": {"type": ["string", "null"]},
        "runtype": {"type": "string"},
        "target_state": {"enum": ["running", "stopped"]},
        "price": {"type": "number", "minimum": 0.001, "maximum": 128},
        "cancel_unavail": {"type": "boolean"},
        "volume_info": {"type": "object", "required": ["volume_id", "mount_path"]},
    },
    "required": ["image"],
}


async def _body(request: web.Request, schema: Schema) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError as wrong:
        raise Refusal(400, "invalid_request", "Invalid json body") from wrong
    errors = violations(body, schema)
    if errors:
        raise Refusal(400, "invalid_args", f"error 400/3467: Invalid args: {errors[0]}")
    return body


class _Api:
    def __init__(self, market: Market) -> None:
        self._market = market

    # Offers.

    async def search_offers(self, request: web.Request) -> web.Response:
        query = await _body(request, {"type": "object"})
        plain = {name: query.pop(name) for name in _NO_FILTERS if name in query}
        filters = _checked_filters(query)
        now = self._market.clock.now()
        found = [ask.entry(float(plain.get("allocated_storage", 8)), now) for ask in _ASKS if self._stocked(ask)]
        if self._market.faults.standing("vastai.spaces", {"platform": PLATFORM.name}):
            found = [{**entry, "gpu_name": entry["gpu_name"].replace(" ", "_")} for entry in found]
        found = [entry for entry in found if _passes(_searchable(entry), filters)]
        for name, way in reversed(plain.get("order", [["dph_total", "asc"]])):
            found.sort(key=lambda entry: entry[name], reverse=way == "desc")
        return web.json_response({"offers": found[: int(plain.get("limit", 64))]})

    def _stocked(self, ask: _Ask) -> bool:
        facts = {"platform": PLATFORM.name, "gpu": ask.gpu.id, "verb": "rent"}
        fault = self._market.faults.standing("offer.none", facts)
        return ask.gpu.stock[ask.region] != "NONE" and not (fault and not fault.params["listed"])

    async def create(self, request: web.Request) -> web.Response:
        body = await _body(request, _CREATE)
        asked = int(self._id(request))
        ask = next((ask for ask in _ASKS if ask.id == asked), None)
        if ask is None:
            text = f"error 404/3603: no_such_ask Instance type by id {asked} is not available."
            raise Refusal(404, "invalid_args", text, ask_id=asked)
        order = await self._order(ask, body)
        facts = {"platform": PLATFORM.name, "gpu": ask.gpu.id, "name": order.name, "verb": "rent"}
        half = self._market.faults.strike("vastai.half_create", facts)
        try:
            rental = await self._market.rent(order)
        except m.NoCredit as problem:
            raise Refusal(400, "insufficient_credit", f"error 400/3590: {problem}") from problem
        too_low = "price" in body and body["price"] < ask.entry(0, 0)["min_bid"]
        if half or too_low or body.get("target_state") == "stopped":
            await self._market.stop(rental.id)
        if half or too_low:
            code = "invalid_price" if too_low else "insufficient_credit"
            raise Refusal(400, code, "error 400/3590: the instance was not started", new_contract=int(rental.id))
        key = _instance_key(rental.id)
        return web.json_response({"success": True, "new_contract": int(rental.id), "instance_api_key": key})

    async def _order(self, ask: _Ask, body: dict[str, Any]) -> Order:
        given = body.get("env") or {}
        env = given if isinstance(given, dict) else {}
        disk_gb = int(body.get("disk", _DEFAULT_DISK_GB))
        runtype = body.get("runtype", "ssh")
        return Order(
            name=body.get("label") or "",
            gpu=ask.gpu.id,
            image=body["image"],
            gpu_count=ask.count,
            cloud=_CLOUD,
            regions=(ask.region,),
            disk_gb=disk_gb,
            env={name: str(value) for name, value in env.items() if not name.startswith("-p ")},
            keys=tuple(self._market.records.ssh_keys) if "ssh" in runtype else (),
            ssh="ssh" in runtype,
            disk=(disk_gb, "/workspace"),
            volume=await self._attached(ask, body.get("volume_info")),
            extra={
                "ask": ask.id,
                "env": [[name, str(value)] for name, value in env.items()],
                "onstart": body.get("onstart"),
                "runtype": runtype,
                "is_bid": "price" in body,
            },
        )

    async def _attached(self, ask: _Ask, info: dict[str, Any] | None) -> tuple[str, str] | None:
        if info is None:
            return None
        if not info.get("create_new"):
            return self._market.volume(str(info["volume_id"])).id, info["mount_path"]
        name = f"V.{info['volume_id']}"
        volume = await self._market.create_volume(name, int(info["size"]), ask.region, str(ask.machine_id))
        return volume.id, info["mount_path"]

    # Instances.

    async def list_instances(self, request: web.Request) -> web.Response:
        """Keyset pages by id; a wrong token, filter or column is 400."""
        query = request.query
        limit = int(query.get("limit", _PAGE))
        limit = _PAGE_WHEN_WRONG if limit <= 0 else min(limit, _PAGE)
        filters = _checked_filters(_json(query.get("select_filters", "{}"), "select_filters"))
        unknown = sorted(set(filters) - set(_FILTERABLE))
        if unknown:
            raise Refusal(400, "invalid_request", f"column {unknown[0]} cannot be filtered")
        seen = self._market.view(self._market.options.list_lag).rentals.values()
        entries = [self._instance(rental) for rental in seen if rental.state != m.GONE]
        matching = sorted((entry for entry in entries if _passes(entry, filters)), key=lambda entry: entry["id"])
        after = _after(query["after_token"]) if "after_token" in query else 0
        rest = [entry for entry in matching if entry["id"] > after]
        page = rest[:limit]
        labels = dict.fromkeys(sorted({entry["label"] or "" for entry in matching}), 0)
        for entry in matching:
            labels[entry["label"] or ""] += 1
        return web.json_response(
            {
                "success": True,
                "instances_found": len(page),
                "total_instances": len(matching),
                "label_counts": labels,
                "next_token": _token(page[-1]["id"]) if len(rest) > limit else None,
                "instances": page,
            }
        )

    async def retired_list(self, request: web.Request) -> web.Response:
        raise Refusal(410, "deprecated_endpoint", "Use /api/v1/instances/ instead.")

    async def show(self, request: web.Request) -> web.Response:
        """`{"instances": null}` with 200 for what does not exist, or does not exist any more."""
        rental = self._market.view().rentals.get(self._id(request))
        if rental is None or (rental.state == m.GONE and not self._lingers(rental)):
            return web.json_response({"instances": None})
        return web.json_response({"instances": self._instance(rental)})

    async def manage(self, request: web.Request) -> web.Response:
        state = {"enum": ["running", "stopped"]}
        label = {"type": "string", "maxLength": 1024}
        body = await _body(request, {"type": "object", "properties": {"state": state, "label": label}})
        await self._manage(self._id(request), body)
        return web.json_response({"success": True})

    async def manage_many(self, request: web.Request) -> web.Response:
        """The bulk form: the same path without an id."""
        body = await _body(request, {"type": "object"})
        for each in body.get("ids", []):
            await self._manage(str(each), body)
        return web.json_response({"success": True})

    async def _manage(self, rental_id: str, body: dict[str, Any]) -> None:
        rental = self._market.rental(rental_id)
        if "label" in body:
            await self._market.change(rental.id, name=body["label"])
        if body.get("state") == "stopped" and rental.state != m.STOPPED:
            await self._market.stop(rental.id)
        if body.get("state") == "running" and rental.state == m.STOPPED:
            await self._market.start(rental.id)

    async def destroy(self, request: web.Request) -> web.Response:
        await self._market.destroy(self._id(request))
        return web.json_response({"success": True, "msg": "Instance destroyed successfully"})

    async def destroy_many(self, request: web.Request) -> web.Response:
        """The bulk form: an empty id in a path ends here."""
        body = await _body(request, {"type": "object"})
        for each in body.get("instance_ids", []):
            await self._market.destroy(str(each))
        return web.json_response({"success": True})

    async def reboot(self, request: web.Request) -> web.Response:
        rental = self._running(request)
        await self._market.reboot(rental.id)
        return web.json_response({"success": True})

    async def recycle(self, request: web.Request) -> web.Response:
        rental = self._running(request)
        await self._market.restart(rental.id)
        return web.json_response({"success": True})

    async def price_increases(self, request: web.Request) -> web.Response:
        body = {"success": True, "count": 0, "truncated": False, "pending_price_increases": []}
        return web.json_response(body)

    def _running(self, request: web.Request) -> Rental:
        rental = self._market.rental(self._id(request))
        if rental.state != m.RUNNING:
            raise Refusal(400, "invalid_args", f"instance {rental.id} is not running")
        return rental

    @staticmethod
    def _id(request: web.Request) -> str:
        text = request.match_info["id"]
        if not text.isdecimal():
            raise Refusal(400, "invalid_args", "invalid instance_id")
        return text

    def _lingers(self, rental: Rental) -> bool:
        return self._market.clock.now() - rental.spans[-1].at < self._market.options.linger

    def _instance(self, rental: Rental) -> dict[str, Any]:
        order, state, now = rental.order, rental.state, self._market.clock.now()
        ask = next((ask for ask in _ASKS if ask.id == order.extra.get("ask")), None)
        storage = per_month(order.disk_gb, _STORAGE)
        base = rental.gpu.prices[_CLOUD] * order.gpu_count
        contract = _CONTRACT.get(state, "running")
        wanted = "stopped" if state == m.STOPPED else "running"
        entry: dict[str, Any] = {
            "id": int(rental.id),
            "actual_status": _ACTUAL[state],
            "intended_status": wanted,
            "cur_state": contract,
            "next_state": wanted,
            "status_msg": rental.reason,
            "label": order.name or None,
            "image_uuid": order.image,
            "image_runtype": order.extra.get("runtype", "ssh_direct"),
            "extra_env": order.extra.get("env", []),
            "onstart": order.extra.get("onstart"),
            "jupyter_token": f"jupyter-{rental.id}",
            "ssh_host": f"ssh{int(rental.id) % 9}.vast.ai",
            "ssh_idx": str(int(rental.id) % 9),
            "ssh_port": 10000 + int(rental.id) % 50000,
            "public_ipaddr": "127.0.0.1 ",  # with the white space that some hosts report
            "machine_id": ask.machine_id if ask else _MACHINE_BASE,
            "host_id": (ask.machine_id if ask else _MACHINE_BASE) + 1000,
            "start_date": rental.created_at,
            "end_date": rental.created_at + _YEAR,
            "uptime_mins": round((now - rental.up_at) / 60, 2) if rental.up_at else None,
            "duration": rental.created_at + _YEAR - now,
            "dph_base": float(base),
            "dph_total": float(base + storage),
            "storage_cost": float(_STORAGE),
            "storage_total_cost": float(storage),
            "min_bid": float(base / 2),
            "is_bid": bool(order.extra.get("is_bid")),
            **_TRAFFIC,
            "gpu_name": rental.gpu.name,
            "num_gpus": order.gpu_count,
            "gpu_ram": rental.gpu.memory_gb * 1024 - 12,
            "cpu_ram": 32768,
            "disk_space": float(order.disk_gb),
            "disk_usage": 0.1,
            "direct_port_count": 64,
            "static_ip": False,
            "rentable": True,
            "geolocation": _REGIONS[rental.region],
            "verification": "verified",
        }
        if rental.endpoint and order.ssh:
            # Ports are strings, whatever the specification says; absent until the container runs.
            entry["ports"] = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(rental.endpoint[1])}]}
        return entry

    # The account.

    async def user(self, request: web.Request) -> web.Response:
        credit = float(self._market.balance())
        keys = self._market.view().ssh_keys
        body = {
            "id": 52110,
            "key_id": 1,
            "email": "tenant@lab.invalid",
            "balance": 0.0,
            "credit": credit,
            "ssh_key": keys[0] if keys else "",
            "sid": "lab",
            "api_key": "secret-of-the-account",
        }
        return web.json_response(body)

    async def get_keys(self, request: web.Request) -> web.Response:
        keys = self._market.view().ssh_keys
        if not keys:
            raise Refusal(404, "not_found", "No SSH keys found for the user.")
        return web.json_response([{"id": _key_id(key), "user_id": 52110, "key": key} for key in keys])

    async def add_key(self, request: web.Request) -> web.Response:
        body = await _body(request, {"type": "object"})
        key = body.get("ssh_key")
        if not isinstance(key, str) or not key.strip():
            raise Refusal(400, "no_ssh_key", "No ssh key provided")
        self._market.set_ssh_keys([*self._market.records.ssh_keys, key])
        entry = {"id": _key_id(key), "user_id": 52110, "public_key": key, "deleted_at": None}
        return web.json_response({"success": True, "key": entry})

    async def drop_key(self, request: web.Request) -> web.Response:
        kept = [key for key in self._market.records.ssh_keys if str(_key_id(key)) != request.match_info["id"]]
        self._market.set_ssh_keys(kept)
        return web.json_response({"success": True})

    # Volumes: on one machine for ever.

    async def search_volumes(self, request: web.Request) -> web.Response:
        asks = [ask for ask in _ASKS if ask.count == 1]
        offers = [{"id": ask.id, "machine_id": ask.machine_id, "disk_space": 500.0} for ask in asks]
        return web.json_response({"offers": offers})

    async def list_volumes(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).volumes.values()
        return web.json_response({"volumes": [self._volume(volume) for volume in seen if volume.state != m.GONE]})

    async def create_volume(self, request: web.Request) -> web.Response:
        body = await _body(request, {"type": "object", "required": ["id"]})
        ask = next((ask for ask in _ASKS if ask.id == body["id"]), None)
        if ask is None:
            raise Refusal(404, "no_such_ask", "Volume offer is not available.")
        name = str(body.get("name") or f"V.{body['id']}")
        volume = await self._market.create_volume(name, int(body.get("size", 15)), ask.region, str(ask.machine_id))
        return web.json_response({"success": True, "volume_name": volume.name})

    async def delete_volume(self, request: web.Request) -> web.Response:
        body = await _body(request, {"type": "object"})
        volume_id = str(body.get("id"))
        if volume_id not in self._market.records.volumes:
            raise Refusal(404, "no_such_volume", "Volume with that ID does not exist.")
        try:
            await self._market.delete_volume(volume_id)
        except m.Unknown as problem:
            raise Refusal(404, "no_such_volume", "Volume with that ID does not exist.") from problem
        return web.json_response({"success": True})

    def _volume(self, volume: Volume) -> dict[str, Any]:
        return {
            "id": int(volume.id),
            "label": volume.name,
            "machine_id": int(volume.kind),
            "host_id": int(volume.kind) + 1000,
            "disk_space": float(volume.size_gb),
            "storage_total_cost": float(per_month(volume.size_gb, _VOLUME_STORAGE)),
            "start_date": volume.created_at,
            "status": "active",
            "instances": [{"id": int(user)} for user in self._market.users_of(volume.id)],
        }


def _key_id(key: str) -> int:
    return zlib.crc32(key.encode()) or 1


def _json(text: str, name: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise Refusal(400, "invalid_request", f"{name} is no JSON") from wrong
    if not isinstance(value, dict):
        raise Refusal(400, "invalid_request", f"{name} is no object")
    return value


def _token(last_id: int) -> str:
    return base64.b64encode(json.dumps({"values": {"id": last_id}}).encode()).decode()


def _after(token: str) -> int:
    try:
        return int(json.loads(base64.b64decode(token, validate=True))["values"]["id"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise Refusal(400, "invalid_request", "invalid after_token") from wrong

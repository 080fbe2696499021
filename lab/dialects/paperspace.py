# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Paperspace machines, API v1.

Facts: types of the vendor's CLI (2026-02), vendor pages, SkyPilot 0.14.1 for paths, bodies, codes and states. Prices
are of the order of the console's. Where the sources are silent the lab takes the tenant's harm: a dead host bills on.
Machines here listen on 127.0.0.1 and a port that the API has no member for, so nobody can log in from its answers, and
the user is root. A startup script runs once, when the machine is up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lab import faults
from lab import market as m
from lab.boxes import BoxError
from lab.market import GpuType, Market, Order, Rental, Volume
from lab.meter import Rate, per_month
from lab.schema import Schema, violations
from lab.wire import RequestLog, outermost

_STATE = {m.PLACING: "provisioning", m.STARTING: "starting", m.STOPPED: "off", m.FAILED: "failed"}
_REGIONS = ("East Coast (NY2)", "West Coast (CA1)", "Europe (AMS1)")
_DISKS_GB = (50, 100, 250, 500, 1000, 2000)
_DISK, _SNAPSHOT, _DRIVE = "0.10", "0.29", "0.10"  # USD per GB and month; that of a snapshot is the vendor's
_STATIC_IP = Decimal("0.0045")  # USD an hour, also while unassigned
_EVENT_SECONDS = 0.3
_PAGE = 20

faults.rule("paperspace.event_error", "a destroy is accepted, and its event ends in an error with nothing done")


def _card(label: str, device: str, memory: int, price: str, most: int = 1) -> GpuType:
    """The market names a card as nvidia-smi does; its other name is that of the machine type with one of it."""
    return GpuType(
        device,
        label,
        memory,
        {"SECURE": Decimal(price)},
        {"SECURE": most},
        dict.fromkeys(_REGIONS, "HIGH"),
        cuda="12.4",
    )


@dataclass(frozen=True)
class PaperspacePlatform:
    name: str = "paperspace"
    currency: str = "USD"
    regions: tuple[str, ...] = _REGIONS
    catalogue: tuple[GpuType, ...] = (
        _card("H100", "NVIDIA H100 80GB HBM3", 80, "5.95", 8),
        _card("A100-80G", "NVIDIA A100-SXM4-80GB", 80, "3.18", 8),
        _card("A100", "NVIDIA A100-SXM4-40GB", 40, "3.09"),
        _card("A6000", "NVIDIA RTX A6000", 48, "1.89", 4),
        _card("A4000", "NVIDIA RTX A4000", 16, "0.76", 4),
        _card("P5000", "Quadro P5000", 16, "0.78"),
    )

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        if state == m.GONE:
            return Rate()
        disk = per_month(rental.order.extra.get("disk", 50), _DISK)
        if state in (m.PLACING, m.STOPPED):
            return Rate(disk=disk)
        return Rate(rental.gpu.prices["SECURE"] * rental.order.gpu_count, disk)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        if kind == "static_ip":
            return Rate(disk=_STATIC_IP)
        return Rate(disk=per_month(size_gb, _SNAPSHOT if kind == "snapshot" else _DRIVE))

    def credit_needed(self, rate: Rate) -> Decimal:
        return Decimal(0)  # post-paid

    def when_broke(self, rental: Rental) -> str:
        return "stop"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        return {}


PLATFORM = PaperspacePlatform()
_COUNTS = {"H100": (1, 8), "A100-80G": (1, 8), "A6000": (1, 2, 4), "A4000": (1, 2, 4)}
_TYPES = {
    card.name if count == 1 else f"{card.name}x{count}": (card, count)
    for card in PLATFORM.catalogue
    for count in _COUNTS.get(card.name, (1,))
}


def exports(url: str, key: str) -> dict[str, str]:
    """The lab's owner has looked the prices up, as a customer does in the console."""
    rates = ",".join(f"{label}={card.prices['SECURE'] * count} USD" for label, (card, count) in _TYPES.items())
    return {"PAPERSPACE_API_BASE_URL": f"{url}/v1", "PAPERSPACE_API_KEY": key, "PAPERSPACE_PRICES": rates}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""
    app = web.Application(middlewares=[outermost(market, requests), _errors, _guard(market)])
    api = _Api(market)
    app.add_routes(
        [
            web.get("/v1/auth/session", api.session),
            web.get("/v1/billing/account-standing", api.standing),
            web.get("/v1/machines", api.list_machines),
            web.post("/v1/machines", api.create_machine),
            web.get("/v1/machines/{id}", api.get_machine),
            web.delete("/v1/machines/{id}", api.delete_machine),
            web.patch("/v1/machines/{id}/{verb:start|stop|restart}", api.act_on_machine),
            web.get("/v1/machine-events", api.list_events),
            web.get("/v1/machine-events/{id}", api.get_event),
            web.get("/v1/os-templates", api.list_templates),
            web.get("/v1/custom-templates", api.list_custom_templates),
            web.get("/v1/startup-scripts", api.list_scripts),
            web.post("/v1/startup-scripts", api.create_script),
            web.delete("/v1/startup-scripts/{id}", api.delete_script),
            web.get("/v1/public-ips", api.list_addresses),
            web.post("/v1/public-ips", api.claim_address),
            web.put("/v1/public-ips/{id}", api.assign_address),
            web.delete("/v1/public-ips/{id}", api.release_address),
            web.get("/v1/snapshots", api.list_snapshots),
            web.post("/v1/snapshots", api.create_snapshot),
            web.delete("/v1/snapshots/{id}", api.delete_snapshot),
            web.get("/v1/shared-drives", api.list_drives),
            web.post("/v1/shared-drives", api.create_drive),
            web.delete("/v1/shared-drives/{id}", api.delete_drive),
        ]
    )
    return app


# Errors: {"code", "message", "issues"?}.


class Problem(Exception):
    def __init__(self, status: int, code: str, message: str, issues: list[str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.issues = status, code, message, issues

    def answer(self) -> web.Response:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.issues:
            body["issues"] = [{"message": issue} for issue in self.issues]
        return web.json_response(body, status=self.status)


def _missing() -> Problem:
    return Problem(404, "NOT_FOUND", "Not found")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Problem as problem:
        return problem.answer()
    except m.MarketError as refusal:
        return _problem_of(refusal).answer()
    except web.HTTPException as other:
        code = {404: "NOT_FOUND", 405: "METHOD_NOT_SUPPORTED"}.get(other.status, "BAD_REQUEST")
        return Problem(other.status, code, other.reason).answer()


def _problem_of(refusal: m.MarketError) -> Problem:
    match refusal:
        case m.Unknown():
            return _missing()
        case m.NoCapacity():
            return Problem(400, "BAD_REQUEST", "We are currently out of capacity for the selected machine type.")
        case m.Conflict():
            return Problem(409, "CONFLICT", str(refusal))
        case _:
            return Problem(400, "BAD_REQUEST", str(refusal))


def _guard(market: Market) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        scope = market.keys.get(key) if scheme == "Bearer" else None
        if scope is None and request.path == "/v1/auth/session":
            return web.json_response(None)  # nobody is logged in
        if scope is None:
            raise Problem(401, "UNAUTHORIZED", "Unauthorized")
        if scope != "all" and request.method != "GET":
            raise Problem(403, "FORBIDDEN", "Forbidden")
        return await handler(request)

    return middleware


_TEXT: Schema = {"type": "string", "minLength": 1}
_FLAG: Schema = {"type": "boolean"}
_CREATE: Schema = {
    "type": "object",
    "required": ["name", "machineType", "templateId", "region", "diskSize"],
    "properties": {
        **dict.fromkeys(("name", "machineType", "templateId", "region", "networkId", "startupScriptId"), _TEXT),
        **dict.fromkeys(("startOnCreate", "enableNvlink", "emailPassword", "takeInitialSnapshot"), _FLAG),
        **dict.fromkeys(("autoShutdownEnabled", "autoShutdownForce", "autoSnapshotEnabled"), _FLAG),
        "diskSize": {"enum": list(_DISKS_GB)},
        "publicIpType": {"enum": ["static", "dynamic", "none"]},
        "autoShutdownTimeout": {"type": "integer", "minimum": 1},
    },
}
_NAMED: Schema = {"type": "object", "required": ["name", "script"], "properties": {"name": _TEXT, "script": _TEXT}}
_CLAIM: Schema = {"type": "object", "required": ["region"], "properties": {"region": {"enum": list(_REGIONS)}}}
_SNAP: Schema = {
    "type": "object",
    "required": ["machineId", "name"],
    "properties": {"machineId": _TEXT, "name": _TEXT},
}
_SHARE: Schema = {
    "type": "object",
    "required": ["name", "size", "networkId", "region"],
    "properties": {"name": _TEXT, "size": {"type": "integer", "minimum": 1}, "networkId": _TEXT, "region": _TEXT},
}


async def _body(request: web.Request, schema: Schema) -> dict[str, Any]:
    try:
        body = json.loads(await request.read() or b"{}")
    except ValueError as wrong:
        raise Problem(400, "BAD_REQUEST", "Failed to parse request body") from wrong
    issues = violations(body, schema)
    if issues:
        raise Problem(400, "BAD_REQUEST", "Input validation failed", issues)
    return body


def _listed(request: web.Request, items: list[dict[str, Any]], key: str = "id") -> web.Response:
    """One page: `after` names the last item of the page before."""
    limit = int(request.query.get("limit", _PAGE))
    if not 1 <= limit <= 100:
        raise Problem(400, "BAD_REQUEST", "Input validation failed", ["limit: must be between 1 and 100"])
    after = request.query.get("after")
    start = next((number + 1 for number, item in enumerate(items) if item[key] == after), len(items)) if after else 0
    page = items[start : start + limit]
    more = start + limit < len(items)
    return web.json_response({"items": page, "hasMore": more, "nextPage": page[-1][key] if more else None})


@dataclass
class _Event:
    id: str
    name: str
    machine: str
    state: str
    created: float
    finished: float | None = None
    error: str | None = None

    def told(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "state": self.state,
            "error": self.error,
            "machineId": self.machine,
            "dtCreated": _when(self.created),
            "dtStarted": _when(self.created) if self.state != "new" else None,
            "dtFinished": _when(self.finished),
        }


@dataclass
class _Side:
    """What the team has beside its machines; the market knows what it costs, this is what it is."""

    scripts: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: dict[str, _Event] = field(default_factory=dict)
    things: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the market's id of the volume


class _Api:
    def __init__(self, market: Market) -> None:
        self._market = market
        self._side = _Side()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(11)

    async def session(self, request: web.Request) -> web.Response:
        team = {"handle": "tlab", "id": 1, "namespace": "lab"}
        return web.json_response({"team": team, "user": {"email": "tenant@lab.invalid", "handle": "ulab", "id": 2}})

    async def standing(self, request: web.Request) -> web.Response:
        good = self._market.balance() > 0
        told = {"hasPaymentMethod": True, "isAdminLocked": False, "isInGoodStanding": good}
        return web.json_response({**told, "messages": [] if good else ["Your last payment failed."]})

    # Machines.

    async def list_machines(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).rentals.values()
        machines = [self._machine(rental) for rental in seen if rental.state != m.GONE]
        for name in ("name", "region", "machineType"):
            if name in request.query:
                machines = [machine for machine in machines if machine[name] == request.query[name]]
        return _listed(request, machines)

    async def get_machine(self, request: web.Request) -> web.Response:
        rental = self._market.view().rentals.get(request.match_info["id"])
        if rental is None or (rental.state == m.GONE and self._age(rental) >= self._market.options.linger):
            raise _missing()
        return web.json_response(self._machine(rental))

    async def create_machine(self, request: web.Request) -> web.Response:
        body = await _body(request, _CREATE)
        if body["machineType"] not in _TYPES:
            raise Problem(400, "BAD_REQUEST", f"Invalid machine type: {body['machineType']}")
        if body["templateId"] not in _TEMPLATES:
            raise Problem(404, "NOT_FOUND", "Template not found")
        if body.get("startupScriptId", None) not in (None, *self._side.scripts):
            raise Problem(404, "NOT_FOUND", "Startup script not found")
        rental = await self._market.rent(_order(body))
        script = self._side.scripts.get(body.get("startupScriptId", ""))
        if script:
            script["assignedMachineIds"].append(rental.id)
            self._background(self._run_script(rental, script["script"]))
        return self._did("create", rental)

    async def delete_machine(self, request: web.Request) -> web.Response:
        rental = self._market.rental(request.match_info["id"])
        event = self._event("deactivate", rental)
        self._background(self._deactivate(rental, event))
        return web.json_response({"data": self._machine(rental), "event": event.told()})

    async def act_on_machine(self, request: web.Request) -> web.Response:
        await _body(request, {"type": "object"})
        verb, rental = request.match_info["verb"], self._market.rental(request.match_info["id"])
        acts: dict[str, Callable[[str], Any]] = {
            "start": self._market.start,
            "stop": self._market.stop,
            "restart": self._market.restart,
        }
        await acts[verb](rental.id)
        return self._did(verb, rental)

    async def _deactivate(self, rental: Rental, event: _Event) -> None:
        await asyncio.sleep(_EVENT_SECONDS / 2)
        event.state = "in progress"
        await asyncio.sleep(_EVENT_SECONDS / 2)
        event.finished = self._market.clock.now()
        if self._market.faults.strike("paperspace.event_error", {**self._market.facts(rental), "verb": "destroy"}):
            event.state, event.error = "error", "The machine could not be deactivated."
            return
        with contextlib.suppress(m.Unknown):
            await self._market.destroy(rental.id)
        for thing in self._side.things.values():
            if thing.get("assignedMachineId") == rental.id:
                thing["assignedMachineId"] = None
        event.state = "done"

    async def _run_script(self, rental: Rental, script: str) -> None:
        while rental.endpoint is None:
            if rental.generation != 1 or rental.state not in (m.PLACING, m.STARTING, m.RUNNING):
                return
            await asyncio.sleep(0.05)
        with contextlib.suppress(BoxError, m.MarketError):
            await self._market.box(rental.id).exec(["/bin/bash", "-c", script])

    def _did(self, name: str, rental: Rental) -> web.Response:
        event = self._event(name, rental)
        event.state, event.finished = "done", self._market.clock.now()
        return web.json_response({"data": self._machine(rental), "event": event.told()})

    def _event(self, name: str, rental: Rental) -> _Event:
        event = _Event(_new_id("e"), name, rental.id, "new", self._market.clock.now())
        self._side.events[event.id] = event
        return event

    def _age(self, rental: Rental) -> float:
        return self._market.clock.now() - rental.spans[-1].at

    def _state(self, rental: Rental) -> str:
        if rental.state == m.RUNNING:
            return "ready" if rental.endpoint else "serviceready"
        if rental.state == m.STOPPED and self._age(rental) < self._market.options.timing.stop_grace:
            return "stopping"
        return _STATE.get(rental.state, "off")

    def _machine(self, rental: Rental) -> dict[str, Any]:
        order, extra, card = rental.order, rental.order.extra, rental.gpu
        state, gone = self._state(rental), rental.state == m.GONE
        public = extra.get("publicIpType", "none") != "none" and state == "ready" and rental.endpoint is not None
        disk = int(extra.get("disk", 50))
        return {
            "id": rental.id,
            "name": order.name,
            "state": state,
            "machineType": card.name if order.gpu_count == 1 else f"{card.name}x{order.gpu_count}",
            "region": rental.region,
            "os": "Ubuntu 22.04",
            "cpus": 8,
            "ram": 32 << 30,
            "accelerators": [{"name": card.id, "count": order.gpu_count, "memory": card.memory_gb << 30}],
            "publicIp": rental.endpoint[0] if public and rental.endpoint else None,
            "publicIpType": extra.get("publicIpType", "none"),
            "privateIp": "10.0.0.5",
            "networkId": extra.get("networkId"),
            "storageTotal": disk << 30,
            "storageUsed": 0,
            "storageRate": float(per_month(disk, _DISK)),
            "usageRate": float(card.prices["SECURE"] * order.gpu_count),
            "autoShutdownEnabled": False,
            "autoSnapshotEnabled": False,
            "dtCreated": _when(rental.created_at),
            "dtModified": _when(rental.spans[-1].at),
            "dtDeleted": _when(rental.spans[-1].at) if gone else None,
            "updatesPending": False,
            "agentType": "LinuxHeadless",
            "reservation": None,
        }

    # Events and templates.

    async def list_events(self, request: web.Request) -> web.Response:
        wanted = request.query.get("machineId")
        events = [event.told() for event in self._side.events.values() if wanted in (None, event.machine)]
        return _listed(request, events)

    async def get_event(self, request: web.Request) -> web.Response:
        event = self._side.events.get(request.match_info["id"])
        if event is None:
            raise _missing()
        return web.json_response(event.told())

    async def list_templates(self, request: web.Request) -> web.Response:
        return _listed(request, [self._template(template, name) for template, name in _TEMPLATES.items()])

    async def list_custom_templates(self, request: web.Request) -> web.Response:
        return _listed(request, [])

    def _template(self, template: str, name: str) -> dict[str, Any]:
        types = [{"machineTypeLabel": label, "isAvailable": self._stocked(card)} for label, (card, _) in _TYPES.items()]
        return {"id": template, "name": name, "defaultSizeGb": 50, "availableMachineTypes": types}

    def _stocked(self, card: GpuType) -> bool:
        facts = {"platform": PLATFORM.name, "gpu": card.id, "verb": "rent"}
        fault = self._market.faults.standing("offer.none", facts)
        return fault is None or bool(fault.params["listed"])

    # Startup scripts.

    async def list_scripts(self, request: web.Request) -> web.Response:
        hidden = {"script"}
        told = [{name: value for name, value in one.items() if name not in hidden} for one in self._scripts()]
        return _listed(request, told)

    async def create_script(self, request: web.Request) -> web.Response:
        body = await _body(request, _NAMED)
        script = {
            "id": _new_id("s"),
            "name": body["name"],
            "script": body["script"],
            "isEnabled": True,
            "isRunOnce": bool(body.get("isRunOnce")),
            "assignedMachineIds": [],
        }
        self._side.scripts[script["id"]] = script
        return web.json_response(script)

    async def delete_script(self, request: web.Request) -> web.Response:
        if self._side.scripts.pop(request.match_info["id"], None) is None:
            raise _missing()
        return web.json_response({"id": request.match_info["id"]})

    def _scripts(self) -> list[dict[str, Any]]:
        return [*self._side.scripts.values()]

    # What bills on without a machine.

    async def list_addresses(self, request: web.Request) -> web.Response:
        return _listed(request, self._things("static_ip"), "ip")

    async def claim_address(self, request: web.Request) -> web.Response:
        region = (await _body(request, _CLAIM))["region"]
        ip = f"203.0.113.{next(self._numbers)}"
        thing = {"ip": ip, "region": region, "assignedMachineId": None}
        return web.json_response(await self._keep("static_ip", ip, 1, region, thing))

    async def assign_address(self, request: web.Request) -> web.Response:
        body = await _body(request, {"type": "object", "required": ["machineId"]})
        _, thing = self._thing("static_ip", "ip", request.match_info["id"])
        thing["assignedMachineId"] = self._market.rental(body["machineId"]).id if body["machineId"] else None
        return web.json_response(thing)

    async def release_address(self, request: web.Request) -> web.Response:
        return await self._drop("static_ip", "ip", request.match_info["id"])

    async def list_snapshots(self, request: web.Request) -> web.Response:
        return _listed(request, self._things("snapshot"))

    async def create_snapshot(self, request: web.Request) -> web.Response:
        body = await _body(request, _SNAP)
        rental = self._market.rental(body["machineId"])
        thing = {"id": _new_id("sn"), "name": body["name"], "machineId": rental.id}
        size = int(rental.order.extra.get("disk", 50))
        data = await self._keep("snapshot", body["name"], size, rental.region, thing)
        return web.json_response({"data": data, "event": self._event("snapshot", rental).told()})

    async def delete_snapshot(self, request: web.Request) -> web.Response:
        return await self._drop("snapshot", "id", request.match_info["id"])

    async def list_drives(self, request: web.Request) -> web.Response:
        return _listed(request, self._things("shared_drive"))

    async def create_drive(self, request: web.Request) -> web.Response:
        body = await _body(request, _SHARE)
        thing = {
            "id": _new_id("d"),
            **{name: body[name] for name in ("name", "size", "networkId")},
            "mountPoint": "//10.0.0.9/share",
            "username": "lab",
            "password": f"pw_{secrets.token_hex(8)}",
        }
        return web.json_response(await self._keep("shared_drive", body["name"], body["size"], body["region"], thing))

    async def delete_drive(self, request: web.Request) -> web.Response:
        return await self._drop("shared_drive", "id", request.match_info["id"])

    async def _keep(self, kind: str, name: str, size_gb: int, region: str, thing: dict[str, Any]) -> dict[str, Any]:
        volume = await self._market.create_volume(name, size_gb, region, kind)
        self._side.things[volume.id] = {**thing, "dtCreated": _when(volume.created_at)}
        return self._side.things[volume.id]

    async def _drop(self, kind: str, key: str, wanted: str) -> web.Response:
        volume, thing = self._thing(kind, key, wanted)
        await self._market.delete_volume(volume.id)
        return web.json_response(thing)

    def _thing(self, kind: str, key: str, wanted: str) -> tuple[Volume, dict[str, Any]]:
        for volume in self._market.records.volumes.values():
            thing = self._side.things.get(volume.id, {})
            if volume.kind == kind and volume.state != m.GONE and thing.get(key) == wanted:
                return volume, thing
        raise _missing()

    def _things(self, kind: str) -> list[dict[str, Any]]:
        seen = self._market.view().volumes.values()
        kept = [volume.id for volume in seen if volume.kind == kind and volume.state != m.GONE]
        return [self._side.things[volume] for volume in kept if volume in self._side.things]

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


# Ids seen in SkyPilot; they may age.
_TEMPLATES = {"tilqt47t": "ML-in-a-Box H100", "tqqsxr6b": "ML-in-a-Box A100-80G", "twnlo3zj": "ML-in-a-Box"}
# The keys that the team registered in the console; nobody in the lab holds their other half.
_CONSOLE_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH5d5me3fjN2gWmAnku6m67+QMNDNzrbnmm8Sv2kkleJ console"


def _order(body: dict[str, Any]) -> Order:
    card, count = _TYPES[body["machineType"]]
    return Order(
        name=body["name"],
        gpu=card.id,
        gpu_count=count,
        image=body["templateId"],
        regions=(body["region"],),
        disk_gb=body["diskSize"],
        keys=(_CONSOLE_KEY,),
        disk=(body["diskSize"], "/home/paperspace"),
        extra={
            "disk": body["diskSize"],
            "publicIpType": body.get("publicIpType", "none"),
            "networkId": body.get("networkId"),
        },
    )


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(6)


def _when(at: float | None) -> str | None:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at else None

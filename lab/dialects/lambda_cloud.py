# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lambda Cloud: `{"data": …}` or `{"error": {"code", "message", "suggestion"}}`; no stop, no balance.

Facts: the vendor's OpenAPI file 1.10.0 (2026-08) for paths, bodies and codes; vendor pages of 2026-06 to 2026-08 for
billing. Unlike the real thing, `ip` carries the port (boxes share loopback), SSH lets in root only, and a filesystem
is billed as if it held `_FILESYSTEM_GIB`.
"""

from __future__ import annotations

import json
import secrets
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from aiohttp import BasicAuth, web
from aiohttp.typedefs import Handler, Middleware

from lab import market as m
from lab.faults import rule
from lab.market import GpuType, Market, Order, Rental, Volume
from lab.meter import Rate, per_month
from lab.schema import Schema, violations
from lab.wire import RequestLog, outermost

_CLOUD = "SECURE"
_FILESYSTEM_GIB, _FILESYSTEM_PRICE = 10, "0.20"  # USD per GiB and month
_REGIONS = {"us-east-1": "Virginia, USA", "us-west-1": "California, USA", "us-south-2": "North Texas, USA"}
_MOST_A_SECOND = 1

rule("lambda.pace", "more than one request a second is answered with 429")
rule("lambda.preempt_shown", "a running instance is shown as preempted; it bills on")


def _card(gpu_id: str, name: str, memory: int) -> GpuType:
    """The price is that of the instance type."""
    return GpuType(gpu_id, name, memory, {_CLOUD: Decimal(0)}, {_CLOUD: 8}, dict.fromkeys(_REGIONS, "HIGH"))


@dataclass(frozen=True)
class _Type:
    card: GpuType
    gpus: int
    cents: int
    form: str
    regions: tuple[str, ...]
    vcpus: int = 30
    memory_gib: int = 200
    storage_gib: int = 512


_A10 = _card("NVIDIA A10", "A10", 24)
_A6000 = _card("NVIDIA RTX A6000", "A6000", 48)
_A100 = _card("NVIDIA A100-SXM4-40GB", "A100", 40)
_A100_80 = _card("NVIDIA A100-SXM4-80GB", "A100", 80)
_H100_PCIE = _card("NVIDIA H100 PCIe", "H100", 80)
_H100 = _card("NVIDIA H100 80GB HBM3", "H100", 80)
_GH200 = _card("NVIDIA GH200 480GB", "GH200", 96)

_EAST, _WEST, _ALL = ("us-east-1",), ("us-west-1", "us-south-2"), tuple(_REGIONS)
_TYPES = {
    "gpu_1x_a10": _Type(_A10, 1, 75, "24 GB PCIe", _ALL),
    "gpu_1x_a6000": _Type(_A6000, 1, 80, "48 GB", _EAST),
    "gpu_2x_a6000": _Type(_A6000, 2, 160, "48 GB", _EAST),
    "gpu_1x_a100_sxm4": _Type(_A100, 1, 129, "40 GB SXM4", _WEST),
    "gpu_8x_a100_80gb_sxm4": _Type(_A100_80, 8, 1432, "80 GB SXM4", _WEST, 240, 1800, 20480),
    "gpu_1x_h100_pcie": _Type(_H100_PCIE, 1, 249, "80 GB PCIe", _WEST, storage_gib=1024),
    "gpu_1x_h100_sxm5": _Type(_H100, 1, 329, "80 GB SXM5", _WEST, storage_gib=2816),
    "gpu_8x_h100_sxm5": _Type(_H100, 8, 2392, "80 GB SXM5", (), 208, 1800, 22528),
    "gpu_1x_gh200": _Type(_GH200, 1, 149, "96 GB", _EAST, storage_gib=4096),
}
_DEFAULT_TYPES = {kind.card.id: name for name, kind in reversed(_TYPES.items())}


@dataclass(frozen=True)
class LambdaPlatform:
    name: str = "lambda"
    currency: str = "USD"
    regions: tuple[str, ...] = tuple(_REGIONS)
    catalogue: tuple[GpuType, ...] = (_A10, _A6000, _A100, _A100_80, _H100_PCIE, _H100, _GH200)

    def new_id(self) -> str:
        return secrets.token_hex(16)

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        """From passing health checks to terminate, used or not; unhealthy bills on."""
        if state in (m.GONE, m.PLACING, m.STARTING):
            return Rate()
        return Rate(Decimal(_TYPES[_type_of(rental)].cents) / 100)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        return Rate(disk=per_month(size_gb, _FILESYSTEM_PRICE))

    def credit_needed(self, rate: Rate) -> Decimal:
        return Decimal(0)  # a card is billed afterwards

    def when_broke(self, rental: Rental) -> str:
        return "destroy"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        return {}


PLATFORM = LambdaPlatform()


def _type_of(rental: Rental) -> str:
    return str(rental.order.extra.get("type") or _DEFAULT_TYPES[rental.gpu.id])


def exports(url: str, key: str) -> dict[str, str]:
    return {"LAMBDA_API_BASE_URL": url, "LAMBDA_API_KEY": key}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""
    market._new_id = PLATFORM.new_id  # type: ignore[method-assign]  # the market names things in letters
    app = web.Application(middlewares=[outermost(market, requests), _errors, _guard(market)])
    api = _Api(market)
    app.add_routes(
        [
            web.get("/api/v1/instances", api.list_instances),
            web.get("/api/v1/instances/{id}", api.show),
            web.post("/api/v1/instances/{id}", api.rename),
            web.get("/api/v1/instance-types", api.list_types),
            web.post("/api/v1/instance-operations/launch", api.launch),
            web.post("/api/v1/instance-operations/restart", api.restart),
            web.post("/api/v1/instance-operations/terminate", api.terminate),
            web.get("/api/v1/file-systems", api.list_filesystems),
            web.post("/api/v1/filesystems", api.create_filesystem),
            web.delete("/api/v1/filesystems/{id}", api.delete_filesystem),
            web.get("/api/v1/ssh-keys", api.list_keys),
            web.post("/api/v1/ssh-keys", api.add_key),
            web.delete("/api/v1/ssh-keys/{id}", api.delete_key),
            web.get("/api/v1/images", api.list_images),
            web.get("/api/v1/regions", api.list_regions),
        ]
    )
    return app


# Errors.

_SUGGESTIONS = {
    "global/invalid-api-key": "Check your API key or create a new one, then try again.",
    "global/object-does-not-exist": "Check the id, then try again.",
    "instance-operations/launch/insufficient-capacity": "Choose an instance type with more availability.",
}


class Problem(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _answer(problem: Problem) -> web.Response:
    error = {"code": problem.code, "message": problem.message}
    if problem.code in _SUGGESTIONS:
        error["suggestion"] = _SUGGESTIONS[problem.code]
    return web.json_response({"error": error}, status=problem.status)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Problem as problem:
        return _answer(problem)
    except m.MarketError as refusal:
        return _answer(_problem_of(refusal))
    except web.HTTPException as other:
        return _answer(Problem(other.status, "global/not-found", "The requested resource was not found."))


def _problem_of(refusal: m.MarketError) -> Problem:
    match refusal:
        case m.Unknown():
            return _missing("Specified instance does not exist.")
        case m.NoCapacity():
            code = "instance-operations/launch/insufficient-capacity"
            return Problem(400, code, "Not enough capacity to fulfill launch request.")
        case m.Conflict():
            return Problem(409, "global/conflict", str(refusal))
        case _:
            return Problem(400, "global/invalid-parameters", str(refusal))


def _missing(text: str) -> Problem:
    return Problem(404, "global/object-does-not-exist", text)


def _guard(market: Market) -> Middleware:
    """Bearer, or Basic with the key as user; one request a second where a fault says so."""
    last = [0.0]

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        scope = market.keys.get(_key(request))
        if scope is None:
            raise Problem(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")
        if scope == "read" and request.method != "GET":
            raise Problem(403, "global/account-inactive", "Your account is inactive.")
        now, before = market.clock.now(), last[0]
        last[0] = now
        if now - before < 1 / _MOST_A_SECOND and market.faults.standing("lambda.pace", {"platform": PLATFORM.name}):
            return web.json_response({"message": "Too many requests"}, status=429)
        return await handler(request)

    return middleware


def _key(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    scheme, _, credentials = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            return BasicAuth.decode(header).login
        except ValueError:
            return ""
    return credentials.strip() if scheme.lower() == "bearer" else ""


# The API.

_STATUS = {
    m.PLACING: "booting",
    m.STARTING: "booting",
    m.RUNNING: "active",
    m.STOPPED: "preempted",
    m.FAILED: "unhealthy",
    m.GONE: "terminating",  # what is shown for a while after a terminate
}
_NAME: Schema = {"type": "string", "maxLength": 64}
_IDS: Schema = {
    "type": "object",
    "required": ["instance_ids"],
    "properties": {"instance_ids": {"type": "array", "items": {"type": "string"}}},
}
_LAUNCH: Schema = {
    "type": "object",
    "required": ["region_name", "instance_type_name", "ssh_key_names"],
    "properties": {
        "region_name": {"type": "string"},
        "instance_type_name": {"type": "string"},
        "ssh_key_names": {"type": "array", "items": {"type": "string"}, "maxItems": 1, "minItems": 1},
        "file_system_names": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
        "file_system_mounts": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["mount_point", "file_system_id"],
                "properties": {
                    "mount_point": {
                        "type": "string",
                        "maxLength": 256,
                        "pattern": "^(/home|/lambda/nfs|/data)[//a-zA-Z0-9-]*$",
                    },
                    "file_system_id": {"type": "string"},
                },
            },
        },
        "hostname": {"type": "string", "pattern": "^[a-z0-9][0-9a-z-]{0,62}$"},
        "name": _NAME,
        "image": {"type": "object"},
        "user_data": {"type": "string"},
        "tags": {"type": "array"},
        "firewall_rulesets": {"type": "array"},
    },
}
_FILESYSTEM: Schema = {
    "type": "object",
    "required": ["name", "region"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 60, "pattern": "^[a-zA-Z]+[0-9a-zA-Z-]*$"},
        "region": {"type": "string"},
    },
}
_SSH_KEY: Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 64},
        "public_key": {"type": "string", "minLength": 1, "maxLength": 4096},
    },
}
_IMAGES = {
    "lambda-stack-22-04": "43336648096d4cba9e5f2b4d3a1c0f77",
    "lambda-stack-24-04": "9b1de3a5f0c84b0d8c5e6a7b2f4d1e90",
}


async def _body(request: web.Request, schema: Schema) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as wrong:
        raise Problem(400, "global/invalid-parameters", "Invalid request data.") from wrong
    errors = violations(body, schema)
    if errors:
        raise Problem(400, "global/invalid-parameters", errors[0])
    return body


def _data(content: Any) -> web.Response:
    return web.json_response({"data": content})


class _Api:
    def __init__(self, market: Market) -> None:
        self._market = market

    # Instances.

    async def list_instances(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).rentals.values()
        return _data([self._instance(rental) for rental in seen if self._shown(rental)])

    async def show(self, request: web.Request) -> web.Response:
        rental = self._market.view().rentals.get(request.match_info["id"])
        if rental is None or not self._shown(rental):
            raise m.Unknown(request.match_info["id"])
        return _data(self._instance(rental))

    async def rename(self, request: web.Request) -> web.Response:
        body = await _body(request, {"type": "object", "properties": {"name": _NAME}})
        rental = self._market.rental(request.match_info["id"])
        return _data(self._instance(await self._market.change(rental.id, name=body.get("name", rental.name))))

    async def launch(self, request: web.Request) -> web.Response:
        body = await _body(request, _LAUNCH)
        if body.get("quantity", 1) != 1:
            raise Problem(400, "global/invalid-parameters", "Requested too many instances.")
        kind, region = _TYPES.get(body["instance_type_name"]), body["region_name"]
        if kind is None or region not in _REGIONS:
            raise _missing("Specified instance type or region does not exist.")
        if region not in kind.regions:
            raise m.NoCapacity(region)
        image = body.get("image") or {"family": "lambda-stack-22-04"}
        if image.get("family") not in _IMAGES and image.get("id") not in _IMAGES.values():
            raise _missing("Specified image does not exist.")
        rental = await self._market.rent(self._order(body, kind))
        return _data({"instance_ids": [rental.id]})

    def _order(self, body: dict[str, Any], kind: _Type) -> Order:
        keys = {_key_name(line): _key_text(line) for line in self._market.records.ssh_keys}
        wanted = body["ssh_key_names"][0]
        if wanted not in keys:
            raise _missing(f"SSH key {wanted} does not exist.")
        return Order(
            name=body.get("name", ""),
            gpu=kind.card.id,
            image=str(body.get("image") or "lambda-stack-22-04"),
            gpu_count=kind.gpus,
            cloud=_CLOUD,
            regions=(body["region_name"],),
            disk_gb=kind.storage_gib,
            keys=(keys[wanted],),
            volume=self._filesystem_wanted(body),
            extra={"type": body["instance_type_name"], "key": wanted, "hostname": body.get("hostname")},
        )

    def _filesystem_wanted(self, body: dict[str, Any]) -> tuple[str, str] | None:
        by_name = {volume.name: volume for volume in self._market.records.volumes.values() if volume.state != m.GONE}
        by_id = {volume.id: volume for volume in by_name.values()}
        wanted = [(by_name.get(name), f"/lambda/nfs/{name}") for name in body.get("file_system_names", [])]
        wanted += [
            (by_id.get(mount["file_system_id"]), mount["mount_point"]) for mount in body.get("file_system_mounts", [])
        ]
        if not wanted:
            return None
        volume, path = wanted[-1]
        if volume is None:
            raise _missing("Specified filesystem does not exist.")
        if volume.region != body["region_name"]:
            code = "instance-operations/launch/file-system-in-wrong-region"
            raise Problem(400, code, "Filesystem is in another region.")
        return volume.id, path

    async def restart(self, request: web.Request) -> web.Response:
        ids = (await _body(request, _IDS))["instance_ids"]
        rentals = [self._market.rental(each) for each in ids]
        return _data({"restarted_instances": [self._instance(await self._market.restart(one.id)) for one in rentals]})

    async def terminate(self, request: web.Request) -> web.Response:
        """All or none: one unknown id is a 404 for the call."""
        ids = (await _body(request, _IDS))["instance_ids"]
        rentals = [self._market.rental(each) for each in ids]
        for rental in rentals:
            await self._market.destroy(rental.id)
        return _data({"terminated_instances": [self._instance(rental) for rental in rentals]})

    def _shown(self, rental: Rental) -> bool:
        if rental.state != m.GONE:
            return True
        return self._market.clock.now() - rental.spans[-1].at < self._market.options.linger

    def _instance(self, rental: Rental) -> dict[str, Any]:
        order, status = rental.order, _STATUS[rental.state]
        if status == "active" and self._market.faults.standing("lambda.preempt_shown", self._market.facts(rental)):
            status = "preempted"
        volume = self._market.records.volumes.get(order.volume[0]) if order.volume else None
        entry: dict[str, Any] = {
            "id": rental.id,
            "name": order.name,
            "status": status,
            "ssh_key_names": [order.extra["key"]] if "key" in order.extra else [],
            "file_system_names": [volume.name] if volume else [],
            "region": {"name": rental.region, "description": _REGIONS[rental.region]},
            "instance_type": _type_entry(_type_of(rental)),
            "hostname": order.extra.get("hostname") or f"ip-{rental.id[:8]}",
            "jupyter_token": rental.id[::-1],
            "jupyter_url": f"https://jupyter-{rental.id}.lambdaspaces.com/?token={rental.id[::-1]}",
            "actions": _actions(status),
        }
        if order.volume:
            entry["file_system_mounts"] = [{"mount_point": order.volume[1], "file_system_id": order.volume[0]}]
        if rental.endpoint:
            entry |= {"ip": f"{rental.endpoint[0]}:{rental.endpoint[1]}", "private_ip": "10.0.2.100"}
        return entry

    # What there is.

    async def list_types(self, request: web.Request) -> web.Response:
        return _data(
            {
                name: {
                    "instance_type": _type_entry(name),
                    "regions_with_capacity_available": [_region(place) for place in self._stocked(kind)],
                }
                for name, kind in _TYPES.items()
            }
        )

    def _stocked(self, kind: _Type) -> tuple[str, ...]:
        facts = {"platform": PLATFORM.name, "gpu": kind.card.id, "verb": "rent"}
        fault = self._market.faults.standing("offer.none", facts)
        return () if fault and not fault.params["listed"] else kind.regions

    async def list_images(self, request: web.Request) -> web.Response:
        stamp = "2026-06-01T00:00:00Z"
        return _data(
            [
                {
                    "id": image_id,
                    "created_time": stamp,
                    "updated_time": stamp,
                    "name": "Lambda Stack",
                    "description": family,
                    "family": family,
                    "version": "1",
                    "architecture": "x86_64",
                    "region": _region(place),
                }
                for family, image_id in _IMAGES.items()
                for place in _REGIONS
            ]
        )

    async def list_regions(self, request: web.Request) -> web.Response:
        return _data([_region(place) for place in _REGIONS])

    # Filesystems: listed with a hyphen, made and deleted without.

    async def list_filesystems(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).volumes.values()
        return _data([self._filesystem(volume) for volume in seen if volume.state != m.GONE])

    async def create_filesystem(self, request: web.Request) -> web.Response:
        body = await _body(request, _FILESYSTEM)
        names = {volume.name for volume in self._market.records.volumes.values() if volume.state != m.GONE}
        if body["name"] in names:
            raise Problem(400, "global/duplicate", "A filesystem with this name exists.")
        volume = await self._market.create_volume(body["name"], _FILESYSTEM_GIB, body["region"], "NFS")
        return _data(self._filesystem(volume))

    async def delete_filesystem(self, request: web.Request) -> web.Response:
        volume_id = request.match_info["id"]
        try:
            await self._market.delete_volume(volume_id)
        except m.Unknown as problem:
            raise _missing("Filesystem was not found.") from problem
        except m.Conflict as problem:
            raise Problem(400, "filesystems/filesystem-in-use", "Filesystem is in use.") from problem
        return _data({"deleted_ids": [volume_id]})

    def _filesystem(self, volume: Volume) -> dict[str, Any]:
        return {
            "id": volume.id,
            "name": volume.name,
            "mount_point": f"/lambda/nfs/{volume.name}",
            "created": datetime.fromtimestamp(volume.created_at, UTC).isoformat(timespec="seconds"),
            "created_by": {"id": "user", "email": "tenant@lab.invalid", "status": "active"},
            "is_in_use": bool(self._market.users_of(volume.id)),
            "region": _region(volume.region),
            "bytes_used": volume.size_gb << 30,
        }

    # SSH keys. The market keeps lines; the name stands in front of the key.

    async def list_keys(self, request: web.Request) -> web.Response:
        return _data([_key_entry(line) for line in self._market.view().ssh_keys])

    async def add_key(self, request: web.Request) -> web.Response:
        body = await _body(request, _SSH_KEY)
        if body["name"] in map(_key_name, self._market.records.ssh_keys):
            raise Problem(400, "global/invalid-parameters", "A key with this name exists.")
        made = {} if "public_key" in body else {"private_key": "-----BEGIN LAB PRIVATE KEY-----"}
        line = f"{body['name']}\n{body.get('public_key', 'ssh-ed25519 AAAA made')}"
        self._market.set_ssh_keys([*self._market.records.ssh_keys, line])
        return _data({**_key_entry(line), **made})

    async def delete_key(self, request: web.Request) -> web.Response:
        kept = [line for line in self._market.records.ssh_keys if _key_entry(line)["id"] != request.match_info["id"]]
        if len(kept) == len(self._market.records.ssh_keys):
            raise _missing("SSH key does not exist.")
        self._market.set_ssh_keys(kept)
        return _data({})


def _key_name(line: str) -> str:
    return line.partition("\n")[0]


def _key_text(line: str) -> str:
    return line.partition("\n")[2]


def _key_entry(line: str) -> dict[str, str]:
    return {"id": f"{zlib.crc32(line.encode()):032x}", "name": _key_name(line), "public_key": _key_text(line)}


def _region(place: str) -> dict[str, str]:
    return {"name": place, "description": _REGIONS[place]}


def _type_entry(name: str) -> dict[str, Any]:
    kind = _TYPES[name]
    described = f"{kind.card.name} ({kind.form})"
    return {
        "name": name,
        "description": f"{kind.gpus}x {described}",
        "gpu_description": described,
        "price_cents_per_hour": kind.cents,
        "specs": {
            "vcpus": kind.vcpus,
            "memory_gib": kind.memory_gib,
            "storage_gib": kind.storage_gib,
            "gpus": kind.gpus,
        },
    }


def _actions(status: str) -> dict[str, dict[str, Any]]:
    reasons = {"booting": "vm-has-not-launched", "terminating": "vm-is-terminating"}
    blocked: dict[str, Any] = {"available": False, "reason_code": reasons.get(status, "vm-is-too-old")}
    free = {"available": True}
    names = ("migrate", "rebuild", "restart", "cold_reboot", "terminate")
    able = {
        "restart": status in ("active", "unhealthy"),
        "cold_reboot": status in ("active", "unhealthy"),
        "terminate": status != "terminating",
    }
    return {name: free if able.get(name) else blocked for name in names}

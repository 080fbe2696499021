# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods and the account's SSH keys."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from lab import market as m
from lab.dialects.runpod.platform import PLATFORM, cuda_version
from lab.dialects.runpod.problems import NO_INSTANCES, Problem
from lab.dialects.runpod.schemas import CREATE_POD, POD_ACTION, SSH_KEYS, UPDATE_POD, read_body
from lab.market import Market, Order, Rental
from lab.wire import rfc3339

_STATUS = {
    m.PLACING: "PROVISIONING",
    m.STARTING: "STARTING",
    m.RUNNING: "RUNNING",
    m.STOPPED: "EXITED",
    m.FAILED: "ERROR",
    m.GONE: "TERMINATED",
}
_ACTIONS = {
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "TERMINATED": [],
}


class Keys:
    def __init__(self, market: Market) -> None:
        self._market = market

    async def get_keys(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": self._market.view().ssh_keys})

    async def put_keys(self, request: web.Request) -> web.Response:
        body = await read_body(request, SSH_KEYS)
        self._market.set_ssh_keys(body["keys"])
        return web.json_response({"keys": body["keys"]})


class Pods:
    def __init__(self, market: Market) -> None:
        self._market = market

    async def list_pods(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).rentals.values()
        return web.json_response({"pods": [self._pod(rental) for rental in seen if rental.state != m.GONE]})

    async def get_pod(self, request: web.Request) -> web.Response:
        rental = self._market.view().rentals.get(request.match_info["id"])
        if rental is None or (rental.state == m.GONE and not self._lingers(rental)):
            raise Problem(404, "resource not found")
        return web.json_response(self._pod(rental))

    async def create_pod(self, request: web.Request) -> web.Response:
        body = await read_body(request, CREATE_POD)
        _check_rules(body)
        rental = await self._market.rent(self._order(body))
        return web.json_response(self._pod(rental), status=201)

    async def patch_pod(self, request: web.Request) -> web.Response:
        body = await read_body(request, UPDATE_POD)
        rental = self._market.rental(request.match_info["id"])
        fields: dict[str, Any] = {name: body[name] for name in ("name", "image", "env") if name in body}
        if "disk" in body:
            fields["disk_gb"] = body["disk"]
        if "ports" in body:
            _check_ports(body["ports"])
            fields["ports"] = tuple(body["ports"])
        if body.get("mounts"):
            fields |= _moved_mounts(rental.order, body["mounts"])
        kept = {name: body[name] for name in ("args", "registry", "locked", "globalNetworking") if name in body}
        fields["extra"] = {**rental.order.extra, **kept}
        return web.json_response(self._pod(await self._market.change(rental.id, **fields)))

    async def delete_pod(self, request: web.Request) -> web.Response:
        await self._market.destroy(request.match_info["id"])
        return web.Response(status=204)

    async def act_on_pod(self, request: web.Request) -> web.Response:
        action = (await read_body(request, POD_ACTION))["action"]
        rental = self._market.rental(request.match_info["id"])
        status = _STATUS[rental.state]
        if action not in _ACTIONS[status]:
            raise Problem(409, f"action {action} is not valid for pod status {status}")
        if rental.order.extra.get("locked") and action in ("stop", "restart"):
            raise Problem(409, "pod is locked")
        if action == "terminate":
            await self._market.destroy(rental.id)
            return web.Response(status=204)
        act = {"start": self._market.start, "stop": self._market.stop, "restart": self._market.restart}[action]
        return web.json_response(self._pod(await act(rental.id)))

    async def pod_logs(self, request: web.Request) -> web.StreamResponse:
        """What the system did to the pod so far, as server-sent events; then the stream ends."""
        rental = self._market.rental(request.match_info["id"])
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **request["quota"]}
        lines = [_log_event(number, span.at, span.state) for number, span in enumerate(rental.spans, 1)]
        return web.Response(text="".join(lines), content_type="text/event-stream", headers=headers)

    def _order(self, body: dict[str, Any]) -> Order:
        gpu, mounts = body["gpu"], body.get("mounts") or {}
        persistent, network = mounts.get("persistent"), (mounts.get("network") or [None])[0]
        env = body.get("env") or {}
        keys = [env["PUBLIC_KEY"]] if env.get("PUBLIC_KEY") else self._market.records.ssh_keys
        ssh = bool(body.get("startSsh"))
        return Order(
            name=body["name"],
            gpu=gpu["id"],
            gpu_count=gpu.get("count", 1),
            image=body["image"],
            cloud=body.get("cloud", "SECURE"),
            regions=tuple(body.get("dataCenterIds") or ()),
            disk_gb=body.get("disk", 20),
            env=env,
            ports=tuple(body.get("ports") or ()),
            keys=tuple(line for key in keys for line in key.splitlines()) if ssh else (),
            ssh=ssh,
            disk=(persistent["size"], persistent["path"]) if persistent else None,
            volume=(network["volumeId"], network["path"]) if network else None,
            extra={name: body[name] for name in ("args", "registry", "globalNetworking") if name in body},
        )

    def _pod(self, rental: Rental) -> dict[str, Any]:
        order, status = rental.order, _STATUS[rental.state]
        running = status == "RUNNING"
        mounts: dict[str, Any] = {}
        if order.disk:
            mounts["persistent"] = {"size": order.disk[0], "path": order.disk[1]}
        if order.volume:
            mounts["network"] = [{"volumeId": order.volume[0], "path": order.volume[1]}]
        return {
            "id": rental.id,
            "name": order.name,
            "status": status,
            "actions": _ACTIONS[status],
            "image": order.image,
            "args": order.extra.get("args", ""),
            "disk": order.disk_gb,
            "mounts": mounts,
            "gpu": {"id": rental.gpu.id, "count": order.gpu_count},
            "cloud": order.cloud,
            "dataCenterId": rental.region if rental.placed else None,
            "cudaVersion": rental.gpu.cuda if rental.placed else None,
            "ssh": {"proxy": _proxy(rental), "direct": _direct(rental) if running else None},
            "ports": list(order.ports),
            "env": order.env,
            "registry": order.extra.get("registry"),
            "template": None,
            "cost": float(rental.rate.compute),
            "locked": bool(order.extra.get("locked")),
            "globalNetworking": {"enabled": False},
            "runtime": self._runtime(rental) if running else None,
            "createdAt": rfc3339(rental.created_at),
            "startedAt": rfc3339(rental.started_at) if rental.placed and rental.started_at else None,
        }

    def _runtime(self, rental: Rental) -> dict[str, Any] | None:
        if rental.up_at is None:
            return None
        return {
            "uptime": int(self._market.clock.now() - rental.up_at),
            "gpus": [{"util": 0, "memoryUtil": 0}] * rental.order.gpu_count,
            "cpu": {"util": 0},
            "memory": {"util": 0},
            "ports": [_port(rental, text) for text in rental.order.ports],
        }

    def _lingers(self, rental: Rental) -> bool:
        return self._market.clock.now() - rental.spans[-1].at < self._market.options.linger


def _check_rules(body: dict[str, Any]) -> None:
    """The rules between fields: 400, not 422."""
    if ("gpu" in body) == ("cpu" in body):
        raise Problem(400, "exactly one of gpu or cpu must be set")
    mounts = body.get("mounts") or {}
    if "persistent" in mounts and mounts.get("network"):
        raise Problem(400, "mounts.persistent and mounts.network are mutually exclusive")
    if "cpu" in body:
        raise Problem(400, "mounts.persistent is not allowed on CPU pods" if "persistent" in mounts else NO_INSTANCES)
    if "templateId" in body:
        raise Problem(404, "template not found")
    if mounts.get("network") and body.get("cloud") == "COMMUNITY":
        raise Problem(400, "network volumes are only available in SECURE cloud")
    _check_ports(body.get("ports") or [])
    _check_cuda(body["gpu"])


def _check_ports(ports: list[str]) -> None:
    for text in ports:
        number, _, kind = text.partition("/")
        if not (number.isdecimal() and int(number) > 0 and kind in ("tcp", "http")):
            raise Problem(400, f"invalid port {text!r}: expected port/protocol, e.g. 22/tcp")


def _check_cuda(gpu: dict[str, Any]) -> None:
    allowed, lowest = gpu.get("allowedCudaVersions"), gpu.get("minCudaVersion")
    if allowed and lowest:
        raise Problem(400, "gpu.allowedCudaVersions and gpu.minCudaVersion are mutually exclusive")
    offered = {card.id: card.cuda for card in PLATFORM.catalogue}.get(gpu["id"])
    if offered and ((allowed and offered not in allowed) or (lowest and cuda_version(offered) < cuda_version(lowest))):
        raise Problem(400, NO_INSTANCES)


def _moved_mounts(order: Order, mounts: dict[str, Any]) -> dict[str, Any]:
    """A PATCH may move a mount; it can neither add one nor change which one it is."""
    network = (mounts.get("network") or [None])[0]
    if network:
        if not order.volume or network["volumeId"] != order.volume[0]:
            raise Problem(400, "mounts.network: the volume of a pod is fixed at creation")
        return {"volume": (order.volume[0], network["path"])}
    persistent = mounts.get("persistent")
    if persistent:
        if not order.disk or persistent["size"] != order.disk[0]:
            raise Problem(400, "mounts.persistent: the size of a pod's volume is fixed at creation in the lab")
        return {"disk": (order.disk[0], persistent["path"])}
    return {}


def _proxy(rental: Rental) -> dict[str, Any] | None:
    if not rental.placed or rental.state == m.GONE:
        return None
    user = f"{rental.id}-{rental.id[::-1][:8]}"
    return {"host": "ssh.runpod.io", "port": 22, "username": user, "command": f"ssh {user}@ssh.runpod.io"}


def _direct(rental: Rental) -> dict[str, Any] | None:
    if rental.endpoint is None or "22/tcp" not in rental.order.ports:
        return None
    host, port = rental.endpoint
    return {"host": host, "port": port, "username": "root", "command": f"ssh root@{host} -p {port}"}


def _port(rental: Rental, text: str) -> dict[str, Any]:
    """The lab maps 22/tcp only: boxes share the network of the machine they run on."""
    number, _, kind = text.partition("/")
    host, port = rental.endpoint if rental.endpoint and text == "22/tcp" else (None, None)
    return {"private": int(number), "public": port, "type": kind, "ip": host}


def _log_event(number: int, at: float, state: str) -> str:
    stamp = rfc3339(at)
    data = json.dumps({"ts": stamp, "source": "system", "line": f"pod is {_STATUS[state]}"})
    return f"id: {stamp}/{number:012d}\ndata: {data}\n\n"

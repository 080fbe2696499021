# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GraphQL: what REST v2 lacks, the balance."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import graphql
from aiohttp import web

from lab import market as m
from lab.market import Market, Rental

_SCHEMA = graphql.build_schema(
    """
    type Query { myself: User }
    type User {
      id: String
      email: String
      clientBalance: Float
      currentSpendPerHr: Float
      spendLimit: Float
      notifyLowBalance: Boolean
      pods: [Pod]
    }
    type Pod {
      id: String!
      name: String
      desiredStatus: String
      costPerHr: Float
      gpuCount: Int
      imageName: String
      machineId: String
      podType: String
      ports: String
      uptimeSeconds: Int
      volumeInGb: Float
      volumeMountPath: String
      runtime: Runtime
      machine: Machine
    }
    type Runtime { uptimeInSeconds: Int, ports: [Port] }
    type Port { ip: String, isIpPublic: Boolean, privatePort: Int, publicPort: Int, type: String }
    type Machine { gpuDisplayName: String, podHostId: String }
    """
)
_SPEND_LIMIT = 80.0
_DESIRED = {m.STOPPED: "EXITED", m.GONE: "TERMINATED"}


def graphql_handler(market: Market) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
            query, variables = body["query"], body.get("variables")
        except (ValueError, KeyError, TypeError):
            return web.json_response({"errors": [{"message": "Must provide query string."}]})
        result = await graphql.graphql(_SCHEMA, query, {"myself": _myself(market)}, variable_values=variables)
        return web.json_response(result.formatted)

    return handler


def _myself(market: Market) -> dict[str, Any]:
    seen = market.view().rentals.values()
    return {
        "id": "user_lab",
        "email": "tenant@lab.invalid",
        "clientBalance": float(market.balance()),
        "currentSpendPerHr": float(market.spend_rate()),
        "spendLimit": _SPEND_LIMIT,
        "notifyLowBalance": False,
        "pods": [_old_pod(market, rental) for rental in seen if rental.state != m.GONE],
    }


def _old_pod(market: Market, rental: Rental) -> dict[str, Any]:
    order, runtime = rental.order, None
    if rental.state == m.RUNNING and rental.up_at is not None:
        uptime = int(market.clock.now() - rental.up_at)
        host, port = rental.endpoint or (None, None)
        mapping = {"ip": host, "isIpPublic": True, "privatePort": 22, "publicPort": port, "type": "tcp"}
        runtime = {"uptimeInSeconds": uptime, "ports": [mapping] if "22/tcp" in order.ports else []}
    return {
        "id": rental.id,
        "name": order.name,
        "desiredStatus": _DESIRED.get(rental.state, "RUNNING"),
        "costPerHr": float(rental.rate.compute),
        "gpuCount": order.gpu_count,
        "imageName": order.image,
        "machineId": f"host-{rental.region.lower()}",
        "podType": "RESERVED",
        "ports": ",".join(order.ports),
        "uptimeSeconds": runtime["uptimeInSeconds"] if runtime else 0,
        "volumeInGb": float(order.disk[0]) if order.disk else 0.0,
        "volumeMountPath": order.disk[1] if order.disk else order.volume[1] if order.volume else None,
        "runtime": runtime,
        "machine": {"gpuDisplayName": rental.gpu.name, "podHostId": f"{rental.id}-{rental.id[::-1][:8]}"},
    }

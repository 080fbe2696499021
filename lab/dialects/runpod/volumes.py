# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network volumes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lab import market as m
from lab.dialects.runpod.problems import Problem
from lab.dialects.runpod.schemas import CREATE_VOLUME, UPDATE_VOLUME, read_body
from lab.market import Market, Volume


class Volumes:
    def __init__(self, market: Market) -> None:
        self._market = market

    async def list_volumes(self, request: web.Request) -> web.Response:
        seen = self._market.view(self._market.options.list_lag).volumes.values()
        return web.json_response({"networkVolumes": [_volume(volume) for volume in seen if volume.state != m.GONE]})

    async def get_volume(self, request: web.Request) -> web.Response:
        volume = self._market.view().volumes.get(request.match_info["id"])
        if volume is None or volume.state == m.GONE:
            raise Problem(404, "resource not found")
        return web.json_response(_volume(volume))

    async def create_volume(self, request: web.Request) -> web.Response:
        body = await read_body(request, CREATE_VOLUME)
        volume = await self._market.create_volume(
            body["name"], body["size"], body["dataCenter"], body.get("type", "STANDARD")
        )
        return web.json_response(_volume(volume), status=201)

    async def patch_volume(self, request: web.Request) -> web.Response:
        body = await read_body(request, UPDATE_VOLUME)
        volume = self._market.volume(request.match_info["id"])
        if body.get("size", volume.size_gb) < volume.size_gb:
            raise Problem(400, "network volume storage cannot be reduced")
        if body.get("size", volume.size_gb) > volume.size_gb:
            raise Problem(400, "the lab cannot enlarge a network volume")
        return web.json_response(_volume(await self._market.rename_volume(volume.id, body.get("name", volume.name))))

    async def delete_volume(self, request: web.Request) -> web.Response:
        try:
            await self._market.delete_volume(request.match_info["id"])
        except m.Conflict as in_use:
            raise Problem(400, str(in_use)) from in_use
        return web.Response(status=204)


def _volume(volume: Volume) -> dict[str, Any]:
    return {
        "id": volume.id,
        "name": volume.name,
        "size": volume.size_gb,
        "dataCenter": volume.region,
        "type": volume.kind,
    }

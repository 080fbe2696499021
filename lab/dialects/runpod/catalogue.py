# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""GPU types with prices and stock, data centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from lab.dialects.runpod.platform import PLATFORM, REGIONS, cuda_version
from lab.dialects.runpod.problems import Problem
from lab.market import GpuType, Market


class Catalogue:
    def __init__(self, market: Market) -> None:
        self._market = market

    async def list_gpus(self, request: web.Request) -> web.Response:
        wish = _Wish.of(request)
        entries = [self._gpu(gpu, wish) for gpu in PLATFORM.catalogue]
        if wish and wish.countries:
            entries = [entry for entry in entries if "dataCenters" in entry]
        return web.json_response({"gpus": entries})

    async def get_gpu(self, request: web.Request) -> web.Response:
        wish = _Wish.of(request)
        found = next((gpu for gpu in PLATFORM.catalogue if gpu.id == request.match_info["id"]), None)
        if found is None:
            raise Problem(404, "resource not found")
        return web.json_response(self._gpu(found, wish))

    def _gpu(self, gpu: GpuType, wish: _Wish | None) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": gpu.id,
            "name": gpu.name,
            "pool": gpu.pool,
            "manufacturer": "NVIDIA",
            "memory": gpu.memory_gb,
            "secure": "SECURE" in gpu.prices,
            "community": "COMMUNITY" in gpu.prices,
            "price": {cloud.lower(): float(gpu.prices.get(cloud, 0)) for cloud in ("SECURE", "COMMUNITY")},
            "maxCount": {cloud.lower(): gpu.max_count.get(cloud, 0) for cloud in ("SECURE", "COMMUNITY")},
        }
        if wish:
            entry |= self._availability(gpu, wish)
        return entry

    def _availability(self, gpu: GpuType, wish: _Wish) -> dict[str, Any]:
        stock = self._stock(gpu) if wish.fits(gpu) else {}
        at = {
            region: level
            for region, level in stock.items()
            if level != "NONE" and (not wish.countries or REGIONS[region][2] in wish.countries)
        }
        result: dict[str, Any] = {"availability": next(iter(at.values()), "NONE")}
        if at:
            result["dataCenters"] = [
                {"id": region, "name": REGIONS[region][0], "availability": level} for region, level in at.items()
            ]
            result["cudaVersions"] = [{"version": gpu.cuda, "available": True}]
        return result

    def _stock(self, gpu: GpuType) -> dict[str, str]:
        facts = {"platform": PLATFORM.name, "gpu": gpu.id, "verb": "rent"}
        fault = self._market.faults.standing("offer.none", facts)
        return {} if fault and not fault.params["listed"] else gpu.stock

    async def list_cpus(self, request: web.Request) -> web.Response:
        return web.json_response({"cpus": []})

    async def list_centres(self, request: web.Request) -> web.Response:
        with_gpus = "GPU_AVAILABILITY" in request.query.get("include", "").split(",")
        wanted = [region for region in request.query.get("regions", "").split(",") if region]
        centres = []
        for region, (name, continent, _) in REGIONS.items():
            if wanted and continent not in wanted:
                continue
            centre: dict[str, Any] = {
                "id": region,
                "name": name,
                "region": continent,
                "networkVolumeTypes": ["STANDARD", "HIGH_PERFORMANCE"],
                "compliance": ["SOC_2_TYPE_2"],
                "globalNetwork": True,
            }
            if with_gpus:
                centre["gpuAvailability"] = [
                    {"id": gpu.id, "name": gpu.name, "availability": self._stock(gpu).get(region, "NONE")}
                    for gpu in PLATFORM.catalogue
                    if region in gpu.stock
                ]
            centres.append(centre)
        return web.json_response({"dataCenters": centres})


@dataclass(frozen=True)
class _Wish:
    """The availability filters of a catalogue read."""

    count: int
    cloud: str
    countries: tuple[str, ...]
    cuda: tuple[str, ...]
    min_cuda: str | None

    @classmethod
    def of(cls, request: web.Request) -> _Wish | None:
        """None without include=AVAILABILITY, with which alone the other parameters are allowed (400)."""
        query = request.query
        filters = ("product", "count", "cloud", "countryCodes", "cudaVersions", "minCudaVersion")
        if query.get("include") is None:
            given = [name for name in filters if name in query]
            if given:
                raise Problem(400, f"{given[0]} requires include=AVAILABILITY")
            return None
        if query["include"] != "AVAILABILITY":
            raise Problem(422, "Request validation failed.", ["include: value must be 'AVAILABILITY'"])
        if not query.get("product"):
            raise Problem(400, "include=AVAILABILITY requires product")
        if set(query["product"].split(",")) - {"POD", "CLUSTER", "SERVERLESS"}:
            raise Problem(422, "Request validation failed.", ["product: value must be POD, CLUSTER or SERVERLESS"])
        if "cudaVersions" in query and "minCudaVersion" in query:
            raise Problem(400, "cudaVersions and minCudaVersion are mutually exclusive")
        count, cloud = query.get("count", "1"), query.get("cloud", "SECURE")
        if not count.isdecimal() or int(count) < 1:
            raise Problem(422, "Request validation failed.", ["count: must be an integer of at least 1"])
        if cloud not in ("SECURE", "COMMUNITY"):
            raise Problem(422, "Request validation failed.", ["cloud: value must be SECURE or COMMUNITY"])
        return cls(
            int(count),
            cloud,
            tuple(filter(None, query.get("countryCodes", "").split(","))),
            tuple(filter(None, query.get("cudaVersions", "").split(","))),
            query.get("minCudaVersion"),
        )

    def fits(self, gpu: GpuType) -> bool:
        if self.cuda and gpu.cuda not in self.cuda:
            return False
        if self.min_cuda and cuda_version(gpu.cuda) < cuda_version(self.min_cuda):
            return False
        return gpu.max_count.get(self.cloud, 0) >= self.count

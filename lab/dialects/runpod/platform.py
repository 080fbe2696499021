# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RunPod's catalogue, prices and preset environment."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from lab import market as m
from lab.market import GpuType, Rental
from lab.meter import Rate, per_month

REGIONS = {
    "US-KS-2": ("US Kansas 2", "NORTH_AMERICA", "US"),
    "US-TX-3": ("US Texas 3", "NORTH_AMERICA", "US"),
    "CA-MTL-1": ("Canada Montreal 1", "NORTH_AMERICA", "CA"),
    "EU-RO-1": ("Europe Romania 1", "EUROPE", "RO"),
    "EUR-IS-1": ("Europe Iceland 1", "EUROPE", "IS"),
}
_DISK = {"container": "0.10", "running": "0.10", "stopped": "0.20"}  # USD per GB and month
_FIRST_TERABYTE, _VOLUME_FIRST, _VOLUME_ABOVE, _VOLUME_FAST = 1000, "0.07", "0.05", "0.14"


def _card(
    gpu_id: str, name: str, memory: int, pool: str, secure: str, community: str | None, stock: str, at: tuple[str, ...]
) -> GpuType:
    prices = {"SECURE": Decimal(secure)} | ({"COMMUNITY": Decimal(community)} if community else {})
    counts = {"SECURE": 8} | ({"COMMUNITY": 4} if community else {})
    return GpuType(gpu_id, name, memory, prices, counts, dict.fromkeys(at, stock), pool)


_ALL = tuple(REGIONS)
_US_EU = ("US-KS-2", "US-TX-3", "EU-RO-1")


@dataclass(frozen=True)
class RunPodPlatform:
    name: str = "runpod"
    currency: str = "USD"
    regions: tuple[str, ...] = _ALL
    catalogue: tuple[GpuType, ...] = (
        _card("NVIDIA GeForce RTX 4090", "RTX 4090", 24, "ADA_24", "0.69", "0.34", "HIGH", _ALL),
        _card("NVIDIA GeForce RTX 5090", "RTX 5090", 32, "BLACKWELL_32", "0.94", "0.69", "MEDIUM", _US_EU),
        _card("NVIDIA L40S", "L40S", 48, "ADA_48_PRO", "0.86", "0.79", "HIGH", _ALL),
        _card("NVIDIA RTX A6000", "RTX A6000", 48, "AMPERE_48", "0.49", "0.33", "HIGH", _ALL),
        _card("NVIDIA A100 80GB PCIe", "A100 PCIe", 80, "AMPERE_80", "1.64", "1.19", "MEDIUM", _ALL),
        _card("NVIDIA A100-SXM4-80GB", "A100 SXM", 80, "AMPERE_80", "1.89", None, "MEDIUM", _US_EU),
        _card("NVIDIA H100 80GB HBM3", "H100 SXM", 80, "HOPPER_80", "2.69", None, "MEDIUM", _US_EU),
        _card("NVIDIA H100 PCIe", "H100 PCIe", 80, "HOPPER_80", "2.39", "1.99", "LOW", _US_EU),
        _card("NVIDIA H100 NVL", "H100 NVL", 94, "HOPPER_80", "2.79", "2.59", "LOW", _US_EU),
        _card("NVIDIA H200", "H200 SXM", 141, "HOPPER_141", "3.99", None, "LOW", ("US-KS-2", "EUR-IS-1")),
        _card("NVIDIA B200", "B200", 180, "BLACKWELL_180", "5.98", None, "NONE", ("US-KS-2",)),
    )

    def rental_rate(self, rental: Rental, state: str) -> Rate:
        """Compute runs until EXITED or TERMINATED, in ERROR too; a stopped pod pays twice for its own disk."""
        if state == m.GONE:
            return Rate()
        own_gb = rental.order.disk[0] if rental.order.disk else 0
        if state == m.STOPPED:
            return Rate(disk=per_month(own_gb, _DISK["stopped"]))
        compute = rental.gpu.prices[rental.order.cloud] * rental.order.gpu_count
        disk = per_month(rental.order.disk_gb, _DISK["container"]) + per_month(own_gb, _DISK["running"])
        return Rate(compute, disk)

    def volume_rate(self, size_gb: int, kind: str) -> Rate:
        if kind == "HIGH_PERFORMANCE":
            return Rate(disk=per_month(size_gb, _VOLUME_FAST))
        first = min(size_gb, _FIRST_TERABYTE)
        return Rate(disk=per_month(first, _VOLUME_FIRST) + per_month(size_gb - first, _VOLUME_ABOVE))

    def credit_needed(self, rate: Rate) -> Decimal:
        return rate.total  # one hour of it

    def when_broke(self, rental: Rental) -> str:
        return "stop" if rental.order.volume else "destroy"

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]:
        env = {
            "RUNPOD_POD_ID": rental.id,
            "RUNPOD_DC_ID": rental.region,
            "RUNPOD_GPU_COUNT": str(rental.order.gpu_count),
            "RUNPOD_PUBLIC_IP": host,
            "RUNPOD_TCP_PORT_22": str(port),
            "RUNPOD_API_KEY": pod_key(rental.id),
        }
        if rental.order.volume:
            env["RUNPOD_VOLUME_ID"] = rental.order.volume[0]
        if rental.order.keys:
            env["PUBLIC_KEY"] = "\n".join(rental.order.keys)
        return env


PLATFORM = RunPodPlatform()


def cuda_version(text: str) -> tuple[int, ...]:
    """`12.8` as something that compares as a version does: 12.11 is above 12.2."""
    return tuple(int(part) for part in text.split("."))


def pod_key(pod_id: str) -> str:
    return f"rpa_pod_{pod_id}"

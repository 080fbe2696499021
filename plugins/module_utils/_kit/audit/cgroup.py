# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What this container may really use: CPU quota and memory limit from cgroup v1 or v2, never the host's figures."""

from __future__ import annotations

import math
import os

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60


def _text(*parts: str) -> str | None:
    try:
        with open(os.path.join(_ROOT, *parts)) as stream:
            return stream.read().strip()
    except OSError:
        return None


def _own_path(controller: str) -> str:
    """Where this process sits below the cgroup root, from /proc/self/cgroup (cgroups(7))."""
    try:
        with open("/proc/self/cgroup") as stream:
            rows = [line.strip().split(":", 2) for line in stream]
    except OSError:
        return ""
    for _, names, path in rows:
        if controller in names.split(",") or (names == "" and controller == ""):
            return path.lstrip("/")
    return ""


def _ancestry(path: str) -> list[str]:
    """The path and all its parents up to the root (""), since the smallest limit on the way holds."""
    parts = [part for part in path.split("/") if part]
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]


def memory_limit() -> int | None:
    """Bytes; None where nothing limits it."""
    limits = []
    for place in _ancestry(_own_path("")):
        limits.append(_text(place, "memory.max"))
    for place in _ancestry(_own_path("memory")):
        limits.append(_text("memory", place, "memory.limit_in_bytes"))
    numbers = [int(text) for text in limits if text and text.isdigit()]
    smallest = min(numbers, default=_UNLIMITED)
    return smallest if smallest < _UNLIMITED else None


def memory_used() -> int | None:
    """Bytes in use without the page cache that can be given back."""
    used = _text("memory.current") or _text("memory", "memory.usage_in_bytes")
    if not used or not used.isdigit():
        return None
    stat = _text("memory.stat") or _text("memory", "memory.stat") or ""
    rows = dict(line.split(None, 1) for line in stat.splitlines() if " " in line)
    cache = rows.get("inactive_file") or rows.get("total_inactive_file") or "0"
    return max(0, int(used) - int(cache))


def oom_kills() -> int | None:
    """How often the kernel killed something here; None where it does not say."""
    for text, key in ((_text("memory.events"), "oom_kill"), (_text("memory", "memory.oom_control"), "oom_kill")):
        for line in (text or "").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == key and words[1].isdigit():
                return int(words[1])
    return None


def vcpus() -> int:
    """CPUs that may be used: the quota rounded up, at most the affinity mask."""
    allowed = len(os.sched_getaffinity(0))
    quotas = []
    for place in _ancestry(_own_path("")):
        words = (_text(place, "cpu.max") or "").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    for place in _ancestry(_own_path("cpu")):
        quota, period = _text("cpu", place, "cpu.cfs_quota_us"), _text("cpu", place, "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            quotas.append(int(quota) / int(period))
    return max(1, min([allowed] + [math.ceil(quota) for quota in quotas]))


def facts() -> dict:
    return {
        "vcpus": vcpus(),
        "host_cpus": os.cpu_count(),
        "memory_limit_bytes": memory_limit(),
        "memory_used_bytes": memory_used(),
        "oom_kills": oom_kills(),
    }

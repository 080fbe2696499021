# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stand-in for `nvidia-smi` in boxes without a card.

It answers as driver 570 does: `-L`, the plain table, `--query-gpu`, `--query-compute-apps`. The cards come from the
JSON file named by the first argument; without cards it says "No devices were found" and exits with 6, as the real one.

What a process does to the card is read off the process itself: one that has mapped a numeric library counts as having
a CUDA context, its resident memory as card memory, and the processor time it uses as the card's utilization.

Standard library only: it runs on the bare interpreter, to be as quick as the real one.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Value = tuple[Any, str]  # with its unit

_NO_FIELD = 'Field "{}" is not a valid field to query.\n'
_LIBRARIES = re.compile(r"/(numpy|torch|jax|jaxlib|tensorflow|cupy)/")
_CONTEXT_MIB = 300
_IDLE_MIB = 4
_SAMPLE_SECONDS = 0.05

_CARDS = {  # part of the name → (compute capability, power limit W, top SM clock MHz, ECC); vendor data sheets
    "5090": ("12.0", 575, 2407, False),
    "4090": ("8.9", 450, 2520, False),
    "3090": ("8.6", 350, 1695, False),
    "L40S": ("8.9", 350, 2520, True),
    "A6000": ("8.6", 300, 1800, True),
    "A100": ("8.0", 400, 1410, True),
    "H100": ("9.0", 700, 1980, True),
    "H200": ("9.0", 700, 1980, True),
    "B200": ("10.0", 1000, 1965, True),
}
_UNKNOWN_CARD = ("8.6", 300, 1800, False)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return b""


def _ticks(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def _uses_the_card(pid: int) -> bool:
    return _LIBRARIES.search(_read(f"/proc/{pid}/maps").decode("utf-8", "replace")) is not None


def compute_apps() -> list[Json]:
    """The processes on the card: list of {pid, name, used_memory (MiB)}."""
    apps = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid() or not _uses_the_card(int(name)):
            continue
        resident = re.search(rb"VmRSS:\s*(\d+)", _read(f"/proc/{name}/status"))
        command = _read(f"/proc/{name}/cmdline").split(b"\0")[0].decode("utf-8", "replace")
        used = _CONTEXT_MIB + (int(resident.group(1)) // 1024 if resident else 0)
        apps.append({"pid": int(name), "name": command, "used_memory": used})
    return sorted(apps, key=lambda app: app["pid"])


def utilization(apps: list[Json]) -> int:
    """Per cent of one processor that the processes use just now."""
    if not apps:
        return 0
    before = {app["pid"]: _ticks(app["pid"]) for app in apps}
    time.sleep(_SAMPLE_SECONDS)
    used = sum(max(0, _ticks(pid) - ticks) for pid, ticks in before.items())
    return min(100, round(100 * used / (os.sysconf("SC_CLK_TCK") * _SAMPLE_SECONDS)))


def card_facts(gpu: Json, index: int, apps: list[Json], busy: int) -> dict[str, Value]:
    """Field name of --query-gpu → (value, unit)."""
    capability, power_limit, clock, ecc = next(
        (facts for part, facts in _CARDS.items() if part in gpu["name"]), _UNKNOWN_CARD
    )
    total = gpu["memory_mib"]
    used = min(total, _IDLE_MIB + (sum(app["used_memory"] for app in apps) if index == 0 else 0))
    busy = busy if index == 0 else 0
    errors = ("0", "") if ecc else ("[N/A]", "")
    seed = zlib.crc32(f"{gpu['seed']}-{index}".encode())
    facts = {
        "timestamp": (time.strftime("%Y/%m/%d %H:%M:%S.000"), ""),
        "count": (gpu["count"], ""),
        "index": (index, ""),
        "name": (gpu["name"], ""),
        "uuid": (_uuid(gpu, index), ""),
        "serial": ("[N/A]", ""),
        "pci.bus_id": (f"00000000:{0x17 + 0x14 * index:02X}:00.0", ""),
        "driver_version": (gpu["driver"], ""),
        "compute_cap": (capability, ""),
        "compute_mode": ("Default", ""),
        "persistence_mode": ("Enabled", ""),
        "mig.mode.current": ("Disabled" if "A100" in gpu["name"] or "H100" in gpu["name"] else "[N/A]", ""),
        "pstate": ("P2" if busy else "P8", ""),
        "memory.total": (total, "MiB"),
        "memory.used": (used, "MiB"),
        "memory.free": (total - used, "MiB"),
        "memory.reserved": (0, "MiB"),
        "utilization.gpu": (busy, "%"),
        "utilization.memory": (busy // 2, "%"),
        "temperature.gpu": (31 + seed % 6 + busy * 35 // 100, ""),
        "fan.speed": ("[N/A]" if ecc else 30 + busy // 2, "" if ecc else "%"),
        "power.draw": (f"{power_limit * (0.05 + 0.85 * busy / 100):.2f}", "W"),
        "power.limit": (f"{power_limit:.2f}", "W"),
        "clocks.sm": (clock if busy else 210, "MHz"),
        "clocks.gr": (clock if busy else 210, "MHz"),
        "clocks.mem": (10501 if busy else 405, "MHz"),
        "clocks.max.sm": (clock, "MHz"),
        "ecc.mode.current": ("Enabled" if ecc else "[N/A]", ""),
        "ecc.mode.pending": ("Enabled" if ecc else "[N/A]", ""),
        "retired_pages.pending": ("No" if ecc else "[N/A]", ""),
    }
    for family in ("clocks_throttle_reasons", "clocks_event_reasons"):
        facts[f"{family}.active"] = ("0x0000000000000000" if busy else "0x0000000000000001", "")
        facts[f"{family}.supported"] = ("0x00000000000001FF", "")
        facts[f"{family}.gpu_idle"] = ("Not Active" if busy else "Active", "")
        for reason in _REASONS:
            facts[f"{family}.{reason}"] = ("Not Active", "")
    for kind in ("corrected", "uncorrected"):
        for span in ("volatile", "aggregate"):
            for where in ("total", "device_memory", "dram", "sram", "l1_cache", "l2_cache", "register_file"):
                facts[f"ecc.errors.{kind}.{span}.{where}"] = errors
    aliases = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.current.sm": "clocks.sm"}
    facts.update({alias: facts[field] for alias, field in aliases.items()})
    return facts


_REASONS = (
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sw_thermal_slowdown",
    "sync_boost",
)


def _uuid(gpu: Json, index: int) -> str:
    seeds = [f"{gpu['seed']}/{index}/{part}" for part in range(4)]
    digest = "".join(f"{zlib.crc32(seed.encode()):08x}" for seed in seeds)
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def print_rows(fields: list[tuple[str, str]], rows: list[list[Value]], header: bool, units: bool) -> None:
    """CSV as nvidia-smi writes it: ", " between values, units after the value or in the header."""
    if header:
        print(", ".join(f"{name} [{unit}]" if unit else name for name, unit in fields))
    for row in rows:
        cells = (f"{value} {unit}" if units and unit and value != "[N/A]" else str(value) for value, unit in row)
        print(", ".join(cells))


def query_gpu(gpu: Json, cards: list[int], names: list[str], header: bool, units: bool) -> int:
    apps = compute_apps()
    busy = utilization(apps)
    facts = [card_facts(gpu, index, apps, busy) for index in cards]
    for name in names:
        if name not in facts[0]:
            sys.stdout.write(_NO_FIELD.format(name))
            return 2
    fields = [(name, facts[0][name][1]) for name in names]
    print_rows(fields, [[card[name] for name in names] for card in facts], header, units)
    return 0


def query_apps(gpu: Json, cards: list[int], names: list[str], header: bool, units: bool) -> int:
    known: dict[str, Callable[[Json], Value]] = {
        "pid": lambda app: (app["pid"], ""),
        "used_memory": lambda app: (app["used_memory"], "MiB"),
        "used_gpu_memory": lambda app: (app["used_memory"], "MiB"),
        "name": lambda app: (app["name"], ""),
        "process_name": lambda app: (app["name"], ""),
        "gpu_uuid": lambda app: (_uuid(gpu, 0), ""),
        "gpu_name": lambda app: (gpu["name"], ""),
    }
    for name in names:
        if name not in known:
            sys.stdout.write(_NO_FIELD.format(name))
            return 2
    fields = [(name, "MiB" if name.endswith("memory") else "") for name in names]
    apps = compute_apps() if 0 in cards else []
    print_rows(fields, [[known[name](app) for name in names] for app in apps], header, units)
    return 0


def list_cards(gpu: Json, cards: list[int]) -> int:
    for index in cards:
        print(f"GPU {index}: {gpu['name']} (UUID: {_uuid(gpu, index)})")
    return 0


def table(gpu: Json, cards: list[int]) -> int:
    apps = compute_apps()
    busy = utilization(apps)
    rule = "+" + "-" * 89 + "+"
    print(time.strftime("%a %b %e %H:%M:%S %Y"))
    print(rule)
    versions = f"NVIDIA-SMI {gpu['driver']:<22} Driver Version: {gpu['driver']:<14} CUDA Version: {gpu['cuda']}"
    print(f"| {versions:<87} |")
    print("|" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+")
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|")
    for index in cards:
        facts = {name: value for name, (value, _) in card_facts(gpu, index, apps, busy).items()}
        ecc = "0" if facts["ecc.mode.current"] == "Enabled" else "N/A"
        fan = "N/A" if facts["fan.speed"] == "[N/A]" else f"{facts['fan.speed']}%"
        power = f"{float(facts['power.draw']):.0f}W / {float(facts['power.limit']):>4.0f}W"
        memory = f"{facts['memory.used']}MiB / {facts['memory.total']:>6}MiB"
        print(f"|{index:>4}  {gpu['name'][:25]:<25}       On  | {facts['pci.bus_id']:<16} Off |{ecc:>21} |")
        print(
            f"|{fan:>4} {facts['temperature.gpu']:>4}C    {facts['pstate']:<4} {power:>21} "
            f"|{memory:>23} |{facts['utilization.gpu']:>7}%      Default |"
        )
        print("+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+")
    print()
    print(rule)
    print(f"| {'Processes:':<87} |")
    print(f"| {'GPU   GI   CI              PID   Type   Process name                        GPU Memory':<87} |")
    print("|" + "=" * 89 + "|")
    for app in apps:
        memory = f"{app['used_memory']}MiB"
        print(f"| {'  0   N/A  N/A':<16}{app['pid']:>14}      C   {app['name'][-34:]:<34} {memory:>14}   |"[:90] + "|")
    if not apps:
        print(f"| {'No running processes found':<87} |")
    print(rule)
    return 0


def _usage(seen: str) -> int:
    sys.stdout.write(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n({seen})\n")
    return 2


def parse(options: list[str]) -> dict[str, str]:
    """Options to values, for the spellings `--name=value`, `-i value` and `-L`. Raises ValueError with the odd one."""
    asked = {}
    words = iter(options)
    for word in words:
        name, equals, value = word.partition("=")
        name = {"-i": "--id", "-L": "--list-gpus"}.get(name, name)
        if name not in ("--query-gpu", "--query-compute-apps", "--format", "--id", "--list-gpus"):
            raise ValueError(word)
        asked[name] = value if equals or name == "--list-gpus" else next(words, "")
    return asked


def main(argv: list[str]) -> int:
    gpu = json.loads(_read(argv[0]) or b"null")
    if not gpu or not gpu["present"] or not gpu["count"]:
        print("No devices were found")
        return 6
    try:
        asked = parse(argv[1:])
    except ValueError as odd:
        return _usage(str(odd))
    cards = list(range(gpu["count"]))
    if "--id" in asked:
        cards = [index for index in cards if asked["--id"] in (str(index), _uuid(gpu, index))]
        if not cards:
            print("No devices were found")
            return 6
    if "--list-gpus" in asked:
        return list_cards(gpu, cards)
    style = [word.strip() for word in asked.get("--format", "").split(",")]
    header, units = "noheader" not in style, "nounits" not in style
    for option, answer in (("--query-gpu", query_gpu), ("--query-compute-apps", query_apps)):
        if option in asked:
            names = [name.strip() for name in asked[option].split(",")]
            return answer(gpu, cards, names, header, units) if "csv" in style else _usage("a query needs --format=csv")
    return table(gpu, cards)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

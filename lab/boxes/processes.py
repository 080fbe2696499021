# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What `/proc` tells about processes: enough to find all of a box's."""

from __future__ import annotations

from pathlib import Path


def living() -> list[int]:
    """PIDs of all processes to be seen, without the dead ones that wait to be buried."""
    return [pid for pid, (_, state) in _table().items() if state != "Z"]


def descendants(ancestor: int) -> list[int]:
    """PIDs of the living children of `ancestor`, their children and so on."""
    table = _table()
    found, frontier = [], {ancestor}
    while frontier:
        frontier = {pid for pid, (parent, _) in table.items() if parent in frontier}
        found += [pid for pid in frontier if table[pid][1] != "Z"]
    return found


def zombies_of(parent: int) -> set[int]:
    """PIDs of the dead children of `parent` that nobody has waited for."""
    return {pid for pid, (its_parent, state) in _table().items() if its_parent == parent and state == "Z"}


def _table() -> dict[int, tuple[int, str]]:
    """PID → (parent's PID, state letter), from /proc/<pid>/stat (proc(5))."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            table[int(entry.name)] = (int(fields[1]), fields[0])
    return table

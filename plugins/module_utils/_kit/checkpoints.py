# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which checkpoint to resume from: the newest one that is whole, by number, never by a name alone."""

from __future__ import annotations

import fnmatch
import os
import re

from .._artifacts import roster, structure

_GOOD = ("structural_only", "readable")


def number_of(name: str) -> int:
    """The number nearest the end of the stem: ``resnet50_step-1000.npz`` is 1000; -1 where there is none."""
    found = re.findall(r"\d+", os.path.splitext(name)[0])
    return int(found[-1]) if found else -1


def candidates(folder: str, spec: dict) -> list[str]:
    """Names that fit ``spec`` (``pattern``, ``keep_best``), newest first.

    The best ones are none (they are older than their number), nor is anything that tools write under a temporary name.
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    best = spec.get("keep_best")
    fitting = [
        name
        for name in names
        if fnmatch.fnmatchcase(name, spec["pattern"])
        and not (best and fnmatch.fnmatchcase(name, best))
        and not name.startswith(".")
        and not roster.unfinished(os.fsencode(name))
    ]
    return sorted(fitting, key=lambda name: (number_of(name), _mtime(folder, name), name), reverse=True)


def _mtime(folder: str, name: str) -> int:
    try:
        return os.stat(os.path.join(folder, name)).st_mtime_ns
    except OSError:
        return 0


def newest_valid(folder: str, spec: dict, deep: bool = True) -> dict:
    """``{path, step, rejected: [{path, reason}]}``; ``path`` is "" where there is none.

    ``deep`` reads a candidate whole (checksums); otherwise its headers decide, which is quick for a large one.
    """
    rejected: list[dict] = []
    for name in candidates(folder, spec):
        path = os.path.join(folder, name)
        found = structure.check(path, deep=deep)
        if found["verdict"] in _GOOD:
            number = number_of(name)
            return {"path": path, "step": number if number >= 0 else None, "rejected": rejected}
        rejected.append({"path": path, "reason": f"{found['verdict']}: {found['detail']}"})
    return {"path": "", "step": None, "rejected": rejected}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which checkpoint to resume from: the newest one that is whole, by number, never by a name alone."""

from __future__ import annotations

import fnmatch
import os
import re

from .._artifacts import structure

_GOOD = ("structural_only", "readable")


def number_of(name: str) -> list:
    """``step-1000.npz`` sorts after ``step-900.npz``: the numbers in a name, in order."""
    return [int(digits) for digits in re.findall(r"\d+", name)]


def candidates(folder: str, pattern: str) -> list:
    """Names that fit the pattern, newest first; temporaries and hidden files are none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    fitting = [name for name in names if fnmatch.fnmatch(name, pattern) and not name.startswith(".")]
    return sorted(fitting, key=lambda name: (number_of(name), name), reverse=True)


def newest_valid(folder: str, pattern: str) -> dict:
    """``{path, step, rejected: [{path, reason}]}``; ``path`` is "" where there is none."""
    rejected: list[dict] = []
    for name in candidates(folder, pattern):
        path = os.path.join(folder, name)
        found = structure.check(path)
        if found["verdict"] in _GOOD:
            numbers = number_of(name)
            return {"path": path, "step": numbers[-1] if numbers else None, "rejected": rejected}
        rejected.append({"path": path, "reason": "{}: {}".format(found["verdict"], found["detail"])})
    return {"path": "", "step": None, "rejected": rejected}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One JSON answer between two marker lines, so that banners before and after it do not matter."""

from __future__ import annotations

import json
import sys

BEGIN = "=====tenant.gpu answer begins====="
END = "=====tenant.gpu answer ends====="


def write_answer(answer: dict) -> None:
    """Print one framed answer; ASCII only, so that no locale can spoil it."""
    text = json.dumps(answer, sort_keys=True, allow_nan=False)
    sys.stdout.write(f"\n{BEGIN}\n{text}\n{END}\n")
    sys.stdout.flush()


def unframe(stdout: str) -> dict | None:
    """The answer inside a box's output, or None where there is none whole."""
    _, begin, rest = stdout.rpartition(BEGIN)
    text, end, _ = rest.partition(END)
    if not begin or not end:
        return None
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None

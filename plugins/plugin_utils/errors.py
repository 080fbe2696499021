# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one shape of a refusal: what was seen, what it means, what to do next."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path


class Refused(Exception):
    """Stop here, with a message a tired person can act on."""

    def __init__(self, code: str, seen: str, means: str, do: str, **facts: t.Any) -> None:
        super().__init__(seen)
        self.code, self.seen, self.means, self.do = code, seen, means, do
        self.facts = facts


def printable(text: str) -> str:
    """Text that may come from a box, without anything that a terminal would obey."""
    return "".join(letter if letter == "\n" or letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def typed(text: str) -> str:
    """The commands in a text as they are typed here: by path in a clone, by name where the collection is installed."""
    if Path("playbooks/train.yml").exists():
        return text
    return re.sub(r"\bplaybooks/(\w+)\.yml\b", r"tenant.gpu.\1", text)


def message(seen: str, means: str, do: str) -> str:
    return f"Seen: {seen}\nMeans: {means}\nDo: {do}"


def as_result(code: str, seen: str, means: str, do: str, facts: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """A failed task result."""
    seen, means, do = printable(seen), printable(means), typed(printable(do))
    error = {"code": code, "seen": seen, "means": means, "do": do}
    return {"failed": True, "changed": False, **(facts or {}), "msg": message(seen, means, do), "error": error}

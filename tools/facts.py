# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How old the profiles' facts about money and deletion are: ``python tools/facts.py --older-than 12`` (months).

A date in ``profile_verified`` is ``YYYY-MM`` or ``YYYY-MM-DD``; ``2026-06 (doubtful: why)`` marks what is still to be
measured on the platform. This only reports: it exits with 0 whatever it finds.
"""

from __future__ import annotations

import argparse
import datetime
import re
import typing as t
from dataclasses import dataclass
from pathlib import Path

import yaml

PROFILES = Path(__file__).resolve().parent.parent / "inventories" / "rentals" / "group_vars"
DATE = re.compile(r"(?P<year>20\d\d)-(?P<month>0[1-9]|1[0-2])(?:-\d\d)?(?: \(doubtful: (?P<doubt>.+)\))?")


@dataclass(frozen=True)
class Fact:
    """One fact about money or deletion; ``months`` is its age, None where it has no date that can be read."""

    profile: str
    name: str
    verified: str
    months: int | None
    doubt: str | None

    def __str__(self) -> str:
        age = "no date" if self.months is None else f"{self.verified[:7]}, {self.months} months"
        return f"{self.profile} {self.name}: {age}" + (f"; doubtful: {self.doubt}" if self.doubt else "")


def load(path: Path) -> dict[str, t.Any]:
    """The ``profile_*`` variables of a group's file; empty for a file that is no profile."""
    variables = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return {name: value for name, value in variables.items() if name.startswith("profile_")}


def stated(profile: dict[str, t.Any]) -> list[str]:
    """The names of the facts about money or deletion that this profile states.

    A profile that says ``unknown`` of its meter and has neither clocks, pause nor prices (a bare SSH box) states none.
    """
    meter, price = profile.get("profile_meter") or {}, profile.get("profile_price") or {}
    found = [name for name in ("profile_park", "profile_clocks") if profile.get(name)]
    if price.get("storage") or price.get("per_hour") is not None:
        found.append("profile_price")
    if not found and meter.get("stop_still_bills") == "unknown":
        return []
    return ["profile_meter", "profile_mounts", *found]


def facts(folder: Path = PROFILES, today: datetime.date | None = None) -> list[Fact]:
    """Every stated fact of every profile, in the order of the files."""
    today = today or datetime.date.today()
    found = []
    for path in sorted(folder.glob("*.yml")):
        profile = load(path)
        if not profile:
            continue
        dates = profile.get("profile_verified") or {}
        found += [_fact(path.stem, name, str(dates.get(name, "")), today) for name in stated(profile)]
    return found


def _fact(profile: str, name: str, verified: str, today: datetime.date) -> Fact:
    match = DATE.fullmatch(verified)
    if match is None:
        return Fact(profile, name, verified, None, None)
    months = (today.year - int(match["year"])) * 12 + today.month - int(match["month"])
    return Fact(profile, name, verified, months, match["doubt"])


def aged(found: list[Fact], older_than: int) -> list[Fact]:
    """The facts older than so many months, oldest first; one without a date counts as the oldest."""
    late = [fact for fact in found if fact.months is None or fact.months > older_than]
    return sorted(late, key=lambda fact: (fact.months is not None, -(fact.months or 0)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="List facts of the profiles about money and deletion by their age.")
    parser.add_argument("--older-than", type=int, default=12, metavar="MONTHS", help="list what is older (default: 12)")
    parser.add_argument("--doubtful", action="store_true", help="list what is marked doubtful, whatever its age")
    parser.add_argument("--folder", type=Path, default=PROFILES, help="where the profiles are")
    asked = parser.parse_args(argv)
    found = facts(asked.folder)
    listed = [fact for fact in found if fact.doubt] if asked.doubtful else aged(found, asked.older_than)
    for fact in listed:
        print(fact)
    what = "are doubtful" if asked.doubtful else f"are older than {asked.older_than} months"
    print(f"{len(listed)} of {len(found)} facts {what}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The meter: what a rental or volume has cost, computed from its history and nothing else.

Money is `Decimal` in the account's currency, rates are per hour, times are seconds since the epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

SECONDS_PER_HOUR = Decimal(3600)
HOURS_PER_MONTH = Decimal(720)  # prices per GB and month are spread over a month of 30 days
_CENT_FRACTIONS = Decimal("0.00000001")


class Clock:
    """Wall-clock time that never steps back: the monotonic clock, anchored once."""

    def __init__(self) -> None:
        self._anchor = time.time() - time.monotonic()

    def now(self) -> float:
        return self._anchor + time.monotonic()


@dataclass(frozen=True)
class Rate:
    """Money per hour."""

    compute: Decimal = Decimal(0)
    disk: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        return self.compute + self.disk


@dataclass(frozen=True)
class Span:
    """From `at` on, the thing is in `state` and costs `rate`, until the next span begins."""

    at: float
    state: str
    rate: Rate


@dataclass
class Charge:
    compute: Decimal = Decimal(0)
    disk: Decimal = Decimal(0)
    seconds: dict[str, Decimal] = field(default_factory=dict)

    @property
    def total(self) -> Decimal:
        return self.compute + self.disk


def charge(spans: list[Span], start: float, end: float) -> Charge:
    """What the history costs between two times, and how long each state lasted there."""
    result = Charge()
    for span, until in zip(spans, [*(later.at for later in spans[1:]), end], strict=True):
        lasted = _seconds(max(span.at, start), min(until, end))
        if lasted == 0:
            continue
        result.seconds[span.state] = result.seconds.get(span.state, Decimal(0)) + lasted
        result.compute += span.rate.compute * lasted / SECONDS_PER_HOUR
        result.disk += span.rate.disk * lasted / SECONDS_PER_HOUR
    return result


def _seconds(start: float, end: float) -> Decimal:
    return Decimal(str(round(max(0.0, end - start), 6)))


def per_month(gigabytes: int, price: str) -> Decimal:
    """The hourly rate of so many gigabytes at a price per gigabyte and month."""
    return gigabytes * Decimal(price) / HOURS_PER_MONTH


def money(amount: Decimal) -> str:
    """A decimal string as the bill shows it, in full, never in scientific notation."""
    return f"{amount.quantize(_CENT_FRACTIONS):f}"


def total(amounts: Iterable[Decimal]) -> Decimal:
    return sum(amounts, Decimal(0))

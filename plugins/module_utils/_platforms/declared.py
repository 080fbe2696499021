# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prices that the user declares, for platforms whose API rents but tells no price before the rental.

PRIVATE: import it from inside the collection only.
"""

from __future__ import annotations

import typing as t

from .base import Money, PlatformError


def prices(environ: t.Mapping[str, str], variable: str) -> dict[str, Money]:
    """``"v-48g=2.98 CNY, 5090-p=3.28 CNY"`` in ``variable`` to rates per hour by the platform's own GPU name.

    Raises PlatformError naming the variable and the part that could not be read.
    """
    found: dict[str, Money] = {}
    for part in environ.get(variable, "").split(","):
        if not part.strip():
            continue
        name, separator, price = part.partition("=")
        try:
            money = Money.parse(price, "the price") if separator and name.strip() else None
        except ValueError:
            money = None
        if money is None:
            raise PlatformError(
                f"{variable} holds {part.strip()!r}",
                means="It is not a price, so nothing was asked and nothing was rented.",
                do=f"Write it as name=amount currency: export {variable}='{name.strip() or 'name'}=2.98 CNY'",
            )
        found[name.strip()] = money
    return found


def unknown_price(platform: str, variable: str, gpu: str, example: str, currency: str, console: str) -> PlatformError:
    """What to raise when something fits and nobody has said what it costs."""
    return PlatformError(
        f"{variable} names no price for {gpu!r}",
        means=f"The API of {platform} tells no prices, and nothing is rented at an unknown one.",
        do=f"Look at {console}, then type: export {variable}='{example}=<amount> {currency}'",
    )

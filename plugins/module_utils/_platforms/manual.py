# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Boxes that no API rents: the address stands in the inventory, the bill in a console or a contract."""

from __future__ import annotations

import re
import typing as t

from .base import UNKNOWN, Instance, Instances, Offer, Offers, Platform, PlatformError, Volumes, Wanted


class Manual(Platform):
    """Nothing can be asked, so nothing is answered: every verb says what the user has to do instead."""

    name = "manual"
    can: t.ClassVar[frozenset[str]] = frozenset()
    console = "the place where you rented it"
    id_pattern = re.compile(r"[A-Za-z0-9_.@:-]{1,128}")

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        del environ

    def _by_hand(self, verb: str) -> PlatformError:
        return PlatformError(
            f"{verb} was asked of a box without an API",
            means="Nothing was called: only you can do it.",
            do=f"Do it at {self.console}.",
        )

    def whoami(self) -> str:
        raise self._by_hand("whoami")

    def balance(self) -> dict[str, t.Any]:
        raise self._by_hand("balance")

    def offers(self, wanted: Wanted) -> Offers:
        raise self._by_hand("offers")

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        raise self._by_hand("rent")

    def show(self, instance_id: str) -> Instance:
        return Instance(self.check_id(instance_id), instance_id, "declared", UNKNOWN)

    def list(self) -> Instances:
        raise self._by_hand("list")

    def destroy(self, instance_id: str) -> str:
        raise self._by_hand("destroy")

    def leftovers(self, instance: Instance | None) -> Volumes:
        return []

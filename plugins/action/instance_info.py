# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb instance_info: see plugins/modules/instance_info.py."""

from __future__ import annotations

import typing as t

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import Instance, Platform, PlatformError
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction
from ansible_collections.tenant.gpu.plugins.plugin_utils.address import ssh_common_args
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental, spent
from ansible_collections.tenant.gpu.plugins.plugin_utils.rental import Renter


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        ledger = Ledger(args["tenant_home"])
        rental = ledger.rental(args["id"]) if args["id"] else ledger.bound(self.slot)
        instance_id = args["id"] or (rental.instance_id if rental else "")
        if not instance_id:
            nothing: dict[str, t.Any] = {"instance": None, "trouble": None, "verdict": None, "cost": None, "open": []}
            return {"changed": False, "bound": False, "id": "", "address": "", "ssh_common_args": "", **nothing}
        platform = self.platform(args["api"])
        instance, trouble = None, None
        if "show" in platform.can:
            instance, trouble = self._show(platform, instance_id)
        else:
            instance = Instance(id=instance_id, name=instance_id, status="declared", billing="on")
        return {
            "changed": False,
            "bound": True,
            "id": instance_id,
            "address": instance.endpoint.host if instance and instance.endpoint else "",
            "ssh_common_args": ssh_common_args(args["tenant_home"], instance_id),
            "instance": instance.as_dict() if instance else None,
            "trouble": trouble,
            "verdict": self._verdict(platform, ledger, instance_id) if args["verdict"] else None,
            "cost": _cost(rental),
            "open": [one.instance_id for one in ledger.rentals() if one.slot == self.slot and one.open],
        }

    def _verdict(self, platform: Platform, ledger: Ledger, instance_id: str) -> dict[str, t.Any]:
        """The whole proof, as teardown makes it, without a line in the ledger."""
        return Renter(platform, ledger, self.slot, self.say, dry=True).prove(instance_id, 0)

    @staticmethod
    def _show(platform: t.Any, instance_id: str) -> tuple[Instance | None, dict[str, str] | None]:
        """A platform that does not answer is no reason to fail a look: the trouble is told beside it."""
        try:
            return platform.show(instance_id), None
        except PlatformError as problem:
            return None, {"code": problem.code, "seen": problem.seen, "means": problem.means, "do": problem.do}


def _cost(rental: Rental | None) -> dict[str, t.Any] | None:
    if rental is None:
        return None
    amount = spent(rental)
    currency = (rental.rate or {}).get("currency")
    return {"amount": None if amount is None else f"{amount:.6f}", "currency": currency}

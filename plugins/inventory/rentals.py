# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rentals
short_description: The live rentals of every platform whose key is set
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Lists every rental that is not proven gone, with its present host and port. One that the ledger knows is named by
    its slot, any other C(<platform>_<name>), or C(<platform>_<id>) where two share a name.
  - Nothing is dropped. A rental that boots, is stopped, or has only a relayed address is listed, and its variable
    C(tenant_unreachable_why) says why it cannot be connected to. So is one that the ledger knows and the platform does
    not list now; its state is C(unknown).
  - Groups are C(tenant_<platform>), C(tenant_<billing>) with the billing words of the verdict (C(on), C(disk_only),
    C(unknown)), C(tenant_strangers) for rentals that the ledger does not know, and those of O(groups), O(keyed_groups).
  - Host variables are C(tenant_instance_id), C(tenant_platform), C(tenant_status), C(tenant_billing), C(tenant_rate),
    C(tenant_gpu), C(tenant_gpu_count), C(tenant_region), C(tenant_created_at), C(tenant_run_id), and the usual
    C(ansible_host), C(ansible_port), C(ansible_user), C(ansible_ssh_private_key_file) and C(ansible_ssh_common_args).
  - The platforms' keys come from the environment, as for the verbs, and never enter the inventory.
options:
  plugin:
    description: The name of this plugin.
    type: str
    required: true
    choices: [tenant.gpu.rentals]
  platforms:
    description: Ask these, named as in C(profile_api); all whose key is set, where empty.
    type: list
    elements: str
    default: []
  required:
    description: Fail where a platform does not answer. Otherwise a warning names it; the ledger tells its open rentals.
    type: bool
    default: false
  tenant_home:
    description: The folder that holds the ledger and the hosts' keys.
    type: path
    default: ~/.tenant-gpu
    env:
      - name: TENANT_HOME
extends_documentation_fragment:
  - constructed
  - inventory_cache
"""

EXAMPLES = r"""
# rentals.yml; try it with: ansible-inventory -i rentals.yml --graph
plugin: tenant.gpu.rentals
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/tenant-gpu
cache_timeout: 60
keyed_groups:
  - key: tenant_gpu
    prefix: gpu
groups:
  dear: (tenant_rate.amount | default('0') | float) > 1
"""

import os
import typing as t
from pathlib import Path

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import CLIENTS, client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    OFF,
    UNKNOWN,
    AuthError,
    Instance,
    Platform,
    PlatformError,
)
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import plain
from ansible_collections.tenant.gpu.plugins.plugin_utils.address import ssh_common_args, ssh_key
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused, message, printable
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental

Row = dict[str, t.Any]


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "tenant.gpu.rentals"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("rentals.yml", "rentals.yaml"))

    def parse(self, inventory: t.Any, loader: t.Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        self.home = Path(self.get_option("tenant_home")).expanduser()
        try:
            rentals = Ledger(self.home).rentals()
            rows = self._rows(path, cache)
        except (Refused, PlatformError) as problem:
            raise AnsibleParserError(printable(message(problem.seen, problem.means, problem.do))) from problem
        known = {(one.platform, one.instance_id): one for one in rentals}
        rows = rows + _unlisted(rentals, rows)
        taken = {row["name"] for row in rows if _twice(row, rows)}
        for row in rows:
            self._add(row, known.get((row["platform"], row["id"])), row["name"] in taken)

    # -- what the platforms list -------------------------------------------------------------------------------------

    def _rows(self, path: str, cache: bool) -> list[Row]:
        """One row an instance, from the cache where that is on and young enough."""
        key = self.get_cache_key(path)
        if cache and self.get_option("cache"):
            try:
                return t.cast("list[Row]", plain(self._cache[key]))
            except KeyError:
                pass
        rows, whole = self._ask_all()
        if self.get_option("cache") and whole:  # an answer with holes is asked for again next time
            self._cache[key] = rows
        return rows

    def _ask_all(self) -> tuple[list[Row], bool]:
        rows: list[Row] = []
        whole = True
        for name in self.get_option("platforms") or sorted(CLIENTS):
            try:
                rows += self._ask(client(name, os.environ))
            except PlatformError as problem:
                unset = isinstance(problem, AuthError) and problem.status is None
                if unset and not self.get_option("platforms"):
                    continue  # no key: not one of the user's platforms
                if self.get_option("required"):
                    raise
                whole = False
                self.display.warning(f"{name} could not be listed: {printable(problem.seen)}. {problem.do}")
        return rows, whole

    @staticmethod
    def _ask(platform: Platform) -> list[Row]:
        if "list" not in platform.can:
            return []
        found = []
        for one in platform.list():
            if one.billing == OFF:
                continue
            platform.check_id(one.id)  # it becomes part of a path and of an ssh command
            found.append({"platform": platform.name, **one.as_dict(), "why": _why_unreachable(one)})
        return found

    # -- the inventory -----------------------------------------------------------------------------------------------

    def _add(self, row: Row, rental: Rental | None, shared_name: bool) -> None:
        host = self._host_name(row, rental, shared_name)
        self.inventory.add_host(host)
        variables = {**_facts(row, rental), **self._connection(row)}
        for name, value in variables.items():
            self.inventory.set_variable(host, name, value)
        groups = [f"tenant_{row['platform']}", f"tenant_{row['billing']}"]
        for group in groups if rental else [*groups, "tenant_strangers"]:
            self.inventory.add_group(group)
            self.inventory.add_host(host, group=group)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, host, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, host, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, host, strict=strict)

    def _host_name(self, row: Row, rental: Rental | None, shared_name: bool) -> str:
        """The slot of the instance that the slot stands for; a replaced one that still bills has a name of its own."""
        if rental and rental.slot and not rental.superseded_by:
            return rental.slot
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in row["name"])
        return f"{row['platform']}_{row['id'] if shared_name or rental or not safe else safe}"

    def _connection(self, row: Row) -> dict[str, t.Any]:
        endpoint = row["endpoint"]
        if row["why"] or not endpoint:
            return {"tenant_unreachable_why": row["why"] or "the platform names no address"}
        return {
            "ansible_host": endpoint["host"],
            "ansible_port": endpoint["port"],
            "ansible_user": endpoint["user"],
            "ansible_ssh_private_key_file": str(ssh_key(self.home)),
            "ansible_ssh_common_args": ssh_common_args(self.home, row["id"]),
        }


def _twice(row: Row, rows: list[Row]) -> bool:
    return sum(1 for other in rows if (other["platform"], other["name"]) == (row["platform"], row["name"])) > 1


def _unlisted(rentals: list[Rental], rows: list[Row]) -> list[Row]:
    """What the ledger knows as open and no platform lists: another key's, too young for a list, or not proven off."""
    there = {(row["platform"], row["id"]) for row in rows}
    return [
        {
            **Instance(one.instance_id, one.name, UNKNOWN, UNKNOWN).as_dict(),
            "platform": one.platform,
            "rate": one.rate,
            "why": "the ledger has it open, and the platform does not list it",
        }
        for one in rentals
        if one.open and (one.platform, one.instance_id) not in there
    ]


def _why_unreachable(instance: Instance) -> str | None:
    if instance.endpoint:
        return None
    return instance.note or f"it is {instance.status}, and the platform names no address"


def _facts(row: Row, rental: Rental | None) -> dict[str, t.Any]:
    return {
        "tenant_instance_id": row["id"],
        "tenant_platform": row["platform"],
        "tenant_name": row["name"],
        "tenant_status": row["status"],
        "tenant_billing": row["billing"],
        "tenant_rate": row["rate"],
        "tenant_gpu": row["gpu"],
        "tenant_gpu_count": row["gpu_count"],
        "tenant_region": row["region"],
        "tenant_created_at": row["created_at"],
        "tenant_run_id": rental.run_id if rental else None,
    }

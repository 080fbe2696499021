# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: meter
type: aggregate
short_description: What the rentals of this run cost, at its end
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - After each playbook, one line a rental of the play's hosts. What it cost so far, what it costs an hour, what it will
    have cost at C(job_max_duration), and, for a parked one, days, price a day, and the date at which it is lost.
  - Reads the ledger alone and asks no platform. An unknown price is shown as unknown. Prints nothing in a run that
    touched no rental, and never fails a run.
options:
  tenant_home:
    description: The folder that holds the ledger, where the hosts have no variable C(tenant_home).
    type: path
    default: ~/.tenant-gpu
    env:
      - name: TENANT_HOME
    ini:
      - section: callback_meter
        key: tenant_home
  json_file:
    description: A file to write the same as JSON into; replaced whole at each run that touched a rental.
    type: path
    env:
      - name: TENANT_METER_JSON
    ini:
      - section: callback_meter
        key: json_file
"""

EXAMPLES = r"""
# ansible.cfg
# [defaults]
# callbacks_enabled = tenant.gpu.meter
"""

import typing as t
from pathlib import Path

from ansible.plugins.callback import CallbackBase

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import now
from ansible_collections.tenant.gpu.plugins.plugin_utils.bill import bill, lines
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import printable
from ansible_collections.tenant.gpu.plugins.plugin_utils.files import write_json


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "tenant.gpu.meter"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: t.Any, **kwargs: t.Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = now()
        self._play: t.Any = None

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        self._play = play

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        try:
            self._tell(sorted(stats.processed))
        except Exception as problem:  # a bill that cannot be shown is no reason to fail the work it is for
            self._display.display(f"meter: the bill cannot be shown: {printable(str(problem))}", color="yellow")

    def _tell(self, hosts: list[str]) -> None:
        for home, slots in self._homes(hosts).items():
            found = bill(home, slots, self._since)
            text = lines(found)
            if not text:
                continue
            self._display.banner("METER")
            for line in text:
                self._display.display(printable(line))
            if self.get_option("json_file"):
                write_json(Path(self.get_option("json_file")).expanduser(), found, 0o644)

    def _homes(self, hosts: list[str]) -> dict[str, list[str]]:
        """The hosts by their ``tenant_home``; one that is a template, and not plain text, is left to the option."""
        found: dict[str, list[str]] = {}
        for name in hosts:
            home = str(self._variables(name).get("tenant_home") or "")
            found.setdefault(home if home and "{{" not in home else self.get_option("tenant_home"), []).append(name)
        return found

    def _variables(self, name: str) -> dict[str, t.Any]:
        manager = self._play.get_variable_manager() if self._play else None
        host = manager._inventory.get_host(name) if manager and manager._inventory else None
        if manager is None or host is None:
            return {}
        return t.cast("dict[str, t.Any]", manager.get_vars(play=self._play, host=host, include_hostvars=False))

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kit's one error: it becomes the ``error`` member of an answer."""

from __future__ import annotations


class KitError(Exception):
    def __init__(self, code: str, seen: str, means: str, do: str, **facts: object) -> None:
        super().__init__(seen)
        self.code, self.seen, self.means, self.do, self.facts = code, seen, means, do, facts

    def as_dict(self) -> dict:
        return {"code": self.code, "seen": self.seen, "means": self.means, "do": self.do}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far a cell has come, from its log (a regex) and its metrics file. Text is never a verdict."""

from __future__ import annotations

import json
import os
import re

_READ_LIMIT = 1 << 20
_TAIL_LINES = 40


class Follower:
    """New whole lines of a growing file; a file that shrank is read from its start."""

    def __init__(self, path: str) -> None:
        self.path, self.offset, self.rest = path, 0, b""

    def lines(self) -> list[str]:
        try:
            size = os.stat(self.path).st_size
            if size < self.offset:
                self.offset, self.rest = 0, b""
            if size == self.offset:
                return []
            with open(self.path, "rb") as stream:
                stream.seek(max(self.offset, size - _READ_LIMIT))
                chunk = self.rest + stream.read()
                self.offset = stream.tell()
        except OSError:
            return []
        *whole, self.rest = chunk.split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]


class Progress:
    """``step``, ``total`` and ``last_progress_at`` (epoch seconds, the box's clock) of one attempt."""

    def __init__(self, log: str, metrics: str | None, regex: str | None) -> None:
        self.step: int | None = None
        self.total: int | None = None
        self.last_progress_at: float | None = None
        self.first_line: str | None = None
        self.tail: list[str] = []
        self._log = Follower(log)
        self._metrics = Follower(metrics) if metrics else None
        self._pattern = re.compile(regex) if regex else None

    def update(self, now: float) -> bool:
        """Read what is new; True where the step moved."""
        before = self.step
        lines = self._log.lines()
        if lines and self.first_line is None:
            self.first_line = lines[0][:300]
        self.tail = (self.tail + lines)[-_TAIL_LINES:]
        for line in lines:
            self._from_log(line)
        for line in self._metrics.lines() if self._metrics else []:
            self._from_metrics(line)
        if self.step != before:
            self.last_progress_at = now
            return True
        return False

    def _from_log(self, line: str) -> None:
        match = self._pattern.search(line) if self._pattern else None
        if match:
            groups = match.groupdict()
            self._set("step", groups.get("step"))
            self._set("total", groups.get("total"))

    def _from_metrics(self, line: str) -> None:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if isinstance(row, dict):
            self._set("step", row.get("step"))
            self._set("total", row.get("total"))

    def _set(self, name: str, value: object) -> None:
        try:
            setattr(self, name, int(float(str(value)))) if value is not None else None
        except (ValueError, OverflowError):
            return

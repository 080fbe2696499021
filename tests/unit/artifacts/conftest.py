# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table that `pytest -m artifacts` prints at its end: format, fault, verdict."""

from __future__ import annotations

from typing import Any

import pytest

SEEN: list[tuple[str, str, str, str]] = []


@pytest.fixture
def seen() -> list[tuple[str, str, str, str]]:
    """Rows (format, fault, structure's verdict, loader's verdict) for the table."""
    return SEEN


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not SEEN:
        return
    terminalreporter.section("artifacts: format, fault, verdict on the box, verdict here")
    for fmt, fault, on_box, here in SEEN:
        terminalreporter.write_line(f"{fmt:12} {fault:44} {on_box:16} {here}")

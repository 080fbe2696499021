# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A session of its own, by a double fork: what is left when there is no terminal multiplexer."""

from __future__ import annotations

import os


def usable() -> bool:
    return True


def start(argv: list[str], name: str, log: str) -> None:
    """``argv`` runs as a grandchild in its own session; stdin is null, output goes to ``log``."""
    del name
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    os.closerange(3, 256)
    try:
        os.execv(argv[0], argv)
    finally:
        os._exit(127)

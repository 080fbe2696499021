# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ways to start the runner so that it outlives the connection. Each is one module with ``start(argv, name, log)``."""

from __future__ import annotations

import subprocess

from . import nohup, tmux

BACKENDS = {"tmux": tmux, "nohup": nohup}


def start(wanted: list[str], argv: list[str], name: str, log: str) -> str:
    """Start ``argv`` detached by the first way that works here; returns the way's name."""
    for word in [word for word in wanted if word in BACKENDS and word != "nohup"]:
        if BACKENDS[word].usable():
            try:
                BACKENDS[word].start(argv, name, log)
                return word
            except (OSError, subprocess.SubprocessError):
                continue  # it is there and does not work: the next way does
    nohup.start(argv, name, log)
    return "nohup"

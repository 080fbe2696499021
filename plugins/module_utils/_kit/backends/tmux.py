# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""tmux on a socket of our own, so that neither the user's sessions nor ours can be taken for the other's.

tmux matches a target by prefix unless it is written ``=name``; every target here is.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

SOCKET = "tenant-gpu"
PREFIX = "tenant-"


def usable() -> bool:
    return shutil.which("tmux") is not None


def _tmux(*words: str) -> subprocess.CompletedProcess:
    environment = dict(os.environ, LC_ALL=os.environ.get("LC_ALL") or "C.UTF-8")
    environment.setdefault("TERM", "dumb")
    environment.pop("TMUX", None)
    return subprocess.run(
        ["tmux", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        timeout=20,
    )


def start(argv: list[str], name: str, log: str) -> None:
    """A detached session named ``tenant-<name>`` that ends with its command.

    stdin stays the pane's terminal: a command that lets go of all of it is taken for ended, and hung up on.
    """
    command = "exec {} >>{} 2>&1".format(" ".join(shlex.quote(word) for word in argv), shlex.quote(log))
    done = _tmux("-L", SOCKET, "-f", "/dev/null", "new-session", "-d", "-s", PREFIX + name, command)
    if done.returncode:
        raise OSError("tmux: {}".format(done.stdout.decode("utf-8", "replace").strip()))


def foreign_sessions() -> list[str]:
    """Sessions on the user's own tmux server: somebody else's work."""
    if not usable():
        return []
    try:
        done = _tmux("list-sessions", "-F", "#{session_name}")
    except (OSError, subprocess.SubprocessError):
        return ["tmux does not answer"]
    return done.stdout.decode("utf-8", "replace").split("\n")[:-1] if done.returncode == 0 else []

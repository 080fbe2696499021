# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""rsync over Ansible's own SSH connection: the command lines, and what rsync's exit codes mean.

The master connection is revived through Ansible first; rsync then rides on it without asking for a key. Compression
is off: most bytes are weights, and ``-C`` made a 200 MB pull several times slower when measured.
"""

from __future__ import annotations

import shlex
import subprocess
import typing as t

from ansible.errors import AnsibleConnectionFailure

from .errors import Refused
from .kit import Unreachable

#: rsync's and ssh's exit codes that pass by themselves (rsync(1), ssh(1)).
RETRYABLE = frozenset({12, 30, 35, 255})
_MEANING = {
    2: ("remote_shell_noise", "The shell on the box prints text where rsync expects silence.", "Silence ~/.bashrc."),
    11: ("disk_full", "A file could not be written: a disk is full, here or on the box.", "Free space, then go on."),
    12: ("transfer_broken", "The connection broke in the middle.", "Run the same command again: it goes on."),
    23: ("transfer_partial", "Some files could not be read or written.", "See the names above."),
    24: ("source_changed", "Files vanished while they were copied.", "Make the manifest again."),
    30: ("transfer_stalled", "No byte came for a minute.", "Run the same command again: it goes on."),
    35: ("transfer_stalled", "The box did not answer in time.", "Run the same command again: it goes on."),
    127: ("rsync_missing", "rsync is not installed on one side.", "Install it: apt-get install rsync."),
    255: ("connection_lost", "SSH lost the connection.", "Run the same command again: it goes on."),
}


class Route(t.NamedTuple):
    """How rsync reaches the box: the ``-e`` command and the ``user@host`` prefix."""

    shell: list[str]
    target: str

    def command(self, remote: str) -> list[str]:
        """The ssh command line that runs a shell command on the box."""
        user, at, host = self.target.rpartition("@")
        return [*self.shell, *(["-l", user] if at else []), host, remote]


def route(action: t.Any) -> Route:
    """Revive Ansible's master connection and describe it for rsync. Raises Unreachable."""
    connection = action._connection
    if connection.transport != "ssh":
        raise Refused(
            "transport",
            f"the connection is {connection.transport!r}",
            "Files travel by rsync over ssh; another connection has no road for them.",
            "Use ansible_connection: ssh for this host.",
        )
    try:
        action._low_level_execute_command("true")
    except AnsibleConnectionFailure as problem:
        raise Unreachable(str(problem)) from problem
    option = connection.get_option
    words = ["ssh", "-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "Compression=no", "-o", "RequestTTY=no"]
    if connection.control_path:
        socket = connection.control_path % {"directory": connection.control_path_dir}
        words += ["-o", f"ControlPath={socket}"]
    if option("port"):
        words += ["-p", str(option("port"))]
    if option("private_key_file"):
        words += ["-i", str(option("private_key_file"))]
    words += shlex.split(option("ssh_common_args") or "")
    user = option("remote_user")
    host = option("host")
    return Route(words, f"{user}@{host}" if user else str(host))


def quoted(text: str) -> str:
    return shlex.quote(text)


def rsync(
    route: Route, arguments: list[str], *, stall: int = 60, limit: float | None = None, feed: bytes = b""
) -> tuple[int, str]:
    """Run rsync; returns its exit code and its text. ``stall`` ends it when no byte moves for so many seconds.

    ``limit`` (seconds) ends the slice: the code is then 30, and nothing is lost thanks to ``--partial``.
    ``feed`` is its stdin, for ``--files-from=-``.
    """
    command = ["rsync", "-e", shlex.join(route.shell), f"--timeout={stall}", "--partial", *arguments]
    try:
        done = subprocess.run(command, input=feed, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return 30, "the slice ended"
    except FileNotFoundError:
        return 127, "rsync is not installed on this controller"
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace").strip()


def refusal(code: int, text: str) -> Refused:
    word, means, do = _MEANING.get(code, ("rsync", "rsync did not end well.", "See rsync(1), EXIT VALUES."))
    return Refused(word, f"rsync ended with {code}: {' '.join(text.split())[-400:]}", means, do)

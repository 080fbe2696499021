# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""rsync's road: how it is built, and what its exit codes are told as."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.plugin_utils import fetch, transfer
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused


class _Connection:
    transport = "ssh"
    control_path, control_path_dir = "%(directory)s/abc", "/cp"

    def __init__(self, transport: str = "ssh") -> None:
        self.transport = transport

    def get_option(self, name: str) -> Any:
        return {"host": "203.0.113.7", "port": 40022, "remote_user": "root", "private_key_file": "/k",
                "ssh_common_args": "-o HostKeyAlias='pod 1'"}[name]  # fmt: skip


class _Action:
    def __init__(self, transport: str = "ssh") -> None:
        self._connection = _Connection(transport)

    def _low_level_execute_command(self, command: str) -> dict[str, Any]:
        return {"rc": 0, "stdout": "", "stderr": ""}


def test_the_road_rides_on_ansibles_connection_without_terminal_or_compression() -> None:
    road = transfer.route(_Action())
    text = " ".join(road.shell)
    for words in (
        "ControlMaster=no",
        "ControlPath=/cp/abc",
        "Compression=no",
        "RequestTTY=no",
        "BatchMode=yes",
        "-p 40022",
    ):
        assert words in text
    assert "-t" not in road.shell and "-tt" not in road.shell
    assert "HostKeyAlias=pod 1" in road.shell
    assert road.command("true")[-4:] == ["-l", "root", "203.0.113.7", "true"]


def test_another_connection_has_no_road() -> None:
    with pytest.raises(Refused) as caught:
        transfer.route(_Action("local"))
    assert caught.value.code == "transport"


@pytest.mark.parametrize(
    ("code", "word", "again"),
    [(2, "remote_shell_noise", False), (11, "disk_full", False), (23, "transfer_partial", False),
     (24, "source_changed", False), (12, "transfer_broken", True), (30, "transfer_stalled", True),
     (255, "connection_lost", True), (127, "rsync_missing", False), (99, "rsync", False)],
)  # fmt: skip
def test_exit_codes_are_told_apart(code: int, word: str, again: bool) -> None:
    refusal = transfer.refusal(code, "protocol version mismatch -- is your shell clean?")
    assert refusal.code == word and str(code) in refusal.seen and refusal.do
    assert (code in transfer.RETRYABLE) == again


def test_a_slice_ends_in_time(tmp_path: Path) -> None:
    road = transfer.Route(["sh", "-c", "sleep 30"], "nowhere")
    began = time.monotonic()
    assert transfer.rsync(road, ["nowhere:/x", str(tmp_path)], limit=0.5) == (30, "the slice ended")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("code", "text", "missing"),
    [(12, "bash: line 1: rsync: command not found", True), (127, "sh: 1: rsync: not found", True),
     (12, "connection unexpectedly closed", False), (23, "rsync: link_stat failed: No such file", False)],
)  # fmt: skip
def test_a_box_without_rsync_is_recognised(code: int, text: str, missing: bool) -> None:
    assert fetch.rsync_is_missing(code, text) == missing


def test_rsync_says_the_like_when_the_remote_shell_talks(tmp_path: Path) -> None:
    """The real rsync against a shell that prints a banner: code 2, as the table has it."""
    noisy = tmp_path / "noisy"
    noisy.write_text('#!/bin/sh\necho Welcome\nshift\nexec "$@"\n')
    noisy.chmod(0o755)
    done = subprocess.run(["rsync", "-e", str(noisy), "host:/etc/hostname", str(tmp_path)], capture_output=True)
    assert done.returncode in (2, 12)

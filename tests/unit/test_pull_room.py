# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Before the first byte of a pull: is there room, in bytes and in inodes."""

from __future__ import annotations

import os
import types
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.action import pull
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused


def _room(monkeypatch: pytest.MonkeyPatch, folder: Path, *, blocks: int, inodes: int, files: int = 1000) -> None:
    about = types.SimpleNamespace(f_bavail=blocks, f_frsize=1, f_favail=inodes, f_files=files)
    monkeypatch.setattr(os, "statvfs", lambda path: about)
    action = object.__new__(pull.ActionModule)
    action.stage = folder / "stage"
    action._room_for(1_000_000_000, 50)


def test_room_in_both_dimensions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _room(monkeypatch, tmp_path, blocks=2_000_000_000, inodes=1000)
    _room(monkeypatch, tmp_path, blocks=2_000_000_000, inodes=0, files=0)


@pytest.mark.parametrize(("blocks", "inodes"), [(1_000_000_000, 1000), (2_000_000_000, 60)])
def test_too_little_of_either_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blocks: int, inodes: int
) -> None:
    with pytest.raises(Refused) as caught:
        _room(monkeypatch, tmp_path, blocks=blocks, inodes=inodes)
    assert caught.value.code == "no_room" and str(blocks) in caught.value.seen

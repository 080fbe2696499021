# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The box after the roles ran, seen from outside: plain facts of files, not the roles' own variables."""

from __future__ import annotations

import os

import pytest
import testinfra
from testinfra.host import Host


@pytest.fixture(scope="module")
def box() -> Host:
    return testinfra.get_host("local://")


def test_one_kit_is_there_that_only_its_owner_can_change(box: Host) -> None:
    folder = f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/data/digits/bin"
    (name,) = box.file(folder).listdir()
    assert name.startswith("kit-")
    assert box.file(f"{folder}/{name}").mode & 0o022 == 0

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures of the lab: real HTTP servers and real SSH boxes on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.api import Lab
from tests.integration.runpod_client import RunPodClient
from tests.integration.tenant import Tenant


@pytest.fixture(scope="session")
def ssh_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key; its public half lies beside it with the suffix .pub."""
    path = tmp_path_factory.mktemp("ssh") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tenant", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def public_key(ssh_key: Path) -> str:
    return ssh_key.with_suffix(".pub").read_text().strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One lab for all tests of a module, with quick rentals."""
    with Lab(tmp_path_factory.mktemp("lab"), timing="fast") as running:
        yield running


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Starts labs with options of one test's own; they end with the test."""
    made: list[Lab] = []

    def make(**options: Any) -> Lab:
        made.append(Lab(tmp_path / f"lab-{len(made)}", **{"timing": "fast", **options}).start())
        return made[-1]

    yield make
    for each in made:
        each.stop()


def _empty(lab: Lab) -> None:
    """Nothing of one test is left in the lab for the next."""
    lab.clear()
    for rental in lab.rentals():
        if rental["state"] != "gone":
            lab.destroy(rental["id"])
    for volume in lab.volumes():
        if volume["state"] != "gone":
            lab.delete_volume(volume["id"])


@pytest.fixture
def api(lab: Lab) -> Iterator[RunPodClient]:
    """A client of the module's lab; what the test rented, and every fault, is gone afterwards."""
    yield RunPodClient(lab.url, lab.api_key)
    _empty(lab)


@pytest.fixture
def tenant(tmp_path: Path, lab: Lab) -> Iterator[Tenant]:
    """A new user on the module's lab; nothing of theirs is left in it afterwards."""
    yield Tenant(tmp_path, lab)
    _empty(lab)

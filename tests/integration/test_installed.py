# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The collection as a user installs it: from the archive, in a folder of theirs, on what requirements.txt names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from lab.api import Lab
from tests.integration.tenant import QUICK, Played, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]


class User:
    """Somebody with the archive: their own folder, environment and copy of the inventory; nothing of the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = bare_environment(folder / "venv")
        self.collections = folder / "collections"

    def install(self) -> Path:
        """Build the archive and install it; returns the folder of the installed collection."""
        self.ansible("galaxy", "collection", "build", "--output-path", str(self.folder), cwd=ROOT)
        (archive,) = self.folder.glob("tenant-gpu-*.tar.gz")
        where = ("-p", str(self.collections))
        self.ansible("galaxy", "collection", "install", str(archive), "--offline", *where, cwd=self.folder)
        return self.collections / "ansible_collections" / "tenant" / "gpu"

    def ansible(self, *words: str, cwd: Path, env: dict[str, str] | None = None) -> Played:
        """`ansible-<words>`; fails the test where it fails."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        theirs = {"HOME": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.collections)}
        done = subprocess.run(
            [str(self.python), "-m", "ansible", *words],
            cwd=cwd,
            env={**ours, **theirs, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        played = Played(done.returncode, done.stdout + done.stderr)
        assert played.rc == 0, played.output
        return played


def bare_environment(folder: Path) -> Path:
    """A virtual environment that holds what requirements.txt names and nothing else; returns its interpreter.

    The packages are links to those of this environment: no index is asked.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    for package in needed("requirements.txt"):
        for name in {path.parts[0] for path in package.files or [] if path.parts[0] not in ("..", "__pycache__")}:
            (site / name).symlink_to(Path(str(package.locate_file(name))))
    return folder / "bin" / "python"


def needed(requirements: str) -> list[Distribution]:
    """The distributions of a requirements file with all that they depend on."""
    lines = (ROOT / requirements).read_text().splitlines()
    waiting = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found: dict[str, Distribution] = {}
    while waiting:
        one = waiting.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found[one.name] = distribution(one.name)
            waiting += [Requirement(text) for text in found[one.name].requires or []]
    return list(found.values())


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user who has installed the archive, copied its inventory, and written a job file."""
    user = User(tmp_path_factory.mktemp("user"))
    shutil.copytree(user.install() / "inventories" / "rentals", user.folder / "inventory")
    job = {
        "job_name": "quick",
        "job_source": str(QUICK),
        "job_command": ["python", "train.py"],
        "job_resources": {"gpu": "RTX4090:1", "disk_gb": 10},
        "job_image": "lab/image",
        "job_max_price": "0.80 USD",
        "job_max_cost": "1 USD",
        "job_max_duration": "30m",
        "job_progress": {"regex": "step (?P<step>\\d+)/(?P<total>\\d+)"},
    }
    (user.folder / "job.yml").write_text(yaml.safe_dump(job))
    yield user


def play(user: User, lab: Lab, book: str, *words: str) -> Played:
    """`ansible-playbook tenant.gpu.<book> -i inventory -l runpod …` in the user's folder."""
    return user.ansible("playbook", f"tenant.gpu.{book}", "-i", "inventory", "-l", "runpod", *words, cwd=user.folder,
                        env=lab.env())  # fmt: skip


def test_the_environment_holds_nothing_else(user: User) -> None:
    for foreign in ("numpy", "aiohttp", "pytest", "lab"):
        missing = subprocess.run([user.python, "-c", f"import {foreign}"], cwd=user.folder, capture_output=True)
        assert missing.returncode != 0, foreign


def test_train_and_watch_run_from_the_archive(user: User, lab: Lab) -> None:
    checked = play(user, lab, "train", "-e", "@job.yml", "--check")
    assert "RTX 4090" in checked.output and checked.changed
    assert lab.rentals() == [] and not (user.folder / ".tenant-gpu" / "ledger.jsonl").exists()

    play(user, lab, "train", "-e", "@job.yml", "-e", "rent_approve=true")
    assert (user.folder / ".tenant-gpu" / "ledger.jsonl").exists(), "tenant_home is ~/.tenant-gpu"
    finished = r"runpod-1 .* finished  step 10/10"
    wait_for(lambda: re.search(finished, play(user, lab, "watch").output), 40.0, finished)

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A user of the collection, for tests: a folder with an inventory, a home and results, and the commands they type."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lab.api import Lab

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = Path(__file__).parent / "jobs" / "quick"


@dataclass
class Played:
    """One finished command."""

    rc: int
    output: str

    @property
    def changed(self) -> int:
        return sum(int(number) for number in re.findall(r"changed=(\d+)", self.output))

    @property
    def lines(self) -> list[str]:
        """The collection's own lines, without the host's name."""
        return re.findall(r"^  [\w-]+-\d  (.+)$", self.output, re.MULTILINE)

    def refusal(self) -> dict[str, str]:
        """The error of the failed task: code, seen, means, do."""
        match = re.search(r"^(\s+)error:\n((?:\1\s+.*\n)+)", self.output, re.MULTILINE)
        assert match, f"no error in:\n{self.output}"
        found: dict[str, str] = yaml.safe_load(match[0])["error"]
        assert set(found) == {"code", "seen", "means", "do"}
        return found


class Tenant:
    """Everything of one user; ``slots`` by platform."""

    def __init__(self, folder: Path, lab: Lab, slots: dict[str, dict[str, Any]] | None = None) -> None:
        self.folder, self.lab = folder, lab
        self.home, self.results = folder / "home", folder / "results"
        inventory = folder / "inventory"
        inventory.mkdir(parents=True)
        (inventory / "group_vars").symlink_to(ROOT / "inventories" / "rentals" / "group_vars")
        groups = slots or {"runpod": {"runpod-1": None}}
        hosts = {name: {"hosts": members} for name, members in groups.items()}
        (inventory / "hosts.yml").write_text(yaml.safe_dump(hosts))
        self.job: dict[str, Any] = {
            "job_name": "quick",
            "job_source": str(QUICK),
            "job_command": ["python", "train.py"],
            "job_resources": {"gpu": "RTX4090:1", "disk_gb": 10},
            "job_image": "lab/image",
            "job_volumes": [{"name": "quick", "size_gb": 10, "path": "/workspace"}],
            "job_max_price": "0.80 USD",
            "job_max_cost": "1 USD",
            "job_max_duration": "30m",
            "job_artifacts": [{"path": "metrics.json", "format": "json", "finite": ["loss"]}],
            "job_checkpoints": {"pattern": "step-*.json"},
            "job_progress": {"regex": "step (?P<step>\\d+)/(?P<total>\\d+)", "metrics": "metrics.jsonl"},
        }

    def play(self, book: str, *words: str, env: dict[str, str] | None = None, limit: str = "runpod-1") -> Played:
        """``ansible-playbook playbooks/<book>.yml -l <limit> …`` with this user's folders."""
        (self.folder / "job.yml").write_text(yaml.safe_dump(self.job))
        command = [
            str(Path(sys.executable).parent / "ansible-playbook"),
            f"playbooks/{book}.yml",
            *("-i", str(self.folder / "inventory"), "-l", limit),
            *("-e", f"tenant_home={self.home}", "-e", f"results_dir={self.results}"),
            *words,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **self.lab.env(), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
        )
        return Played(done.returncode, done.stdout + done.stderr)

    def train(self, *words: str, approve: str = "true", **options: Any) -> Played:
        return self.play("train", "-e", f"@{self.folder}/job.yml", "-e", f"rent_approve={approve}", *words, **options)

    def ok(self, book: str, *words: str, **options: Any) -> Played:
        played = self.train(*words, **options) if book == "train" else self.play(book, *words, **options)
        assert played.rc == 0, played.output
        return played

    def until(self, pattern: str, seconds: float = 40.0) -> str:
        """watch.yml again and again until its output fits; returns the output."""
        return wait_for(lambda: self._seen(pattern), seconds, pattern)

    def _seen(self, pattern: str) -> str | None:
        output = self.play("watch").output
        return output if re.search(pattern, output) else None

    def ledger(self) -> list[dict[str, Any]]:
        """Its whole lines; what a crash cut short is left out."""
        path = self.home / "ledger.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def actions(self) -> list[str]:
        return [line["action"] for line in self.ledger()]

    def instance(self) -> str:
        return str([line for line in self.ledger() if line["action"] == "created"][-1]["instance_id"])

    def run_id(self) -> str:
        records = [json.loads(path.read_text()) for path in (self.home / "runs").glob("*/run.json")]
        return str(max(records, key=lambda record: str(record["created_at"]))["run_id"])

    def live(self) -> list[str]:
        """Rentals that the lab bills now."""
        return [rental["id"] for rental in self.lab.rentals() if rental["state"] != "gone"]


def wait_for(ask: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(0.3)

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A run's folder as the kit leaves it on the box."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest
from tests.unit.artifacts import make

ARTIFACTS = [
    {"path": "best.pt", "format": "torch", "keys": ["w"], "finite": []},
    {"path": "metrics.json", "format": "json", "keys": [], "finite": ["loss"]},
]
CHECKPOINTS = {"pattern": "step-*.pt"}


def write(root: Path, name: str | bytes, content: bytes = b"x") -> Path:
    path = Path(os.fsdecode(os.path.join(os.fsencode(root), os.fsencode(name))))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_run(root: Path, cells: tuple[str, ...] = ("main",)) -> Path:
    write(root, "run.json", b"{}")
    write(root, "events.jsonl", b'{"event": "launched"}\n')
    for cell in cells:
        write(root, f"cells/{cell}/attempt-1/log", b"step 1\n")
        write(root, f"cells/{cell}/attempt-1/result.json", b'{"exit_code": 0}')
        write(root, f"cells/{cell}/out/best.pt", make.simple_torch())
        write(root, f"cells/{cell}/out/metrics.json", b'{"loss": 0.25}')
        for step in (900, 1000):
            write(root, f"cells/{cell}/checkpoints/step-{step}.pt", make.simple_torch(make.floats(step)))
    return root


def build(root: Path, cells: tuple[str, ...] = ("main",), artifacts: list | None = None, **more: Any) -> dict:
    wanted = ARTIFACTS if artifacts is None else artifacts
    more.setdefault("checkpoints", CHECKPOINTS)
    return manifest.build(str(root), "digits-1", "i-1", cells, wanted, boot_id="boot", host="box", **more)


def paths(made: dict) -> list[str]:
    return [row["path"] for row in made["files"]]


def left(made: dict) -> dict[str, str]:
    return {row["path"]: row["reason"] for row in made["left_behind"]}

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the controller knows about each run: ``<tenant_home>/runs/<run_id>/``.

``run.json`` is written when a run is minted and once more when it is closed; ``last_seen.json`` is a cache of the
newest status answer, so that an unreachable box can be spoken of with an age.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import typing as t
from datetime import UTC, datetime
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import now

from .errors import Refused
from .files import read_json, write_json

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


def check_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise Refused(
            "run_id",
            f"run_id is {run_id!r}",
            "A run id is 3 to 63 lower-case letters, digits and hyphens: it becomes part of names and paths.",
            "Leave run_id out, or choose another.",
        )
    return run_id


def mint(project: str) -> str:
    """A new run id: readable, sortable, unique."""
    stamp = datetime.now(UTC).strftime("%m%d-%H%M%S")
    return check_run_id(f"{project[:40]}-{stamp}-{secrets.token_hex(2)}")


def digest(job: dict[str, t.Any]) -> str:
    """What the job is, in one word: changes when anything that matters to the result changes."""
    return hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def slot_lock(home: str | os.PathLike[str], slot: str) -> t.Iterator[None]:
    """One command at a time decides about a slot's rental: two could both find it unbound and both rent."""
    folder = Path(home).expanduser() / "slots"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{slot}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Runs:
    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.folder = Path(home).expanduser() / "runs"

    def path(self, run_id: str) -> Path:
        return self.folder / check_run_id(run_id) / "run.json"

    def get(self, run_id: str) -> dict[str, t.Any] | None:
        return t.cast("dict[str, t.Any] | None", read_json(self.path(run_id)))

    def put(self, record: dict[str, t.Any]) -> None:
        write_json(self.path(record["run_id"]), {"schema": "tenant.gpu/run/1", **record})

    def update(self, run_id: str, **changes: t.Any) -> bool:
        """Change some fields of a known record; True if that changed something."""
        record = self.get(run_id)
        if record is None or all(record.get(key) == value for key, value in changes.items()):
            return False
        self.put({**record, **changes})
        return True

    def close(self, run_id: str, why: str, *, proven: bool) -> None:
        """The run needs no more care: its results are ``proven`` by a complete receipt, or given up by name."""
        record = self.get(run_id)
        if record is not None and not record.get("closed"):
            self.update(run_id, closed={"at": now(), "why": why, "proven": proven})

    def all(self) -> list[dict[str, t.Any]]:
        """Every record, oldest first."""
        found = [read_json(path) for path in self.folder.glob("*/run.json")]
        return sorted(found, key=lambda record: record["created_at"])

    def current(self, slot: str) -> dict[str, t.Any] | None:
        """The newest run of a slot, closed or not."""
        return next((record for record in reversed(self.all()) if record["slot"] == slot), None)

    def saw(self, run_id: str, row: dict[str, t.Any]) -> None:
        if self.path(run_id).exists():
            write_json(self.path(run_id).with_name("last_seen.json"), {"at": now(), "run": row})

    def last_seen(self, run_id: str) -> dict[str, t.Any] | None:
        return t.cast("dict[str, t.Any] | None", read_json(self.path(run_id).with_name("last_seen.json")))

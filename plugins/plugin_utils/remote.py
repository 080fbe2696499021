# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An object store, or any other remote, through the user's own rclone and its configuration.

A remote is written ``name:path`` as rclone has it. Keys stay in rclone's configuration or environment.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import typing as t
from pathlib import Path

from .errors import Refused, printable

_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@ -]*:.*", re.DOTALL)
#: A line that stalls is given up after two minutes, and tried anew twice (rclone's own words).
_PATIENCE = ("--contimeout=30s", "--timeout=120s", "--retries=3", "--low-level-retries=5")


class Remote:
    """One place of a remote. Every call raises Refused where rclone is missing or fails."""

    def __init__(self, place: str, environ: t.Mapping[str, str]) -> None:
        if not _REMOTE.fullmatch(place):
            raise Refused(
                "remote",
                f"collect_to is {place!r}",
                "It is no rclone remote as name:path, so nothing was copied.",
                "Set one up with `rclone config`, then write for example collect_to=s3:bucket/prefix.",
            )
        self.place, self._environ = place, dict(environ)

    def below(self, *names: str) -> Remote:
        """A folder below this one."""
        start = self.place if self.place.endswith((":", "/")) else f"{self.place}/"
        return Remote(start + "/".join(names), self._environ)

    def put(self, folder: Path, *, without: str = "", again: bool = False) -> None:
        """Copy a folder there; ``again``: also what looks the same there already. Nothing there is deleted."""
        words = [f"--exclude=/{without}"] if without else []
        words += ["--ignore-times"] if again else []
        self._run("copy", *words, "--", str(folder), self.place)

    def put_file(self, path: Path) -> None:
        self._run("copyto", "--ignore-times", "--", str(path), f"{self.place}/{path.name}")

    def get(self, folder: Path) -> None:
        """Copy all of it into a folder here."""
        self._run("copy", "--", self.place, str(folder))

    def sizes(self) -> dict[str, int]:
        """Size in bytes by path, of every file there; empty where there is no such place."""
        done = self._rclone("lsjson", "--recursive", "--files-only", "--no-modtime", "--no-mimetype", "--", self.place)
        if done.returncode == 3:  # rclone: directory not found
            return {}
        self._refuse_failed(done)
        return {row["Path"]: row["Size"] for row in json.loads(done.stdout)}

    def _run(self, *words: str) -> None:
        self._refuse_failed(self._rclone(*words))

    def _rclone(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = shutil.which("rclone", path=self._environ.get("PATH"))
        if program is None:
            raise Refused(
                "no_rclone",
                "collect_to is set, and there is no rclone on this controller",
                "The results lie here alone.",
                "Install it (Debian: apt-get install rclone), then run the same command again.",
            )
        return subprocess.run(
            [program, words[0], *_PATIENCE, *words[1:]],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )

    def _refuse_failed(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode == 0:
            return
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise Refused(
            "remote",
            f"rclone ended with {done.returncode}: {printable(lines[-1])[:300]}",
            f"{self.place} holds no full copy. The copy on this controller is whole and stays.",
            f"Try it by hand: rclone lsf '{self.place}' ; then run the same command again.",
        )

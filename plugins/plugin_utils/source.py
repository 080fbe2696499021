# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The source tree that becomes a release: which files, their digest, and what must never travel."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._kit.release import tree_digest

from .errors import Refused

#: Never pushed, whatever the ignore files say: secrets, caches, trackers, results of earlier runs.
ALWAYS_EXCLUDED = (
    ".git", ".hg", ".svn", ".env", ".env.*", "*.pem", "id_rsa*", "id_ed25519*", "id_ecdsa*", ".netrc", ".ssh",
    "__pycache__", "*.pyc", ".venv", "venv", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".ipynb_checkpoints", "wandb", "mlruns", ".tenant-gpu", ".demo", ".lab",
)  # fmt: skip
_KEY_TEXT = b"PRIVATE KEY-----"
_KEY_FILE_LIMIT = 64 << 10


class Tree(t.NamedTuple):
    """``names`` are relative POSIX paths; ``size`` in bytes."""

    root: Path
    names: list[str]
    size: int
    digest: str


def read(source: dict[str, t.Any], cache: Path) -> Tree:
    """The tree a job's source names. A git source is checked out at its commit, below ``cache``."""
    root = _checkout(source, cache) if source.get("git") else Path(source["path"])
    if not root.is_dir():
        raise Refused(
            "no_source",
            f"job_source {root} is no directory",
            "There is nothing to push.",
            "Correct job_source; a relative path counts from where ansible-playbook is started.",
        )
    names = [name for name in _listed(root) if not _excluded(name)]
    nested = [name for name in names if name.endswith("/")]
    if nested:
        raise Refused(
            "nested_repository",
            f"{', '.join(nested)} in {root} is a repository of its own",
            "Its files would be missing on the box. Nothing was pushed.",
            "Copy its files in without their .git, or name it in .tenantignore.",
        )
    if not names:
        raise Refused(
            "empty_source",
            f"{root} has no file left after .gitignore, .tenantignore and the fixed exclusions",
            "There is nothing to push.",
            "See what is excluded: README.md, 'What is pushed'.",
        )
    _refuse_keys(root, names)
    size = sum(os.lstat(root / name).st_size for name in names)
    return Tree(root, names, size, tree_digest(str(root), names))


def _listed(root: Path) -> list[str]:
    """Files of the tree as git would list them, in a repository or not: its ignore rules are the known ones."""
    with tempfile.TemporaryDirectory() as scratch:
        git = ["git", "--git-dir", scratch, "--work-tree", str(root)]
        listing = ["ls-files", "--others", "--exclude-standard", "--exclude-per-directory=.tenantignore", "-z"]
        try:
            subprocess.run(["git", "init", "--quiet", "--bare", scratch], check=True, capture_output=True)
            done = subprocess.run([*git, *listing], check=True, capture_output=True, cwd=root)
        except FileNotFoundError:
            return _walked(root)
        except subprocess.CalledProcessError as problem:
            raise Refused(
                "source_list",
                f"git could not list {root}: {problem.stderr.decode(errors='replace').strip()[-300:]}",
                "It is not known what to push.",
                "Run git status there.",
            ) from problem
    return sorted(
        os.fsdecode(name) for name in done.stdout.split(b"\0") if name and os.path.lexists(root / os.fsdecode(name))
    )


def _walked(root: Path) -> list[str]:
    """Without git: everything, less the patterns of .tenantignore at the root."""
    ignore = root / ".tenantignore"
    patterns = [line.strip() for line in ignore.read_text().splitlines()] if ignore.exists() else []
    patterns = [line for line in patterns if line and not line.startswith("#")]
    names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return sorted(name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns))


def _excluded(name: str) -> bool:
    return any(fnmatch.fnmatch(part, pattern) for part in name.split("/") for pattern in ALWAYS_EXCLUDED)


def _refuse_keys(root: Path, names: list[str]) -> None:
    for name in names:
        path = root / name
        if path.is_symlink():
            _refuse_leaving(root, path)
        elif path.stat().st_size <= _KEY_FILE_LIMIT and _KEY_TEXT in path.read_bytes():
            raise Refused(
                "private_key",
                f"{name} holds a private key",
                "A rented box belongs to a stranger. Nothing was pushed.",
                "Move it out of the source, or name it in .tenantignore.",
            )


def _refuse_leaving(root: Path, link: Path) -> None:
    target = link.resolve()
    if root.resolve() not in [target, *target.parents]:
        raise Refused(
            "link_leaves",
            f"{link.relative_to(root)} is a link to {target}, outside the source",
            "On the box it would point to nothing.",
            "Copy the file into the source, or name the link in .tenantignore.",
        )


def _checkout(source: dict[str, t.Any], cache: Path) -> Path:
    """A clean tree of one commit; kept by commit, so that a second push does not fetch again."""
    target = cache / f"{Path(source['git'].rstrip('/')).name}-{source['ref']}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        steps = (
            ["git", "clone", "--quiet", "--no-checkout", source["git"], scratch],
            ["git", "-C", scratch, "checkout", "--quiet", "--detach", source["ref"]],
        )
        for step in steps:
            done = subprocess.run(step, stdin=subprocess.DEVNULL, capture_output=True)
            if done.returncode:
                raise Refused(
                    "git_source",
                    f"{' '.join(step[:2])}: {done.stderr.decode(errors='replace').strip()[-300:]}",
                    "The source could not be had. Nothing was pushed.",
                    "Check job_source: git must be reachable from here, ref a commit it holds.",
                )
        os.rename(scratch, target)
        Path(scratch).mkdir()
    return target

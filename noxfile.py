# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The sessions behind `make test`. All but `matrix` run in the environment that nox itself runs in (.venv)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
REQUIREMENTS = ["requirements.txt", "requirements-lab.txt", "requirements-test.txt"]
# The oldest ansible-core that the collection supports, and the newest; with the Pythons that each accepts.
CORES = {"2.19.14": {"3.11", "3.12", "3.13"}, "2.21.5": {"3.12", "3.13"}}

nox.options.sessions = ["lint", "molecule", "unit", "integration"]
nox.options.default_venv_backend = "none"


def clean_environment() -> dict[str, str | None]:
    """What every tool gets: our own binaries first, no user's Ansible settings, nothing left in the user's home."""
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("ANSIBLE_", "MOLECULE_"))}
    env["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env["ANSIBLE_HOME"] = str(ROOT / ".cache" / "ansible")
    env["XDG_CACHE_HOME"] = str(ROOT / ".cache")
    return env


def python_tool(session: nox.Session, *command: str) -> None:
    session.run(sys.executable, "-m", *command, env=clean_environment())


def have(*names: str) -> list[str]:
    """Those of the folders that exist."""
    return [name for name in names if (ROOT / name).is_dir()]


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, mypy, yamllint and ansible-lint (profile production, no skips)"""
    session.run("bash", "-n", "tools/bootstrap.sh", ".ci/run", external=True)
    python_tool(session, "ruff", "check", ".")
    python_tool(session, "ruff", "format", "--check", ".")
    typecheck(session)
    python_tool(session, "yamllint", "--strict", ".")
    session.run(
        str(BIN / "ansible-lint"), "--config-file", ".config/ansible-lint.yml", env=clean_environment(), external=True
    )


def typecheck(session: nox.Session) -> None:
    """mypy by package name: by path, the link in .collections would give each file two names."""
    packages = ["ansible_collections.tenant.gpu.plugins", *have("lab", "tests")]
    python_tool(session, "mypy", *(word for name in packages for word in ("-p", name)), "-m", "noxfile")


@nox.session
def unit(session: nox.Session) -> None:
    """pytest tests/unit; further arguments go to pytest"""
    python_tool(session, "pytest", "tests/unit", *session.posargs)


@nox.session
def integration(session: nox.Session) -> None:
    """pytest tests/integration against the lab; further arguments go to pytest"""
    python_tool(session, "pytest", "tests/integration", *session.posargs)


@nox.session
def molecule(session: nox.Session) -> None:
    """the molecule scenario `default`; further arguments go to molecule test"""
    # In /tmp, and gone afterwards: the paths of ssh's sockets have to stay short, and a home has to stay as it is.
    with tempfile.TemporaryDirectory(prefix="tenant-") as folder:
        places = {"MOLECULE_EPHEMERAL_DIRECTORY": f"{folder}/molecule", "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{folder}/ssh"}
        command = [str(BIN / "molecule"), "--base-config", ".config/molecule/config.yml", "test", *session.posargs]
        try:
            session.run(*command, env=clean_environment() | places, external=True)
        finally:
            # Only where molecule itself was cut off before `destroy` is there still a lab to end.
            python_tool(session, "lab", "--state", f"{folder}/molecule/lab", "down")


@nox.session
def bench(session: nox.Session) -> None:
    """the measurements in tests/bench, into tests/bench/results; further arguments go to both"""
    for name in ("artifacts", "pull"):
        environment = {**clean_environment(), "PYTHONPATH": str(ROOT / ".collections")}
        session.run(sys.executable, "-m", f"tests.bench.{name}", *session.posargs, env=environment)


@nox.session
def build(session: nox.Session) -> None:
    """ansible-galaxy collection build into build/"""
    galaxy = [str(BIN / "ansible-galaxy"), "collection", "build", "--force", "--output-path", "build"]
    session.run(*galaxy, env=clean_environment(), external=True)


@nox.session
def matrix(session: nox.Session) -> None:
    """unit tests and the integration tests marked `matrix`, on each ansible-core and Python; -- 2.19 3.11 narrows"""
    pairs = [pair for pair in combinations() if all(word in pair[0] or word == pair[1] for word in session.posargs)]
    if not pairs:
        session.error(f"no interpreter is here for {' '.join(session.posargs) or 'any of the pairs'}")
    for core, version, python in pairs:
        session.log("ansible-core %s on Python %s", core, version)
        pins = [f"ansible-core=={core}", *(pin for pin in pinned(REQUIREMENTS) if not pin.startswith("ansible-core"))]
        bin_dir = environment(session, f"matrix-{core}-py{version}", python, pins)
        env = clean_environment() | {"PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}"}
        pytest = [str(bin_dir / "python"), "-m", "pytest", "-p", "no:cacheprovider"]
        session.run(*pytest, "tests/unit", env=env, external=True)
        # Exit status 5: no test carries the mark.
        session.run(*pytest, *have("tests/integration"), "-m", "matrix", env=env, external=True, success_codes=[0, 5])


@nox.session
def torch(session: nox.Session) -> None:
    """the artifact tests on files that PyTorch and others wrote; further arguments go to pytest"""
    # The oldest Python here: wheels of large libraries come to the newest one last.
    python = interpreters()[min(interpreters())]
    bin_dir = environment(session, "torch", python, pinned([*REQUIREMENTS, "requirements-torch.txt"]))
    # By file: other tests import Ansible, which replaces sys.intern, and in such a process PyTorch cannot be imported.
    pytest = [str(bin_dir / "python"), "-m", "pytest", "-p", "no:cacheprovider"]
    session.run(
        *pytest, "tests/unit/artifacts/test_real_files.py", *session.posargs, env=clean_environment(), external=True
    )


def combinations() -> Iterator[tuple[str, str, str]]:
    """(ansible-core, Python version, interpreter) for each pair that can run here."""
    found = interpreters()
    for core, accepted in CORES.items():
        for version in sorted(accepted & found.keys()):
            yield core, version, found[version]


def interpreters() -> dict[str, str]:
    """The interpreters that run here, by version."""
    listing = subprocess.run([ROOT / "tools" / "interpreters.sh"], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in listing.splitlines())


def pinned(files: list[str]) -> list[str]:
    """The lines of the requirement files that name a package."""
    lines = [line for name in files for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def environment(session: nox.Session, name: str, python: str, pins: list[str]) -> Path:
    """The folder of executables of an environment with these packages; made once, kept while the pins stay the same."""
    venv = ROOT / ".nox" / name
    wanted = "".join(f"{pin}\n" for pin in pins)
    stamp = venv / "installed.txt"
    if not stamp.is_file() or stamp.read_text() != wanted:
        session.run(python, "-m", "venv", "--clear", str(venv), external=True)
        listed = venv / "wanted.txt"
        listed.write_text(wanted)
        session.run(str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "-r", str(listed), external=True)
        listed.rename(stamp)
    return venv / "bin"

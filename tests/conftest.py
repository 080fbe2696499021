# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every test gets: no real account, no user's Ansible settings, nothing left in the user's home."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Ansible's subprocesses, and a plain `pytest` from another environment's PATH, use the executables beside this Python.
BIN = Path(sys.executable).parent

# The names in contracts: a test must never reach a real platform with the developer's own key.
ACCOUNT_VARIABLE = re.compile(r"(RUNPOD|VAST|LAMBDA|PAPERSPACE|AUTODL|FEATURIZE)_\w*(KEY|TOKEN|URL)$")
PROXY_VARIABLE = re.compile(r"(https?|all)_proxy$", re.IGNORECASE)


def pytest_configure() -> None:
    """Clean the environment once, before any module of ours or of Ansible reads it."""
    # A shell's background job ignores Ctrl-C and hands that on to all that it starts, also to what a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith("ANSIBLE_") or ACCOUNT_VARIABLE.match(name) or PROXY_VARIABLE.match(name):
            del os.environ[name]
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(ROOT / ".collections")
    os.environ["ANSIBLE_HOME"] = str(ROOT / ".cache" / "ansible")
    # Off in ansible.cfg too; here it also holds for tests that run without our ansible.cfg.
    os.environ["ANSIBLE_INJECT_FACT_VARS"] = "false"


@pytest.fixture(scope="session")
def root() -> Path:
    """The clone's root."""
    return ROOT

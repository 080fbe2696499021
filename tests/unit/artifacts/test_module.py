# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The verb artifact_verify as Ansible runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import verify
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import argument_spec
from tests.unit.artifacts import make
from tests.unit.artifacts.runs import ARTIFACTS, build, make_run, write

pytestmark = pytest.mark.artifacts


def ansible(folder: Path, *flags: str, **args: Any) -> dict[str, Any]:
    """The verb's result, as an ad hoc call prints it."""
    command = [sys.executable, "-m", "ansible", "adhoc", "localhost", "-m", "tenant.gpu.artifact_verify"]
    reply = subprocess.run([*command, "-a", json.dumps(args), *flags], cwd=folder, capture_output=True, text=True)
    head, _, body = reply.stdout.partition(" => ")
    result = json.loads(body)
    assert ("FAILED!" in head) == bool(reply.returncode), reply.stdout
    return {"failed": "FAILED!" in head, **result}


def test_formats_in_the_documentation_are_those_of_the_code() -> None:
    assert tuple(argument_spec("artifact_verify")["format"]["choices"]) == verify.FORMATS


def test_a_tree_with_its_manifest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    made = build(run)
    (tmp_path / "MANIFEST.json").write_text(json.dumps(made))
    args = {"path": str(run), "manifest": str(tmp_path / "MANIFEST.json"), "artifacts": ARTIFACTS}
    found = ansible(tmp_path, "--check", **args)
    assert found["changed"] is False and not found["failed"] and found["worst"] == "loaded"
    assert {row["verdict"] for row in found["artifacts"]} == {"loaded"} and found["failed_count"] == 0
    log = run / "cells/main/attempt-1/log"
    log.write_bytes(b"other!!")
    found = ansible(tmp_path, **args)
    assert found["failed"] is True and found["failed_count"] == 1 and "differs from the manifest" in found["msg"]
    assert found["mismatched"] == ["cells/main/attempt-1/log"]


def test_fail_on(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write(folder, "nan.pt", make.simple_torch(make.floats(8, float("nan"))))
    write(folder, "object.pt", make.simple_torch())
    assert ansible(tmp_path, path=str(folder))["failed"] is True
    found = ansible(tmp_path, path=str(folder), fail_on="never")
    assert not found["failed"] and found["worst"] == "suspect" and found["failed_count"] == 1
    unknown = make.torch_zip(
        make.glob("a.B") + b"(" + make.tensor("0", "FloatStorage", 8, [8]) + b"tR", {"0": make.floats(8)}
    )
    only = write(tmp_path, "only.pt", unknown)
    assert not ansible(tmp_path, path=str(only))["failed"]
    assert ansible(tmp_path, path=str(only), fail_on="structural_only")["failed"] is True


def test_what_is_not_there(tmp_path: Path) -> None:
    found = ansible(tmp_path, path=str(tmp_path / "gone"))
    assert found["failed"] is True and found["error"]["code"] == "no_such_path" and found["error"]["do"]

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The receipt: what it proves, and everything that makes it void."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest, receipt, verify
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts.receipt import ReceiptError
from tests.unit.artifacts import make
from tests.unit.artifacts.runs import ARTIFACTS, build, make_run, write

pytestmark = pytest.mark.artifacts


@pytest.fixture
def proof(tmp_path: Path) -> tuple[dict, dict, Path]:
    """(receipt, manifest, folder) of a run that came whole."""
    root = make_run(tmp_path / "digits-1")
    made = build(root)
    results = verify.verify_tree(root, made, ARTIFACTS, 1)
    return receipt.make(made, results, [{"host": "here", "path": str(root)}], "here"), made, root


def ask(given: dict, made: Any, root: Path | None, **change: Any) -> None:
    receipt.check(given, **{"manifest": made, "instance_id": "i-1", "run_ids": ["digits-1"], "root": root, **change})


def test_a_whole_run(proof: tuple[dict, dict, Path]) -> None:
    given, made, root = proof
    assert given["level"] == "loaded" and given["complete"] and given["failed"] == 0
    assert given["manifest_sha256"] == manifest.digest(made)
    assert given["files"] == 7 and len(given["artifacts"]) == 3 and given["producer"] == "box"
    again = json.loads(json.dumps(given, allow_nan=False))
    ask(again, json.loads(json.dumps(made)), root)
    ask(again, made, root, rehash=True)
    ask(again, made, None)


Void = Callable[[dict, dict, Path], None]


def drop_file(given: dict, made: dict, root: Path) -> None:
    (root / "cells/main/out/best.pt").unlink()


def shorten(given: dict, made: dict, root: Path) -> None:
    write(root, "cells/main/out/best.pt", b"short")


def link(given: dict, made: dict, root: Path) -> None:
    path = root / "cells/main/out/best.pt"
    path.rename(root / "best.pt")
    path.symlink_to(root / "best.pt")


def remove_all(given: dict, made: dict, root: Path) -> None:
    root.rename(root.parent / "away")


def change(*keys: Any, to: Any) -> Void:
    def apply(given: dict, made: dict, root: Path) -> None:
        target: Any = {"receipt": given, "manifest": made}
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = to

    return apply


VOID: dict[str, tuple[Void, str]] = {
    "a file of the copy is gone": (drop_file, "No such file"),
    "a file of the copy is short": (shorten, "has 5 bytes"),
    "a file of the copy is a link": (link, "is no file"),
    "the copy is gone": (remove_all, "No such file"),
    "no copy": (change("receipt", "copies", to=[]), "names no copy"),
    "a copy elsewhere": (change("receipt", "copies", to=[{"host": "x", "path": "/elsewhere"}]), "names no copy"),
    "copies of nonsense": (change("receipt", "copies", to=[3, {"path": 5}]), "names no copy"),
    "the manifest changed": (change("manifest", "made_at", to="2027-01-01T00:00:00Z"), "the receipt was made for"),
    "a hash changed": (change("manifest", "files", 0, "sha256", to="0" * 64), "the receipt was made for"),
    "the manifest is hostile": (change("manifest", "files", 0, "path", to="../x"), "damaged"),
    "the manifest holds NaN": (change("manifest", "newest_mtime_ns", to=float("nan")), "damaged"),
    "another instance": (change("receipt", "instance_id", to="i-2"), "for instance i-2"),
    "another run": (change("receipt", "run_id", to="other"), "for run other"),
    "something failed": (change("receipt", "failed", to=1), "counts 1 failed"),
    "a bad artifact hidden": (change("receipt", "artifacts", 0, "verdict", to="truncated"), "is truncated"),
    "an unknown verdict": (change("receipt", "artifacts", 0, "verdict", to="fine"), "lists"),
    "artifacts of nonsense": (change("receipt", "artifacts", to=[1]), "lists"),
    "level too high": (change("receipt", "artifacts", 0, "verdict", to="structural_only"), "says loaded"),
    "level of nonsense": (change("receipt", "level", to="perfect"), "level is perfect"),
    "not complete": (change("receipt", "complete", to=False), "not complete"),
    "complete in words": (change("receipt", "complete", to="yes"), "complete is yes"),
    "failed a boolean": (change("receipt", "failed", to=False), "failed is False"),
    "no schema": (change("receipt", "schema", to="x"), "no schema"),
    "fewer files": (change("receipt", "files", to=6), "count different files"),
}


@pytest.mark.parametrize("name", VOID)
def test_what_makes_it_void(name: str, proof: tuple[dict, dict, Path]) -> None:
    given, made, root = copy.deepcopy(proof[0]), copy.deepcopy(proof[1]), proof[2]
    apply, words = VOID[name]
    apply(given, made, root)
    with pytest.raises(ReceiptError) as caught:
        ask(given, made, root)
    assert words in caught.value.seen, caught.value.seen
    assert caught.value.means and "collect.yml" in caught.value.do


@pytest.mark.parametrize("given", [None, [], "x", {}, {"schema": receipt.SCHEMA}])
def test_no_receipt_at_all(given: Any, proof: tuple[dict, dict, Path]) -> None:
    with pytest.raises(ReceiptError):
        ask(given, proof[1], proof[2])


def test_no_manifest(proof: tuple[dict, dict, Path]) -> None:
    with pytest.raises(ReceiptError, match="no manifest"):
        ask(proof[0], None, proof[2])


def test_other_bytes_of_the_same_size_need_a_rehash(proof: tuple[dict, dict, Path]) -> None:
    given, made, root = proof
    path = root / "cells/main/out/best.pt"
    path.write_bytes(make.flip(path.read_bytes(), 100))
    ask(given, made, root)
    with pytest.raises(ReceiptError, match="other bytes"):
        ask(given, made, root, rehash=True)


def test_a_failed_run_gets_one_too(tmp_path: Path) -> None:
    """Logs, exit record and newest checkpoint, with what will not come given up by the cell's name."""
    root = make_run(tmp_path, ("main", "bad"))
    (root / "cells/bad/out/best.pt").unlink()
    made = build(root, ("main", "bad"))
    results = verify.verify_tree(root, made, ARTIFACTS, 1)
    copies = [{"host": "here", "path": str(root)}]
    first = receipt.make(made, results, copies, "here")
    assert not first["complete"]
    with pytest.raises(ReceiptError, match=r"best\.pt of bad") as caught:
        ask(first, made, root)
    assert "collect_accept_missing" in caught.value.do
    second = receipt.make(made, results, copies, "here", ["bad"])
    assert second["complete"] and second["accepted_missing"] == ["bad"]
    ask(second, made, root)


def test_a_receipt_that_claims_completeness_is_checked(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    (root / "cells/main/out/best.pt").unlink()
    made = build(root)
    given = receipt.make(made, verify.verify_tree(root, made, ARTIFACTS, 1), [{"host": "h", "path": str(root)}], "h")
    given["complete"] = True
    with pytest.raises(ReceiptError, match="gaps"):
        ask(given, made, root)


def test_moved_files_make_it_incomplete(proof: tuple[dict, dict, Path]) -> None:
    made, root = copy.deepcopy(proof[1]), proof[2]
    made["moved"] = [{"path": "run.json"}]
    results = verify.verify_tree(root, made, ARTIFACTS, 1)
    given = receipt.make(made, results, [{"host": "here", "path": str(root)}], "here")
    assert not given["complete"]


def test_results_of_fewer_files_do_not_pass(proof: tuple[dict, dict, Path]) -> None:
    made, root = proof[1], proof[2]
    results = verify.verify_tree(root, made, ARTIFACTS, 1)
    results["files"] -= 2
    assert receipt.make(made, results, [], "here")["failed"] == 2


def test_structural_only_sets_the_level(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    config = make.glob("my_project.Config") + b"(" + make.tensor("0", "FloatStorage", 8, [8]) + b"tR"
    write(root, "cells/main/out/best.pt", make.torch_zip(make.mapping({"w": config}), {"0": make.floats(8)}))
    made = build(root)
    given = receipt.make(made, verify.verify_tree(root, made, ARTIFACTS, 1), [{"host": "h", "path": str(root)}], "h")
    assert given["level"] == "structural_only" and given["complete"] and given["failed"] == 0
    ask(given, made, root)

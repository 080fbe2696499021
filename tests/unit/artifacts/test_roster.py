# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What must come of a run, and what stays behind and why."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import roster, structure
from tests.unit.artifacts import make
from tests.unit.artifacts.runs import build, left, make_run, paths, write

pytestmark = pytest.mark.artifacts


def test_a_whole_run(tmp_path: Path) -> None:
    made = build(make_run(tmp_path))
    assert paths(made) == [
        "cells/main/attempt-1/log",
        "cells/main/attempt-1/result.json",
        "cells/main/checkpoints/step-1000.pt",
        "cells/main/out/best.pt",
        "cells/main/out/metrics.json",
        "events.jsonl",
        "run.json",
    ]
    assert made["missing"] == []
    assert left(made) == {"cells/main/checkpoints/step-900.pt": "superseded by step-1000.pt"}
    assert made["moved"] == []


def test_a_missing_artifact_says_why(tmp_path: Path) -> None:
    make_run(tmp_path, ("a", "b"))
    (tmp_path / "cells/a/out/metrics.json").rename(tmp_path / "cells/a/out/metrics.json.tmp")
    (tmp_path / "cells/b/out/best.pt").unlink()
    found = {(row["cell"], row["artifact"]): row["reason"] for row in build(tmp_path, ("a", "b"))["missing"]}
    assert found[("a", "metrics.json")].startswith("only cells/a/out/metrics.json.tmp is there")
    assert "no file in out/ fits it" in found[("b", "best.pt")]
    assert len(found) == 2


def test_a_cell_that_never_ran_is_missing(tmp_path: Path) -> None:
    made = build(make_run(tmp_path), ("main", "other"))
    assert {row["artifact"] for row in made["missing"] if row["cell"] == "other"} == {
        "attempt",
        "best.pt",
        "metrics.json",
    }


def test_an_artifact_of_one_cell_is_not_missed_in_another(tmp_path: Path) -> None:
    make_run(tmp_path, ("a", "b"))
    write(tmp_path, "cells/a/out/extra.txt")
    made = build(tmp_path, ("a", "b"), [{"path": "extra.txt", "cell": "a"}])
    assert made["missing"] == []


def test_logs_come_from_every_attempt(tmp_path: Path) -> None:
    make_run(tmp_path)
    for number in (2, 10):
        write(tmp_path, f"cells/main/attempt-{number}/log", b"again\n")
    logs = [path for path in paths(build(tmp_path)) if path.endswith("/log")]
    assert len(logs) == 3


def test_no_artifacts_named_takes_all_of_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    write(tmp_path, "cells/main/out/deep/er/file.bin")
    made = build(tmp_path, artifacts=[])
    assert "cells/main/out/deep/er/file.bin" in paths(made) and "cells/main/out/best.pt" in paths(made)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.pt", {"a.pt", "[x].pt"}),
        ("**/*.pt", {"a.pt", "sub/b.pt", "sub/deep/c.pt", "[x].pt"}),
        ("sub", {"sub/b.pt", "sub/deep/c.pt", "sub/d.json"}),
        ("sub/", {"sub/b.pt", "sub/deep/c.pt", "sub/d.json"}),
        ("sub/*.json", {"sub/d.json"}),
        ("s*", {"sub/b.pt", "sub/deep/c.pt", "sub/d.json"}),
        ("[x].pt", {"[x].pt"}),
        ("[a-c].pt", {"a.pt"}),
        ("[!b].pt", {"a.pt"}),
        ("?.pt", {"a.pt"}),
        ("*.safetensors", set()),
    ],
)
def test_globs(tmp_path: Path, pattern: str, wanted: set[str]) -> None:
    for name in ("a.pt", "sub/b.pt", "sub/deep/c.pt", "sub/d.json", "[x].pt"):
        write(tmp_path, f"cells/m/out/{name}", name.encode())
    write(tmp_path, "cells/m/attempt-1/log")
    found = roster.collect(str(tmp_path), ["m"], [{"path": pattern}], None)
    skip = len("cells/m/out/")
    assert {entry.path.decode()[skip:] for entry in found.files if entry.artifact == pattern} == wanted
    assert bool(found.missing) == (not wanted)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.pt.incomplete", "not finished"),
        ("a.pt.lock", "not finished"),
        ("a.pt.tmp", "not finished"),
        ("a.part", "not finished"),
        ("a.tmp.safetensors", "not finished"),
        ("a~", "not finished"),
        ("__pycache__/a.pyc", "a cache"),
        (".cache/huggingface/blob", "a cache"),
        (".git/config", "a cache"),
    ],
)
def test_temporaries_and_caches_stay(tmp_path: Path, name: str, reason: str) -> None:
    make_run(tmp_path)
    write(tmp_path, f"cells/main/out/{name}", b"12345")
    made = build(tmp_path, artifacts=[])
    (row,) = [row for row in made["left_behind"] if row["path"].startswith("cells/main/out/")]
    assert row["reason"].startswith(reason) and row["size"] == 5
    assert row["re_derivable"] == (reason == "a cache")


def test_excludes(tmp_path: Path) -> None:
    make_run(tmp_path)
    write(tmp_path, "cells/main/out/samples/1.png")
    made = build(tmp_path, artifacts=[], excludes=["samples"])
    assert left(made)["cells/main/out/samples"] == "excluded by the job"


# --- links and special files (C27) ---


def test_links(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    outside = write(tmp_path, "elsewhere/secret.pt")
    out = run / "cells/main/out"
    (out / "evil.pt").symlink_to(outside)
    (out / "evil_relative.pt").symlink_to("../../../../elsewhere/secret.pt")
    (out / "dead.pt").symlink_to("gone.pt")
    (out / "loop.pt").symlink_to("loop.pt")
    (out / "folder").symlink_to("../checkpoints")
    (out / "latest.pt").symlink_to("../checkpoints/step-900.pt")
    (out / "away").symlink_to(tmp_path / "elsewhere")
    os.link(out / "best.pt", out / "zz_hard.pt")
    made = build(run, artifacts=[{"path": "*.pt"}])
    gone = left(made)
    assert "outside the run" in gone["cells/main/out/evil.pt"]
    assert "outside the run" in gone["cells/main/out/evil_relative.pt"]
    assert "outside the run" in gone["cells/main/out/away"]
    assert "dead link" in gone["cells/main/out/dead.pt"]
    assert "cells/main/out/loop.pt" in gone and "cells/main/out/folder" in gone
    assert gone["cells/main/out/zz_hard.pt"].startswith("the same file as cells/main/out/best.pt")
    assert "cells/main/out/latest.pt" in paths(made), "a link inside the run counts as its file"
    assert not any("secret" in path for path in paths(made))


def test_a_cache_of_dead_links_is_missing_not_copied(tmp_path: Path) -> None:
    """C27: snapshots/ of a hub cache, whose blobs are somewhere else."""
    run = make_run(tmp_path / "run")
    write(tmp_path, "hub/blobs/deadbeef", bytes(3000))
    snapshot = run / "cells/main/out/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(tmp_path / "hub/blobs/deadbeef")
    made = build(run, artifacts=[{"path": "snapshots/abc/model.safetensors"}])
    (row,) = made["missing"]
    assert "link target outside the run" in row["reason"]


def test_out_itself_may_not_lead_away(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ())
    write(run, "cells/main/attempt-1/log")
    write(tmp_path, "other/x.pt")
    (run / "cells/main/out").symlink_to(tmp_path / "other")
    made = build(run, artifacts=[{"path": "x.pt"}], checkpoints={})
    assert made["missing"] and "outside the run" in left(made)["cells/main/out"]


def test_special_files(tmp_path: Path) -> None:
    make_run(tmp_path)
    os.mkfifo(tmp_path / "cells/main/out/pipe.pt")
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(tmp_path / "cells/main/out")  # a socket's path is short
        one.bind("sock.pt")
        os.chdir(here)
        gone = left(build(tmp_path, artifacts=[{"path": "*.pt"}]))
    assert gone["cells/main/out/pipe.pt"] == "a named pipe, not a file"
    assert gone["cells/main/out/sock.pt"] == "a socket, not a file"


# --- checkpoints (C15) ---


def checkpoint_dir(root: Path, name: str, optimizer: bytes) -> None:
    write(
        root, f"cells/main/checkpoints/{name}/model.safetensors", make.safetensors({"a": ("F32", [2], make.floats(2))})
    )
    write(root, f"cells/main/checkpoints/{name}/optimizer.pt", optimizer)


def test_the_newest_whole_checkpoint_directory(tmp_path: Path) -> None:
    write(tmp_path, "cells/main/attempt-1/log")
    write(tmp_path, "run.json", b"{}")
    checkpoint_dir(tmp_path, "checkpoint-900", make.simple_torch(make.floats(3)))
    checkpoint_dir(tmp_path, "checkpoint-80", make.simple_torch(make.floats(4)))
    checkpoint_dir(tmp_path, "checkpoint-1000", b"")
    checkpoint_dir(tmp_path, "checkpoint-1100-tmp", make.simple_torch())
    checkpoint_dir(tmp_path, "tmp-checkpoint-1200", make.simple_torch())
    made = build(tmp_path, artifacts=[], checkpoints={"pattern": "checkpoint-*"})
    gone = left(made)
    assert [path for path in paths(made) if "checkpoints" in path] == [
        "cells/main/checkpoints/checkpoint-900/model.safetensors",
        "cells/main/checkpoints/checkpoint-900/optimizer.pt",
    ]
    assert (
        gone["cells/main/checkpoints/checkpoint-1000/model.safetensors"]
        == "suspect: optimizer.pt: empty file (0 bytes)"
    )
    assert gone["cells/main/checkpoints/checkpoint-80/model.safetensors"] == "superseded by checkpoint-900"
    assert gone["cells/main/checkpoints/checkpoint-1100-tmp"] == "not finished, or temporary"
    assert gone["cells/main/checkpoints/tmp-checkpoint-1200"] == "not finished, or temporary"


def test_a_changed_byte_is_seen_when_the_manifest_is_made(tmp_path: Path) -> None:
    make_run(tmp_path)
    newest = tmp_path / "cells/main/checkpoints/step-1000.pt"
    raw = newest.read_bytes()
    newest.write_bytes(make.flip(raw, len(raw) // 2))
    made = build(tmp_path)
    assert "cells/main/checkpoints/step-900.pt" in paths(made)
    assert left(made)["cells/main/checkpoints/step-1000.pt"].startswith("corrupt: zip: the CRC")
    quick = roster.collect(str(tmp_path), ["main"], [], {"pattern": "step-*.pt"})
    assert quick.newest_mtime_ns == made["newest_mtime_ns"], "status looks less closely, and must not think it newer"


def test_the_best_checkpoint_comes_too(tmp_path: Path) -> None:
    make_run(tmp_path)
    write(tmp_path, "cells/main/checkpoints/best.pt", make.simple_torch(make.floats(5)))
    made = build(tmp_path, checkpoints={"pattern": "*.pt", "keep_best": "best*"})
    kept = [path for path in paths(made) if "checkpoints" in path]
    assert kept == ["cells/main/checkpoints/best.pt", "cells/main/checkpoints/step-1000.pt"]


# --- sharded checkpoints (B245) ---


def sharded(root: Path) -> dict[str, bytes]:
    index = (
        b'{"metadata": {}, "weight_map": {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}}'
    )
    return {
        "m.safetensors.index.json": index,
        "m-00001-of-00002.safetensors": make.safetensors({"a": ("F32", [2], make.floats(2))}),
        "m-00002-of-00002.safetensors": make.safetensors({"b": ("F32", [2], make.floats(2))}),
    }


def shard_case(root: Path, **change: bytes | None) -> list[str]:
    files = sharded(root)
    for name, content in change.items():
        full = {
            "one": "m-00001-of-00002.safetensors",
            "two": "m-00002-of-00002.safetensors",
            "index": "m.safetensors.index.json",
        }.get(name, name)
        if content is None:
            files.pop(full)
        else:
            files[full] = content
    for name, content in files.items():
        write(root, name, content)
    return structure.shard_problems(str(root))


def test_shards_that_agree(tmp_path: Path) -> None:
    assert shard_case(tmp_path) == []
    assert structure.check(str(tmp_path))["verdict"] == "structural_only"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"two": None}, "names m-00002-of-00002.safetensors, which is missing"),
        (
            {"one": make.safetensors({"z": ("F32", [2], make.floats(2))})},
            "tensor a is in m.safetensors.index.json, not in the file",
        ),
        (
            {"one": make.safetensors({"a": ("F32", [1], make.floats(1)), "z": ("F32", [1], make.floats(1))})},
            "tensor z is in the file",
        ),
        ({"index": b'{"weight_map": {"a": "../../etc/passwd"}}'}, "which is no file beside it"),
        ({"index": b'{"weight_map": {"a": "m-00001-of-00002.safetensors"}}'}, "is on disk, but"),
        ({"index": b'{"weight_map": 3}'}, "no weight_map"),
        ({"index": b'{"weight_map": {'}, "JSON ends too early"),
        ({"index": None, "two": None}, "m-00002-of-00002.safetensors is missing"),
    ],
)
def test_shards_that_do_not(tmp_path: Path, change: dict, words: str) -> None:
    problems = shard_case(tmp_path, **change)
    assert any(words in problem for problem in problems), problems
    assert structure.check(str(tmp_path))["verdict"] == "corrupt"


def test_a_missing_shard_is_missing_in_the_manifest(tmp_path: Path) -> None:
    make_run(tmp_path)
    for name, content in sharded(tmp_path).items():
        if "00002-of" not in name:
            write(tmp_path, f"cells/main/out/model/{name}", content)
    made = build(tmp_path, artifacts=[{"path": "model"}])
    assert any("m-00002-of-00002.safetensors" in row["reason"] for row in made["missing"])


def dcp_index(names: list[str]) -> bytes:
    return make.pickled(b"](" + b"".join(map(make.u, names)) + b"e")


@pytest.mark.parametrize(
    ("index", "shards", "words"),
    [
        (["__0_0.distcp", "__1_0.distcp"], ["__0_0.distcp"], "names __1_0.distcp, which is missing"),
        (["__0_0.distcp"], ["__0_0.distcp", "__1_0.distcp"], "__1_0.distcp is on disk"),
        (None, ["__0_0.distcp"], "no .metadata"),
        (["__0_0.distcp"], ["__0_0.distcp"], None),
    ],
)
def test_distributed_checkpoints(tmp_path: Path, index: list | None, shards: list, words: str | None) -> None:
    if index is not None:
        write(tmp_path, ".metadata", dcp_index(index))
    for name in shards:
        write(tmp_path, name)
    problems = structure.shard_problems(str(tmp_path))
    assert (words is None and not problems) or any(words in problem for problem in problems)


def test_a_rank_of_deepspeed_is_missing(tmp_path: Path) -> None:
    for rank in (0, 2):
        write(tmp_path, f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    assert structure.shard_problems(str(tmp_path)) == ["the DeepSpeed states of rank 1 are missing"]

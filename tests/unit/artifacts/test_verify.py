# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A pulled tree against its manifest, and the process that opens hostile files."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest, verify
from tests.unit.artifacts import make
from tests.unit.artifacts.runs import ARTIFACTS, build, make_run, write

pytestmark = pytest.mark.artifacts
LINK = Path(__file__).resolve().parents[3] / ".collections"
TORCH = "cells/main/out/best.pt"


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, dict]:
    root = make_run(tmp_path / "run")
    made = build(root)
    (root / "cells/main/checkpoints/step-900.pt").unlink()
    return root, made


def check(root: Path, made: dict) -> dict[str, Any]:
    return verify.verify_tree(root, made, ARTIFACTS, 2)


def test_a_whole_tree(run: tuple[Path, dict]) -> None:
    found = check(*run)
    assert {row["path"]: row["verdict"] for row in found["artifacts"]} == {
        TORCH: "loaded",
        "cells/main/out/metrics.json": "loaded",
        "cells/main/checkpoints/step-1000.pt": "loaded",
    }
    assert (found["failed"], found["mismatched"], found["missing"], found["strangers"]) == (0, [], [], [])
    assert found["files"] == len(run[1]["files"]) and found["bytes"] == sum(row["size"] for row in run[1]["files"])
    (metrics,) = [row for row in found["artifacts"] if row["path"].endswith("metrics.json")]
    assert metrics["facts"]["values"] == {"loss": 0.25}


def test_one_wrong_byte_in_a_log(run: tuple[Path, dict]) -> None:
    root, made = run
    log = root / "cells/main/attempt-1/log"
    log.write_bytes(make.flip(log.read_bytes(), 2))
    found = check(root, made)
    assert found["mismatched"] == ["cells/main/attempt-1/log"] and found["failed"] == 1


def test_a_wrong_byte_that_no_loader_sees(run: tuple[Path, dict]) -> None:
    """C17: a load alone proves nothing about content."""
    root, made = run
    raw = make.simple_torch(crc=False)
    write(root, TORCH, raw)
    made = build(root)
    at = raw.index(make.floats(8)) + 1
    write(root, TORCH, make.flip(raw, at))
    found = check(root, made)
    (row,) = [row for row in found["artifacts"] if row["path"] == TORCH]
    assert row["verdict"] == "loaded" and found["mismatched"] == [TORCH]


def test_missing_short_and_strange(run: tuple[Path, dict]) -> None:
    root, made = run
    (root / TORCH).unlink()
    metrics = root / "cells/main/out/metrics.json"
    metrics.write_bytes(metrics.read_bytes()[:-1])
    write(root, "cells/main/out/stranger.bin")
    (root / "cells/main/out/link").symlink_to("metrics.json")
    write(root, "RECEIPT.json", b"{}")
    write(root, ".tenant-partial/half")
    found = check(root, made)
    assert found["missing"] == [TORCH]
    assert found["strangers"] == ["cells/main/out/link", "cells/main/out/stranger.bin"]
    assert found["failed"] == 3, "one missing, one mismatch, one truncated JSON"


def test_links_in_the_tree_are_not_followed(run: tuple[Path, dict], tmp_path: Path) -> None:
    root, made = run
    (root / TORCH).rename(tmp_path / "best.pt")
    (root / TORCH).symlink_to(tmp_path / "best.pt")
    (root / "cells/main/attempt-1").rename(tmp_path / "attempt-1")
    (root / "cells/main/attempt-1").symlink_to(tmp_path / "attempt-1")
    found = check(root, made)
    assert found["missing"] == ["cells/main/attempt-1/log", "cells/main/attempt-1/result.json", TORCH]


def test_a_hostile_manifest_stops_it(run: tuple[Path, dict]) -> None:
    root, made = run
    made["files"][0]["path"] = "../../etc/passwd"
    with pytest.raises(manifest.ManifestError):
        check(root, made)


def test_the_spec_of_a_cell_wins(tmp_path: Path) -> None:
    root = make_run(tmp_path, ("a", "b"))
    made = build(root, ("a", "b"))
    wanted = [ARTIFACTS[0], {"path": "best.pt", "cell": "b", "keys": ["nope"]}, ARTIFACTS[1]]
    rows = {row["path"]: row["verdict"] for row in verify.verify_tree(root, made, wanted)["artifacts"]}
    assert rows["cells/a/out/best.pt"] == "loaded" and rows["cells/b/out/best.pt"] == "suspect"


def test_a_missing_shard_fails_the_tree(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    index = b'{"weight_map": {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}}'
    write(root, "cells/main/out/m.safetensors.index.json", index)
    write(root, "cells/main/out/m-00001-of-00002.safetensors", make.safetensors({"a": ("F32", [1], make.floats(1))}))
    made = build(root, artifacts=[{"path": "*"}])
    found = verify.verify_tree(root, made, [{"path": "*"}])
    assert any("m-00002-of-00002" in row["detail"] and row["verdict"] == "corrupt" for row in found["artifacts"])


def test_names_with_escapes_never_reach_the_screen_raw(tmp_path: Path) -> None:
    write(tmp_path, b"\x1b[2Jevil\n.pt", b"junk")
    (row,) = verify.verify_path(tmp_path)["artifacts"]
    assert verify.safe_text(row["path"]).isprintable()
    assert verify.to_bytes(row["path"]) == b"\x1b[2Jevil\n.pt"


def test_details_hold_no_escapes(tmp_path: Path) -> None:
    evil = make.safetensors_raw(b'{"\\u001b[2Jx": 1}')
    path = write(tmp_path, "a.safetensors", evil)
    assert verify.verify_file(path)["detail"].isprintable()


# --- the worker ---


def test_a_worker_is_replaced_after_a_file_that_kills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = write(tmp_path, "good.pt", make.simple_torch())
    slow = write(tmp_path, "slow.json", b"[" + b"1e5," * 4_000_000 + b"1]")
    with verify.Pool(1, verify.Limits(floor_seconds=0.0, bytes_per_second=1e12)) as pool:
        assert pool.ask(verify.Request(os.fsencode(good)))["verdict"] == "loaded"
        monkeypatch.setattr(verify, "_GRACE", 0.05)
        killed = pool.ask(verify.Request(os.fsencode(slow)))
        assert killed["verdict"] == "suspect" and killed["killed"] and "given up" in killed["detail"]
        monkeypatch.setattr(verify, "_GRACE", 30.0)
        assert pool.ask(verify.Request(os.fsencode(good)))["verdict"] == "loaded"


def test_memory_is_bounded(tmp_path: Path) -> None:
    """An honest-looking JSON text whose Python objects would take ten times the limit."""
    path = write(tmp_path, "big.json", b"[" + b"{}," * 8_000_000 + b"{}]")
    found = verify.verify_file(path, limits=verify.Limits(memory_bytes=300 << 20))
    assert found["verdict"] == "structural_only" and "limit of 300 MiB" in found["detail"]
    assert found["sha256"] is not None, "the hash is taken all the same"


PROBE = """
import json, socket, os, sys
from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import worker, loaders
worker.confine(loaders.Limits())
out = {}
try:
    open(sys.argv[1] + "/written", "w").write("x")
    out["write"] = os.path.getsize(sys.argv[1] + "/written")
except OSError as problem:
    out["write"] = 0
try:
    bytearray(2 << 30)
    out["memory"] = True
except MemoryError:
    out["memory"] = False
out["environment"] = sorted(os.environ)
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=2):
        out["network"] = True
except OSError:
    out["network"] = False
print(json.dumps(out))
"""


def test_the_worker_cannot_write_allocate_or_connect(tmp_path: Path) -> None:
    """The same prefix and limits as a worker's, with a program that tries."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        program = f"import sys; sys.path.insert(0, {str(LINK)!r})\n{PROBE}"
        command = [*verify._without_network(), sys.executable, "-c", program, str(tmp_path), port]
        reply = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={},
            preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        )
    out = json.loads(reply.stdout)
    assert out["write"] == 0 and out["memory"] is False
    assert [name for name in out["environment"] if name != "LC_CTYPE"] == []
    assert out["network"] is (not verify._without_network())


def test_no_link_pipe_or_device_is_opened(tmp_path: Path) -> None:
    good = write(tmp_path, "good.pt", make.simple_torch())
    (tmp_path / "link.pt").symlink_to(good)
    os.mkfifo(tmp_path / "pipe.pt")
    begin = time.monotonic()
    with verify.Pool(1) as pool:
        for name in ("link.pt", "pipe.pt", "gone.pt"):
            assert pool.ask(verify.Request(os.fsencode(tmp_path / name)))["verdict"] == "corrupt"
    assert verify.verify_file("/dev/zero")["verdict"] == "corrupt"
    assert time.monotonic() - begin < 20


def test_links_of_the_user_are_followed_and_dead_ones_named(tmp_path: Path) -> None:
    """C27: verification opens the file, and says where a dead link points."""
    blob = write(tmp_path, "blobs/deadbeef", make.simple_torch())
    snapshot = tmp_path / "snapshots"
    snapshot.mkdir()
    (snapshot / "model.pt").symlink_to(blob)
    (snapshot / "gone.pt").symlink_to("../blobs/gone")
    rows = {row["path"]: row for row in verify.verify_path(snapshot)["artifacts"]}
    assert rows["model.pt"]["verdict"] == "loaded"
    assert (rows["gone.pt"]["verdict"], rows["gone.pt"]["detail"]) == ("corrupt", "dead link to ../blobs/gone")


# --- size ---


def sparse_checkpoint(path: Path, size: int) -> None:
    """A torch zip with one storage of ``size`` zero bytes, most of them a hole; CRCs not recorded. Needs zip64."""
    name = b"archive/data/0"
    small = make.torch_zip(make.mapping({"w": make.tensor("0", "FloatStorage", size // 4, [size // 4])}), {}, crc=False)
    directory_at = small.index(b"PK\x01\x02")
    head, directory = small[:directory_at], small[directory_at : small.rindex(b"PK\x05\x06")]
    extra = struct.pack("<HHQQ", 1, 16, size, size)
    local = struct.pack(
        "<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra)
    )
    entry = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\x01\x02", 45, 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, len(head),
    )  # fmt: skip
    start = len(head) + len(local) + len(name) + len(extra) + size
    directory += entry + name + extra
    count = directory.count(b"PK\x01\x02")
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, start + len(directory), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    with open(path, "wb") as stream:
        stream.write(head + local + name + extra)
        stream.seek(size, os.SEEK_CUR)
        stream.write(directory + end64 + locator + end)


@pytest.mark.slow
def test_a_checkpoint_of_4_gb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.pt"
    sparse_checkpoint(path, 4 << 30)
    with verify.Pool(1) as pool:
        found = verify.verify_file(path, pool=pool)
        peak = pool.peak_bytes()
    assert found["verdict"] == "loaded", found["detail"]
    assert found["facts"]["elements"] == 1 << 30 and found["size"] > 4 << 30
    assert 0 < peak < 200 << 20, f"{peak >> 20} MiB"

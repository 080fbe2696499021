# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How fast artifacts are hashed and loaded, beside openssl over the same files: `python -m tests.bench.artifacts`.

Two sets: mixed checkpoints of 2 GB together, and 20,000 small files. Both sides use all cores and read from the page
cache. The ratio `verify_vs_openssl` is our time (every byte hashed and every artifact loaded) by the time of
`openssl dgst -sha256`; coreutils' sha256sum is several times slower and no yardstick.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import manifest, verify
from tests.unit.artifacts import make

RESULTS = Path(__file__).parent / "results" / "artifacts.json"
OUT = Path("cells/main/out")


def weights(random: np.random.Generator, size: int) -> bytes:
    return random.standard_normal(size // 4, dtype="f4").tobytes()


def make_mixed(root: Path, total: int) -> None:
    """Eight files: torch, safetensors, npz and half precision, each an eighth of ``total`` bytes."""
    random = np.random.default_rng(0)
    out = root / OUT
    out.mkdir(parents=True)
    for number in range(2):
        data = weights(random, total // 8)
        (out / f"model-{number}.pt").write_bytes(make.simple_torch(data))
        (out / f"model-{number}.safetensors").write_bytes(make.safetensors({"w": ("F32", [len(data) // 4], data)}))
        (out / f"arrays-{number}.npz").write_bytes(make.npz(w=np.frombuffer(data, "f4")))
        half = np.frombuffer(data, "f4").astype("f2")
        twice = np.concatenate([half, half]).tobytes()
        (out / f"half-{number}.pt").write_bytes(make.simple_torch(twice, "HalfStorage", 2))


def make_small(root: Path, count: int) -> None:
    random = np.random.default_rng(1)
    for number in range(count):
        folder = root / OUT / f"{number // 500:03}"
        folder.mkdir(parents=True, exist_ok=True)
        if number % 4:
            (folder / f"{number}.json").write_text(json.dumps({"loss": float(random.random()), "step": number}))
        else:
            (folder / f"{number}.npy").write_bytes(make.npy(random.standard_normal(500)))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    answer = work()
    return time.perf_counter() - begin, answer


def openssl(root: Path, cores: int) -> None:
    names = [str(path) for path in sorted(root.rglob("*")) if path.is_file()]
    step = str(max(1, min(200, len(names) // cores)))
    command = ["xargs", "-0", "-P", str(cores), "-n", step, "openssl", "dgst", "-sha256"]
    subprocess.run(command, input="\0".join(names).encode(), stdout=subprocess.DEVNULL, check=True)


def measure(root: Path, rounds: int) -> dict[str, Any]:
    cores = manifest.usable_cores()
    build = [
        timed(lambda: manifest.build(root, "bench", None, ["main"], [], None, boot_id="b", host="h")) for _ in range(2)
    ]
    made = build[-1][1]
    ours: list[float] = []
    theirs: list[float] = []
    failed = peak = 0
    for _ in range(rounds):  # side by side, so that a busy machine disturbs both
        theirs.append(timed(lambda: openssl(root, cores))[0])
        with verify.Pool() as pool:
            seconds, found = timed(lambda pool=pool: verify.verify_tree(root, made, [], pool=pool))  # type: ignore[misc]
            peak = max(peak, pool.peak_bytes())
        ours.append(seconds)
        failed += found["failed"]
    size = sum(row["size"] for row in made["files"])
    return {
        "files": len(made["files"]),
        "bytes": size,
        "failed": failed,
        "manifest_seconds": round(min(seconds for seconds, _ in build), 3),
        "openssl_seconds": [round(value, 3) for value in theirs],
        "verify_seconds": [round(value, 3) for value in ours],
        "verify_vs_openssl": round(statistics.median(ours) / statistics.median(theirs), 3),
        "peak_rss_mb": round(peak / (1 << 20), 1),
        "verify_mb_per_second": round(size / statistics.median(ours) / 1e6),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--megabytes", type=int, default=2000)
    words.add_argument("--small", type=int, default=20_000)
    words.add_argument("--rounds", type=int, default=3)
    args = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mixed, small = Path(folder) / "mixed", Path(folder) / "small"
        make_mixed(mixed, args.megabytes * 1_000_000)
        make_small(small, args.small)
        os.sync()
        report: dict[str, Any] = {"mixed": measure(mixed, args.rounds), "small": measure(small, args.rounds)}
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    report = {
        **known,
        **report,
        "cores": manifest.usable_cores(),
        "verify_vs_openssl": report["mixed"]["verify_vs_openssl"],
        "peak_rss_mb": max(report["mixed"]["peak_rss_mb"], report["small"]["peak_rss_mb"]),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

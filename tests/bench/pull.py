# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What proof costs on top of a copy: `python -m tests.bench.pull`.

A job in a lab box writes results. They are brought here by plain rsync, and by collect.yml, which hashes them on the
box, copies them, hashes and loads them here and writes the receipt. Both in turn, in one run, on the same box. The box,
its SSH server and the controller share this machine's cores, so hashing competes with the transfer as it would not
between two machines: `pull_vs_rsync` is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.api import Lab
from tests.bench.artifacts import RESULTS
from tests.integration.tenant import Tenant

JOB = Path(__file__).parent / "jobs" / "files"


def by_rsync(user: Tenant, target: Path) -> float:
    """Seconds of rsync alone, over ssh with Ansible's own options."""
    rental = user.lab.rental(user.instance())
    host, port = rental["endpoint"]["host"], rental["endpoint"]["port"]
    key, hosts = user.home / "ssh" / "id_ed25519", user.home / "known_hosts" / user.instance()
    ssh = f"ssh -p {port} -i {key} -o UserKnownHostsFile={hosts} -o HostKeyAlias={user.instance()} -o Compression=no"
    source = f"root@{host}:/workspace/{user.job['job_name']}/runs/{user.run_id()}/cells/main/out/"
    began = time.monotonic()
    subprocess.run(["rsync", "-rt", "-e", ssh, source, f"{target}/"], check=True)
    return time.monotonic() - began


def by_collect(user: Tenant) -> float:
    shutil.rmtree(user.results, ignore_errors=True)
    began = time.monotonic()
    played = user.ok("collect", "-e", "collect_slice=500")
    assert "loaded, complete" in played.output, played.output
    return time.monotonic() - began


def measure(folder: Path, lab: Lab, rounds: int, **files: int) -> dict[str, Any]:
    user = Tenant(folder / "user", lab)
    user.job |= {
        "job_name": "files",
        "job_source": str(JOB),
        "job_command": ["python", "make.py"],
        "job_env": {f"FILES_{name.upper()}": str(value) for name, value in files.items()},
        "job_artifacts": [{"path": "**/*"}],
        "job_volumes": [{"name": f"files-{files['small']}", "size_gb": 10, "path": "/workspace"}],
        "job_progress": {},
    }
    user.ok("train")
    user.until(r"  finished  ", 300)
    rsync, collect = [], []
    for number in range(rounds):
        rsync.append(by_rsync(user, folder / f"copy-{number}"))
        collect.append(by_collect(user))
        shutil.rmtree(folder / f"copy-{number}")
    lab.destroy(user.instance())
    ratio = statistics.median(collect) / statistics.median(rsync)
    return {
        "rsync_seconds": [round(value, 2) for value in rsync],
        "collect_seconds": [round(value, 2) for value in collect],
        "pull_vs_rsync": round(ratio, 2),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--megabytes", type=int, default=2000)
    words.add_argument("--small", type=int, default=20_000)
    words.add_argument("--rounds", type=int, default=3)
    args = words.parse_args()
    with tempfile.TemporaryDirectory() as name, Lab(Path(name) / "lab", timing="fast") as lab:
        folder = Path(name)
        large = measure(folder / "a", lab, args.rounds, large=8, megabytes=args.megabytes // 8, small=0)
        small = measure(folder / "b", lab, args.rounds, large=0, megabytes=0, small=args.small)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known |= {"pull_large": large, "pull_small": small, "pull_vs_rsync": large["pull_vs_rsync"]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps({"pull_large": large, "pull_small": small}, indent=1))


if __name__ == "__main__":
    main()

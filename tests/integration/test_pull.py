# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pulling from a box that may be slow, poor or hostile: nothing wrong is accepted, nothing right is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.api import Lab
from tests.integration.tenant import Tenant

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


@pytest.fixture
def finished(tmp_path: Path, make_lab: Callable[..., Lab], request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A user whose run has finished and is not collected; the lab's options come from the test's parameter."""
    user = Tenant(tmp_path / "user", make_lab(**getattr(request, "param", {})))
    user.ok("train")
    user.until(r"finished")
    yield user


def _cell(user: Tenant) -> str:
    return f"/workspace/quick/runs/{user.run_id()}/cells/main"


def _on_box(user: Tenant, script: str) -> None:
    rc, _, err = user.lab.exec(user.instance(), ["sh", "-c", script])
    assert rc == 0, err


def _folder(user: Tenant) -> Path:
    return user.results / user.run_id()


def test_a_slow_line_is_pulled_in_slices(finished: Tenant) -> None:
    large = "import json,sys; json.dump({'loss': 1.0, 'pad': 'x' * 4000000}, open(sys.argv[1], 'w'))"
    _on_box(finished, f'python3 -c "{large}" {_cell(finished)}/out/metrics.json')
    finished.lab.fault("link.slow", rate_bytes_per_second=1_000_000)
    collected = finished.ok("collect", "-e", "collect_slice=2")
    assert "the slice is over" not in collected.output and "arrived and looked at" in collected.output
    assert (_folder(finished) / "cells/main/out/metrics.json").stat().st_size > 4_000_000
    assert list(_folder(finished).rglob(".rsync-partial")) == []


def test_a_damaged_file_here_is_fetched_again_by_content_and_a_stranger_is_kept_aside(finished: Tenant) -> None:
    first = finished.ok("collect")
    assert first.changed
    metrics = _folder(finished) / "cells/main/out/metrics.json"
    whole, when = metrics.read_bytes(), metrics.stat().st_mtime_ns
    damaged = whole.replace(b"1", b"2", 1)
    assert len(damaged) == len(whole) and damaged != whole
    stage = finished.results / f".{finished.run_id()}.partial"
    (stage / "cells/main/out").mkdir(parents=True)
    (stage / "cells/main/out/metrics.json").write_bytes(damaged)
    os.utime(stage / "cells/main/out/metrics.json", ns=(when, when))
    (stage / "cells/main/out/mine.txt").write_text("mine")
    (_folder(finished) / "RECEIPT.json").unlink()
    finished.ok("collect")
    assert metrics.read_bytes() == whole
    assert not (_folder(finished) / "cells/main/out/mine.txt").exists()
    assert (finished.results / f".{finished.run_id()}.strangers/cells/main/out/mine.txt").read_text() == "mine"


@pytest.mark.parametrize("finished", [{"hide": ["rsync"]}], indirect=True)
def test_without_rsync_on_the_box_tar_brings_the_same(finished: Tenant) -> None:
    finished.ok("collect")
    receipt = json.loads((_folder(finished) / "RECEIPT.json").read_text())
    assert receipt["complete"] and receipt["level"] == "loaded"
    assert finished.ok("collect").changed == 0


def test_links_out_of_the_tree_and_terminal_escapes_in_names_do_no_harm(finished: Tenant) -> None:
    finished.job["job_artifacts"] = []
    cell = _cell(finished)
    _on_box(finished, f"ln -s /etc/passwd {cell}/checkpoints/step-000050.json")
    _on_box(finished, f"ln -s ../../../../../../../etc/hostname {cell}/out/metrics.jsonl.link")
    _on_box(finished, f"touch \"{cell}/out/$(printf 'a\\033[2Jb')\"")
    collected = finished.ok("collect")
    assert "\x1b" not in collected.output
    names = [str(path.relative_to(_folder(finished))) for path in _folder(finished).rglob("*")]
    assert not any("step-000050" in name or ".link" in name for name in names)
    assert not any(path.is_symlink() for path in _folder(finished).rglob("*"))


def test_a_later_pull_takes_what_is_new_and_keeps_the_earlier_one(finished: Tenant) -> None:
    finished.ok("collect")
    _on_box(finished, f"echo '{{\"step\": 11}}' > {_cell(finished)}/checkpoints/step-000011.json")
    finished.ok("collect")
    assert (_folder(finished) / "cells/main/checkpoints/step-000011.json").exists()
    kept = [path for path in finished.results.iterdir() if path.name.startswith(f".{finished.run_id()}.2")]
    assert len(kept) == 1 and (kept[0] / "RECEIPT.json").exists()


def test_a_second_copy_goes_into_the_store_that_collect_to_names(finished: Tenant, tmp_path: Path) -> None:
    env = {"RCLONE_CONFIG_DEST_TYPE": "local", "RCLONE_CONFIG": str(tmp_path / "none.conf")}
    finished.ok("collect", "-e", f"collect_to=dest:{tmp_path}/store", env=env)
    receipt = json.loads((_folder(finished) / "RECEIPT.json").read_text())
    (remote,) = [copy["remote"] for copy in receipt["copies"] if "remote" in copy]
    assert (Path(remote.removeprefix("dest:")) / "cells/main/out/metrics.json").exists()
    assert finished.ok("collect", "-e", f"collect_to=dest:{tmp_path}/store", env=env).changed == 0

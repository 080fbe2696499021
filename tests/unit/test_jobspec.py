# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The job file: everything it names is resolved or refused by name."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.tenant.gpu.plugins.plugin_utils import jobspec
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused

LEAST = {"name": "digits", "source": "/src/digits", "command": ["python", "train.py"]}


def resolve(**changes: t.Any) -> dict[str, t.Any]:
    return jobspec.resolve({**LEAST, **changes})


def test_the_least_job_has_every_default() -> None:
    job = resolve()
    assert job["project"] == "digits"
    assert job["cells"] == [{"cell": "main", "params": {}}]
    assert job["checkpoints"]["path"] == "checkpoints"
    assert job["retry"]["max"] == 3
    assert job["max_price"] is None


def test_aliases_and_flat_twins() -> None:
    job = jobspec.resolve({"workdir": "/src/digits", "run": "python train.py", "gpu": "H100:2", "disk_gb": "80"})
    assert job["source"] == {"path": "/src/digits"}
    assert job["command"] == "python train.py"
    assert (job["resources"]["gpu"], job["resources"]["gpu_count"], job["resources"]["disk_gb"]) == ("H100", 2, 80)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("6h", 21600), ("1.5h", 5400)])
def test_durations(text: str, seconds: int) -> None:
    assert resolve(max_duration=text)["max_duration"] == seconds


def test_money_keeps_its_digits_and_currency() -> None:
    assert resolve(max_price="0.80 usd")["max_price"] == {"amount": "0.8", "currency": "USD"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"command": None}, "job_command"),
        ({"name": "Digits!"}, "job_name"),
        ({"max_duration": "soon"}, "job_max_duration"),
        ({"max_price": "0.80"}, "job_max_price"),
        ({"resources": {"gpu": "RTX4090:many"}}, "job_resources.gpu"),
        ({"resources": {"gpus": 1}}, "gpus"),
        ({"resources": {"disk_gb": "plenty"}}, "disk_gb"),
        ({"source": {"git": "https://example.com/x.git"}}, "ref"),
        ({"artifacts": [{"path": "../secret"}]}, "artifacts.path"),
        ({"artifacts": [{"path": "/etc/passwd"}]}, "artifacts.path"),
        ({"checkpoints": {"path": "../../x"}}, "checkpoints.path"),
        ({"progress": {"regex": "step (\\d+)"}}, "(?P<step>"),
        ({"progress": {"regex": "step ("}}, "job_progress.regex"),
        ({"volumes": ["data"]}, "job_volumes"),
        ({"when_done": "explode"}, "job_when_done"),
        ({"sweep": {"matrix": {"lr": [1, 1]}}}, "same name"),
        ({"spot": "true"}, "job_spot"),
        ({"file_mounts": {"data": {"source": "./data"}}}, "job_file_mounts"),
    ],
)
def test_bad_fields_are_named_with_what_to_do(changes: dict[str, t.Any], named: str) -> None:
    with pytest.raises(Refused) as caught:
        resolve(**changes)
    assert named in f"{caught.value.seen} {caught.value.means} {caught.value.do}"
    assert caught.value.do


def test_a_sweep_has_one_cell_a_point_with_stable_names() -> None:
    job = resolve(sweep={"matrix": {"lr": [0.1, 0.01], "seed": [1, 2]}})
    assert [cell["cell"] for cell in job["cells"]] == [
        "lr=0.1-seed=1", "lr=0.1-seed=2", "lr=0.01-seed=1", "lr=0.01-seed=2",
    ]  # fmt: skip

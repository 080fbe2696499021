# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The example job: it learns, it may be ended at any moment, and its job file names every field there is."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import numpy as np
import pytest
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"
STEPS, WIDTH = 200, 16
ARGUMENTS = ["--steps", str(STEPS), "--width", str(WIDTH), "--seed", "3"]


def load_program() -> t.Any:
    spec = importlib.util.spec_from_file_location("digits_train", EXAMPLE / "train.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train = load_program()


class Place(t.NamedTuple):
    """Where one cell of a run keeps its files; each attempt starts in a release of its own."""

    base: Path

    @property
    def output(self) -> Path:
        return self.base / "out"

    @property
    def checkpoints(self) -> Path:
        return self.base / "checkpoints"

    def start(self, *words: str, resume: Path | None = None, seconds: str = "") -> subprocess.Popen[str]:
        release = self.base / "release"
        if not release.exists():
            release.mkdir(parents=True)
            shutil.copy2(EXAMPLE / "train.py", release)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")},
            "TENANT_OUTPUT_DIR": str(self.output),
            "TENANT_CHECKPOINT_DIR": str(self.checkpoints),
            "TENANT_CHECKPOINT_SECONDS": seconds,
            "TENANT_RESUME_FROM": str(resume or ""),
        }
        command = [sys.executable, "train.py", *words]
        pipes: dict[str, t.Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=release, env=environment, **pipes)

    def run(self, *words: str, resume: Path | None = None, seconds: str = "") -> tuple[int, str, str]:
        """Exit status, stdout and stderr."""
        process = self.start(*words, resume=resume, seconds=seconds)
        out, errors = process.communicate(timeout=100)
        return process.returncode, out, errors

    def steps(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*.npz"))

    def metrics(self) -> list[dict[str, t.Any]]:
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def assert_same(one: Path, other: Path) -> None:
    left, right = arrays(one), arrays(other)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def without_times(rows: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    return [{key: value for key, value in row.items() if key != "at"} for row in rows]


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}: {process.stderr.read() if process.stderr else ''}")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str]:
    """A run that nobody stopped, and what it printed."""
    place = Place(tmp_path_factory.mktemp("whole"))
    code, out, errors = place.run(*ARGUMENTS)
    assert code == 0, errors
    return place, out


@pytest.fixture
def job() -> dict[str, t.Any]:
    found: dict[str, t.Any] = yaml.safe_load((EXAMPLE / "job.yml").read_text())
    return found


def test_it_learns_digits_that_it_has_not_seen(whole: tuple[Place, str]) -> None:
    results = json.loads((whole[0].output / "metrics.json").read_text())
    assert results["accuracy"] > 0.9
    assert results["loss"] < 0.4
    assert (results["steps"], results["seed"], results["width"]) == (STEPS, 3, WIDTH)


def test_the_accuracy_is_that_of_the_stored_model(whole: tuple[Place, str]) -> None:
    parts = train.split(*train.load_digits(train.find_digits()), 3)
    found = train.evaluate(arrays(whole[0].output / "model.npz"), parts["test"])
    results = json.loads((whole[0].output / "metrics.json").read_text())
    assert found["accuracy"] == pytest.approx(results["accuracy"])
    assert found["loss"] == pytest.approx(results["loss"], rel=1e-4)


def test_the_parts_do_not_overlap() -> None:
    numbers = np.arange(1797)
    parts = [set(labels) for _, labels in train.split(numbers, numbers, seed=7).values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 1797


def test_gradients_agree_with_differences() -> None:
    rng = np.random.default_rng(0)
    weights = {name: array.astype(np.float64) for name, array in train.new_weights(3, rng).items()}
    images, labels = rng.random((5, 8, 8, 1)), rng.integers(0, 10, 5)
    logs, kept = train.forward(weights, images)
    for name, gradient in train.backward(weights, kept, logs, labels).items():
        for index in rng.choice(weights[name].size, min(6, weights[name].size), replace=False):
            ends = []
            for sign in (1, -1):
                moved = {**weights, name: weights[name].copy()}
                moved[name].flat[index] += sign * 1e-6
                ends.append(train.cross_entropy(train.forward(moved, images)[0], labels))
            assert gradient.flat[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-6), name


def test_it_reports_each_tenth_step(whole: tuple[Place, str], job: dict[str, t.Any]) -> None:
    place, out = whole
    printed = [tuple(map(int, found)) for found in re.findall(job["job_progress"]["regex"], out)]
    rows = place.metrics()
    assert printed == [(row["step"], row["total"]) for row in rows] == [(n, STEPS) for n in range(10, STEPS + 1, 10)]
    assert all(np.isfinite(row["loss"]) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", row["at"]) for row in rows)
    assert [row["step"] for row in rows if "accuracy" in row] == list(range(20, STEPS + 1, 20))


def test_it_keeps_the_last_two_checkpoints_and_the_best(whole: tuple[Place, str]) -> None:
    found = sorted(path.name for path in whole[0].checkpoints.iterdir())
    assert found == ["best.npz", f"step-{STEPS - 40:06d}.npz", f"step-{STEPS:06d}.npz"]
    best = json.loads(arrays(whole[0].checkpoints / "best.npz")["json"].tobytes())
    losses = {row["step"]: row["accuracy"] for row in whole[0].metrics() if "accuracy" in row}
    assert best["step"] == best["best"]["step"]
    assert best["best"]["accuracy"] == losses[best["step"]]
    assert best["best"] == json.loads((whole[0].output / "metrics.json").read_text())["best_validation"]


def test_a_checkpoint_is_plain_arrays(whole: tuple[Place, str]) -> None:
    stored = arrays(whole[0].steps()[-1])
    assert {array.dtype for array in stored.values()} == {np.dtype(np.uint8), np.dtype(np.float32)}
    assert {name.split(".")[0] for name in stored} == {"json", "weights", "mean", "square"}


def test_it_writes_nothing_into_the_release(whole: tuple[Place, str]) -> None:
    assert [path.name for path in (whole[0].base / "release").iterdir()] == ["train.py"]
    assert {path.name for path in whole[0].output.iterdir()} == {"metrics.json", "metrics.jsonl", "model.npz"}


def test_sigterm_saves_and_the_resumed_run_ends_with_the_same_bits(whole: tuple[Place, str], place: Place) -> None:
    process = place.start(*ARGUMENTS)
    wait_for(process, "step 50/")
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 143, errors
    newest = place.steps()[-1]
    assert f"saved {newest}" in out
    stopped_at = int(newest.stem.split("-")[1])
    assert 50 <= stopped_at < STEPS
    assert not (place.output / "metrics.json").exists()

    code, out, errors = place.run(*ARGUMENTS, resume=newest)
    assert code == 0, errors
    assert f"resumed at step {stopped_at} " in out
    assert_same(place.output / "model.npz", whole[0].output / "model.npz")
    assert_same(place.steps()[-1], whole[0].steps()[-1])
    assert_same(place.checkpoints / "best.npz", whole[0].checkpoints / "best.npz")
    assert without_times(place.metrics()) == without_times(whole[0].metrics())


def test_a_fresh_box_needs_the_checkpoint_only(whole: tuple[Place, str], place: Place) -> None:
    source = whole[0].steps()[0]
    place.checkpoints.mkdir()
    shutil.copy2(source, place.checkpoints)
    assert place.run(*ARGUMENTS, resume=place.steps()[0])[0] == 0
    assert_same(place.output / "model.npz", whole[0].output / "model.npz")
    assert [row["step"] for row in place.metrics()] == list(range(STEPS - 30, STEPS + 1, 10))


def test_a_wrong_random_state_would_be_noticed(whole: tuple[Place, str], place: Place) -> None:
    """Guards the tests above: what they compare does depend on the state of the generator."""
    stored = arrays(whole[0].steps()[0])
    rest = json.loads(stored["json"].tobytes())
    rest["rng"]["state"]["state"] += 2
    stored["json"] = np.frombuffer(json.dumps(rest).encode(), np.uint8)
    place.checkpoints.mkdir()
    train.write_arrays(place.checkpoints / "step-000160.npz", stored)
    assert place.run(*ARGUMENTS, resume=place.steps()[0])[0] == 0
    with pytest.raises(AssertionError):
        assert_same(place.output / "model.npz", whole[0].output / "model.npz")


def test_killed_again_and_again_it_still_ends_with_the_same_bits(whole: tuple[Place, str], place: Place) -> None:
    """It saves each step, so that SIGKILL meets it while it writes; what bears a final name is always whole."""
    resume = None
    for delay in (0.0, 0.01, 0.023, 0.037, 0.05):
        process = place.start(*ARGUMENTS, resume=resume, seconds="0.000001")
        wait_for(process, "step ")
        time.sleep(delay)
        process.kill()
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        for path in [*place.steps(), *place.checkpoints.glob("best.npz")]:
            assert json.loads(arrays(path)["json"].tobytes())["step"] > 0
        resume = place.steps()[-1]
    assert place.run(*ARGUMENTS, resume=resume)[0] == 0
    assert_same(place.output / "model.npz", whole[0].output / "model.npz")
    assert without_times(place.metrics()) == without_times(whole[0].metrics())
    assert not list(place.checkpoints.glob(".*"))


def test_killed_in_the_middle_of_a_write_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "step-000040.npz"
    train.write_arrays(path, {"whole": np.arange(3)})
    child = os.fork()
    if child == 0:

        def half(stream: t.Any) -> None:
            stream.write(b"PK\x03\x04 half")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        train.replace_file(path, half)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [found.name for found in tmp_path.glob(".*")] == [".step-000040.npz.tmp"]
    assert arrays(path)["whole"].tolist() == [0, 1, 2]
    train.Checkpoints(tmp_path, None)
    assert [found.name for found in tmp_path.iterdir()] == ["step-000040.npz"]


def test_a_torn_line_of_the_killed_attempt_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n{"ste')
    train.Metrics(path, 20).add({"step": 30, "loss": 1.0})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30]


def test_later_damaged_checkpoints_do_not_push_out_good_ones(tmp_path: Path) -> None:
    state = train.State({"steps": 400, "seed": 1, "width": 2})
    keeper = train.Checkpoints(tmp_path, None)
    (tmp_path / "step-000300.npz").write_bytes(b"damaged")
    for state.step in (40, 80, 120):
        keeper.save(state)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-000{n}.npz" for n in ("080", "120", "300")]


def test_the_cadence_may_be_given_in_seconds(place: Place) -> None:
    assert place.run("--steps", "90", "--width", "2", seconds="3600")[0] == 0
    assert [path.name for path in place.steps()] == ["step-000090.npz"]


def test_the_smoke_is_short(place: Place) -> None:
    started = time.monotonic()
    code, out, _ = place.run("--steps", "5")
    assert (code, "step 5/5 loss" in out) == (0, True)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "inf"])
def test_a_bad_cadence_is_refused(place: Place, value: str) -> None:
    code, _, errors = place.run("--steps", "5", seconds=value)
    assert code == 1
    assert f"TENANT_CHECKPOINT_SECONDS is '{value}'" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "truncated", "flipped", "other arrays", "one array"])
def test_a_checkpoint_that_is_none_is_refused(whole: tuple[Place, str], place: Place, kind: str) -> None:
    path = place.base / "step-000040.npz"
    good = whole[0].steps()[0].read_bytes()
    if kind == "other arrays":
        np.savez(path, weights=np.zeros(3))
    elif kind == "one array":
        with open(path, "wb") as stream:
            np.save(stream, np.zeros(3))
    elif kind != "missing":
        middle = len(good) // 2
        flipped = good[:middle] + bytes([good[middle] ^ 0xFF]) + good[middle + 1 :]
        path.write_bytes({"empty": b"", "text": b"no", "truncated": good[:middle], "flipped": flipped}[kind])
    code, _, errors = place.run(*ARGUMENTS, resume=path)
    assert code == 1
    assert f"cannot resume from {path}" in errors
    assert "Name an earlier one in TENANT_RESUME_FROM" in errors
    assert "Traceback" not in errors


def test_a_checkpoint_of_another_run_is_refused(whole: tuple[Place, str], place: Place) -> None:
    code, _, errors = place.run("--steps", "300", "--width", str(WIDTH), resume=whole[0].steps()[0])
    assert code == 1
    assert "the checkpoint belongs to a run with" in errors


@pytest.mark.parametrize("text", ["not gzip", ""])
def test_data_that_is_none_is_refused(place: Place, text: str) -> None:
    path = place.base / "digits.csv.gz"
    path.write_text(text)
    code, _, errors = place.run("--data", str(path))
    assert code == 1
    assert str(path) in errors
    assert "Traceback" not in errors


def test_an_output_that_cannot_be_made_is_refused(place: Place) -> None:
    place.output.write_text("a file")
    code, _, errors = place.run("--steps", "5", "--width", "2")
    assert code == 1
    assert "set TENANT_OUTPUT_DIR to a writable one" in errors
    assert "Traceback" not in errors


def test_without_room_it_says_so_and_leaves_no_half_file(tmp_path: Path) -> None:
    def full(stream: t.Any) -> None:
        stream.write(b"some")
        raise OSError(28, "No space left on device")

    with pytest.raises(train.Unusable, match=r"No space left on device.*Make room"):
        train.replace_file(tmp_path / "step-000040.npz", full)
    assert not list(tmp_path.iterdir())


def test_the_job_file_names_every_field(root: Path) -> None:
    specs = yaml.safe_load((root / "roles" / "job" / "meta" / "argument_specs.yml").read_text())
    ours = {"job_purpose", "job_run_wanted", "job_tenant_home", "job_results_dir"}  # the role's, not the job's
    fields = set(specs["argument_specs"]["main"]["options"]) - ours
    text = (EXAMPLE / "job.yml").read_text()
    assert len(fields) > 30
    assert {field for field in fields if not re.search(rf"\b{field}\b", text)} == set()
    assert set(yaml.safe_load(text)) <= fields


def test_the_job_file_can_be_resolved(job: dict[str, t.Any], monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    from ansible_collections.tenant.gpu.plugins.plugin_utils import jobspec

    monkeypatch.chdir(root)
    resolved = jobspec.resolve({name.removeprefix("job_"): value for name, value in job.items()})
    assert Path(resolved["source"]["path"]) == EXAMPLE
    assert resolved["max_duration"] == 1800


def test_the_roster_is_what_the_program_leaves(whole: tuple[Place, str], job: dict[str, t.Any]) -> None:
    roster = {row["path"]: row for row in job["job_artifacts"]}
    assert set(roster) == {path.name for path in whole[0].output.iterdir()}
    assert set(roster["model.npz"]["keys"]) == set(arrays(whole[0].output / "model.npz"))
    results = json.loads((whole[0].output / "metrics.json").read_text())
    assert all(np.isfinite(results[name]) for name in roster["metrics.json"]["finite"])
    wanted = job["job_checkpoints"]
    assert list(whole[0].base.joinpath(wanted["path"]).glob(wanted["pattern"])) != []

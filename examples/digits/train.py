# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Train a small convolutional network on handwritten digits, so that any moment may be the last on this box.

Needs numpy and the data file that ships in scikit-learn's package (1797 grey images of 8 x 8 pixels, ten classes).
Reads ``TENANT_OUTPUT_DIR``, ``TENANT_CHECKPOINT_DIR``, ``TENANT_CHECKPOINT_SECONDS`` and ``TENANT_RESUME_FROM``;
writes nowhere but into the first two. A run that is stopped and resumed on the same kind of CPU ends with the same
bits as one that was never stopped.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

# One BLAS thread: sums in one order, so that a resumed run repeats them. BLAS reads these when numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

CLASSES = 10
BATCH = 256  # images a step
LEARNING_RATE = 2e-3  # at the first step; falls to zero along a half cosine
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's (Kingma and Ba, 2015)
VALIDATION, TEST = 200, 300  # images held out; the other 1297 are learned from
REPORT_STEPS, EVALUATE_STEPS, CHECKPOINT_STEPS = 10, 20, 40
KEEP_CHECKPOINTS = 2
TERMINATED = 128 + signal.SIGTERM  # what a shell reports for a process that SIGTERM ended


class Unusable(Exception):
    """What was seen, what it means and what to do, for the user."""


# --- Data ------------------------------------------------------------------------------------------------------------


def find_digits() -> Path:
    """The data file inside scikit-learn's package; the package itself is not imported, which would take a second."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise Unusable(
        f"{sys.executable} has no scikit-learn with digits.csv.gz. The images come from there. "
        "Install it (pip install scikit-learn; in the job file, job_requirements), or pass --data digits.csv.gz."
    )


def load_digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 (n, 8, 8, 1) from 0 to 1, and labels, int64 (n,)."""
    try:
        with gzip.open(path, "rt") as stream:
            table = np.loadtxt(stream, delimiter=",", dtype=np.float32)
    except (OSError, EOFError, ValueError) as problem:
        raise Unusable(f"{path} cannot be read: {problem}. It is no gzipped CSV file; install it again.") from problem
    if table.ndim != 2 or table.shape[1] != 65 or len(table) <= VALIDATION + TEST:
        raise Unusable(f"{path} holds a table of shape {table.shape}, not 64 pixels and a label a line. Name another.")
    return table[:, :64].reshape(-1, 8, 8, 1) / np.float32(16), table[:, 64].astype(np.int64)


def split(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """``test``, ``validation`` and ``train``, disjoint; the same seed gives the same ones."""
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    test, validation, rest = np.split(order, [TEST, TEST + VALIDATION])
    parts = {"test": test, "validation": validation, "train": rest}
    return {name: (images[part], labels[part]) for name, part in parts.items()}


def draw_batch(images: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """``BATCH`` random images, each moved by up to a pixel each way, and their labels."""
    chosen = rng.choice(len(labels), BATCH, replace=False)
    down, right = rng.integers(0, 3, (2, BATCH, 1))
    padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1), (0, 0)))
    across = np.arange(8)
    moved = padded[np.arange(BATCH)[:, None, None], (down + across)[:, :, None], (right + across)[:, None, :]]
    return moved, labels[chosen]


# --- Network: conv 3x3, ReLU, conv 3x3, ReLU, mean of 2x2, dense -----------------------------------------------------


def new_weights(width: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """He-initialised weights for ``width`` filters in the first layer and twice as many in the second."""

    def normal(inputs: int, outputs: int) -> np.ndarray:
        return (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)

    return {
        "conv1_weight": normal(9, width),
        "conv1_bias": np.zeros(width, np.float32),
        "conv2_weight": normal(9 * width, 2 * width),
        "conv2_bias": np.zeros(2 * width, np.float32),
        "dense_weight": normal(16 * 2 * width, CLASSES),
        "dense_bias": np.zeros(CLASSES, np.float32),
    }


def patches(images: np.ndarray) -> np.ndarray:
    """(n, 8, 8, c) to (n * 64, 9 * c): each pixel's 3 x 3 surroundings, zero outside the image."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, row : row + 8, column : column + 8] for row in range(3) for column in range(3)]
    return np.concatenate(shifted, axis=3).reshape(len(images) * 64, -1)


def unpatch(gradient: np.ndarray, channels: int) -> np.ndarray:
    """The transpose of `patches`: (n * 64, 9 * c) to (n, 8, 8, c), adding up what overlaps."""
    by_shift = gradient.reshape(-1, 8, 8, 9, channels)
    padded = np.zeros((len(by_shift), 10, 10, channels), np.float32)
    for shift in range(9):
        row, column = divmod(shift, 3)
        padded[:, row : row + 8, column : column + 8] += by_shift[:, :, :, shift]
    return padded[:, 1:9, 1:9]


def forward(weights: dict[str, np.ndarray], images: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Log-probabilities (n, 10), and what `backward` needs."""
    n = len(images)
    in1 = patches(images)
    out1 = np.maximum(in1 @ weights["conv1_weight"] + weights["conv1_bias"], 0)
    in2 = patches(out1.reshape(n, 8, 8, -1))
    out2 = np.maximum(in2 @ weights["conv2_weight"] + weights["conv2_bias"], 0)
    flat = out2.reshape(n, 4, 2, 4, 2, -1).mean(axis=(2, 4)).reshape(n, -1)
    scores = flat @ weights["dense_weight"] + weights["dense_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return logs, {"in1": in1, "out1": out1, "in2": in2, "out2": out2, "flat": flat}


def cross_entropy(logs: np.ndarray, labels: np.ndarray) -> float:
    """The mean over the images, in nats."""
    return float(-logs[np.arange(len(labels)), labels].mean())


def backward(
    weights: dict[str, np.ndarray], kept: dict[str, np.ndarray], logs: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """The gradient of `cross_entropy` by each weight."""
    n = len(labels)
    scores = np.exp(logs)
    scores[np.arange(n), labels] -= 1
    scores /= n
    flat = (scores @ weights["dense_weight"].T).reshape(n, 4, 1, 4, 1, -1) / np.float32(4)
    out2 = np.broadcast_to(flat, (n, 4, 2, 4, 2, flat.shape[-1])).reshape(n * 64, -1) * (kept["out2"] > 0)
    in2 = unpatch(out2 @ weights["conv2_weight"].T, kept["out1"].shape[1])
    out1 = in2.reshape(n * 64, -1) * (kept["out1"] > 0)
    return {
        "conv1_weight": kept["in1"].T @ out1,
        "conv1_bias": out1.sum(axis=0),
        "conv2_weight": kept["in2"].T @ out2,
        "conv2_bias": out2.sum(axis=0),
        "dense_weight": kept["flat"].T @ scores,
        "dense_bias": scores.sum(axis=0),
    }


def evaluate(weights: dict[str, np.ndarray], part: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """``accuracy`` (0 to 1) and ``loss`` (nats) on that part of the images."""
    images, labels = part
    logs, _ = forward(weights, images)
    return {"accuracy": float((logs.argmax(axis=1) == labels).mean()), "loss": cross_entropy(logs, labels)}


# --- State: all that the next step depends on ------------------------------------------------------------------------


class State:
    """Weights, Adam's moments, random generator, step and best evaluation so far; ``settings`` tell runs apart."""

    def __init__(self, settings: dict[str, int]) -> None:
        self.settings = settings
        self.rng = np.random.default_rng([settings["seed"], 2])
        self.weights = new_weights(settings["width"], self.rng)
        self.mean = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.square = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.step = 0
        self.best: dict[str, Any] | None = None

    def learn(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One Adam step on one random batch; the batch's loss before it."""
        images, labels = draw_batch(images, labels, self.rng)
        logs, kept = forward(self.weights, images)
        gradients = backward(self.weights, kept, logs, labels)
        rate = LEARNING_RATE * (1 + np.cos(np.pi * self.step / self.settings["steps"])) / 2
        self.step += 1
        rate *= np.sqrt(1 - BETA2**self.step) / (1 - BETA1**self.step)
        for name, gradient in gradients.items():
            self.mean[name] += np.float32(1 - BETA1) * (gradient - self.mean[name])
            self.square[name] += np.float32(1 - BETA2) * (gradient * gradient - self.square[name])
            scale = np.sqrt(self.square[name]) + np.float32(EPSILON)
            self.weights[name] -= np.float32(rate) * self.mean[name] / scale
        return cross_entropy(logs, labels)

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays: what is no array is JSON, as bytes. Nothing in the file needs unpickling."""
        rest = {"settings": self.settings, "step": self.step, "best": self.best, "rng": self.rng.bit_generator.state}
        found = {"json": np.frombuffer(json.dumps(rest, allow_nan=False).encode(), np.uint8)}
        for kind in ("weights", "mean", "square"):
            found.update((f"{kind}.{name}", array) for name, array in getattr(self, kind).items())
        return found

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """The inverse of `arrays`. `Unusable` for a run with other settings; KeyError where one is missing."""
        rest = json.loads(arrays["json"].tobytes())
        if rest["settings"] != self.settings:
            raise Unusable(
                f"the checkpoint belongs to a run with {rest['settings']}, this one has {self.settings}. "
                "Continued, it would be neither. Use the same arguments, or another checkpoint directory."
            )
        for kind in ("weights", "mean", "square"):
            kept = getattr(self, kind)
            kept.update((name, arrays[f"{kind}.{name}"]) for name in list(kept))
        self.step, self.best = rest["step"], rest["best"]
        self.rng.bit_generator.state = rest["rng"]


# --- Files -----------------------------------------------------------------------------------------------------------


def replace_file(path: Path, write: Callable[[Any], object]) -> None:
    """Call ``write`` with a binary stream; the file is there with all of it, on the disk, or as it was before."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise Unusable(
            f"{path} cannot be written: {problem}. The earlier files are whole. "
            "Make room or name another directory, then resume from the newest checkpoint."
        ) from problem
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    replace_file(path, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]


class Checkpoints:
    """``step-000120.npz``, the newest two of them, and ``best.npz``: each the full state."""

    def __init__(self, folder: Path, seconds: float | None) -> None:
        self.folder, self.seconds = folder, seconds
        self.saved_at = time.monotonic()
        for abandoned in folder.glob(".*.npz.tmp"):
            abandoned.unlink()

    def due(self, step: int) -> bool:
        """Every ``seconds`` where they are given, else every ``CHECKPOINT_STEPS`` steps."""
        if self.seconds is None:
            return step % CHECKPOINT_STEPS == 0
        return time.monotonic() - self.saved_at >= self.seconds

    def save(self, state: State) -> Path:
        path = self.folder / f"step-{state.step:06d}.npz"
        write_arrays(path, state.arrays())
        self.saved_at = time.monotonic()
        # A later one that was found damaged, when this run resumed from an earlier one, must not push out good ones.
        older = sorted(other for other in self.folder.glob("step-*.npz") if other.name <= path.name)
        for superseded in older[:-KEEP_CHECKPOINTS]:
            superseded.unlink()
        return path

    def save_best(self, state: State) -> None:
        write_arrays(self.folder / "best.npz", state.arrays())


def load_checkpoint(path: Path, state: State) -> None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            state.restore({name: stored[name] for name in stored.files})
    except (OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, zipfile.BadZipFile) as problem:
        raise Unusable(
            f"cannot resume from {path}: {type(problem).__name__}: {problem}. It is missing, damaged or none of this "
            "program's. Name an earlier one in TENANT_RESUME_FROM, or leave it empty to start anew."
        ) from problem


class Metrics:
    """``metrics.jsonl``: a line every ``REPORT_STEPS`` steps, none of them later than the state that is resumed."""

    def __init__(self, path: Path, step: int) -> None:
        kept = [line for line in read_lines(path) if line["step"] <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        replace_file(path, lambda stream: stream.write(text.encode()))
        self.stream = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open as long as the run)

    def add(self, line: dict[str, Any]) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")  # noqa: UP017  (3.8)
        self.stream.write(json.dumps({**line, "at": at}, allow_nan=False) + "\n")
        self.stream.flush()


def read_lines(path: Path) -> Iterable[dict[str, Any]]:
    """The whole lines of an earlier attempt; the one that it was writing when it was killed may be torn."""
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            yield line


# --- The run ---------------------------------------------------------------------------------------------------------


class Terminated(Exception):
    """SIGTERM came, and the state is saved."""


class Stop:
    """Remembers SIGTERM until the step that is under way is done."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def train(
    state: State,
    parts: dict[str, tuple[np.ndarray, np.ndarray]],
    checkpoints: Checkpoints,
    metrics: Metrics,
    stop: Stop,
) -> None:
    """Go on to the last step. `Terminated` where SIGTERM came before it."""
    total = state.settings["steps"]
    while state.step < total:
        loss = state.learn(*parts["train"])
        last = state.step == total
        if state.step % REPORT_STEPS == 0 or last:
            report(state, loss, parts["validation"], checkpoints, metrics)
        if checkpoints.due(state.step) or last:
            checkpoints.save(state)
        if stop.asked and not last:
            raise Terminated(f"SIGTERM: saved {checkpoints.save(state)}")


def report(
    state: State, loss: float, validation: tuple[np.ndarray, np.ndarray], checkpoints: Checkpoints, metrics: Metrics
) -> None:
    """Print and record the step; evaluate where it is due, and keep the state if none was better."""
    total = state.settings["steps"]
    if not np.isfinite(loss):
        raise Unusable(f"the loss at step {state.step} is {loss}. The run has diverged; lower LEARNING_RATE.")
    line: dict[str, Any] = {"step": state.step, "total": total, "loss": loss}
    if state.step % EVALUATE_STEPS == 0 or state.step == total:
        found = evaluate(state.weights, validation)
        line["accuracy"] = found["accuracy"]
        if state.best is None or found["loss"] < state.best["loss"]:
            state.best = {"step": state.step, **found}
            checkpoints.save_best(state)
    metrics.add(line)
    print(f"step {state.step}/{total} loss {loss:.3f}", flush=True)


def write_results(state: State, test: tuple[np.ndarray, np.ndarray], output: Path) -> dict[str, Any]:
    """``model.npz`` (the final weights), then ``metrics.json``, whose presence says that all is there."""
    write_arrays(output / "model.npz", state.weights)
    results = {**evaluate(state.weights, test), **state.settings, "best_validation": state.best}
    text = json.dumps(results, indent=2, allow_nan=False) + "\n"
    replace_file(output / "metrics.json", lambda stream: stream.write(text.encode()))
    return results


def read_seconds(text: str) -> float | None:
    """TENANT_CHECKPOINT_SECONDS; None where it is empty."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise Unusable(f"TENANT_CHECKPOINT_SECONDS is {text!r}. It is a time between saves: give a positive number.")
    return seconds


def make_folder(variable: str, default: str) -> Path:
    """The directory that the variable names."""
    folder = Path(os.environ.get(variable) or default)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Unusable(
            f"no directory {folder}: {problem}. Results need one: set {variable} to a writable one."
        ) from problem
    return folder


def read_arguments(words: list[str] | None) -> argparse.Namespace:
    def at_least(least: int) -> Callable[[str], int]:
        def number(text: str) -> int:
            if int(text) < least:
                raise argparse.ArgumentTypeError(f"{text} is less than {least}")
            return int(text)

        return number

    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits; resumable at any step.")
    parser.add_argument("--steps", type=at_least(1), default=400, help="default: %(default)s")
    parser.add_argument("--seed", type=at_least(0), default=1, help="of the split, the weights and the batches")
    parser.add_argument(
        "--width", type=at_least(1), default=60, help="filters in the first layer; default: %(default)s"
    )
    parser.add_argument("--data", type=Path, help="digits.csv.gz, where it is not in scikit-learn's package")
    return parser.parse_args(words)


def run(arguments: argparse.Namespace, stop: Stop) -> None:
    state = State({name: getattr(arguments, name) for name in ("steps", "seed", "width")})
    seconds = read_seconds(os.environ.get("TENANT_CHECKPOINT_SECONDS", ""))
    parts = split(*load_digits(arguments.data or find_digits()), arguments.seed)
    resume_from = os.environ.get("TENANT_RESUME_FROM", "")
    if resume_from:
        load_checkpoint(Path(resume_from), state)
        print(f"resumed at step {state.step} from {resume_from}", flush=True)
    output = make_folder("TENANT_OUTPUT_DIR", "out")
    checkpoints = Checkpoints(make_folder("TENANT_CHECKPOINT_DIR", "checkpoints"), seconds)
    train(state, parts, checkpoints, Metrics(output / "metrics.jsonl", state.step), stop)
    results = write_results(state, parts["test"], output)
    print(f"test accuracy {results['accuracy']:.4f}, loss {results['loss']:.4f}; the model is in {output}", flush=True)


def main(words: list[str] | None = None) -> int:
    """0, 143 after SIGTERM, or 1 with a line on stderr."""
    try:
        run(read_arguments(words), Stop())
    except Terminated as stopped:
        print(stopped, flush=True)
        return TERMINATED
    except (Unusable, OSError) as problem:
        print(f"train.py: {problem}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

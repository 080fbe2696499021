# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that the real libraries wrote: all of them are whole, and the damaged ones are seen."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import structure, verify

pytestmark = [pytest.mark.artifacts, pytest.mark.torch]


def need(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed here; `nox -s torch` installs it")


def verdict(path: Path, **spec: Any) -> str:
    found = verify.verify_file(path, **spec)
    on_box = structure.check(str(path))
    assert on_box["verdict"] in ("structural_only", "readable"), on_box
    return found["verdict"]


@pytest.fixture
def model() -> Any:
    torch = need("torch")
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(made.parameters())
    made(torch.randn(4, 32)).sum().backward()
    optimizer.step()
    return made, optimizer


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_training_checkpoint(tmp_path: Path, model: Any, protocol: int, zipped: bool) -> None:
    torch, numpy = need("torch"), need("numpy")
    whole = {
        "model": model[0].state_dict(), "optimizer": model[1].state_dict(), "epoch": 3, "loss": 0.5,
        "rng": torch.get_rng_state(), "best": numpy.float64(0.25),
    }  # fmt: skip
    path = tmp_path / "ckpt.pt"
    torch.save(whole, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    assert verdict(path, keys=["model", "model.0.weight"], finite=["loss"]) == "loaded"
    with torch.no_grad():
        model[0][0].weight[3, 3] = float("nan")
    torch.save(whole, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = verify.verify_file(path)
    assert found["verdict"] == "suspect" and "model.0.weight: 1 NaN" in found["detail"]


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "complex64", "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"]
)
def test_dtypes(tmp_path: Path, dtype: str) -> None:
    torch = need("torch")
    kind = getattr(torch, dtype)
    torch.save({"w": torch.ones(37, 3).to(kind)}, tmp_path / "ok.pt")
    assert verdict(tmp_path / "ok.pt") == "loaded"
    if kind.is_floating_point:
        bad = torch.ones(37, 3)
        bad[5, 1] = float("nan")
        torch.save({"w": bad.to(kind)}, tmp_path / "bad.pt")
        assert verdict(tmp_path / "bad.pt") == "suspect"


def test_odd_but_legal_tensors(tmp_path: Path) -> None:
    torch = need("torch")
    shared = torch.ones(5)
    wide = torch.full((100,), float("nan"))
    wide[:10] = 1
    legal = {
        "tied": {"a": shared, "b": shared},
        "view": wide[:10],
        "turned": torch.ones(4, 5).t(),
        "expanded": torch.ones(1).expand(5),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(1.5),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "sparse": torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)),
        "mask": torch.full((8, 8), float("-inf")).triu(1),
        "nothing": {"epoch": 1},
    }
    for name, value in legal.items():
        torch.save(value, tmp_path / f"{name}.pt")
        assert verdict(tmp_path / f"{name}.pt") == "loaded", name


def test_without_crc(tmp_path: Path) -> None:
    torch = need("torch")
    config = importlib.import_module("torch.utils.serialization").config
    config.save.compute_crc32 = False
    try:
        torch.save({"w": torch.ones(40)}, tmp_path / "x.pt")
    finally:
        config.save.compute_crc32 = True
    found = verify.verify_file(tmp_path / "x.pt")
    assert found["verdict"] == "loaded" and "CRC not recorded" in found["detail"]


def test_a_pickled_module_is_not_vouched_for(tmp_path: Path, model: Any) -> None:
    torch = need("torch")
    torch.save(model[0], tmp_path / "module.pt")
    assert verdict(tmp_path / "module.pt") == "structural_only"


def test_a_distributed_checkpoint(tmp_path: Path, model: Any) -> None:
    need("torch")
    dcp = importlib.import_module("torch.distributed.checkpoint")
    dcp.save({"model": model[0].state_dict()}, checkpoint_id=str(tmp_path / "dcp"))
    rows = {row["path"]: row for row in verify.verify_path(tmp_path / "dcp")["artifacts"]}
    assert rows[".metadata"]["verdict"] == "loaded" and "no NaN" in rows[".metadata"]["detail"]
    shard = tmp_path / "dcp/__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-200])
    assert verify.verify_file(tmp_path / "dcp/.metadata")["verdict"] == "truncated"
    shard.unlink()
    assert verify.verify_path(tmp_path / "dcp")["failed"] >= 1


def test_safetensors(tmp_path: Path, model: Any) -> None:
    save = need("safetensors.torch").save_file
    save(
        {key: value.contiguous() for key, value in model[0].state_dict().items()},
        tmp_path / "m.safetensors",
        {"a": "b"},
    )
    assert verdict(tmp_path / "m.safetensors") == "loaded"


def test_parquet(tmp_path: Path) -> None:
    """C17: one byte wrong may read without an error, so a load is never more than readable."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"x": list(range(1000))}), path)
    found = verify.verify_file(path, keys=["x"])
    assert found["verdict"] == "readable" and "hash alone" in found["detail"] and found["facts"]["rows"] == 1000
    raw = path.read_bytes()
    path.write_bytes(raw[:40] + bytes([raw[40] ^ 1]) + raw[41:])
    assert verify.verify_file(path)["verdict"] in ("readable", "corrupt")
    path.write_bytes(raw[:-1])
    assert verify.verify_file(path)["verdict"] == "truncated"


def test_tensorboard(tmp_path: Path) -> None:
    need("tensorboard")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for step in range(20):
        writer.add_scalar("loss", 1 / (step + 1), step)
    writer.close()
    (path,) = tmp_path.iterdir()
    assert verdict(path) == "loaded"


def test_scikit_learn(tmp_path: Path) -> None:
    pickle = importlib.import_module("pickle")
    linear = need("sklearn.linear_model").LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(linear))
    found = verify.verify_file(tmp_path / "model.pkl")
    assert found["verdict"] == "readable" and "hash alone" in found["detail"]

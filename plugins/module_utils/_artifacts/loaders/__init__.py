# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loaders, one small file each. A loader gets the layout that ``structure`` read, adds looks, and judges last."""

from __future__ import annotations

import typing as t

from .. import structure
from . import base, dcp, image, json, npy, parquet, records, safetensors, text, torch
from .base import Limits, Plan, Spec, Verdict

PLANS: dict[str, Plan] = {
    "torch": torch.plan,
    "pickle": torch.plan,
    "safetensors": safetensors.plan,
    "npy": npy.plan,
    "npz": npy.plan,
    "json": json.plan,
    "jsonl": json.plan,
    "dcp": dcp.plan,
    "tfevents": records.plan_events,
    "gz": records.plan_checked,
    "zip": records.plan_checked,
    "bz2": records.plan_packed,
    "xz": records.plan_packed,
    "tar": records.plan_listed,
    "parquet": parquet.plan,
    "image": image.plan,
    "text": text.plan,
}


def load(
    path: t.Any,
    fmt: str | None = None,
    spec: Spec | None = None,
    limits: Limits | None = None,
    also: t.Callable[[t.Any], None] | None = None,
) -> Verdict:
    """Load one file in this process: for the worker, which runs with limits. See ``verify`` for the way in."""
    return base.load(path, fmt, spec or Spec(), limits or Limits(), PLANS, also)


def hash_only(path: t.Any, also: t.Callable[[t.Any], None] | None) -> None:
    """Read a regular file once, for its hash alone. Raises OSError."""
    with base.open_regular(path) as stream:
        structure.sweep(stream, [], also)


__all__ = ["PLANS", "Limits", "Spec", "Verdict", "hash_only", "load"]

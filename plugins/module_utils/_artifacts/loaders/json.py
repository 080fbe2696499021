# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""JSON and JSON Lines: strict, required keys, finite numbers."""

from __future__ import annotations

import typing as t

from . import base
from .base import Finish, Job, Verdict


def plan(job: Job) -> Finish:
    return _plan_lines(job) if job.layout.fmt == "jsonl" else _plan_document(job)


def _plan_document(job: Job) -> Finish:
    def finish() -> Verdict:
        value = job.layout.facts["value"]
        wanted = [*job.spec.keys, *job.spec.finite]
        found = {key: base.look_up(value, key, base.from_json) for key in wanted}
        base.require([key for key in dict.fromkeys(wanted) if not base.present(found[key])], _keys(value))
        for key in job.spec.finite:
            base.must_be_finite(key, found[key])
        return base.loaded(job.layout, _numbers(found), values=_scalars(found))

    return finish


def _plan_lines(job: Job) -> Finish:
    """A required key stands in at least one record, and is finite wherever it stands."""
    last: dict[str, t.Any] = {}
    seen: dict[str, None] = {}

    def look(number: int, value: t.Any) -> None:
        if len(seen) < 100:
            seen.update(dict.fromkeys(_keys(value)))
        for key in (*job.spec.keys, *job.spec.finite):
            found = base.look_up(value, key, base.from_json)
            if base.present(found):
                if key in job.spec.finite:
                    base.must_be_finite(f"line {number}: {key}", found)
                last[key] = found

    job.layout.facts["look"] = look

    def finish() -> Verdict:
        base.require([key for key in (*job.spec.keys, *job.spec.finite) if key not in last], seen)
        return base.loaded(job.layout, _numbers(last), records=job.layout.facts["records"], values=_scalars(last))

    return finish


def _keys(value: t.Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _scalars(found: dict[str, t.Any]) -> dict[str, t.Any]:
    """The headline values, for the table at the end of a collection."""
    return {key: value for key, value in found.items() if isinstance(value, (int, float))}


def _numbers(found: dict[str, t.Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in _scalars(found).items())

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The meter verdict (architecture §4.2): ``off`` needs four facts; take any one away and it is not ``off``."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Instance,
    NotFound,
    Platform,
    PlatformError,
    RateLimited,
    Retired,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.manual import Manual

GONE = NotFound("404 pod not found", status=404)


def _instance(billing: str, instance_id: str = "i1") -> Instance:
    return Instance(instance_id, "name", "SOME", billing)


class Scripted(Manual):
    """A platform that answers as told; an exception is raised."""

    can = frozenset({"show", "list"})

    def __init__(self, show: t.Any, listed: t.Any, whoami: t.Any = "key accepted") -> None:
        self.answers = {"show": show, "list": listed, "whoami": whoami}

    def _answer(self, call: str) -> t.Any:
        answer = self.answers[call]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def show(self, instance_id: str) -> Instance:
        return t.cast(Instance, self._answer("show"))

    def list(self) -> list[Instance]:
        return t.cast("list[Instance]", self._answer("list"))

    def whoami(self) -> str:
        return str(self._answer("whoami"))


def state(platform: Platform, known: bool = True) -> str:
    return str(verdict(platform, "i1", known)["state"])


def test_off_with_all_four_facts_and_their_evidence() -> None:
    found = verdict(Scripted(GONE, [_instance("on", "other")]), "i1", True)
    assert found["state"] == "off"
    assert [line["call"] for line in found["evidence"]] == ["show", "list", "whoami"]
    assert all(line["at"].endswith("Z") and line["saw"] for line in found["evidence"])


@pytest.mark.parametrize(
    ("platform", "known"),
    [
        (Scripted(GONE, []), False),
        (Scripted(GONE, [_instance("on")]), True),
        (Scripted(GONE, RateLimited("429", status=429)), True),
        (Scripted(GONE, PlatformError("the answer has no pods")), True),
        (Scripted(GONE, [], AuthError("401", status=401)), True),
        (Scripted(Retired("410", status=410), []), True),
        (Scripted(PlatformError("404 with a body that is not JSON"), []), True),
        (Scripted(RateLimited("429", status=429), []), True),
        (Scripted(_instance("unknown"), []), True),
    ],
    ids=["never-seen", "still-listed", "list-429", "list-half", "key-bad", "410", "html-404", "show-429", "new-state"],
)
def test_anything_less_is_unknown(platform: Platform, known: bool) -> None:
    assert state(platform, known) == "unknown"


def test_terminated_counts_as_gone_only_with_the_list() -> None:
    assert state(Scripted(_instance("off"), [_instance("off")])) == "off"
    assert state(Scripted(_instance("off"), [_instance("on")])) == "unknown"


@pytest.mark.parametrize("billing", ["on", "disk_only"])
def test_what_lives_is_said_as_it_is(billing: str) -> None:
    assert state(Scripted(_instance(billing), [])) == billing


def test_without_an_api_nothing_is_proven() -> None:
    found = verdict(Manual({}), "box", True)
    assert found["state"] == "unprovable"
    assert found["advice"]

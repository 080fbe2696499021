# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Featurize client: one call, tried once, that proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    Platform,
    PlatformError,
    UnknownOutcome,
    Wanted,
    verdict,
)
from tests.unit.scripted import Script, scripted

TOKEN = "the-token-nobody-may-see"
RELEASE = "POST /virtual_machine/vm-1/release"


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as script:
        yield script


@pytest.fixture
def featurize(script: Script) -> Platform:
    return client("featurize", {"FEATURIZE_TOKEN": TOKEN, "FEATURIZE_API_BASE_URL": script.url})


def test_the_return_is_one_call_with_the_vendors_header(script: Script, featurize: Platform) -> None:
    script.tell(RELEASE, (200, {"status": 0, "message": "", "data": None}))
    assert "status 0" in featurize.destroy("vm-1")
    assert script.calls() == [RELEASE]
    assert script.asked[0].headers["token"] == TOKEN and "authorization" not in script.asked[0].headers


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((200, {"status": 10001, "message": "no such machine"}), PlatformError),
        ((200, {"status": 1, "message": TOKEN}), PlatformError),
        ((200, {"message": "ok"}), UnknownOutcome),
        ((200, {"status": "0"}), UnknownOutcome),
        ((200, {"status": False}), UnknownOutcome),
        ((200, "[]"), UnknownOutcome),
        ((200, ""), UnknownOutcome),
        ((200, "<html>log in</html>"), UnknownOutcome),
        ("drop", UnknownOutcome),
        ((401, {"message": TOKEN}), AuthError),
        ((403, "<html>"), AuthError),
        ((502, "<html>"), PlatformError),
    ],
)
def test_anything_else_is_an_error_and_never_repeated(
    script: Script, featurize: Platform, answer: Any, kind: type[PlatformError]
) -> None:
    script.tell(RELEASE, answer)
    with pytest.raises(PlatformError) as caught:
        featurize.destroy("vm-1")
    assert type(caught.value) is kind
    assert script.calls() == [RELEASE]
    assert TOKEN not in f"{caught.value.means} {caught.value.do}"


def test_the_token_is_not_repeated_from_an_answer(script: Script, featurize: Platform) -> None:
    script.tell(RELEASE, (200, {"status": 7, "message": f"bad token {TOKEN}"}))
    with pytest.raises(PlatformError, match="status 7 bad token …") as caught:
        featurize.destroy("vm-1")
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("instance_id", ["", ".", "..", "a/b", "a b", "-x", "x\n", "机器"])
def test_a_strange_id_enters_no_path(script: Script, featurize: Platform, instance_id: str) -> None:
    with pytest.raises(PlatformError, match="cannot be an instance id"):
        featurize.destroy(instance_id)
    assert script.asked == []


def test_nothing_is_ever_proven_and_the_rest_is_done_by_hand(script: Script, featurize: Platform) -> None:
    script.tell(RELEASE, (200, {"status": 0}))
    featurize.destroy("vm-1")
    assert verdict(featurize, "vm-1", True)["state"] == "unprovable"
    assert featurize.can == {"destroy"}
    wanted = Wanted(name="n", gpu="RTX 4090")
    verbs = (featurize.whoami, featurize.balance, featurize.list, lambda: featurize.offers(wanted))
    for verb in verbs:
        with pytest.raises(PlatformError, match="without an API"):
            verb()


def test_where_the_token_comes_from(script: Script, tmp_path: Path) -> None:
    script.tell(RELEASE, (200, {"status": 0}))
    kept = tmp_path / "token"
    kept.write_text("from-file\n")
    base = {"FEATURIZE_API_BASE_URL": script.url, "FEATURIZE_CFG_FILE": str(kept)}
    for environ in ({}, {"FEATURIZE_API_TOKEN": "vendor's"}, {"FEATURIZE_TOKEN": "ours", "FEATURIZE_API_TOKEN": "v"}):
        client("featurize", {**base, **environ}).destroy("vm-1")
    assert [one.headers["token"] for one in script.asked] == ["from-file", "vendor's", "ours"]


def test_no_token_is_said_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="FEATURIZE_TOKEN is not set") as caught:
        client("featurize", {"FEATURIZE_CFG_FILE": str(tmp_path / "none")})
    assert "profile_api: manual" in caught.value.do

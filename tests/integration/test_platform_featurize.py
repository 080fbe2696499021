# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Featurize client against the lab: it can end a rental, and cannot prove it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    AuthError,
    PlatformError,
    UnknownOutcome,
    verdict,
)
from lab.api import Lab

pytestmark = pytest.mark.lab


@pytest.fixture
def rental(lab: Lab, public_key: str) -> Iterator[dict[str, Any]]:
    """Rented in the console."""
    made = lab.rent("featurize-1", [public_key], platform="featurize")
    yield made
    lab.clear()
    if lab.rental(made["id"])["state"] != "gone":
        lab.destroy(made["id"])


def state(lab: Lab, rental: dict[str, Any]) -> str:
    return str(lab.rental(rental["id"])["state"])


def test_a_return_ends_the_bill_and_stays_unprovable(lab: Lab, rental: dict[str, Any]) -> None:
    featurize = client("featurize", lab.env())
    lab.wait(rental["id"])
    featurize.destroy(rental["id"])
    assert state(lab, rental) == "gone"
    assert verdict(featurize, rental["id"], True)["state"] == "unprovable"
    with pytest.raises(PlatformError, match="status 10001"):
        featurize.destroy(rental["id"])


def test_another_token_ends_nothing(lab: Lab, rental: dict[str, Any]) -> None:
    with pytest.raises(AuthError):
        client("featurize", {**lab.env(), "FEATURIZE_TOKEN": "another"}).destroy(rental["id"])
    assert state(lab, rental) != "gone"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"status": 200, "body": {"status": 10029, "message": "busy", "data": None}}, PlatformError),
        ({"status": 200, "body": "<html>log in</html>"}, UnknownOutcome),
        ({"status": 200, "body": {}}, UnknownOutcome),
    ],
)
def test_a_lie_is_not_a_return(
    lab: Lab, rental: dict[str, Any], answer: dict[str, Any], kind: type[PlatformError]
) -> None:
    lab.fault("api.fail", {"platform": "featurize"}, **answer)
    with pytest.raises(kind):
        client("featurize", lab.env()).destroy(rental["id"])
    assert state(lab, rental) != "gone"


def test_a_return_without_an_answer_is_of_unknown_outcome(lab: Lab, rental: dict[str, Any]) -> None:
    lab.fault("api.drop", {"platform": "featurize"})
    with pytest.raises(UnknownOutcome):
        client("featurize", lab.env()).destroy(rental["id"])
    assert state(lab, rental) == "gone"

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every profile fits the ``profile`` role, names a client that exists, and dates what it says of money and deletion."""

from __future__ import annotations

import datetime
import re
import typing as t
import warnings
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import CLIENTS
from tools import facts

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "roles/profile/meta/argument_specs.yml"
OPTIONS: dict[str, t.Any] = yaml.safe_load(SPEC.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
PROFILES = {path.stem: facts.load(path) for path in sorted(facts.PROFILES.glob("*.yml")) if facts.load(path)}
MANUAL = [name for name, profile in PROFILES.items() if profile["profile_api"] == "manual" and name != "ssh"]
CHINESE = re.compile(r"[\u4e00-\u9fff]")

each = pytest.mark.parametrize("name", PROFILES)


def test_there_are_profiles() -> None:
    assert {"autodl", "autodl_pro", "featurize", "gpushare", "lanrui", "matpool", "runpod", "ssh"} <= set(PROFILES)


@each
def test_a_profile_fits_the_role(name: str) -> None:
    checked = ArgumentSpecValidator(OPTIONS).validate(PROFILES[name])
    assert checked.error_messages == []


def test_the_check_can_fail() -> None:
    wrong = {**PROFILES["runpod"], "profile_meter": {"proof": "hope"}, "profile_speed": 1}
    messages = " ".join(ArgumentSpecValidator(OPTIONS).validate(wrong).error_messages)
    assert "hope" in messages and "profile_speed" in messages


@each
def test_a_profile_says_everything(name: str) -> None:
    """A fact left out would silently be the role's default, which is another platform's truth."""
    assert set(OPTIONS) - set(PROFILES[name]) == set()


@each
def test_a_profile_is_named_as_its_group(name: str) -> None:
    assert PROFILES[name]["profile_platform"] == name
    assert PROFILES[name]["profile_api"] in CLIENTS


@each
def test_money_and_deletion_are_dated(name: str) -> None:
    profile = PROFILES[name]
    dates = profile["profile_verified"]
    assert [fact for fact in facts.stated(profile) if not facts.DATE.fullmatch(str(dates.get(fact, "")))] == []
    assert [fact for fact in dates if fact not in OPTIONS] == []


@each
def test_no_date_lies_in_the_future(name: str) -> None:
    this_month = f"{datetime.date.today():%Y-%m}"
    assert [date for date in PROFILES[name]["profile_verified"].values() if date[:7] > this_month] == []


@each
def test_secrets_do_not_lie_where_others_read(name: str) -> None:
    profile = PROFILES[name]
    inside = [
        folder
        for folder in profile["profile_secret_forbidden"]
        if f"{profile['profile_secret_dir']}/".startswith(f"{folder}/")
    ]
    assert inside == []


@each
def test_what_outlives_the_box_survives_its_destroy(name: str) -> None:
    durable = PROFILES[name]["profile_durable"]
    mounts = {mount["path"]: mount for mount in PROFILES[name]["profile_mounts"]}
    if durable["kind"] == "mount" and mounts.get(durable["path"], {}).get("scope") == "account":
        assert mounts[durable["path"]]["survives_destroy"] is True
        assert durable["path"] in PROFILES[name]["profile_secret_forbidden"]


@each
def test_a_pause_names_a_clock_of_the_profile(name: str) -> None:
    park = PROFILES[name]["profile_park"]
    clocks = {clock["id"] for clock in PROFILES[name]["profile_clocks"]}
    assert not park or park["clock"] is None or park["clock"] in clocks


@each
def test_clocks_say_what_happens(name: str) -> None:
    clocks = PROFILES[name]["profile_clocks"]
    assert len({clock["id"] for clock in clocks}) == len(clocks)
    assert [clock["id"] for clock in clocks if not clock["text"] or clock["severity"] not in ("data", "money")] == []


@pytest.mark.parametrize("name", MANUAL)
def test_without_an_api_the_console_steps_stand_in_both_languages(name: str) -> None:
    profile = PROFILES[name]
    assert profile["profile_meter"]["proof"] == "declared"
    steps = next(clock for clock in profile["profile_clocks"] if clock["id"] == "release_by_hand")
    assert all(f"{number}. " in steps[language] for language in ("text", "text_zh") for number in (1, 2, 3))
    assert all(CHINESE.search(clock["text_zh"]) for clock in profile["profile_clocks"])


def test_ordinary_autodl_boxes() -> None:
    """What most users hold: power-off from inside the box is the pause, and it starts a clock of 15 days."""
    profile = PROFILES["autodl"]
    assert profile["profile_api"] == "manual"
    assert profile["profile_park"] == {"verb": "power_off", "from_box": "/usr/bin/shutdown", "clock": "auto_release"}
    assert next(clock for clock in profile["profile_clocks"] if clock["id"] == "auto_release")["days"] == 15
    assert not profile["profile_meter"]["irreversible"]
    survives = {mount["path"]: mount["survives_destroy"] for mount in profile["profile_mounts"]}
    assert survives["/root/autodl-fs"] and not survives["/root/autodl-tmp"] and not survives["/"]


def test_facts_that_age_are_listed(tmp_path: Path) -> None:
    (tmp_path / "old.yml").write_text(
        "profile_meter: {stop_verb: destroy}\nprofile_mounts: []\nprofile_clocks: [{id: a}]\n"
        "profile_verified: {profile_meter: 2024-11, profile_clocks: '2025-12 (doubtful: hearsay)'}\n"
    )
    (tmp_path / "bare.yml").write_text("profile_meter: {stop_still_bills: unknown}\n")
    found = facts.facts(tmp_path, datetime.date(2026, 12, 1))
    assert [(fact.name, fact.months, fact.doubt) for fact in found] == [
        ("profile_meter", 25, None),
        ("profile_mounts", None, None),
        ("profile_clocks", 12, "hearsay"),
    ]
    assert [fact.name for fact in facts.aged(found, 12)] == ["profile_mounts", "profile_meter"]
    assert [fact.name for fact in facts.aged(found, 11)][-1] == "profile_clocks"


def test_report_old_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """Only reports: a year must not break a build that nobody touched."""
    assert facts.main(["--older-than", "12"]) == 0
    for line in capsys.readouterr().out.splitlines()[:-1]:
        warnings.warn(f"to be checked again: {line}", stacklevel=1)

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault of every format gets its verdict, and nothing legal is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.tenant.gpu.plugins.module_utils._artifacts import structure, verify
from tests.unit.artifacts.faults import CASES, Case

pytestmark = pytest.mark.artifacts
FAILED = ("suspect", "corrupt", "truncated")
STRUCTURE = ("structural_only", "readable", *FAILED)


@pytest.fixture(scope="module")
def pool():
    with verify.Pool(1) as made:
        yield made


def ident(case: Case) -> str:
    return f"{case.name}: {case.fault}"


@pytest.mark.parametrize("case", CASES, ids=ident)
def test_verdict(case: Case, tmp_path: Path, pool: verify.Pool, seen: list) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    found = verify.verify_file(path, pool=pool, **case.spec)
    on_box = structure.check(str(path))
    seen.append((found["format"], case.fault, on_box["verdict"], found["verdict"]))
    assert "verifier failed" not in found["detail"] and not found.get("killed"), found
    if case.verdict != "any":
        assert found["verdict"] == case.verdict, found["detail"]
    assert case.words in found["detail"]
    assert found["detail"].isprintable()
    expected = case.structure or (case.verdict if case.verdict in STRUCTURE else "structural_only")
    if case.verdict != "any":
        assert on_box["verdict"] == expected, on_box["detail"]


def test_there_are_enough_hostile_inputs() -> None:
    assert sum(case.verdict in FAILED for case in CASES) >= 80
    assert sum(case.verdict == "loaded" for case in CASES) >= 40


FIXTURES = {
    "C01_ok.pt": ("loaded", ""),
    "C01_truncated.pt": ("truncated", "no central directory"),
    "C03_crc_not_computed.pt": ("structural_only", "CRC not recorded, content not checked"),
    "C05_legacy.pth": ("loaded", "legacy torch format"),
    "C05_legacy_truncated.pth": ("truncated", "legacy torch format"),
    "C07_all_zero.safetensors": ("suspect", "all 4096 bytes are zero"),
    "C07_empty.safetensors": ("suspect", "empty file"),
    "C07_html_error.bin": ("suspect", "HTML page"),
    "C07_html_error.pt": ("suspect", "HTML page"),
    "C07_html_error.safetensors": ("suspect", "HTML page"),
    "C09_ok.safetensors": ("loaded", ""),
    "C09_trailing_bytes.safetensors": ("corrupt", "4 bytes after the last tensor"),
    "C09_truncated.safetensors": ("truncated", "4 bytes missing"),
    "C11_duplicate_key.safetensors": ("corrupt", "duplicate key a"),
    "C13_shape_mismatch.safetensors": ("corrupt", "its range has 4"),
    "C13_shape_overflow.safetensors": ("corrupt", "its range has 8"),
    "C19_bad_crc_first_record.tfevents": ("corrupt", "record 0"),
    "C19_last_record_cut.tfevents": ("readable", "4 records, last one incomplete"),
    "C19_ok.tfevents": ("loaded", "5 records"),
}


@pytest.mark.parametrize("name", FIXTURES)
def test_field_cases(name: str, pool: verify.Pool) -> None:
    folder = os.environ.get("TENANT_CASES")
    if not folder:
        pytest.skip("TENANT_CASES names no folder of field cases; the faults above cover the same")
    found = verify.verify_file(Path(folder) / name, pool=pool)
    verdict, words = FIXTURES[name]
    assert (found["verdict"], words in found["detail"]) == (verdict, True), found

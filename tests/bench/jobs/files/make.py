# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that writes results: FILES_LARGE files of FILES_MEGABYTES each (npz), and FILES_SMALL small ones (json)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy

out = Path(os.environ["TENANT_OUTPUT_DIR"])
random = numpy.random.default_rng(0)
for number in range(int(os.environ["FILES_LARGE"])):
    count = int(os.environ["FILES_MEGABYTES"]) * 1_000_000 // 4
    with open(out / f"arrays-{number}.npz", "wb") as stream:
        numpy.savez(stream, w=random.standard_normal(count, dtype="f4"))
for number in range(int(os.environ["FILES_SMALL"])):
    folder = out / f"{number // 500:03}"
    folder.mkdir(exist_ok=True)
    (folder / f"{number}.json").write_text(json.dumps({"loss": float(random.random()), "step": number}))

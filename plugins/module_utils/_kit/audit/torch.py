# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether this interpreter's torch can use the GPU: asked of the interpreter itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess

_TIMEOUT = 60
_PROBE = """
import json
try:
    import torch
except ImportError:
    print(json.dumps({"installed": False})); raise SystemExit
facts = {"installed": True, "version": torch.__version__, "cuda": torch.version.cuda, "path": torch.__file__}
try:
    facts["devices"] = torch.cuda.device_count()
    for index in range(facts["devices"]):
        square = torch.ones(64, 64, device=index)
        assert float((square @ square).sum()) == 64.0 ** 3
    facts["works"] = facts["devices"] > 0
except Exception as problem:
    facts["works"], facts["error"] = False, str(problem)[:300]
print(json.dumps(facts))
"""


def facts(python: str) -> dict:
    """``{installed, version, cuda, devices, works, error}``; a small product on every device decides ``works``."""
    quick = "import importlib.util as u; print(u.find_spec('torch') is not None)"
    if _run(python, quick) != "True":
        return {"installed": False}
    text = _run(python, _PROBE)
    try:
        found = json.loads(text)
    except ValueError:
        return {"installed": True, "works": False, "error": text[-300:] or "the probe ended without an answer"}
    return found if isinstance(found, dict) else {"installed": True, "works": False, "error": text[-300:]}


def _run(python: str, program: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT} s"
    return done.stdout.decode("utf-8", "replace").strip()

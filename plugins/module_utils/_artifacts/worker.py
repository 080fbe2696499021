# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The process that opens files from a box: no network, no environment, bounded memory and time, and no way to write.

It reads one JSON request a line on stdin, ``{path, format, keys, finite, load, hash}``, and answers one JSON line on
stdout, ``{format, verdict, detail, facts, sha256, size}``. ``verify`` starts it, and kills it when a file takes too
long.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import sys
import typing as t

from . import loaders
from .roster import to_bytes

_MAX_FACTS = 16 << 10  # characters; facts are for a table, not for data


def confine(limits: loaders.Limits) -> None:
    """Take from this process what it does not need."""
    os.umask(0o077)
    for what, bound in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        hard = resource.getrlimit(what)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit on address space
            resource.setrlimit(what, (bound, bound))


def _allow_seconds(seconds: float) -> None:
    """CPU time for one more file; the limit counts from the process's begin, so it is moved on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    bound = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))


def answer(request: dict[str, t.Any], limits: loaders.Limits) -> dict[str, t.Any]:
    """Hash and load one file, in one read."""
    path = to_bytes(request["path"])
    digest = hashlib.sha256() if request.get("hash") else None
    update = digest.update if digest else None
    try:
        size = os.stat(path).st_size
        _allow_seconds(limits.seconds(size))
        if request.get("load", True):
            spec = loaders.Spec(tuple(request.get("keys") or ()), tuple(request.get("finite") or ()))
            found = loaders.load(path, request.get("format"), spec, limits, update)._asdict()
        else:
            found = {"format": "unknown", "verdict": "readable", "detail": "", "facts": {}}
            loaders.hash_only(path, update)
    except OSError as problem:
        detail = f"it cannot be read: {problem.strerror or problem}"
        return {"format": request.get("format") or "unknown", "verdict": "corrupt", "detail": detail, "facts": {}}
    except Exception as problem:  # whatever a file does to a parser, the next one gets a fair answer
        detail = f"the verifier failed on it: {type(problem).__name__}: {problem}"
        return {"format": request.get("format") or "unknown", "verdict": "suspect", "detail": detail[:300], "facts": {}}
    if len(json.dumps(found["facts"], default=str)) > _MAX_FACTS:
        found["facts"] = {}
    return {**found, "size": size, "sha256": digest.hexdigest() if digest else None}


def main() -> None:
    limits = loaders.Limits(**json.loads(sys.argv[1]))
    confine(limits)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line), limits), default=str) + "\n")
        sys.stdout.flush()

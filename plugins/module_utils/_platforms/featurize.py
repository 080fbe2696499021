# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Featurize: the vendor's token API can return (归还) a box, and nothing else of a rental's life.

Facts: the vendor's CLI package 0.0.27 (2024-03); not verified since. Nothing can be read back, so nothing is proven:
a released box ends in ``unprovable``, as with the client ``manual``.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

from .base import AuthError, PlatformError, UnknownOutcome
from .http import HttpClient
from .manual import Manual

_TOKEN_FILE = "/etc/featurize_token.txt"  # the vendor's own, unless FEATURIZE_CFG_FILE names another


class Featurize(Manual):
    name = "featurize"
    can: t.ClassVar[frozenset[str]] = frozenset({"destroy"})
    console = "https://featurize.cn (实例)"
    id_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
    key_variable = "FEATURIZE_TOKEN"

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        self._token = _token(environ)
        base = environ.get("FEATURIZE_API_BASE_URL") or "https://featurize.cn/bus/api/v1"
        self._http = HttpClient(self.name, base, {"Token": self._token})

    def destroy(self, instance_id: str) -> str:
        """Return the box: everything but the cloud folders is wiped at once."""
        path = f"/virtual_machine/{self.check_id(instance_id)}/release"
        try:
            envelope = self._http.write("POST", path).data
        except PlatformError as problem:
            if problem.status and problem.status < 300:  # carried out, perhaps, and answered with something unreadable
                raise UnknownOutcome(problem.seen) from problem
            raise
        status = envelope.get("status") if isinstance(envelope, dict) else None
        if not isinstance(status, int) or isinstance(status, bool):
            raise UnknownOutcome("release: an answer without a status")
        if status != 0:
            said = " ".join(str(envelope.get("message") or "").replace(self._token, "…").split())[:200]
            raise PlatformError(
                f"release: status {status} {said}".rstrip(),
                means="Featurize refused the return. The box counts as billing.",
                do=f"Look at {self.console}: return it there, or check the id.",
                status=200,
            )
        return "release answered status 0"


def _token(environ: t.Mapping[str, str]) -> str:
    """From ``FEATURIZE_TOKEN``, the vendor's ``FEATURIZE_API_TOKEN``, or the vendor's token file."""
    for variable in ("FEATURIZE_TOKEN", "FEATURIZE_API_TOKEN"):
        if environ.get(variable, "").strip():
            return environ[variable].strip()
    path = Path(environ.get("FEATURIZE_CFG_FILE") or _TOKEN_FILE)
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if not token:
        raise AuthError(
            f"FEATURIZE_TOKEN is not set, and {path} holds no token",
            means="Featurize cannot be asked to take the box back.",
            do="Type: export FEATURIZE_TOKEN=… (console, account settings); or set profile_api: manual.",
        )
    return token

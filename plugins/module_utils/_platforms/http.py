# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one HTTP client of all platforms, on ansible-core's own ``open_url`` (proxies and CA settings of the user hold).

Reads are retried within a total budget; a write never is. A body is never put into a message, since it can hold
secrets; an error carries the status and the platform's own short ``detail``.
"""

from __future__ import annotations

import json
import random
import time
import typing as t
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url

from .base import AuthError, Conflict, NotFound, PlatformError, RateLimited, Retired, UnknownOutcome

USER_AGENT = "tenant.gpu/0.1.0"
_RETRYABLE = frozenset({429, 500, 502, 503, 504})
_TEXT_LIMIT = 300


@dataclass(frozen=True)
class Answer:
    """``data`` is parsed JSON, or None for an empty body."""

    status: int
    data: t.Any


@dataclass
class HttpClient:
    """JSON over HTTP for one platform. ``timeout`` is one call's, ``budget`` all tries' (seconds)."""

    platform: str
    base_url: str
    headers: dict[str, str]
    timeout: float = 20.0
    budget: float = 60.0
    sleep: t.Callable[[float], None] = time.sleep

    def read(self, path: str, query: dict[str, t.Any] | None = None) -> Answer:
        """A GET, repeated on trouble that passes by itself."""
        return self._patiently(lambda: self._once("GET", path, query, None))

    def ask(self, path: str, body: t.Any) -> Answer:
        """A POST that changes nothing (a query language): repeated like a read."""
        return self._patiently(lambda: self._once("POST", path, None, body))

    def write(self, method: str, path: str, body: t.Any = None) -> Answer:
        """A change, tried once. Without an answer the outcome is unknown, and says so."""
        try:
            return self._once(method, path, None, body)
        except PlatformError as problem:
            # Without an answer, with a success that cannot be read, or after a time-out: it may have been done.
            if isinstance(problem, _Unreachable) or (
                problem.status and (problem.status < 300 or problem.status == 408)
            ):
                raise UnknownOutcome(problem.seen) from problem
            raise

    def _patiently(self, call: t.Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + self.budget
        delay = 0.5
        while True:
            try:
                return call()
            except (_Unreachable, RateLimited, PlatformError) as problem:
                pause = problem.retry_after or delay * (0.5 + random.random())
                if not _passes(problem) or time.monotonic() + pause > deadline:
                    raise
                self.sleep(pause)
                delay = min(delay * 2, 8.0)

    def _once(self, method: str, path: str, query: dict[str, t.Any] | None, body: t.Any) -> Answer:
        url = self.base_url.rstrip("/") + path + ("?" + urlencode(query) if query else "")
        headers = dict(self.headers, Accept="application/json")
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body)
        try:
            with open_url(
                url,
                method=method,
                data=data,
                headers=headers,
                timeout=self.timeout,
                http_agent=USER_AGENT,
                follow_redirects="none",
            ) as reply:
                return Answer(reply.status, self._parse(method, path, reply.status, reply.read()))
        except HTTPError as problem:
            raise self._refusal(method, path, problem, problem.read() or b"") from problem
        except (URLError, HTTPException, OSError) as problem:
            reason = getattr(problem, "reason", problem)
            raise _Unreachable(
                f"{method} {path}: no answer ({reason})",
                means=f"The API of {self.platform} could not be reached.",
                do=f"Check the network and the base URL {self.base_url}.",
            ) from problem

    def _parse(self, method: str, path: str, status: int, raw: bytes) -> t.Any:
        if not raw.strip():
            return None
        try:
            return json.loads(raw)
        except ValueError as problem:
            raise PlatformError(
                f"{method} {path}: {status} with a body that is not JSON",
                means="Something between here and the platform answered, or the API changed. It proves nothing.",
                do=f"Open {self.base_url} in a browser; check proxies.",
                status=status,
            ) from problem

    def _refusal(self, method: str, path: str, problem: HTTPError, raw: bytes) -> PlatformError:
        """What to raise for an answer that is no success; ``raw`` is its body, which can be read once only."""
        try:
            body = json.loads(raw)
            spoken = True
        except ValueError:
            body, spoken = None, False
        seen = f"{method} {path}: {problem.code} {_detail(body)}".rstrip()
        kind: type[PlatformError] = PlatformError
        if problem.code in (401, 403):
            kind = AuthError
        elif problem.code == 404 and spoken and isinstance(body, dict):
            kind = NotFound  # a 404 without a JSON body comes from a proxy or a wrong address, not from the API
        elif problem.code == 409:
            kind = Conflict
        elif problem.code == 410:
            kind = Retired
        elif problem.code == 429:
            kind = RateLimited
        refusal = kind(seen, status=problem.code)
        refusal.detail = _detail(body)
        refusal.retry_after = _seconds(problem.headers.get("Retry-After"))
        return refusal


class _Unreachable(PlatformError):
    code = "unreachable_api"


def _passes(problem: PlatformError) -> bool:
    return isinstance(problem, _Unreachable) or problem.status in _RETRYABLE


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None


def _detail(body: t.Any) -> str:
    """The platform's own words about an error, short and in one line; nothing else of the body."""
    if not isinstance(body, dict):
        return ""
    for key in ("detail", "message", "error", "msg", "title"):
        value = body.get(key)
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str) and value:
            more = body.get("errors")
            if isinstance(more, list) and more and all(isinstance(line, str) for line in more):
                value = f"{value}: {'; '.join(more)}"
            return " ".join(value.split())[:_TEXT_LIMIT]
    return ""

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every answer has in common: errors as application/problem+json, authentication, quota."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lab import market as m
from lab.dialects.runpod.platform import pod_key
from lab.market import Market
from lab.wire import Quota

NO_INSTANCES = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)
HOST_FULL = "There are not enough free GPUs on the host machine to start this pod."


class Problem(Exception):
    def __init__(self, status: int, detail: str, errors: list[str] | None = None, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


_TITLES = {
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
}


def _answer(problem: Problem) -> web.Response:
    body: dict[str, Any] = {
        "title": _TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.errors:
        body["errors"] = problem.errors
    return web.Response(
        status=problem.status, text=json.dumps(body), content_type="application/problem+json", headers=problem.headers
    )


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Problem as problem:
        return _answer(problem)
    except m.MarketError as refusal:
        return _answer(_problem_of(refusal))
    except web.HTTPMethodNotAllowed as wrong:
        allowed = ", ".join(sorted(wrong.allowed_methods))
        return _answer(Problem(405, "The requested method is not allowed for this path.", Allow=allowed))
    except web.HTTPException as other:
        return _answer(Problem(other.status, "resource not found" if other.status == 404 else other.reason))


def _problem_of(refusal: m.MarketError) -> Problem:
    match refusal:
        case m.Unknown():
            return Problem(404, "resource not found")
        case m.NoCapacity():
            return Problem(400, HOST_FULL if refusal.host_full else NO_INSTANCES)
        case m.NoCredit():
            return Problem(402, f"Insufficient balance: {refusal}")
        case m.Conflict():
            return Problem(409, str(refusal))
        case _:
            return Problem(400, str(refusal))


def guard(market: Market, quota: Quota) -> Middleware:
    """Bearer authentication, rights of restricted keys, quota."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        key = _bearer(request)
        scope = _scope(market, key)
        if scope is None:
            raise Problem(401, "missing bearer token" if not key else "invalid bearer token")
        headers, exceeded = quota.use(key, market.clock.now())
        request["quota"] = headers
        if exceeded:
            wait = str(exceeded.resets_in(market.clock.now()))
            detail = f"rate limit exceeded for the {exceeded.name} window"
            return _told(_answer(Problem(429, detail, Retry_After=wait)), headers)
        try:
            if not _permitted(scope, request):
                raise Problem(403, "access denied")
            return _told(await handler(request), headers)
        except (Problem, m.MarketError) as refusal:
            return _told(_answer(refusal if isinstance(refusal, Problem) else _problem_of(refusal)), headers)

    return middleware


def _told(response: web.StreamResponse, headers: dict[str, str]) -> web.StreamResponse:
    if not response.prepared:
        response.headers.update(headers)
    return response


def _bearer(request: web.Request) -> str:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _scope(market: Market, key: str) -> str | None:
    """`all`, `read`, or the id of the only pod that the key may touch; None for an unknown key."""
    if key in market.keys:
        return market.keys[key]
    alive = (rental.id for rental in market.records.rentals.values() if rental.state != m.GONE)
    return next((pod_id for pod_id in alive if key == pod_key(pod_id)), None)


def _permitted(scope: str, request: web.Request) -> bool:
    if scope == "all":
        return True
    if scope == "read":
        return request.method == "GET" or request.path == "/graphql"
    return request.match_info.get("id") == scope and request.path.startswith("/v2/pods/")

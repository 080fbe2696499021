# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults by request: what the market does wrong, to whom, how often and for how long.

A kind is one small function with a decorator that says when it acts:

* `@api(kind, …)`: around an HTTP request, `async def f(fault, exchange) -> StreamResponse`;
* `@box(kind, …)`: on each matching rental's box, at once and whenever such a box comes up,
  `async def f(market, rental_id, fault)`, with an `undo` for when the fault is cleared;
* `rule(kind, …)`: nothing of its own; the market asks `standing()` or `strike()` at the place of decision.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from lab.market import Market

Facts = Mapping[str, str | None]
MATCHERS = ("method", "path", "rental", "name", "platform", "gpu", "verb")


class FaultError(ValueError):
    """A fault that cannot be set: unknown kind, matcher or parameter."""


@dataclass
class Fault:
    """One standing fault. `match` maps a matcher to a regular expression that must occur in the fact."""

    id: str
    kind: str
    match: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    times: int | None = None
    until: float | None = None
    set_at: float = 0.0
    struck: int = 0

    def spent(self, now: float) -> bool:
        return (self.times is not None and self.struck >= self.times) or (self.until is not None and now >= self.until)

    def matches(self, facts: Facts) -> bool:
        return all(re.search(pattern, facts.get(name) or "") for name, pattern in self.match.items())

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("id", "kind", "match", "params", "times", "until", "struck")}


@dataclass
class Exchange:
    """One HTTP request under way: `call` executes it; `market.view` is what reads of it answer from."""

    request: web.Request
    market: Market
    call: Callable[[], Awaitable[web.StreamResponse]]


ApiAct = Callable[[Fault, Exchange], Awaitable[web.StreamResponse]]
BoxAct = Callable[["Market", str, Fault], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    name: str
    says: str
    params: dict[str, Any]  # name: default; `...` where it must be given
    times: int | None = None  # how often it strikes unless told
    api: ApiAct | None = None
    box: BoxAct | None = None
    undo: BoxAct | None = None


KINDS: dict[str, Kind] = {}


def rule(name: str, says: str, times: int | None = None, **params: Any) -> None:
    KINDS[name] = Kind(name, says, params, times)


def api(name: str, says: str, times: int | None = None, **params: Any) -> Callable[[ApiAct], ApiAct]:
    def register(act: ApiAct) -> ApiAct:
        KINDS[name] = Kind(name, says, params, times, api=act)
        return act

    return register


def box(
    name: str, says: str, times: int | None = None, undo: BoxAct | None = None, **params: Any
) -> Callable[[BoxAct], BoxAct]:
    def register(act: BoxAct) -> BoxAct:
        KINDS[name] = Kind(name, says, {"after": 0.0, **params}, times, box=act, undo=undo)
        return act

    return register


class Faults:
    """The registry of one lab: shared by its markets, asked at every place where something may go wrong."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ids = itertools.count(1)
        self._all: dict[str, Fault] = {}

    def add(
        self,
        kind: str,
        match: dict[str, str] | None = None,
        params: dict[str, Any] | None = None,
        times: int | None = None,
        seconds: float | None = None,
    ) -> Fault:
        """Set a fault for so many strikes (None: the kind's default) and seconds (None: until cleared)."""
        known = _known_kind(kind)
        match, params = dict(match or {}), dict(params or {})
        _check_match(match)
        fault = Fault(
            id=f"fault-{next(self._ids)}",
            kind=kind,
            match=match,
            params=_checked_params(known, params),
            times=known.times if times is None else times,
            until=None if seconds is None else self._now() + seconds,
            set_at=self._now(),
        )
        self._all[fault.id] = fault
        return fault

    def remove(self, fault_id: str) -> Fault:
        if fault_id not in self._all:
            raise FaultError(f"no fault {fault_id!r} is set; `python -m lab faults` lists them")
        return self._all.pop(fault_id)

    def listed(self) -> list[Fault]:
        return list(self._all.values())

    def active(self, kind_filter: Callable[[Kind], bool], facts: Facts) -> list[Fault]:
        now = self._now()
        return [
            fault
            for fault in self._all.values()
            if kind_filter(KINDS[fault.kind]) and not fault.spent(now) and fault.matches(facts)
        ]

    def standing(self, kind: str, facts: Facts) -> Fault | None:
        """The first such fault that holds now, without counting a strike."""
        return next(iter(self.active(lambda known: known.name == kind, facts)), None)

    def strike(self, kind: str, facts: Facts) -> Fault | None:
        """As `standing`, and counts."""
        fault = self.standing(kind, facts)
        if fault:
            fault.struck += 1
        return fault

    async def around(self, exchange: Exchange, facts: Facts) -> web.StreamResponse:
        """Execute a request under every API fault that matches, the first one set outermost."""
        call = exchange.call
        for fault in reversed(self.active(lambda known: known.api is not None, facts)):
            fault.struck += 1
            call = _wrapped(fault, Exchange(exchange.request, exchange.market, call))
        return await call()


def _wrapped(fault: Fault, exchange: Exchange) -> Callable[[], Awaitable[web.StreamResponse]]:
    act = KINDS[fault.kind].api
    assert act is not None
    return lambda: act(fault, exchange)


def _known_kind(kind: str) -> Kind:
    if kind not in KINDS:
        raise FaultError(f"unknown fault kind {kind!r}; known: {', '.join(sorted(KINDS))}")
    return KINDS[kind]


def _check_match(match: dict[str, str]) -> None:
    for name, pattern in match.items():
        if name not in MATCHERS:
            raise FaultError(f"unknown matcher {name!r}; known: {', '.join(MATCHERS)}")
        try:
            re.compile(pattern)
        except re.error as problem:
            raise FaultError(f"matcher {name}: {pattern!r} is no regular expression: {problem}") from problem


def _checked_params(kind: Kind, given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(kind.params))
    if unknown:
        raise FaultError(f"{kind.name} has no parameter {unknown[0]!r}; it has: {', '.join(kind.params) or 'none'}")
    result = {**kind.params, **given}
    missing = [name for name, value in result.items() if value is ...]
    if missing:
        raise FaultError(f"{kind.name} needs the parameter {missing[0]!r}")
    return result


# The API lies.


@api("api.delay", "the answer comes so many seconds late", seconds=...)
async def _delay(fault: Fault, exchange: Exchange) -> web.StreamResponse:
    await asyncio.sleep(float(fault.params["seconds"]))
    return await exchange.call()


@api(
    "api.fail",
    "another answer instead; with executed=true the request is carried out all the same",
    status=500,
    body=None,
    content_type=None,
    headers=None,
    executed=False,
)
async def _fail(fault: Fault, exchange: Exchange) -> web.StreamResponse:
    if fault.params["executed"]:
        await exchange.call()
    status, body = int(fault.params["status"]), fault.params["body"]
    content_type = fault.params["content_type"]
    if body is None:
        body = {"title": "Error", "status": status, "detail": "upstream failure"}
        content_type = content_type or "application/problem+json"
    text = body if isinstance(body, str) else json.dumps(body)
    content_type = content_type or ("text/html" if text.lstrip().startswith("<") else "application/json")
    return web.Response(status=status, text=text, content_type=content_type, headers=fault.params["headers"])


@api(
    "api.stale",
    "reads answer from what was true so many seconds ago, or when the fault was set",
    seconds=None,
)
async def _stale(fault: Fault, exchange: Exchange) -> web.StreamResponse:
    age = fault.params["seconds"]
    at = fault.set_at if age is None else exchange.market.clock.now() - float(age)
    with exchange.market.looking_at(at):
        return await exchange.call()


@api("api.drop", "the request is executed, the connection is closed without an answer")
async def _drop(fault: Fault, exchange: Exchange) -> web.StreamResponse:
    response = await exchange.call()
    transport = exchange.request.transport
    if transport is not None:
        transport.abort()
    return response


# The market has nothing.

rule(
    "offer.none",
    "no capacity: renting and starting are refused; with listed=false the catalogue says so too",
    listed=True,
)
rule("box.never_ssh", "the box runs, but its port mapping never appears")


# The box.


@box(
    "box.kill_host", "the host dies with its box; the platform notices so many seconds later", times=1, notice_after=0.0
)
async def _kill_host(market: Market, rental_id: str, fault: Fault) -> None:
    await market.fail_host(rental_id, float(fault.params["notice_after"]))


@box("box.reboot", "the box restarts by itself", times=1)
async def _reboot(market: Market, rental_id: str, fault: Fault) -> None:
    await market.reboot(rental_id)


async def _give_gpu_back(market: Market, rental_id: str, fault: Fault) -> None:
    await market.box(rental_id).set_gpu(True)


@box("box.lose_gpu", "nvidia-smi finds no device any more", undo=_give_gpu_back)
async def _lose_gpu(market: Market, rental_id: str, fault: Fault) -> None:
    await market.box(rental_id).set_gpu(False)


async def _mend_link(market: Market, rental_id: str, fault: Fault) -> None:
    await market.box(rental_id).set_link()


@box(
    "link.slow",
    "the box's SSH link carries so many bytes a second, each so many seconds late",
    undo=_mend_link,
    rate_bytes_per_second=None,
    delay_seconds=0.0,
)
async def _slow_link(market: Market, rental_id: str, fault: Fault) -> None:
    rate = fault.params["rate_bytes_per_second"]
    await market.box(rental_id).set_link(
        rate_bytes_per_second=None if rate is None else int(rate), delay_seconds=float(fault.params["delay_seconds"])
    )


@box("link.cut", "the box's SSH link is dead; the box runs on", undo=_mend_link)
async def _cut_link(market: Market, rental_id: str, fault: Fault) -> None:
    await market.box(rental_id).set_link(cut=True)

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""vast.ai: the v0 verbs, and the paged v1 list (the v0 list is retired and answers 410).

Facts: the vendor's OpenAPI file (2026-07), its CLI 1.9.1 and its pages on instances, billing and ssh (2026-08).
A 200 by id proves neither life nor death, a 404 may be a bad key, and ``DELETE …/instances/`` without an id is a
bulk delete.
"""

from __future__ import annotations

import datetime as _dt
import json
import math
import re
import time
import typing as t
from decimal import Decimal
from pathlib import Path
from urllib.error import HTTPError

from .base import (
    DISK_ONLY,
    ON,
    UNKNOWN,
    AuthError,
    Conflict,
    Endpoint,
    Instance,
    Instances,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    Offers,
    Platform,
    PlatformError,
    RateLimited,
    Retired,
    UnknownOutcome,
    Volume,
    Volumes,
    Wanted,
    fingerprint,
)
from .http import Answer, HttpClient

#: ``actual_status`` to what is billed. Sources: state table of the spec, vendor page on billing (2026-08).
#: No state means gone: a destroyed instance has no record.
_BILLING = {
    None: DISK_ONLY,  # provisioning, nothing reported yet: the disk bills from the contract on (docs)
    "created": DISK_ONLY,  # made, not started (vendor client)
    "loading": DISK_ONLY,  # pulling the image: no GPU time (docs)
    "running": ON,
    "frozen": ON,  # paused in memory: the GPU bills (docs, medium confidence)
    "rebooting": ON,  # transient, keeps the GPU (spec)
    "recycling": ON,  # transient, keeps the GPU (spec)
    "stopped": DISK_ONLY,  # storage bills until destroy (docs)
    "exited": DISK_ONLY,  # the container's process ended; storage bills until destroy (docs, medium confidence)
    "unknown": ON,  # the host does not report: nothing says that it is free (spec)
    # Not billed while the host is away (docs), but the contract lives and bills again when the host is back: neither
    # on, nor off, nor a bill for the disk.
    "offline": UNKNOWN,
}
#: None of them ever runs again by itself; one that has run may come back from offline (spec).
_DEAD = frozenset({"stopped", "exited", "unknown", "offline"})
#: The mapping of ports is that of a container that runs or did so until now.
_REACHABLE = frozenset({"running", "frozen", "rebooting", "recycling"})

_GONE_CODES = frozenset({"not_found", "no_such_instance", "no_such_volume"})
_BY_STATUS: dict[int, type[PlatformError]] = {
    401: AuthError,
    403: AuthError,
    409: Conflict,
    410: Retired,
    429: RateLimited,
}
_REDIRECTS = frozenset({301, 302, 307, 308})
_RETRY_AFTER_MOST = 60.0  # the vendor's client honours no longer pause
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]*[A-Za-z0-9])?")

_PAGE = 25  # the most that the list gives at once (spec)
_PAGES_MOST = 400
_OFFERS = 64
_DEFAULT_DISK_GB = 20
_LABEL_MOST = 1024
_RELIABILITY_LEAST = 0.95  # below it hosts vanish; the vendor's own search page starts at 0.9
_SECONDS_LEFT_LEAST = 86400  # an offer ends with its host's contract, and the instance with it
#: Of a card's nominal memory; an L40S of 48 GB says 46068 MB.
_VRAM_MB_PER_GB = 950
_PROXY_AFTER_MINUTES = 2
_MICRO = Decimal("0.000001")
#: Without it a login lands in tmux, which Ansible cannot use (docs). Kept at /root/onstart.sh, run at every start.
_ONSTART = "touch /root/.no_auto_tmux"

#: How vast.ai spells its cards (answers of the search, 2026-08). A card that is not here is asked for as written.
_CARDS = (
    *("RTX 3060", "RTX 3070", "RTX 3080", "RTX 3080 Ti", "RTX 3090", "RTX 3090 Ti"),
    *("RTX 4060 Ti", "RTX 4070", "RTX 4070 Ti", "RTX 4070S", "RTX 4080", "RTX 4080S", "RTX 4090", "RTX 4090D"),
    *("RTX 5060 Ti", "RTX 5070", "RTX 5070 Ti", "RTX 5080", "RTX 5090"),
    *("RTX A4000", "RTX A5000", "RTX A6000", "RTX 5000Ada", "RTX 6000Ada", "RTX PRO 6000 S", "RTX PRO 6000 WS"),
    *("Tesla T4", "Tesla V100", "L4", "L40", "L40S", "A10", "A40", "A100 PCIE", "A100 SXM4", "A100X"),
    *("H100 PCIE", "H100 SXM", "H100 NVL", "H200", "H200 NVL", "GH200 SXM", "B200"),
)


class _Http(HttpClient):
    """vast.ai's own error codes, also with 200, and a redirect that only moves the trailing slash."""

    def _once(self, method: str, path: str, query: dict[str, t.Any] | None, body: t.Any) -> Answer:
        try:
            answer = super()._once(method, path, query, body)
        except PlatformError as problem:
            if problem.status not in _REDIRECTS:
                raise
            # A redirected call was not carried out. The other spelling of the path, on the same host: the key stays.
            path = path.rstrip("/") if path.endswith("/") else path + "/"
            answer = super()._once(method, path, query, body)
        if isinstance(answer.data, dict) and answer.data.get("success") is False:
            call = f"{method} {path}"
            told = _told_apart(call, answer.status, answer.data) or PlatformError(f"{call}: success is false")
            told.status = 400  # a refusal, whatever HTTP calls it: its outcome is known
            raise self._told(told, answer.data, None)
        return answer

    def _refusal(self, method: str, path: str, problem: HTTPError, raw: bytes) -> PlatformError:
        plain = super()._refusal(method, path, problem, raw)
        try:
            body = json.loads(raw)
        except ValueError:
            return plain
        told = _told_apart(f"{method} {path}", problem.code, body) or plain
        return self._told(told, body, plain.retry_after)

    def _told(self, problem: PlatformError, body: t.Any, retry_after: float | None) -> PlatformError:
        """With the pause that is asked for and the instance that a refused create left; without the key."""
        problem.seen = problem.seen.replace(self.headers["Authorization"].split()[-1], "***")
        problem.args = (problem.seen,)
        problem.left_behind = _contract(body)
        problem.retry_after = retry_after or _threshold(body)
        return problem


class VastAi(Platform):
    name = "vastai"
    can = frozenset({"rent", "show", "list", "start", "stop", "destroy", "balance", "offers"})
    console = "https://cloud.vast.ai/instances/"
    id_pattern = re.compile(r"[1-9][0-9]{0,17}")
    key_variable = "VAST_API_KEY"
    #: Two reads that far apart must both say gone: after a delete, answers were seen to lag (vendor's issues, 2026-06).
    proof_gap = 10.0
    page = _PAGE

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        key = environ.get(self.key_variable, "").strip() or _key_file(environ)
        if not key:
            raise AuthError(
                f"{self.key_variable} is not set",
                means="vast.ai cannot be asked anything.",
                do=f"Create a key in the console (Account, API keys) and type: export {self.key_variable}=…",
            )
        base = environ.get("VAST_API_BASE_URL") or environ.get("VAST_URL") or "https://console.vast.ai"
        self.fingerprint = fingerprint(key)
        self._http = _Http(self.name, base, {"Authorization": f"Bearer {key}"})
        self._gone_since: dict[str, float] = {}

    def whoami(self) -> str:
        return f"key accepted, user {self._user()['id']}"

    def account(self) -> str | None:
        return str(self._user()["id"])

    def balance(self) -> dict[str, t.Any]:
        """``balance`` is the prepaid credit, which is what runs out; ``account_balance`` is what the spec lists."""
        user = self._user()
        credit = user["credit"] if user.get("credit") is not None else user.get("balance")
        burn = sum((found.rate.amount for found in self.list() if found.rate), Decimal(0))
        return {
            "balance": _usd(credit, "credit").as_dict(),
            "account_balance": _usd(user.get("balance"), "balance").as_dict(),
            "burn_per_hour": Money(burn, "USD").as_dict(),
        }

    def offers(self, wanted: Wanted) -> Offers:
        """On demand, verified, reliable, reachable without a relay; the rate holds the disk that is asked for."""
        names = _card_names(wanted.gpu)
        found = self._search(_query(wanted, names))
        if not found:
            found = self._search(_query(wanted, [name.replace(" ", "_") for name in names]))
        fitting = [entry for entry in found if _fits(entry, wanted, names)]
        return sorted((_offer(entry) for entry in fitting), key=lambda offer: offer.rate.amount)

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        if wanted.volume:
            raise _no_volumes()
        if len(wanted.name) > _LABEL_MOST:
            raise PlatformError(
                f"the name has {len(wanted.name)} characters",
                means=f"vast.ai allows {_LABEL_MOST}. Nothing was rented.",
                do="Shorten job_project.",
            )
        disk_gb = wanted.disk_gb or _DEFAULT_DISK_GB
        body = {
            "client_id": "me",
            "image": wanted.image,
            "disk": disk_gb,
            "label": wanted.name,
            "env": dict(wanted.env),
            "onstart": _ONSTART,
            "runtype": "ssh_direct",
            "target_state": "running",
            # Fail rather than make a stopped instance, which bills for its disk.
            "cancel_unavail": True,
        }
        contract = self._create(f"/api/v0/asks/{self.check_id(offer.id)}/", body, wanted)
        return Instance(
            id=contract,
            name=wanted.name,
            status="created",
            billing=_BILLING["created"],
            rate=offer.rate,
            region=offer.region,
            gpu=offer.gpu,
            gpu_count=offer.gpu_count,
            image=wanted.image,
            disk_gb=disk_gb,
        )

    def show(self, instance_id: str) -> Instance:
        """NotFound only when two reads, ``proof_gap`` apart, both say gone."""
        path_id = self.check_id(instance_id)
        try:
            return self._look(path_id)
        except NotFound:
            first = self._gone_since.setdefault(path_id, time.monotonic())
            rest = first + self.proof_gap - time.monotonic()
            if rest <= 0:
                raise
        self._http.sleep(rest)
        return self._look(path_id)

    def list(self) -> Instances:
        return self._listed({})

    def find(self, name: str) -> Instances:
        filters = {"select_filters": json.dumps({"label": {"eq": name}})}
        return [found for found in self._listed(filters) if found.name == name]

    def start(self, instance_id: str) -> str:
        """Runs again if its host still has the GPU free; an instance never moves to another host."""
        return self._state(instance_id, "running")

    def stop(self, instance_id: str) -> str:
        """The GPU stops billing; the disk bills on, at times for more than before (vendor page on billing)."""
        return self._state(instance_id, "stopped")

    def destroy(self, instance_id: str) -> str:
        path = f"/api/v0/instances/{self.check_id(instance_id)}/"
        try:
            answer = self._change("DELETE", path, {})
        except NotFound as problem:
            return problem.seen
        return f"DELETE answered {answer.status}, success true"

    def leftovers(self, instance: Instance | None) -> Volumes:
        """Local volumes; with an instance, those that no other instance uses."""
        answer = self._http.read("/api/v0/volumes", {"owner": "me"})
        entries = _member(answer, "volumes", list)
        if instance is not None:
            entries = [entry for entry in entries if not _users(entry) - {instance.id}]
        return [_volume(entry) for entry in entries]

    def ensure_key(self, public_key: str) -> bool:
        if any(_same_key(public_key, known) for known in self._keys()):
            return False
        self._change("POST", "/api/v0/ssh/", {"ssh_key": public_key})
        return True

    def create_volume(self, name: str, size_gb: int, region: str | None) -> Volume:
        raise _no_volumes()

    def find_volume(self, name: str) -> Volume | None:
        raise _no_volumes()

    def delete_leftover(self, kind: str, leftover_id: str) -> str:
        if kind != "local_volume":
            return super().delete_leftover(kind, leftover_id)
        answer = self._change("DELETE", "/api/v0/volumes/", {"id": int(self.check_id(leftover_id))})
        return f"DELETE answered {answer.status}, success true"

    # -- calls --------------------------------------------------------------------------------------------------------

    def _change(self, method: str, path: str, body: dict[str, t.Any]) -> Answer:
        return _success(self._http.write(method, path, body), f"{method} {path}")

    def _state(self, instance_id: str, state: str) -> str:
        answer = self._change("PUT", f"/api/v0/instances/{self.check_id(instance_id)}/", {"state": state})
        return f"PUT state {state} answered {answer.status}, success true"

    def _user(self) -> dict[str, t.Any]:
        answer = self._http.read("/api/v0/users/current")
        if not isinstance(answer.data, dict) or not _is_id(answer.data.get("id")):
            raise _not_understood("GET /api/v0/users/current: the answer has no user id")
        return answer.data

    def _keys(self) -> t.Iterator[str]:
        try:
            answer = self._http.read("/api/v0/ssh/")
        except PlatformError as problem:
            if problem.status == 404 and not isinstance(problem, AuthError):
                return  # so a user without keys is answered (spec)
            raise
        if not isinstance(answer.data, list):
            raise _not_understood("GET /api/v0/ssh/: the answer is no list")
        for entry in answer.data:
            yield str(entry.get("key") or entry.get("public_key") or "") if isinstance(entry, dict) else ""

    def _search(self, query: dict[str, t.Any]) -> t.Any:
        return _member(self._http.ask("/api/v0/bundles/", query), "offers", list)

    def _create(self, path: str, body: dict[str, t.Any], wanted: Wanted) -> str:
        """The new instance's id. What a refused create left behind is destroyed before the refusal is told."""
        try:
            answer = _success(self._http.write("PUT", path, body), f"PUT {path}")
        except PlatformError as problem:
            refusal = self._scrubbed(problem, wanted)
            left = problem.left_behind
            if left:
                self._give_back(left, refusal)
            raise refusal from None
        contract = _contract(answer.data)
        if contract is None:
            raise UnknownOutcome(f"PUT {path}: {answer.status} without new_contract")
        return contract

    def _give_back(self, contract: str, refusal: PlatformError) -> None:
        try:
            self.destroy(contract)
        except PlatformError as problem:
            raise UnknownOutcome(
                f"{refusal.seen}; it left instance {contract}, which could not be destroyed: {problem.seen}",
                means=f"Instance {contract} may be billing for its disk.",
                do=f"Destroy {contract} at {self.console}, or run the same command again: it looks for it by name.",
            ) from None
        refusal.seen += f"; the instance {contract} that it left was destroyed"

    def _scrubbed(self, problem: PlatformError, wanted: Wanted) -> PlatformError:
        """The same refusal without the values that were sent: the answer may quote them."""
        seen = problem.seen
        for secret in sorted(wanted.env.values(), key=len, reverse=True):
            if len(secret) > 3:
                seen = seen.replace(secret, "***")
        return type(problem)(seen, problem.means, problem.do, problem.status)

    def _look(self, path_id: str) -> Instance:
        call = f"GET /api/v0/instances/{path_id}/"
        answer = self._http.read(f"/api/v0/instances/{path_id}/", {"owner": "me"})
        if not isinstance(answer.data, dict) or "instances" not in answer.data:
            raise _not_understood(f"{call}: {answer.status} without instances")
        if answer.data["instances"] is None:
            raise NotFound(f"{call}: {answer.status}, instances is null", status=answer.status)
        instance = _instance(answer.data["instances"])
        if instance.id != path_id:
            raise _not_understood(f"{call}: the answer is about instance {instance.id}")
        self._gone_since.pop(path_id, None)
        return instance

    def _listed(self, filters: dict[str, str]) -> Instances:
        """Every page, and as many as the platform says there are; once more if something came or went meanwhile."""
        try:
            return self._all_pages(filters)
        except _Uncounted:
            return self._all_pages(filters)

    def _all_pages(self, filters: dict[str, str]) -> Instances:
        call, found, token, total = "GET /api/v1/instances/", {}, None, 0
        seen_tokens: set[str] = set()
        for _ in range(_PAGES_MOST):
            query: dict[str, t.Any] = {"limit": self.page, **filters}
            if token:
                query["after_token"] = token
            answer = self._http.read("/api/v1/instances/", query)
            page = [_instance(entry) for entry in _member(answer, "instances", list)]
            total = _member(answer, "total_instances", int)
            found.update({instance.id: instance for instance in page})
            token = answer.data.get("next_token")
            if not token:
                break
            if not isinstance(token, str) or token in seen_tokens:
                raise _not_understood(f"{call}: the pages do not end")
            seen_tokens.add(token)
        else:
            raise _not_understood(f"{call}: more than {_PAGES_MOST} pages")
        if len(found) != total:
            raise _Uncounted(
                f"{call}: {len(found)} instances on all pages, total_instances says {total}",
                means="The list is not whole, so nothing is read from it.",
            )
        return [*found.values()]


class _Uncounted(PlatformError):
    """The pages do not hold as many as the platform counts."""


# -- what is sent -----------------------------------------------------------------------------------------------------


def _key_file(environ: t.Mapping[str, str]) -> str:
    """The vendor's own key file, where its CLI keeps it."""
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)
    if not config:
        return ""
    try:
        return Path(config, "vastai", "vast_api_key").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _card_names(asked: str) -> list[str]:
    """vast.ai's names for a card: the one that is meant, or all whose name holds what was written."""
    wanted = _plain(asked)
    exact = [name for name in _CARDS if _plain(name) == wanted]
    return exact or [name for name in _CARDS if re.search(rf"{wanted}(?!\d)", _plain(name))] or [asked]


def _query(wanted: Wanted, names: list[str]) -> dict[str, t.Any]:
    query: dict[str, t.Any] = {
        "gpu_name": {"in": names},
        "num_gpus": {"eq": wanted.gpu_count},
        "disk_space": {"gte": wanted.disk_gb or _DEFAULT_DISK_GB},
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "direct_port_count": {"gte": 1},
        "reliability": {"gte": _RELIABILITY_LEAST},
        "duration": {"gte": _SECONDS_LEFT_LEAST},
        "type": "ondemand",
        "order": [["dph_total", "asc"]],
        "limit": _OFFERS,
        "allocated_storage": wanted.disk_gb or _DEFAULT_DISK_GB,
    }
    if wanted.vram_gb:
        query["gpu_ram"] = {"gte": wanted.vram_gb * _VRAM_MB_PER_GB}
    if wanted.cuda:
        query["cuda_max_good"] = {"gte": float(_cuda(wanted.cuda))}
    if wanted.region:
        query["geolocation"] = {"eq": wanted.region}
    return query


def _cuda(asked: str) -> Decimal:
    match = re.fullmatch(r"\s*(?:>=)?\s*(\d+(?:\.\d+)?)\s*", asked)
    if not match:
        raise PlatformError(
            f"job_resources.cuda is {asked!r}",
            means="vast.ai can only be asked for a least version. Nothing was called.",
            do="Write it like this: cuda: '>=12.1'.",
        )
    return Decimal(match[1])


# -- what comes back --------------------------------------------------------------------------------------------------


def _told_apart(call: str, status: int, body: t.Any) -> PlatformError | None:
    """The error that the body's own code means; None where it has none that is known."""
    if not isinstance(body, dict):
        return None
    code, text = _words(body)
    seen = f"{call}: {status} {code} {text}".rstrip()
    kind: type[PlatformError]
    if code == "auth_error" or "invalid user key" in text.lower():
        kind = AuthError  # also with 404 (spec of the search)
    elif code == "no_such_ask" or "no_such_ask" in text:
        kind = NoCapacity  # 404 and 410; the spec's 404 says invalid_args and has the code in the text
    elif code == "deprecated_endpoint":
        kind = Retired
    elif code == "search_quota_exceeded":
        return RateLimited(  # without a status: it does not pass within the minute, so it is not asked again
            seen,
            means="The day's quota of searches is used up; it starts anew at 00:00 UTC.",
            do="Try again tomorrow, or rent by hand in the console.",
        )
    elif code in _GONE_CODES:
        kind = NotFound
    elif status == 404:
        return PlatformError(seen, means="A 404 without the API's own code proves nothing.", status=status)
    else:
        kind = _BY_STATUS.get(status, PlatformError)
    return kind(seen, status=status)


def _words(body: dict[str, t.Any]) -> tuple[str, str]:
    """The error code and the text beside it, in one short printable line."""
    code, text = body.get("error"), body.get("msg") or body.get("detail") or ""
    return _clean(code if isinstance(code, str) else "", 60), _clean(text if isinstance(text, str) else "", 200)


def _clean(text: str, most: int) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:most]


def _threshold(body: t.Any) -> float | None:
    """The least pause in seconds that a 429 names: ``API requests too frequent endpoint threshold=2.0``."""
    match = re.search(r"threshold=(\d+(?:\.\d+)?)", _words(body)[1]) if isinstance(body, dict) else None
    return min(float(match[1]), _RETRY_AFTER_MOST) if match else None


def _success(answer: Answer, call: str) -> Answer:
    """The answer to a change, if it says ``success: true``; with ``false`` it has not come this far."""
    if not (isinstance(answer.data, dict) and answer.data.get("success") is True):
        raise UnknownOutcome(f"{call}: {answer.status} without success")
    return answer


def _not_understood(seen: str) -> PlatformError:
    return PlatformError(
        seen,
        means="It was not understood whole, so nothing is read from it.",
        do="Run the same command again; if it repeats, the API has changed and the collection needs an update.",
    )


def _member(answer: Answer, name: str, kind: type) -> t.Any:
    value = answer.data.get(name) if isinstance(answer.data, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _not_understood(f"the answer has no {name}")
    return value


def _is_id(value: t.Any) -> t.TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _contract(body: t.Any) -> str | None:
    """The id of a new instance: ``new_contract``, never ``id``."""
    value = body.get("new_contract") if isinstance(body, dict) else None
    return str(value) if _is_id(value) else None


def _decimal(value: t.Any, what: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _not_understood(f"{what} is no number")
    return Decimal(str(value))


def _usd(value: t.Any, what: str) -> Money:
    return Money(_decimal(value, what), "USD")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _same_key(one: str, other: str) -> bool:
    return one.split()[:2] == other.split()[:2]


def _no_volumes() -> PlatformError:
    return PlatformError(
        "job_volumes was asked for on vast.ai",
        means="A volume there is bound to one machine and cannot follow the job to another. Nothing was created.",
        do="Remove job_volumes and set job_durable to an off-box remote such as s3:bucket/prefix.",
    )


def _fits(entry: t.Any, wanted: Wanted, names: list[str]) -> bool:
    """The search is not believed blindly: what it answers is held against what was asked."""
    if not isinstance(entry, dict) or not _is_id(entry.get("id")):
        raise _not_understood("an offer has no id")
    cards = {_plain(name) for name in names}
    return (
        _plain(str(entry.get("gpu_name"))) in cards
        and entry.get("num_gpus") == wanted.gpu_count
        and _decimal(entry.get("gpu_ram"), "gpu_ram of an offer") >= (wanted.vram_gb or 0) * _VRAM_MB_PER_GB
        and (not wanted.cuda or _decimal(entry.get("cuda_max_good"), "cuda_max_good") >= _cuda(wanted.cuda))
        and _decimal(entry.get("direct_port_count"), "direct_port_count of an offer") >= 1
        and entry.get("rentable") is not False
        and not entry.get("is_bid")
    )


def _offer(entry: dict[str, t.Any]) -> Offer:
    return Offer(
        id=str(entry["id"]),
        gpu=_clean(str(entry["gpu_name"]), 60),
        gpu_count=entry["num_gpus"],
        vram_gb=round(entry["gpu_ram"] / 1024),
        # Rounded: the last digits of a float differ from search to search, and a plan is approved by its price.
        rate=Money(_decimal(entry.get("dph_total"), "dph_total of an offer").quantize(_MICRO), "USD"),
        region=_clean(str(entry.get("geolocation") or ""), 60) or None,
        stock=_offer_notes(entry),
    )


def _offer_notes(entry: dict[str, t.Any]) -> str:
    """One machine; how reliable, and what traffic costs, for it is metered both ways."""
    reliability = entry.get("reliability2", entry.get("reliability"))
    told = ["1 machine"]
    if isinstance(reliability, (int, float)):
        told.append(f"reliability {reliability:.1%}")
    up, down = entry.get("inet_up_cost"), entry.get("inet_down_cost")
    if isinstance(up, (int, float)) and isinstance(down, (int, float)):
        told.append(f"traffic per GB {up:.4f} up, {down:.4f} down")
    else:
        told.append("traffic price unknown")
    return ", ".join(told)


def _instance(data: t.Any) -> Instance:
    """Nothing of ``extra_env``, ``onstart``, ``jupyter_token`` or ``instance_api_key`` is kept: they hold secrets."""
    if not isinstance(data, dict) or not _is_id(data.get("id")) or "actual_status" not in data:
        raise _not_understood("an answer about an instance lacks its id or actual_status")
    status = data["actual_status"]
    if status is not None and not isinstance(status, str):
        raise _not_understood(f"instance {data['id']}: actual_status is no text")
    billing = _BILLING.get(status, UNKNOWN)
    price = data.get("storage_total_cost") if billing == DISK_ONLY else data.get("dph_total")
    gpus, disk = data.get("num_gpus"), data.get("disk_space")
    return Instance(
        id=str(data["id"]),
        name=str(data.get("label") or ""),
        status="none yet" if status is None else _clean(status, 60),
        billing=billing,
        rate=None if price is None else _usd(price, f"price of instance {data['id']}"),
        endpoint=_endpoint(data) if status in _REACHABLE else None,
        region=_clean(str(data.get("geolocation") or ""), 60) or None,
        gpu=data.get("gpu_name"),
        gpu_count=gpus if _is_id(gpus) else 0,
        image=data.get("image_uuid"),
        disk_gb=None if disk is None else int(_decimal(disk, "disk_space")),
        created_at=_time(data.get("start_date")),
        dead=status in _DEAD,
        note=_note(data),
    )


def _note(data: dict[str, t.Any]) -> str | None:
    states = {data.get(name) for name in ("cur_state", "intended_status", "next_state")}
    if data.get("is_bid") and states == {"stopped"}:
        return "outbid: its host runs for a higher bid; it resumes by itself if the bid wins again"
    if data["actual_status"] == "offline":
        return "its host is unreachable: not billed meanwhile, and billed again when the host is back"
    return _clean(str(data.get("status_msg") or ""), 200) or None


def _endpoint(data: dict[str, t.Any]) -> Endpoint | None:
    """Direct where port 22 is mapped. A relay only where direct was not asked for, or did not come in two minutes."""
    ports = data.get("ports")
    mapped = ports.get("22/tcp") if isinstance(ports, dict) else None
    if isinstance(mapped, list) and mapped and isinstance(mapped[0], dict):
        return _address(data.get("public_ipaddr"), mapped[0].get("HostPort"))
    runtype, up, port = str(data.get("image_runtype") or ""), data.get("uptime_mins"), data.get("ssh_port")
    waited = isinstance(up, (int, float)) and up >= _PROXY_AFTER_MINUTES
    if ("direc" in runtype and not waited) or not isinstance(port, int):
        return None
    return _address(data.get("ssh_host"), port + 1 if "jupyter" in runtype else port)


def _address(host: t.Any, port: t.Any) -> Endpoint | None:
    """The host is what a stranger's machine reports, so it must look like one before ssh is given it."""
    name, number = str(host or "").strip(), str(port or "")
    if not _HOST.fullmatch(name) or not number.isdecimal() or not 0 < int(number) < 65536:
        return None
    return Endpoint(name, int(number), "root")


def _time(seconds: t.Any) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1 << 34:
        return None
    return _dt.datetime.fromtimestamp(seconds, _dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _users(volume: t.Any) -> set[str]:
    """Ids of the instances that use a volume."""
    users = volume.get("instances") if isinstance(volume, dict) else None
    entries = users if isinstance(users, list) else []
    return {str(user.get("id") if isinstance(user, dict) else user) for user in entries}


def _volume(data: t.Any) -> Volume:
    if not isinstance(data, dict) or not _is_id(data.get("id")):
        raise _not_understood("an answer about a volume lacks its id")
    name = data.get("label") or data.get("name") or f"volume {data['id']}"
    place = f"machine {data['machine_id']}" if data.get("machine_id") else None
    size = math.ceil(_decimal(data.get("disk_space"), "disk_space of a volume"))
    return Volume("local_volume", str(data["id"]), _clean(str(name), 100), size, place)

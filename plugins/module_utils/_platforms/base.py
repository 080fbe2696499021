# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every platform client offers, and the one place where the meter verdict is computed.

PRIVATE: import it from inside the collection only.

Money is a decimal string with a currency; times are ISO-8601 UTC; rates are per hour.
"""

from __future__ import annotations

import datetime as _dt
import hashlib
import re
import typing as t
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from decimal import Decimal

ON, DISK_ONLY, OFF, UNKNOWN, UNPROVABLE = "on", "disk_only", "off", "unknown", "unprovable"


class PlatformError(Exception):
    """A platform did not do what was asked.

    ``seen`` is what came back, ``means`` what that says, ``do`` the next step for the user. ``detail`` is the
    platform's own short words, ``retry_after`` the seconds it asked to wait,
    ``left_behind`` the id of an instance that a refused create left all the same.
    """

    code = "platform_error"
    means = "The platform did not do what was asked."
    do = "Run the same command again; if it repeats, look at the platform's console."

    def __init__(self, seen: str, means: str | None = None, do: str | None = None, status: int | None = None) -> None:
        super().__init__(seen)
        self.seen = seen
        self.means = means or type(self).means
        self.do = do or type(self).do
        self.status = status
        self.detail = ""
        self.retry_after: float | None = None
        self.left_behind: str | None = None


class AuthError(PlatformError):
    code = "auth"
    means = "The platform does not accept the key, or the key lacks a right."
    do = "Check the key in the environment variable that the platform's profile names."


class NotFound(PlatformError):
    code = "not_found"
    means = "The platform says that it does not know this id. Alone, that proves nothing."


class NoCapacity(PlatformError):
    code = "no_capacity"
    means = "Nothing that fits is free now."
    do = "Try again later, or allow another GPU, region or a higher job_max_price."


class RateLimited(PlatformError):
    code = "rate_limited"
    means = "Too many calls in a short time."
    do = "Wait a minute, then run the same command again."


class Conflict(PlatformError):
    code = "conflict"
    means = "The platform refuses this in the present state."


class Retired(PlatformError):
    code = "api_retired"
    means = "This version of the platform's API no longer exists. It says nothing about the rental."
    do = "Update the collection."


class UnknownOutcome(PlatformError):
    code = "unknown_outcome"
    means = "The call may or may not have taken effect."
    do = "Run the same command again: it looks for the rental by its name before it creates one."


@dataclass(frozen=True)
class Money:
    """An amount of one currency; per hour where it is a rate."""

    amount: Decimal
    currency: str

    def as_dict(self) -> dict[str, str]:
        return {"amount": format(self.amount.normalize(), "f"), "currency": self.currency}

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.currency}"

    @classmethod
    def parse(cls, text: str | None, what: str = "price") -> Money | None:
        """``"0.80 USD"`` to Money; None stays None. Raises ValueError naming ``what``."""
        if text is None or str(text).strip() == "":
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s+([A-Za-z]{3})\s*", str(text))
        if not match:
            raise ValueError(f"{what} is {text!r}; it needs an amount and a currency, for example '0.80 USD'")
        return cls(Decimal(match[1]), match[2].upper())


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int
    user: str

    def as_dict(self) -> dict[str, t.Any]:
        return {"host": self.host, "port": self.port, "user": self.user}


@dataclass(frozen=True)
class Instance:
    """One rental as the platform's API knows it. ``status`` is the platform's own word."""

    id: str
    name: str
    status: str
    billing: str
    rate: Money | None = None
    endpoint: Endpoint | None = None
    region: str | None = None
    gpu: str | None = None
    gpu_count: int = 0
    image: str | None = None
    disk_gb: int | None = None
    volume_ids: tuple[str, ...] = ()
    created_at: str | None = None
    dead: bool = False
    note: str | None = None

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "billing": self.billing,
            "rate": self.rate.as_dict() if self.rate else None,
            "endpoint": self.endpoint.as_dict() if self.endpoint else None,
            "region": self.region,
            "gpu": self.gpu,
            "gpu_count": self.gpu_count,
            "image": self.image,
            "disk_gb": self.disk_gb,
            "volume_ids": list(self.volume_ids),
            "created_at": self.created_at,
            "dead": self.dead,
            "note": self.note,
        }


@dataclass(frozen=True)
class Offer:
    """Something that can be rented now; ``rate`` is for the whole instance, per hour."""

    id: str
    gpu: str
    gpu_count: int
    vram_gb: int
    rate: Money
    region: str | None
    stock: str
    spot: bool = False

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "id": self.id,
            "gpu": self.gpu,
            "gpu_count": self.gpu_count,
            "vram_gb": self.vram_gb,
            "rate": self.rate.as_dict(),
            "region": self.region,
            "stock": self.stock,
            "spot": self.spot,
        }


@dataclass(frozen=True)
class Volume:
    """Storage that outlives instances and bills until it is deleted itself."""

    kind: str
    id: str
    name: str
    size_gb: int
    region: str | None

    def as_dict(self) -> dict[str, t.Any]:
        return {"kind": self.kind, "id": self.id, "name": self.name, "size_gb": self.size_gb, "region": self.region}


@dataclass(frozen=True)
class Wanted:
    """What a job asks for, in the job file's terms."""

    name: str
    gpu: str
    gpu_count: int = 1
    vram_gb: int | None = None
    disk_gb: int | None = None
    cuda: str | None = None
    image: str | None = None
    region: str | None = None
    volume: Volume | None = None
    volume_path: str | None = None
    public_key: str | None = None
    env: dict[str, str] = field(default_factory=dict)


#: Named here, since a client has a method ``list`` that hides the type in its class body.
Instances: t.TypeAlias = list[Instance]
Offers: t.TypeAlias = list[Offer]
Volumes: t.TypeAlias = list[Volume]


class Platform(ABC):
    """A client. It raises the errors above and never returns a half-parsed answer."""

    name: t.ClassVar[str]
    can: t.ClassVar[frozenset[str]]
    console: t.ClassVar[str]
    id_pattern: t.ClassVar[re.Pattern[str]]
    #: A short digest of the key in use, never the key: the same key is the same account.
    fingerprint: str = ""

    def check_id(self, instance_id: str) -> str:
        """The id, if it can be one of this platform's; an empty or strange one must never enter a path."""
        if not self.id_pattern.fullmatch(instance_id):
            raise PlatformError(
                f"{instance_id!r} cannot be an instance id of {self.name}",
                means="Nothing was called.",
                do="Copy the id from the platform's console or from the ledger.",
            )
        return instance_id

    @abstractmethod
    def whoami(self) -> str:
        """A cheap call that only a working key can make; its answer names what was seen."""

    def account(self) -> str | None:
        """Whose rentals these are, in the platform's own stable word; None where it does not say.

        An id that is missing under another account's key proves nothing.
        """
        return None

    @abstractmethod
    def balance(self) -> dict[str, t.Any]: ...

    @abstractmethod
    def offers(self, wanted: Wanted) -> Offers:
        """Fitting offers, cheapest first."""

    @abstractmethod
    def rent(self, wanted: Wanted, offer: Offer) -> Instance: ...

    @abstractmethod
    def show(self, instance_id: str) -> Instance: ...

    @abstractmethod
    def list(self) -> Instances: ...

    @abstractmethod
    def destroy(self, instance_id: str) -> str:
        """Ask for the end of the rental; returns what the platform answered."""

    @abstractmethod
    def leftovers(self, instance: Instance | None) -> Volumes:
        """What still bills when the instance is gone."""

    def start(self, instance_id: str) -> str:
        raise PlatformError(f"{self.name} cannot start {instance_id}", means="Nothing was called.")

    def stop(self, instance_id: str) -> str:
        raise PlatformError(f"{self.name} cannot stop {instance_id}", means="Nothing was called.")

    def find(self, name: str) -> Instances:
        return [found for found in self.list() if found.name == name]

    def ensure_key(self, public_key: str) -> bool:
        """Make the account hand this key to new instances; True if something was changed."""
        return False

    def find_volume(self, name: str) -> Volume | None:
        return None

    def create_volume(self, name: str, size_gb: int, region: str | None) -> Volume:
        raise PlatformError(f"{self.name} has no volumes", means="Nothing was created.", do="Remove job_volumes.")

    def delete_leftover(self, kind: str, leftover_id: str) -> str:
        raise PlatformError(f"{self.name} has no leftovers of kind {kind!r}", means="Nothing was deleted.")


def fingerprint(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def now() -> str:
    return _dt.datetime.now(_dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _evidence(call: str, status: str, saw: str) -> dict[str, str]:
    return {"call": call, "at": now(), "status": status, "saw": saw}


def _ask(call: str, evidence: list[dict[str, str]], ask: t.Callable[[], t.Any]) -> t.Any:
    """The answer, or the PlatformError itself; either way one line of evidence by the caller or here."""
    try:
        return ask()
    except PlatformError as problem:
        evidence.append(_evidence(call, problem.code, problem.seen))
        return problem


def _said_about(platform: Platform, instance_id: str, evidence: list[dict[str, str]]) -> tuple[str, Instance | None]:
    """What the read by id says of the billing: a billing word, or ``gone``."""
    shown = _ask("show", evidence, lambda: platform.show(instance_id))
    if isinstance(shown, NotFound):
        return "gone", None
    if isinstance(shown, PlatformError):
        return UNKNOWN, None
    evidence.append(_evidence("show", "ok", f"status {shown.status}"))
    return ("gone" if shown.billing == OFF else shown.billing), shown


def _missing_from_list(platform: Platform, instance_id: str, evidence: list[dict[str, str]]) -> bool:
    listed = _ask("list", evidence, platform.list)
    if isinstance(listed, PlatformError):
        return False
    there = [found for found in listed if found.id == instance_id and found.billing != OFF]
    evidence.append(
        _evidence("list", "ok", f"{len(listed)} instances, this one {'among them' if there else 'not among them'}")
    )
    return not there


def _key_works(platform: Platform, evidence: list[dict[str, str]]) -> bool:
    answer = _ask("whoami", evidence, platform.whoami)
    if isinstance(answer, PlatformError):
        return False
    evidence.append(_evidence("whoami", "ok", str(answer)))
    return True


def verdict(platform: Platform, instance_id: str, known: bool) -> dict[str, t.Any]:
    """The meter verdict of one instance, with its evidence (architecture §4.2).

    ``known``: the ledger has seen this id alive. ``off`` needs all of: a read by id that says gone, a complete
    list without it, the same key passing a positive control, and a known id. Anything short of that is ``unknown``.
    """
    evidence: list[dict[str, str]] = []
    if "show" not in platform.can:
        return _verdict(
            UNPROVABLE, instance_id, evidence, None, "No API can prove it: look at the bill in " + platform.console
        )
    said, shown = _said_about(platform, instance_id, evidence)
    if said != "gone":
        advice = "" if said in (ON, DISK_ONLY) else f"It may be billing. Look at {platform.console} now."
        return _verdict(said, instance_id, evidence, shown, advice)
    absent = _missing_from_list(platform, instance_id, evidence)
    controlled = _key_works(platform, evidence)
    if absent and controlled and known:
        return _verdict(OFF, instance_id, evidence, shown, "")
    if not known:
        evidence.append(_evidence("ledger", "unknown", "this id was never seen alive from here"))
    return _verdict(UNKNOWN, instance_id, evidence, shown, f"Not proven. Look at {platform.console} now.")


def _verdict(
    state: str, instance_id: str, evidence: list[dict[str, str]], shown: Instance | None, advice: str
) -> dict[str, t.Any]:
    return {
        "state": state,
        "instance_id": instance_id,
        "evidence": evidence,
        "rate": shown.rate.as_dict() if shown and shown.rate else None,
        "leftovers": [],
        "advice": advice,
    }

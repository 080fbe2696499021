# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Paperspace machines (API v1).

Facts: types of the vendor's own CLI (2026-02), vendor pages, SkyPilot 0.14.1. Nothing of it was called live. The API
tells no prices before the rental and registers no SSH keys: prices are declared, the key gets in by a startup script.
A shared drive's answer holds a password: of an answer only the members named here are read.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import shlex
import time
import typing as t
from decimal import Decimal

from .base import (
    DISK_ONLY,
    OFF,
    ON,
    UNKNOWN,
    AuthError,
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
    UnknownOutcome,
    Volume,
    Volumes,
    Wanted,
    fingerprint,
)
from .declared import prices, unknown_price
from .http import Answer, HttpClient

_BILLING = {
    # Compute is not billed while it is made, storage is (vendor pages; the state names are the specification's).
    "provisioning": DISK_ONLY,
    "starting": ON,
    "restarting": ON,
    "serviceready": ON,
    "upgrading": ON,
    "ready": ON,
    "stopping": ON,
    # Storage bills on.
    "off": DISK_ONLY,
    # In a third party's list alone: nothing says that it is free.
    "failed": ON,
}
_DEAD = frozenset({"off", "failed"})
#: GB of memory by machine type; a type that is not here is offered only where no memory is asked for.
_VRAM = {
    "H100": 80,
    "A100-80G": 80,
    "A100": 40,
    "A6000": 48,
    "A5000": 24,
    "A4000": 16,
    "V100-32G": 32,
    "V100": 16,
    "P6000": 24,
    "P5000": 16,
    "P4000": 8,
    "RTX5000": 16,
    "RTX4000": 8,
}
_NVLINK = frozenset({"H100x8", "A100-80Gx8"})  # asked for with these by the vendor's CLI
_DISKS_GB = (50, 100, 250, 500, 1000, 2000)
_REGION = "East Coast (NY2)"
_PAGE_SIZE, _MAX_PAGES = 100, 1000
_PRICES = "PAPERSPACE_PRICES"
_LEFTOVERS = {"static_ip": "/public-ips", "snapshot": "/snapshots", "shared_drive": "/shared-drives"}

_EVENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

Item: t.TypeAlias = dict[str, t.Any]
#: Named here, since the client has a method ``list`` that hides the type in its class body.
Items: t.TypeAlias = list[Item]


class Paperspace(Platform):
    name = "paperspace"
    can = frozenset({"rent", "show", "list", "start", "stop", "destroy", "offers"})
    console = "https://console.paperspace.com"
    id_pattern = re.compile(r"[A-Za-z0-9]{4,64}")
    key_variable = "PAPERSPACE_API_KEY"
    #: Seconds between two looks at the event of a destroy, and how many in all.
    poll_seconds: t.ClassVar[float] = 2.0
    patience_seconds: t.ClassVar[float] = 60.0

    def __init__(self, environ: t.Mapping[str, str], sleep: t.Callable[[float], None] = time.sleep) -> None:
        key = environ.get(self.key_variable, "").strip()
        if not key:
            raise AuthError(
                f"{self.key_variable} is not set",
                means="Paperspace cannot be asked anything.",
                do=f"Create a key in the console (Team settings, API keys) and type: export {self.key_variable}=…",
            )
        self._environ, self._sleep = environ, sleep
        base = environ.get("PAPERSPACE_API_BASE_URL") or "https://api.paperspace.com/v1"
        self.fingerprint = fingerprint(key)
        self._http = HttpClient(self.name, base, {"Authorization": f"Bearer {key}"})
        self._networks: dict[str, str] = {}  # the private network of each machine that was seen

    def whoami(self) -> str:
        """The session of the key; without a login it is ``null``, with 200."""
        session = self._http.read("/auth/session").data
        team = session.get("team") if isinstance(session, dict) else None
        if not isinstance(team, dict):
            raise AuthError("GET /auth/session: no team in the answer", means="The key opens no session.", status=401)
        return f"key accepted, team {team.get('namespace') or team.get('handle')}"

    def balance(self) -> dict[str, t.Any]:
        """Post-paid by card, so there is no balance; the burn is that of the machines alone."""
        rates = [machine.rate.amount for machine in self.list() if machine.rate]
        standing = self._standing()
        return {
            "balance": None,
            "burn_per_hour": Money(sum(rates, Decimal(0)), "USD").as_dict(),
            "standing": "good" if standing["isInGoodStanding"] else "not good",
        }

    def offers(self, wanted: Wanted) -> Offers:
        """Machine types that the template lists as available, at the prices that the user declared."""
        declared = prices(self._environ, _PRICES)
        fitting = [label for label in self._available(wanted.image) if _fits(label, wanted)]
        priced = [label for label in fitting if label in declared]
        if fitting and not priced:
            raise unknown_price("Paperspace", _PRICES, fitting[0], fitting[0], "USD", self.console)
        offers = [_offer(label, declared[label], wanted) for label in priced]
        return sorted(offers, key=lambda offer: offer.rate.amount)

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        if not self._standing()["isInGoodStanding"]:
            raise PlatformError(
                "the account is not in good standing",
                means="Paperspace would not start a machine. Nothing was rented.",
                do=f"Look at Billing in {self.console}.",
                status=402,
            )
        body: Item = {
            "name": wanted.name,
            "machineType": offer.id,
            "templateId": wanted.image,
            "region": wanted.region or _REGION,
            "diskSize": _disk(wanted.disk_gb or 0),
            # Without a public address there is no SSH; a static one bills on after the machine.
            "publicIpType": "dynamic",
            "startOnCreate": True,
            # By the wall clock, not by idleness: it would end long runs.
            "autoShutdownEnabled": False,
            "autoSnapshotEnabled": False,
            "emailPassword": False,
        }
        if offer.id in _NVLINK:
            body["enableNvlink"] = True
        if wanted.public_key:
            body["startupScriptId"] = self._key_script(wanted.public_key)
        return self._machine(_member(self._create(body), "data"))

    def show(self, instance_id: str) -> Instance:
        return self._machine(self._http.read(f"/machines/{self.check_id(instance_id)}").data)

    def list(self) -> Instances:
        return [self._machine(item) for item in self._all("/machines")]

    def start(self, instance_id: str) -> str:
        """The dynamic address is another one afterwards."""
        self._change("PATCH", f"/machines/{self.check_id(instance_id)}/start", {})
        return "start was accepted"

    def stop(self, instance_id: str) -> str:
        """Compute ends once it is off; storage bills on."""
        self._change("PATCH", f"/machines/{self.check_id(instance_id)}/stop", {})
        return "stop was accepted"

    def destroy(self, instance_id: str) -> str:
        """Ask for it and watch the event, since the answer only says that it was asked for."""
        try:
            answer = self._change("DELETE", f"/machines/{self.check_id(instance_id)}", None)
        except NotFound as problem:
            return problem.seen
        return f"DELETE answered {answer.status}, {self._event_end(answer.data)}"

    def leftovers(self, instance: Instance | None) -> Volumes:
        """Static addresses, snapshots and shared drives of this machine, or of the whole team.

        The address of a machine that is gone belongs to nobody and bills on, so unassigned ones are told too. A
        shared drive belongs to a private network: that of the machine, where this client has seen it.
        """
        own = instance.id if instance else None
        network = self._networks.get(own) if own else None
        addresses = [ip for ip in self._all("/public-ips") if not own or ip.get("assignedMachineId") in (own, None)]
        snapshots = [one for one in self._all("/snapshots") if not own or one.get("machineId") == own]
        drives = [
            one for one in self._all("/shared-drives") if not own or (network and one.get("networkId") == network)
        ]
        return [
            *(Volume("static_ip", _id(ip, "ip"), _id(ip, "ip"), 0, ip.get("region")) for ip in addresses),
            *(_volume("snapshot", snapshot) for snapshot in snapshots),
            *(_volume("shared_drive", drive) for drive in drives),
        ]

    def delete_leftover(self, kind: str, leftover_id: str) -> str:
        if kind not in _LEFTOVERS:
            return super().delete_leftover(kind, leftover_id)
        checked = _address(leftover_id) if kind == "static_ip" else self.check_id(leftover_id)
        return f"DELETE answered {self._change('DELETE', f'{_LEFTOVERS[kind]}/{checked}', None).status}"

    def ensure_key(self, public_key: str) -> bool:
        """A startup script of the team, named by the key, that lets it in; True if it had to be made."""
        before = self._scripts().get(_script_name(public_key))
        return before is None and bool(self._key_script(public_key))

    def _key_script(self, public_key: str) -> str:
        name = _script_name(public_key)
        known = self._scripts().get(name)
        if known:
            return known
        body = {"name": name, "script": _authorize(public_key), "isRunOnce": True}
        made = self._change("POST", "/startup-scripts", body).data
        return _id(made.get("data", made) if isinstance(made, dict) else made)

    def _scripts(self) -> dict[str, str]:
        return {str(script.get("name")): _id(script) for script in self._all("/startup-scripts")}

    def _available(self, template: str | None) -> t.Iterator[str]:
        """The machine types that can be had now with this template, or with any."""
        known = [*self._all("/os-templates"), *self._all("/custom-templates")]
        chosen = [one for one in known if template is None or one.get("id") == template]
        if not chosen:
            raise PlatformError(
                f"no template {template!r} among {len(known)}",
                means="job_image names the template on Paperspace, and this one does not exist for the team.",
                do=f"Copy a template id from {self.console} into job_image.",
            )
        types = [entry for one in chosen for entry in one.get("availableMachineTypes") or []]
        if not all(isinstance(entry, dict) and isinstance(entry.get("machineTypeLabel"), str) for entry in types):
            raise _not_understood("a template", "machine types that cannot be read")
        return iter(dict.fromkeys(entry["machineTypeLabel"] for entry in types if entry.get("isAvailable") is True))

    def _standing(self) -> Item:
        standing = self._http.read("/billing/account-standing").data
        if not isinstance(standing, dict) or not isinstance(standing.get("isInGoodStanding"), bool):
            raise _not_understood("GET /billing/account-standing", "no standing")
        return standing

    def _create(self, body: Item) -> t.Any:
        try:
            return self._change("POST", "/machines", body).data
        except PlatformError as problem:
            if "capacity" in problem.detail.lower():  # it has no code of its own
                raise NoCapacity(problem.seen, status=problem.status) from problem
            if problem.status == 403:
                means = "The key may not rent this, or the account must first be approved for the machine type."
                do = f"Ask for the type under Machines in {self.console}. Nothing was rented."
                raise AuthError(problem.seen, means=means, do=do, status=403) from problem
            raise

    def _change(self, method: str, path: str, body: Item | None) -> Answer:
        try:
            return self._http.write(method, path, body)
        except PlatformError as problem:
            # Carried out, perhaps, and answered with something unreadable; or given up half way (TIMEOUT).
            if problem.status and (problem.status < 300 or problem.status == 408):
                raise UnknownOutcome(problem.seen) from problem
            raise

    def _event_end(self, answer: t.Any) -> str:
        """How the event ended. An event that fails means that the machine is still there."""
        event = answer.get("event") if isinstance(answer, dict) else None
        left = self.patience_seconds
        while isinstance(event, dict) and _EVENT_ID.fullmatch(str(event.get("id") or "")):
            if event.get("state") == "done":
                return "event done"
            if event.get("state") in ("error", "cancelled"):
                said = " ".join(str(event.get("error") or "").split())[:200]
                raise PlatformError(
                    f"the event of the destroy ended in {event['state']} {said}".rstrip(),
                    means="The machine was not destroyed and counts as billing.",
                    do=f"Run the same command again; then look at {self.console}.",
                )
            if left <= 0:
                return f"event {event.get('state')} after {self.patience_seconds:.0f} s"
            self._sleep(self.poll_seconds)
            left -= self.poll_seconds
            try:
                event = self._http.read(f"/machine-events/{event['id']}").data
            except PlatformError as problem:
                return f"its event could not be read ({problem.code})"
        return "without an event"

    def _all(self, path: str) -> Items:
        """Every item of every page; an error where a page is not understood."""
        items: Items = []
        query: dict[str, t.Any] = {"limit": _PAGE_SIZE}
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            page = self._http.read(path, query).data
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise _not_understood(f"GET {path}", "no items")
            if not all(isinstance(item, dict) for item in page["items"]) or not isinstance(page.get("hasMore"), bool):
                raise _not_understood(f"GET {path}", "items or a page mark that cannot be read")
            items += page["items"]
            if not page["hasMore"]:
                return items
            following = page.get("nextPage")
            if not isinstance(following, str) or not following or following in seen:
                raise _not_understood(f"GET {path}", "more pages and no way to the next one")
            seen.add(following)
            query["after"] = following
        raise _not_understood(f"GET {path}", "pages without end")

    def _machine(self, data: t.Any) -> Instance:
        if not isinstance(data, dict) or not isinstance(data.get("state"), str):
            raise _not_understood("a machine", "no state")
        machine_id, state = _id(data), data["state"]
        if isinstance(data.get("networkId"), str):
            self._networks[machine_id] = data["networkId"]
        billing = OFF if data.get("dtDeleted") else _BILLING.get(state, UNKNOWN)
        label = str(data.get("machineType") or "")
        address = data.get("publicIp")
        return Instance(
            id=machine_id,
            name=str(data.get("name") or ""),
            status="deleted" if billing == OFF else state,
            billing=billing,
            rate=_rate(data, billing),
            endpoint=Endpoint(_address(address), 22, "paperspace") if state == "ready" and address else None,
            region=data.get("region"),
            gpu=_split(label)[0],
            gpu_count=_split(label)[1],
            created_at=data.get("dtCreated"),
            dead=state in _DEAD or billing == OFF,
        )


def _not_understood(what: str, lacks: str) -> PlatformError:
    return PlatformError(
        f"{what}: an answer with {lacks}",
        means="It was not understood whole, so nothing is read from it.",
        do="Run the same command again; if it repeats, the API has changed and the collection needs an update.",
    )


def _member(data: t.Any, name: str) -> t.Any:
    """A member of the answer to a create; without it the machine may be there all the same."""
    if not isinstance(data, dict) or not isinstance(data.get(name), dict):
        raise UnknownOutcome(f"POST /machines: an answer without {name}")
    return data[name]


def _id(item: t.Any, name: str = "id") -> str:
    if not isinstance(item, dict) or not isinstance(item.get(name), str) or not item[name]:
        raise _not_understood("an item", f"no {name}")
    return t.cast(str, item[name])


def _address(text: t.Any) -> str:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError as problem:
        raise PlatformError(f"{text!r} is no address", means="Nothing was called.") from problem


def _amount(value: t.Any) -> Decimal | None:
    """A number of the API, also where it is written as a string."""
    try:
        return Decimal(str(value)) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except ArithmeticError:
        return None


def _rate(data: Item, billing: str) -> Money | None:
    """USD per hour: use and storage while it is on, storage while it is off; None where one of them is not told."""
    usage, storage = _amount(data.get("usageRate")), _amount(data.get("storageRate"))
    parts = [storage] if billing == DISK_ONLY else [usage, storage]
    if billing == OFF:
        return Money(Decimal(0), "USD")
    known = [part for part in parts if part is not None]
    return Money(sum(known, Decimal(0)), "USD") if len(known) == len(parts) else None


def _split(label: str) -> tuple[str, int]:
    """``A100-80Gx8`` to its card and how many of them."""
    match = re.fullmatch(r"(?P<card>.+?)(?:x(?P<count>\d+))?", label)
    return (match["card"], int(match["count"] or 1)) if match else ("", 0)


def _plain(text: str) -> str:
    return re.sub(r"gb?$", "", re.sub(r"[^a-z0-9]", "", text.lower()))


def _fits(label: str, wanted: Wanted) -> bool:
    card, count = _split(label)
    names = {_plain(label), _plain(card), _plain(card.partition("-")[0])}
    if _plain(wanted.gpu) not in names or count != wanted.gpu_count:
        return False
    return not wanted.vram_gb or _VRAM.get(card, 0) >= wanted.vram_gb


def _offer(label: str, price: Money, wanted: Wanted) -> Offer:
    """The declared price is that of the whole machine, as the console shows it."""
    card, count = _split(label)
    return Offer(label, card, count, _VRAM.get(card, 0), price, wanted.region or _REGION, "available")


def _disk(disk_gb: int) -> int:
    fitting = [size for size in _DISKS_GB if size >= disk_gb]
    if not fitting:
        raise PlatformError(
            f"a disk of {disk_gb} GB was asked for",
            means=f"Paperspace offers {', '.join(map(str, _DISKS_GB))} GB. Nothing was rented.",
            do="Lower disk_gb in job_resources.",
        )
    return fitting[0]


def _volume(kind: str, item: Item) -> Volume:
    size = _amount(item.get("size"))
    return Volume(kind, _id(item), str(item.get("name") or ""), int(size or 0), item.get("region"))


def _script_name(public_key: str) -> str:
    return "tenant-gpu-" + hashlib.sha256(" ".join(public_key.split()[:2]).encode()).hexdigest()[:12]


def _authorize(public_key: str) -> str:
    """A startup script, run as root, that lets this key in as the user paperspace, as often as it is run."""
    key = shlex.quote(" ".join(public_key.split()))
    return "\n".join(
        [
            "#!/bin/bash",
            "home=/home/paperspace",
            'known="$home/.ssh/authorized_keys"',
            'mkdir -p -m 700 "$home/.ssh"',
            f'grep -sqxF {key} "$known" || echo {key} >> "$known"',
            'chmod 600 "$known"',
            'chown -R paperspace:paperspace "$home/.ssh"',
            "",
        ]
    )

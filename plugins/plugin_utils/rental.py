# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Renting and giving back, written down first (architecture §4.3): the steps behind the ``instance`` verb."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
import typing as t
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    OFF,
    UNKNOWN,
    UNPROVABLE,
    Instance,
    Money,
    NoCapacity,
    NotFound,
    Offer,
    Platform,
    PlatformError,
    Volume,
    Wanted,
    now,
    verdict,
)

from .errors import Refused
from .ledger import Ledger, Rental, cost_of_run, seconds_between

#: Hours in a billing month, where a platform prices storage by the month.
MONTH_HOURS = 730
#: Lists lag behind creates, by up to a minute as far as is known; twice that is waited for.
_LAG_SECONDS = 120.0
_BETWEEN_PROOFS_SECONDS = 1.0


@dataclass(frozen=True)
class Plan:
    """What would be rented, at which price; ``digest`` is what the user types to approve exactly this."""

    name: str
    offer: Offer
    compute: Money
    disk: Money
    volume: Volume | None
    volume_new: dict[str, t.Any] | None
    volume_rate: Money | None
    max_duration: int | None
    boot_timeout: int

    @property
    def total(self) -> Money:
        return Money(self.compute.amount + self.disk.amount, self.compute.currency)

    @property
    def worst(self) -> Decimal | None:
        """The cost at ``max_duration``; None where that is not set."""
        if self.max_duration is None:
            return None
        return self.total.amount * Decimal(self.max_duration) / 3600

    @property
    def digest(self) -> str:
        facts = [self.name, self.offer.id, str(self.total), self.volume_new, self.offer.region]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def lines(self) -> list[str]:
        where = f" in {self.offer.region}" if self.offer.region else ""
        worst = f"{self.worst:.4f} {self.total.currency}" if self.worst is not None else "unknown: no job_max_duration"
        rows = [
            f"rent {self.offer.gpu_count} x {self.offer.gpu}{where} as {self.name} (stock {self.offer.stock})",
            f"price {self.total} an hour (compute {self.compute}, disk {self.disk}); at max_duration {worst}",
            f"given back by itself if it cannot be reached within {self.boot_timeout} s",
        ]
        if self.volume_new:
            new = self.volume_new
            rows.append(f"new volume {new['name']}, {new['size_gb']} GB, {self.volume_rate} an hour until deleted")
        elif self.volume:
            rows.append(f"volume {self.volume.name} ({self.volume.id}), {self.volume.size_gb} GB")
        return rows

    def as_dict(self) -> dict[str, t.Any]:
        worst = None if self.worst is None else f"{self.worst:.6f}"
        return {"offer": self.offer.as_dict(), "rate": rate_of(self), "worst": worst, "digest": self.digest}


def rate_of(plan: Plan) -> dict[str, str]:
    return {
        **plan.total.as_dict(),
        "compute": format(plan.compute.amount.normalize(), "f"),
        "disk": format(plan.disk.amount.normalize(), "f"),
    }


def monthly(price_per_gb: str | None, size_gb: int, currency: str) -> Money:
    """An hourly rate from a price per GB and month; without a price it counts as 0."""
    amount = Decimal(price_per_gb or "0") * size_gb / MONTH_HOURS
    return Money(amount.quantize(Decimal("0.00000001")), currency)


class Renter:
    """One slot's dealings with its platform."""

    def __init__(
        self, platform: Platform, ledger: Ledger, slot: str, say: t.Callable[[str], None], *, dry: bool = False
    ) -> None:
        self.platform, self.ledger, self.slot, self.say, self.dry = platform, ledger, slot, say, dry

    def note(self, action: str, **fields: t.Any) -> None:
        """A line in the ledger; none in check mode."""
        if not self.dry:
            self.ledger.append(action, slot=self.slot, platform=self.platform.name, **fields)

    def name_for(self, project: str, run_id: str) -> str:
        """Unique for every rental, also for the second one of a run: an unknown outcome is looked up by it."""
        base = f"{project}-{self.slot}-{run_id}"
        earlier = [line for line in self.ledger.entries() if line["action"] == "create_intent"]
        used = sum(1 for line in earlier if line.get("run_id") == run_id and line.get("slot") == self.slot)
        return base if used == 0 else f"{base}-{used + 1}"

    def plan(
        self, job: dict[str, t.Any], run_id: str, storage: dict[str, str], boot_timeout: int
    ) -> tuple[Plan, Wanted]:
        """The cheapest fitting offer within the price limits. Raises NoCapacity or Refused, and rents nothing."""
        resources, name = job["resources"], self.name_for(job["project"], run_id)
        if not resources["gpu"]:
            raise Refused(
                "no_gpu",
                "job_resources names no gpu",
                "It is not known what to rent.",
                "Say it with its count: job_resources: {gpu: 'RTX4090:1'}.",
            )
        if not job["image"]:
            raise Refused("no_image", "job_image is not set", "The platform must be told an image.", "Set job_image.")
        asked = job["volumes"][0] if job["volumes"] else None
        volume = self.platform.find_volume(asked["name"]) if asked else None
        wanted = Wanted(
            name=name,
            gpu=resources["gpu"],
            gpu_count=resources["gpu_count"],
            vram_gb=resources["vram_gb"],
            disk_gb=resources["disk_gb"] or 20,
            cuda=resources["cuda"],
            image=job["image"],
            region=job["region"],
            volume=volume,
            volume_path=(asked or {}).get("path"),
        )
        offers = self.platform.offers(wanted)
        if not offers:
            raise NoCapacity(
                f"no offer of {self.platform.name} fits {resources['gpu']} x {resources['gpu_count']}"
                + (f" in {volume.region}, where the volume is" if volume else "")
            )
        offer = offers[0]
        plan = Plan(
            name=name,
            offer=offer,
            compute=offer.rate,
            disk=monthly(storage.get("disk"), wanted.disk_gb or 0, offer.rate.currency),
            volume=volume,
            volume_new=asked if asked and volume is None else None,
            volume_rate=monthly(storage.get("volume"), asked["size_gb"], offer.rate.currency) if asked else None,
            max_duration=job["max_duration"],
            boot_timeout=boot_timeout,
        )
        self._refuse_over_limits(plan, job, run_id)
        return plan, wanted

    def _refuse_over_limits(self, plan: Plan, job: dict[str, t.Any], run_id: str) -> None:
        """The price an hour, and what the run has cost already plus all of ``max_duration`` once more."""
        spent = cost_of_run(self.ledger, run_id)["amount"]
        worst = None if plan.worst is None or spent is None else plan.worst + Decimal(spent)
        for field, value, text in (
            ("max_price", plan.total.amount, "an hour"),
            ("max_cost", worst, f"at job_max_duration, {spent} of it spent already"),
        ):
            limit = job[field]
            if limit is None:
                continue
            if limit["currency"] != plan.total.currency:
                raise Refused(
                    "currency",
                    f"job_{field} is in {limit['currency']}, the offer in {plan.total.currency}",
                    "They cannot be compared. Nothing was rented.",
                    f"Give job_{field} in {plan.total.currency}.",
                )
            if value is None:
                raise Refused(
                    "no_max_duration",
                    "job_max_cost is set and job_max_duration is not",
                    "The cost at the end cannot be told. Nothing was rented.",
                    "Set job_max_duration.",
                )
            if value > Decimal(limit["amount"]):
                raise Refused(
                    f"over_{field}",
                    f"the cheapest fitting offer comes to {value:.4f} {plan.total.currency} {text}",
                    f"That is over job_{field} ({limit['amount']} {limit['currency']}). Nothing was rented.",
                    f"Raise job_{field}, lower job_max_duration, or allow another GPU.",
                )

    def rent(self, plan: Plan, wanted: Wanted, run_id: str, public_key: str) -> Instance:
        """Key, volume, intent, create: each written down before the next call."""
        if self.platform.ensure_key(public_key):
            self.say("public key registered with the account")
        volume = plan.volume or (self._create_volume(plan, run_id) if plan.volume_new else None)
        if plan.volume:
            self._settle_volume_intent(plan.volume, plan)
        wanted = Wanted(**{**wanted.__dict__, "volume": volume, "public_key": public_key})
        self.note("create_intent", name=plan.name, rate=rate_of(plan), run_id=run_id)
        try:
            instance = self.platform.rent(wanted, plan.offer)
        except PlatformError as problem:
            if problem.code != "unknown_outcome" and (problem.status or 500) < 500:
                self.note("create_failed", name=plan.name, saw=problem.seen, run_id=run_id)
                raise
            self.say(f"{problem.seen}: looking for {plan.name} before anything else")
            found = self._look_for(plan.name, _LAG_SECONDS)
            if found is None:
                self.note("create_failed", name=plan.name, saw=f"{problem.seen}; no such name in clean lists")
                raise
            instance = found
        return self.adopt(instance, rate_of(plan), run_id, "created")

    def adopt(self, instance: Instance, rate: dict[str, str] | None, run_id: str | None, action: str) -> Instance:
        self.note(action, instance_id=instance.id, name=instance.name, rate=rate, run_id=run_id, saw=instance.status)
        account = f"{self._account()}#{self.platform.fingerprint}"
        if account != "#":
            self.note("account", instance_id=instance.id, account=account)
        return instance

    def _account(self) -> str:
        """The platform's word for the account; empty where it does not say, or could not be asked."""
        try:
            return self.platform.account() or ""
        except PlatformError:
            return ""

    def _look_for(self, name: str, seconds: float) -> Instance | None:
        """A create with unknown outcome, looked for by its unique name until clean lists have lacked it long enough.

        Raises the platform's error where the last list could not be read: then the intent stays pending.
        """
        deadline = time.monotonic() + seconds
        while True:
            over = time.monotonic() >= deadline
            try:
                found = [one for one in self.platform.find(name) if one.billing != OFF]
            except PlatformError:
                if over:
                    raise
                found = []
            if found:
                return found[0]
            if over:
                return None
            time.sleep(2)

    def settle_intent(self, run_id: str | None) -> Instance | None:
        """An intent whose outcome was never written down: find its instance, or write down that there is none."""
        intent = self.ledger.pending_intent(self.slot)
        if intent is None:
            return None
        age = seconds_between(intent["at"], now())
        if age < _LAG_SECONDS:
            self.say(f"looking for {intent['name']}, whose creation was cut off {age:.0f} s ago")
        found = self._look_for(intent["name"], max(0.0, _LAG_SECONDS - age))
        if found is None:
            self.note("create_failed", name=intent["name"], saw="no instance of that name in clean lists")
            return None
        self.say(f"found {found.id}, created by an earlier run that was cut off")
        return self.adopt(found, intent.get("rate"), intent.get("run_id") or run_id, "created")

    def _create_volume(self, plan: Plan, run_id: str) -> Volume:
        asked = t.cast("dict[str, t.Any]", plan.volume_new)
        self.note("volume_intent", name=asked["name"], run_id=run_id)
        volume = self.platform.create_volume(asked["name"], asked["size_gb"], plan.offer.region)
        rate = plan.volume_rate.as_dict() if plan.volume_rate else None
        self.note("volume_created", instance_id=volume.id, name=volume.name, rate=rate, run_id=run_id)
        self.say(f"volume {volume.name} ({volume.id}), {volume.size_gb} GB in {volume.region}: bills until deleted")
        return volume

    def _settle_volume_intent(self, volume: Volume, plan: Plan) -> None:
        """A volume of ours whose creation was cut off before its id was written down."""
        intents = [line for line in self.ledger.entries() if line["action"] == "volume_intent"]
        ours = any(line.get("name") == volume.name for line in intents)
        if ours and volume.id not in {known.volume_id for known in self.ledger.volumes()}:
            rate = plan.volume_rate.as_dict() if plan.volume_rate else None
            self.note("volume_created", instance_id=volume.id, name=volume.name, rate=rate)

    def wait_ready(self, instance: Instance, seconds: float) -> Instance:
        """Until the platform names an SSH address. Raises Refused when the time is over or the instance died."""
        deadline = time.monotonic() + seconds
        pause, last = 0.5, instance.status
        while True:
            try:
                seen = self.platform.show(instance.id)
                last = seen.status
            except NotFound:
                seen = None  # a read right after the create can miss it
            if seen and seen.endpoint:
                self.note("ready", instance_id=seen.id, endpoint=seen.endpoint.as_dict())
                return seen
            if (seen and seen.dead) or time.monotonic() + pause > deadline:
                raise Refused(
                    "never_reachable",
                    f"instance {instance.id} is {last} and has no SSH address after {seconds:.0f} s",
                    "The host is broken or the image does not start; it bills all the same.",
                    "",
                    instance_id=instance.id,
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 5.0)

    def destroy(self, instance_id: str, seconds: float, **facts: t.Any) -> dict[str, t.Any]:
        """Intent, delete, then the verdict until it is ``off`` or the deadline passes; all of it written down."""
        before = self._before(instance_id)
        self.note("destroy_intent", instance_id=instance_id, **facts)
        try:
            saw = self.platform.destroy(instance_id)
            self.note("destroyed", instance_id=instance_id, saw=saw)
        except PlatformError as problem:
            self.note("destroy_failed", instance_id=instance_id, saw=problem.seen)
            if problem.code not in ("unknown_outcome", "platform_error"):
                raise
        found = self.prove(instance_id, seconds)
        found["leftovers"] = self._leftovers(before)
        return found

    def _leftovers(self, before: Instance | None) -> list[dict[str, t.Any]]:
        """What bills on: what the instance had, and every volume of the ledger that was never deleted."""
        known = {volume.volume_id for volume in self.ledger.volumes() if volume.ended_at is None}
        known |= set(before.volume_ids) if before else set()
        try:
            there = [volume for volume in self.platform.leftovers(None) if volume.id in known]
        except PlatformError as problem:
            self.say(f"whether storage bills on could not be asked: {problem.seen}")
            return []
        return [{**volume.as_dict(), "rate": self._volume_rate(volume.id)} for volume in there]

    def _before(self, instance_id: str) -> Instance | None:
        try:
            return self.platform.show(instance_id)
        except PlatformError:
            return None

    def _volume_rate(self, volume_id: str) -> dict[str, str] | None:
        return next((known.rate for known in self.ledger.volumes() if known.volume_id == volume_id), None)

    def prove(self, instance_id: str, seconds: float) -> dict[str, t.Any]:
        """The verdict, polled until it is ``off`` or the deadline passes.

        ``off`` must be seen twice in a row, under the account that rented it, of an instance that we destroyed or that
        is old enough for every list to know it: a list that lags lacks a young one too.
        """
        rental = self.ledger.rental(instance_id)
        deadline = time.monotonic() + seconds
        pause, before = 0.5, ""
        while True:
            ours = rental is not None and self._same_account(rental)
            found = verdict(self.platform, instance_id, ours)
            if rental is not None and not ours:
                found["advice"] = "It was rented with another key or account than the one in use now: use that one."
            if found["state"] == OFF and rental is not None and self._too_young(rental):
                found.update(state=UNKNOWN, advice="It is too young for a list to be believed that lacks it.")
            final = found["state"] == UNPROVABLE or found["state"] == before == OFF
            late = time.monotonic() + pause > deadline
            if final or (late and found["state"] != OFF):
                saw = "; ".join(f"{line['call']}: {line['saw']}" for line in found["evidence"])
                self.note("verdict", instance_id=instance_id, verdict=found["state"], saw=saw)
                return found
            before = found["state"]
            time.sleep(_BETWEEN_PROOFS_SECONDS if before == OFF else pause)
            pause = min(pause * 2, 10.0)

    def _same_account(self, rental: Rental) -> bool:
        """The same key, or another key of the same account; True where nothing of it was written down."""
        account, _, key = (rental.account or "").partition("#")
        if key and key == self.platform.fingerprint:
            return True
        return self._account() == account if account else not key

    @staticmethod
    def _too_young(rental: Rental) -> bool:
        return rental.ended_at is None and seconds_between(rental.created_at, now()) < _LAG_SECONDS


def key_pair(path: str) -> str:
    """The public half of the rentals' SSH key; made on first use, without a passphrase, in ``tenant_home``."""
    private = Path(path).expanduser()
    public = private.with_name(private.name + ".pub")
    if not private.exists():
        private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tenant.gpu", "-f", str(private)]
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise Refused(
                "ssh_key",
                f"ssh-keygen could not make {private}: {problem}",
                "Without a key no box can be reached. Nothing was rented.",
                "Install openssh-client, or name a key of yours in rent_ssh_key.",
            ) from problem
    if not public.exists():
        raise Refused(
            "ssh_key",
            f"{private} has no public half {public.name} beside it",
            "It cannot be given to the box. Nothing was rented.",
            f"Make it: ssh-keygen -y -f {private} > {public}",
        )
    text = public.read_text(encoding="utf-8").strip()
    if len(text.splitlines()) != 1 or len(text.split()) < 2 or not text.startswith(("ssh-", "ecdsa-", "sk-")):
        raise Refused(
            "ssh_key",
            f"{public} does not hold one public key line",
            "A truncated key asks for a password at login. Nothing was rented.",
            f"Make it again: ssh-keygen -y -f {private} > {public}",
        )
    return text

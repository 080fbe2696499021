# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rental market behind every dialect: catalogue, account, rentals with their boxes, volumes.

States are the market's own; a dialect spells them as its platform does. All times are seconds since the epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from lab.boxes import Box, BoxSpec, Gpu, Mount, drop_volume, make_volume
from lab.faults import KINDS, BoxAct, Fault, Faults
from lab.meter import Charge, Clock, Rate, Span, charge, money, total

PLACING, STARTING, RUNNING, STOPPED, FAILED, GONE = "placing", "starting", "running", "stopped", "failed", "gone"
_ON = (PLACING, STARTING, RUNNING)

_GIB = 1 << 30
_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_PORTS = (*range(20000, 32000), *range(61000, 65000))  # outside what Linux hands to outgoing connections
_BOOT_TRIES = 3
_SNAPSHOTS = 1000
_TICK_SECONDS = 1.0

log = logging.getLogger(__name__)


class MarketError(Exception):
    """A refusal; a dialect turns it into its platform's answer."""


class Invalid(MarketError):
    """The request breaks a rule."""


class Unknown(MarketError):
    """No such rental, volume or offer."""


class Conflict(MarketError):
    """Not in this state."""


class NoCapacity(MarketError):
    """Nothing like it is free; `host_full` where it is the rental's own host that is full."""

    def __init__(self, text: str, host_full: bool = False) -> None:
        super().__init__(text)
        self.host_full = host_full


class NoCredit(MarketError):
    """The account cannot pay for it."""


@dataclass(frozen=True)
class GpuType:
    """One kind of card; prices per hour and card, `stock` by region: NONE, LOW, MEDIUM or HIGH."""

    id: str
    name: str
    memory_gb: int
    prices: dict[str, Decimal]  # by cloud
    max_count: dict[str, int]  # by cloud
    stock: dict[str, str]  # by region
    pool: str | None = None
    cuda: str = "12.8"


@dataclass(frozen=True)
class Order:
    """What a customer asks for."""

    name: str
    gpu: str
    image: str
    gpu_count: int = 1
    cloud: str = "SECURE"
    regions: tuple[str, ...] = ()
    disk_gb: int = 20
    env: dict[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ("22/tcp",)
    keys: tuple[str, ...] = ()
    ssh: bool = True
    disk: tuple[int, str] | None = None  # the host's own persistent disk: GB and path
    volume: tuple[str, str] | None = None  # a volume's id and path
    extra: dict[str, Any] = field(default_factory=dict)  # what only the dialect understands


@dataclass
class Rental:
    id: str
    order: Order
    gpu: GpuType
    region: str
    created_at: float
    spans: list[Span] = field(default_factory=list)
    placed: bool = False
    host_dead: bool = False
    generation: int = 0
    started_at: float | None = None
    up_at: float | None = None
    endpoint: tuple[str, int] | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        return self.order.name

    @property
    def state(self) -> str:
        return self.spans[-1].state

    @property
    def rate(self) -> Rate:
        return self.spans[-1].rate

    def copy(self) -> Rental:
        return dataclasses.replace(self, spans=list(self.spans))


@dataclass
class Volume:
    id: str
    name: str
    size_gb: int
    region: str
    kind: str
    created_at: float
    spans: list[Span] = field(default_factory=list)

    @property
    def state(self) -> str:
        return self.spans[-1].state

    def copy(self) -> Volume:
        return dataclasses.replace(self, spans=list(self.spans))


@dataclass
class Records:
    """Everything the account can see, at one time."""

    at: float = 0.0
    rentals: dict[str, Rental] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    ssh_keys: list[str] = field(default_factory=list)

    def copy(self, at: float) -> Records:
        return Records(
            at,
            {name: rental.copy() for name, rental in self.rentals.items()},
            {name: volume.copy() for name, volume in self.volumes.items()},
            list(self.ssh_keys),
        )


class Platform(Protocol):
    """What the market must know of a platform; a dialect module's `PLATFORM`."""

    @property
    def name(self) -> str: ...
    @property
    def currency(self) -> str: ...
    @property
    def catalogue(self) -> tuple[GpuType, ...]: ...
    @property
    def regions(self) -> tuple[str, ...]: ...

    def rental_rate(self, rental: Rental, state: str) -> Rate: ...
    def volume_rate(self, size_gb: int, kind: str) -> Rate: ...
    def credit_needed(self, rate: Rate) -> Decimal: ...
    def when_broke(self, rental: Rental) -> str:
        """`stop` or `destroy`: what happens to a running rental when the balance reaches nought."""

    def box_env(self, rental: Rental, host: str, port: int) -> dict[str, str]: ...


@dataclass(frozen=True)
class Timing:
    """Seconds that the steps of a rental take."""

    provisioning: float = 0.6
    starting: float = 1.0
    ssh: float = 0.5  # running, but the port mapping is not published yet
    stop_grace: float = 2.0
    preempt_grace: float = 5.0


TIMINGS = {
    "instant": Timing(0.0, 0.0, 0.0, 0.5, 0.5),
    "fast": Timing(0.1, 0.2, 0.1, 0.5, 1.0),
    "default": Timing(),
    "real": Timing(20.0, 45.0, 15.0, 10.0, 5.0),
}


@dataclass(frozen=True)
class Options:
    """How one lab is set up. Money is in the platform's currency."""

    timing: Timing = Timing()
    balance: Decimal = Decimal(100)
    list_lag: float = 0.0  # lists do not show what is younger
    linger: float = 0.0  # a destroyed rental is still shown by id, as terminated
    rate_limit: int = 1200  # requests a minute and key
    inodes: int = 200_000  # of a box's root and of each volume
    hide: tuple[str, ...] = ()  # programs that the image lacks
    cgroup: int = 2

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Options:
        """From the JSON that the command line or `lab.api.Lab` passes; raises ValueError for what is not known."""
        given = dict(given)
        timing = given.pop("timing", "default")
        if isinstance(timing, str):
            if timing not in TIMINGS:
                raise ValueError(f"unknown timing {timing!r}; known: {', '.join(TIMINGS)}")
            timing = TIMINGS[timing]
        steps = {item.name for item in dataclasses.fields(Timing)}
        timing = dataclasses.replace(timing, **{name: float(given.pop(name)) for name in steps & set(given)})
        known = {item.name for item in dataclasses.fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known | steps))}")
        if "balance" in given:
            given["balance"] = _amount(given["balance"])
        if "hide" in given:
            given["hide"] = tuple(given["hide"])
        return cls(timing=timing, **given)


@dataclass
class _Machine:
    """A rental's box and the tasks that raise and end it."""

    box: Box | None = None
    raising: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    port: int | None = None


class Market:
    """One platform's market with one account. Runs in one event loop; `changed` is called after every change."""

    def __init__(
        self,
        platform: Platform,
        options: Options,
        folder: Path,
        clock: Clock,
        faults: Faults,
        changed: Callable[[], None],
    ) -> None:
        self.platform, self.options, self.clock, self.faults = platform, options, clock, faults
        self.keys = {f"lab_{secrets.token_hex(16)}": "all", f"lab_read_{secrets.token_hex(12)}": "read"}
        self.records = Records()
        self._folder = folder
        self._changed = changed
        self._machines: dict[str, _Machine] = {}
        self._history: deque[Records] = deque(maxlen=_SNAPSHOTS)
        self._looking_at: contextvars.ContextVar[float | None] = contextvars.ContextVar("looking_at", default=None)
        self._applied: set[tuple[str, str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # What can be seen.

    @property
    def api_key(self) -> str:
        return next(iter(self.keys))

    @contextlib.contextmanager
    def looking_at(self, at: float) -> Iterator[None]:
        """Within it, `view` answers as of that time."""
        token = self._looking_at.set(at)
        try:
            yield
        finally:
            self._looking_at.reset(token)

    def view(self, lag: float = 0.0) -> Records:
        """What a read sees: now, or what was true at the time it is made to look at, or `lag` seconds ago."""
        at = self._looking_at.get()
        if at is None and lag == 0:
            return self.records
        at = self.clock.now() - lag if at is None else at
        older = next((seen for seen in reversed(self._history) if seen.at <= at), None)
        if older is None and len(self._history) == _SNAPSHOTS:
            return self._history[0]
        return older or Records()

    def rental(self, rental_id: str) -> Rental:
        rental = self.records.rentals.get(rental_id)
        if rental is None or rental.state == GONE:
            raise Unknown(f"no rental {rental_id!r}")
        return rental

    def volume(self, volume_id: str) -> Volume:
        volume = self.records.volumes.get(volume_id)
        if volume is None or volume.state == GONE:
            raise Unknown(f"no volume {volume_id!r}")
        return volume

    def box(self, rental_id: str) -> Box:
        """The running box of a rental; Conflict where it has none."""
        rental = self.rental(rental_id)
        box = self._machines[rental.id].box
        if box is None or not box.running or rental.state not in _ON:
            raise Conflict(f"rental {rental_id} has no running box: it is {rental.state}")
        return box

    def facts(self, rental: Rental) -> dict[str, str | None]:
        return {"rental": rental.id, "name": rental.name, "platform": self.platform.name, "gpu": rental.gpu.id}

    def charge_of(self, thing: Rental | Volume, start: float = 0.0, end: float | None = None) -> Charge:
        return charge(thing.spans, start, self.clock.now() if end is None else end)

    def spent(self) -> Decimal:
        everything: list[Rental | Volume] = [*self.records.rentals.values(), *self.records.volumes.values()]
        return total(self.charge_of(thing).total for thing in everything)

    def balance(self) -> Decimal:
        return self.options.balance - self.spent()

    def spend_rate(self) -> Decimal:
        everything: list[Rental | Volume] = [*self.records.rentals.values(), *self.records.volumes.values()]
        return total(thing.spans[-1].rate.total for thing in everything)

    def bill(self) -> dict[str, Any]:
        """The account's bill; amounts are decimal strings."""
        spent = self.spent()
        return {
            "currency": self.platform.currency,
            "rentals": {item.id: self._rental_bill(item) for item in self.records.rentals.values()},
            "volumes": {item.id: self._volume_bill(item) for item in self.records.volumes.values()},
            "total": money(spent),
            "balance": money(self.options.balance - spent),
            "rate_per_hour": money(self.spend_rate()),
        }

    def _rental_bill(self, rental: Rental) -> dict[str, Any]:
        cost = self.charge_of(rental)
        return {
            "platform": self.platform.name,
            "name": rental.name,
            "gpu": rental.gpu.id,
            "gpu_count": rental.order.gpu_count,
            "state": rental.state,
            "compute": money(cost.compute),
            "disk": money(cost.disk),
            "total": money(cost.total),
            "rate_per_hour": money(rental.rate.total),
            "seconds": {state: float(lasted) for state, lasted in cost.seconds.items() if state != GONE},
            "history": [{"at": span.at, "state": span.state} for span in rental.spans],
        }

    def _volume_bill(self, volume: Volume) -> dict[str, Any]:
        cost = self.charge_of(volume)
        return {
            "platform": self.platform.name,
            "name": volume.name,
            "size_gb": volume.size_gb,
            "state": volume.state,
            "total": money(cost.total),
            "rate_per_hour": money(volume.spans[-1].rate.total),
            "seconds": float(cost.seconds.get("kept", 0)),
        }

    # What customers do.

    def set_ssh_keys(self, keys: list[str]) -> None:
        self.records.ssh_keys = list(keys)
        self._touch()

    async def rent(self, order: Order) -> Rental:
        gpu = self._offer(order)
        rental = Rental(self._new_id(), order, gpu, self._place(order, gpu), self.clock.now())
        needed = self.platform.credit_needed(self.platform.rental_rate(rental, PLACING))
        if self.balance() < needed:
            raise NoCredit(f"the balance is {money(self.balance())}, needed are {money(needed)}")
        if order.disk:
            await asyncio.to_thread(self._make_volume, self._disk_path(rental), order.disk[0])
        self.records.rentals[rental.id] = rental
        self._machines[rental.id] = _Machine()
        self._raise(rental)
        return rental

    async def start(self, rental_id: str) -> Rental:
        rental = self.rental(rental_id)
        if rental.state not in (STOPPED, FAILED):
            raise Conflict(f"rental {rental_id} is {rental.state}, not stopped")
        if rental.host_dead or self.faults.strike("offer.none", {**self.facts(rental), "verb": "start"}):
            raise NoCapacity(f"the host of rental {rental_id} has no free GPU", host_full=True)
        self._raise(rental)
        return rental

    async def stop(self, rental_id: str) -> Rental:
        """Billing of compute ends now; the processes get SIGTERM and a grace."""
        rental = self.rental(rental_id)
        if rental.state not in _ON:
            raise Conflict(f"rental {rental_id} is {rental.state}, not running")
        self._begin_ending(rental, self.options.timing.stop_grace)
        self._enter(rental, STOPPED)
        return rental

    async def restart(self, rental_id: str) -> Rental:
        rental = self.rental(rental_id)
        if rental.state != RUNNING:
            raise Conflict(f"rental {rental_id} is {rental.state}, not running")
        self._begin_ending(rental, self.options.timing.stop_grace)
        self._raise(rental)
        return rental

    async def destroy(self, rental_id: str) -> None:
        rental = self.rental(rental_id)
        ending = self._begin_ending(rental, None)
        self._enter(rental, GONE)
        await ending
        if rental.order.disk:
            await asyncio.to_thread(drop_volume, self._disk_path(rental))

    async def change(self, rental_id: str, **fields: Any) -> Rental:
        """Change the order of a rental; what is a matter of the container takes effect at its next start."""
        rental = self.rental(rental_id)
        rental.order = dataclasses.replace(rental.order, **fields)
        self._enter(rental, rental.state)
        return rental

    async def create_volume(self, name: str, size_gb: int, region: str, kind: str) -> Volume:
        if region not in self.platform.regions:
            raise Invalid(f"data center {region!r} does not exist")
        volume = Volume(self._new_id(), name, size_gb, region, kind, self.clock.now())
        await asyncio.to_thread(self._make_volume, self._volume_path(volume), size_gb)
        self.records.volumes[volume.id] = volume
        self._enter_volume(volume, "kept")
        return volume

    async def rename_volume(self, volume_id: str, name: str) -> Volume:
        volume = self.volume(volume_id)
        volume.name = name
        self._touch()
        return volume

    async def delete_volume(self, volume_id: str) -> None:
        volume = self.volume(volume_id)
        users = self.users_of(volume_id)
        if users:
            raise Conflict(f"network volume {volume_id} is in use by pod {', '.join(users)}")
        self._enter_volume(volume, GONE)
        await asyncio.to_thread(drop_volume, self._volume_path(volume))

    def users_of(self, volume_id: str) -> list[str]:
        alive = (rental for rental in self.records.rentals.values() if rental.state != GONE)
        return [rental.id for rental in alive if rental.order.volume and rental.order.volume[0] == volume_id]

    # What happens to rentals.

    async def fail_host(self, rental_id: str, notice_after: float = 0.0) -> None:
        """The host dies with its box and its own disk, at once; the platform notices so many seconds later."""
        rental = self.rental(rental_id)
        rental.host_dead = True
        await self._begin_ending(rental, None)
        if rental.order.disk:
            await asyncio.to_thread(drop_volume, self._disk_path(rental))
        await asyncio.sleep(notice_after)
        if rental.state not in _ON:
            return
        rental.reason = "the host does not answer"
        self._enter(rental, FAILED)

    async def preempt(self, rental_id: str) -> None:
        """SIGTERM, the grace, SIGKILL; then stopped."""
        rental = self.rental(rental_id)
        if rental.state not in _ON:
            raise Conflict(f"rental {rental_id} is {rental.state}, not running")
        await self._begin_ending(rental, self.options.timing.preempt_grace)
        if rental.state in _ON:
            self._enter(rental, STOPPED)

    async def reboot(self, rental_id: str) -> None:
        """The box restarts by itself: the platform's view does not change."""
        machine = self._machines[self.rental(rental_id).id]
        rebooting = machine.raising = asyncio.create_task(self.box(rental_id).reboot())
        await asyncio.wait([rebooting])
        if not rebooting.cancelled():
            rebooting.result()

    async def apply_faults(self) -> None:
        """Let the box faults act on every rental that is up and matches; each acts once a boot of the box."""
        for rental in list(self.records.rentals.values()):
            if rental.state == RUNNING and rental.endpoint:
                await self._apply_faults_to(rental)

    async def undo_fault(self, fault: Fault, undo: BoxAct) -> None:
        for rental in list(self.records.rentals.values()):
            if (fault.id, rental.id, rental.generation) not in self._applied:
                continue
            with contextlib.suppress(Unknown, Conflict):  # its box is gone, and what the fault did with it
                await undo(self, rental.id, fault)

    async def run(self) -> None:
        """Until cancelled: watch the balance, keep the bill fresh."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if self.balance() <= 0:
                await self._run_dry()
            self._changed()

    async def close(self) -> None:
        """Every box dies. The records stay, so that the bill can still be read."""
        for task in list(self._tasks):
            task.cancel()
        endings = [self._begin_ending(rental, None) for rental in self.records.rentals.values()]
        await asyncio.gather(*endings, return_exceptions=True)

    # How it is done.

    def _offer(self, order: Order) -> GpuType:
        gpu = next((known for known in self.platform.catalogue if known.id == order.gpu), None)
        if gpu is None or order.cloud not in gpu.prices:
            raise Invalid(f"gpu type {order.gpu!r} is not offered in {order.cloud}")
        if order.gpu_count > gpu.max_count[order.cloud]:
            raise NoCapacity(f"{order.gpu_count} x {gpu.id}: at most {gpu.max_count[order.cloud]} on one host")
        return gpu

    def _place(self, order: Order, gpu: GpuType) -> str:
        """The region it goes to, or NoCapacity."""
        wanted = order.regions or self.platform.regions
        unknown = [region for region in wanted if region not in self.platform.regions]
        if unknown:
            raise Invalid(f"data center {unknown[0]!r} does not exist")
        if order.volume:
            home = self.volume(order.volume[0]).region
            if home not in wanted:
                raise Invalid(f"network volume {order.volume[0]} is in {home}, not in {', '.join(wanted)}")
            wanted = (home,)
        facts = {"platform": self.platform.name, "gpu": gpu.id, "name": order.name, "verb": "rent"}
        stocked = [region for region in wanted if gpu.stock.get(region, "NONE") != "NONE"]
        if not stocked or self.faults.strike("offer.none", facts):
            raise NoCapacity(f"no {gpu.id} is free")
        return stocked[0]

    def _raise(self, rental: Rental) -> None:
        rental.generation += 1
        rental.started_at = self.clock.now()
        rental.reason = None
        self._enter(rental, PLACING)
        self._machines[rental.id].raising = asyncio.create_task(self._bring_up(rental))

    async def _bring_up(self, rental: Rental) -> None:
        machine, timing = self._machines[rental.id], self.options.timing
        try:
            if machine.ending:
                await asyncio.shield(machine.ending)
            await asyncio.sleep(timing.provisioning)
            rental.placed = True
            self._enter(rental, STARTING)
            booting = asyncio.ensure_future(self._boot(rental, machine))
            try:
                await asyncio.sleep(timing.starting)
                self._enter(rental, RUNNING)
                await asyncio.sleep(timing.ssh)
                await booting
            finally:
                booting.cancel()
                await asyncio.gather(booting, return_exceptions=True)
            while self.faults.standing("box.never_ssh", self.facts(rental)):
                await asyncio.sleep(0.1)
            self._publish(rental, machine)
            await self._apply_faults_to(rental)
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            log.exception("rental %s did not come up", rental.id)
            rental.reason = f"{type(problem).__name__}: {problem}"
            self._enter(rental, FAILED)

    async def _boot(self, rental: Rental, machine: _Machine) -> None:
        for left in reversed(range(_BOOT_TRIES)):
            port = _free_port(besides=machine.port)
            box = Box(self._spec(rental, port))
            machine.box, machine.port = box, port
            try:
                return await box.start()
            except Exception:
                await box.kill()
                if not left:
                    raise
                log.warning("rental %s: the box did not start on port %d, trying another", rental.id, port)

    def _publish(self, rental: Rental, machine: _Machine) -> None:
        assert machine.box is not None
        rental.up_at = self.clock.now()
        # Without SSH the container runs all the same, and its mapped port answers nobody.
        port = machine.box.port if rental.order.ssh and rental.order.keys else _free_port(besides=machine.port)
        rental.endpoint = (machine.box.host, port)
        self._touch()

    def _spec(self, rental: Rental, port: int) -> BoxSpec:
        order = rental.order
        mounts = []
        if order.disk:
            mounts.append(Mount(order.disk[1], source=self._disk_path(rental)))
        if order.volume:
            mounts.append(Mount(order.volume[1], source=self._volume_path(self.volume(order.volume[0]))))
        return BoxSpec(
            box_id=f"{rental.id}-{rental.generation}-{port}",
            hostname=rental.id,
            state_dir=self._folder / "boxes",
            authorized_keys=list(order.keys) if order.ssh else [],
            env={**self.platform.box_env(rental, "127.0.0.1", port), **order.env},
            gpu=Gpu(rental.gpu.id, order.gpu_count, rental.gpu.memory_gb * 1024, cuda=rental.gpu.cuda),
            cgroup=self.options.cgroup,
            root=Mount("/root", size_bytes=order.disk_gb * _GIB, inodes=self.options.inodes),
            mounts=mounts,
            port=port,
            hide=frozenset(self.options.hide),
        )

    def _begin_ending(self, rental: Rental, grace_seconds: float | None) -> asyncio.Task[None]:
        """Take the box away, with a grace or at once; what the platform shows is the caller's matter."""
        machine = self._machines[rental.id]
        raising, machine.raising = machine.raising, None
        before = machine.ending
        if raising:
            raising.cancel()
        if before and grace_seconds is None:
            before.cancel()
        machine.ending = asyncio.create_task(self._end(machine, raising, before, grace_seconds))
        return machine.ending

    async def _end(
        self,
        machine: _Machine,
        raising: asyncio.Task[None] | None,
        before: asyncio.Task[None] | None,
        grace_seconds: float | None,
    ) -> None:
        for task in (raising, before):
            if task:
                await asyncio.wait([task])
        box = machine.box
        if box is None:
            return
        try:
            if grace_seconds is not None and box.running:
                await box.stop(grace_seconds)
        finally:
            await box.kill()
            machine.box = None

    async def _apply_faults_to(self, rental: Rental) -> None:
        for fault in self.faults.active(lambda kind: kind.box is not None, self.facts(rental)):
            once = (fault.id, rental.id, rental.generation)
            if once in self._applied:
                continue
            self._applied.add(once)
            fault.struck += 1
            self._background(self._strike_later(rental, fault))

    async def _strike_later(self, rental: Rental, fault: Fault) -> None:
        generation = rental.generation
        await asyncio.sleep(float(fault.params["after"]))
        act = KINDS[fault.kind].box
        still_there = rental.generation == generation and rental.state == RUNNING
        if act is not None and still_there and fault in self.faults.listed():
            await act(self, rental.id, fault)

    async def _run_dry(self) -> None:
        for rental in list(self.records.rentals.values()):
            if rental.state in _ON:
                log.warning("the balance is used up: rental %s is taken away", rental.id)
                await (self.destroy if self.platform.when_broke(rental) == "destroy" else self.stop)(rental.id)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enter(self, rental: Rental, state: str) -> None:
        """Only a running rental has an endpoint: it is shown until the platform notices that the box is gone."""
        if state != RUNNING:
            rental.endpoint = rental.up_at = None
        rental.spans.append(Span(self.clock.now(), state, self.platform.rental_rate(rental, state)))
        self._touch()

    def _enter_volume(self, volume: Volume, state: str) -> None:
        rate = Rate() if state == GONE else self.platform.volume_rate(volume.size_gb, volume.kind)
        volume.spans.append(Span(self.clock.now(), state, rate))
        self._touch()

    def _touch(self) -> None:
        self._history.append(self.records.copy(self.clock.now()))
        self._changed()

    def _new_id(self) -> str:
        return "".join(secrets.choice(_ID_LETTERS) for _ in range(14))

    def _make_volume(self, path: Path, size_gb: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        make_volume(path, size_gb * _GIB, self.options.inodes)

    def _volume_path(self, volume: Volume) -> Path:
        return self._folder / "volumes" / volume.id

    def _disk_path(self, rental: Rental) -> Path:
        return self._folder / "disks" / rental.id


def _amount(text: Any) -> Decimal:
    try:
        return Decimal(str(text))
    except ArithmeticError as wrong:
        raise ValueError(f"{text!r} is no amount of money; write a number such as 25 or 0.50") from wrong


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except asyncio.CancelledError:
        raise
    except Exception:
        log.exception("a fault could not act")


def _free_port(besides: int | None) -> int:
    """A port on loopback that nobody listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as trial:
            if port != besides and trial.connect_ex(("127.0.0.1", port)) != 0:
                return port

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""AutoDL 容器实例 Pro, and the wallet. Ordinary boxes have no API: theirs is the client ``manual``.

Facts: the vendor's pages of 2026-10 (paths, envelope, money, states), clients of 2024 to 2026 where they are marked so.
Nearly every answer is HTTP 200 with ``{"code", "msg", "data", "request_id"}``; the code alone tells what happened.
Answers hold a root password and a Jupyter token: no part of an answer but ``code`` and ``msg`` gets into a message.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
import typing as t
from dataclasses import dataclass
from decimal import Decimal

from .base import (
    DISK_ONLY,
    OFF,
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
    UnknownOutcome,
    Volumes,
    Wanted,
    fingerprint,
)
from .declared import prices, unknown_price
from .http import Answer, HttpClient

_BILLING = {
    # Billing begins with the create; what creating and created cost is not stated, so they count (state table).
    "creating": ON,
    "created": ON,
    "starting": ON,
    "running": ON,
    "shutting_down": ON,
    # Compute has ended; whether the system disk is charged while off is not verified, so it counts.
    "shutdown": DISK_ONLY,
    # Never started, and still to be released.
    "failed": DISK_ONLY,
    "create_failed": DISK_ONLY,
    "released": OFF,
}
_RELEASABLE = frozenset({"shutdown", "failed", "create_failed"})


@dataclass(frozen=True)
class _Card:
    name: str
    vram_gb: int


#: Specifications of the vendor's appendix, 2026-08. The list changes: an id that is not here is taken as it is typed.
_CARDS = {
    "h800": _Card("H800", 80),
    "v-48g": _Card("RTX 4090", 48),
    "pro6000-p": _Card("RTX PRO 6000", 96),
    "v-32g-p": _Card("RTX 4080 SUPER", 32),
    "v-48g-350w": _Card("RTX 3090", 48),
    "5090-p": _Card("RTX 5090", 32),
    "4090D": _Card("RTX 4090D", 24),
}
_MAX_GPUS = 4
_SYSTEM_DISK_GB, _MAX_EXPANSION_GB = 30, 500
_CUDA_LOWEST = 118  # as the API writes 11.8
_PAGE_SIZE, _MAX_PAGES = 50, 1000
_PER_YUAN = Decimal(1000)  # money is a whole number of thousandths of a yuan
_PRO = "/api/v1/dev/instance/pro"
_PRICES = "AUTODL_PRICES"


class AutoDL(Platform):
    name = "autodl"
    can = frozenset({"rent", "show", "list", "start", "stop", "destroy", "balance"})
    console = "https://www.autodl.com/console/instance/list"
    id_pattern = re.compile(r"pro-[A-Za-z0-9]{4,60}")
    key_variable = "AUTODL_TOKEN"
    #: Seconds between two looks at a box that powers off (clients advise five or more), and how many in all.
    poll_seconds: t.ClassVar[float] = 5.0
    patience_seconds: t.ClassVar[float] = 180.0

    def __init__(self, environ: t.Mapping[str, str], sleep: t.Callable[[float], None] = time.sleep) -> None:
        token = environ.get(self.key_variable, "").strip()
        if not token:
            raise AuthError(
                f"{self.key_variable} is not set",
                means="AutoDL cannot be asked anything.",
                do=f"Copy it from the console (账号, 设置, 开发者Token) and type: export {self.key_variable}=…",
            )
        self._environ, self._token, self._sleep = environ, token, sleep
        # The raw token, without a scheme before it.
        base = environ.get("AUTODL_API_BASE_URL") or "https://api.autodl.com"
        self.fingerprint = fingerprint(token)
        self._http = HttpClient(self.name, base, {"Authorization": token})

    def whoami(self) -> str:
        self._wallet()
        return "token accepted, wallet readable"

    def balance(self) -> dict[str, t.Any]:
        """What can be spent; the burn is not told by any call."""
        wallet = self._wallet()
        return {
            "balance": _yuan(wallet["assets"] - wallet["blocked_asset"]).as_dict(),
            "voucher": _yuan(wallet["voucher_balance"]).as_dict(),
            "burn_per_hour": None,
        }

    def offers(self, wanted: Wanted) -> Offers:
        """Fitting specifications at the prices that the user declared; stock is not told by any call."""
        if wanted.gpu_count > _MAX_GPUS:
            raise NoCapacity(f"{wanted.gpu_count} GPUs were asked for; a Pro instance has at most {_MAX_GPUS}")
        declared = prices(self._environ, _PRICES)
        fitting = [spec for spec in {**dict.fromkeys(declared), **dict.fromkeys(_CARDS)} if _fits(spec, wanted)]
        priced = [spec for spec in fitting if spec in declared]
        if not priced:
            example = fitting[0] if fitting else "v-48g"
            raise unknown_price("AutoDL", _PRICES, wanted.gpu, example, "CNY", self.console)
        offers = [_offer(spec, declared[spec], wanted) for spec in priced]
        return sorted(offers, key=lambda offer: offer.rate.amount)

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        """Starts and bills at once. The key gets in by the start command, since no call registers one."""
        body: dict[str, t.Any] = {
            "instance_name": wanted.name,
            "gpu_spec_uuid": offer.id,
            "req_gpu_amount": wanted.gpu_count,
            "expand_system_disk_by_gb": _expansion(wanted.disk_gb or 0),
            "image_uuid": wanted.image,
            "cuda_v_from": _cuda(wanted.cuda),
        }
        if wanted.region:
            body["data_center_list"] = [wanted.region]
        if wanted.public_key:
            body["start_command"] = _authorize(wanted.public_key)
        made = self._change("create", body)
        if not isinstance(made, str) or not self.id_pattern.fullmatch(made):
            raise UnknownOutcome("create: Success without an id")
        return Instance(
            id=made,
            name=wanted.name,
            status="creating",
            billing=_BILLING["creating"],
            rate=offer.rate,
            region=wanted.region,
            gpu=offer.id,
            gpu_count=wanted.gpu_count,
            image=wanted.image,
            disk_gb=_SYSTEM_DISK_GB + _expansion(wanted.disk_gb or 0),
        )

    def show(self, instance_id: str) -> Instance:
        """The state by id; price and address are read only while it runs. No call by id tells the name."""
        status = self._status(instance_id)
        seen = self._look("snapshot", instance_id) if status == "running" else {}
        if not isinstance(seen, dict):
            raise _not_understood("snapshot", "no object")
        return Instance(
            id=instance_id,
            name="",
            status=status,
            billing=_BILLING.get(status, UNKNOWN),
            rate=_yuan(seen["payg_price"]) if _whole(seen.get("payg_price")) else None,
            endpoint=_endpoint(seen),
            region=_text(seen.get("region_sign")),
            gpu=_text(seen.get("snapshot_gpu_alias_name")),
            dead=status in _RELEASABLE or status == "released",
        )

    def list(self) -> Instances:
        found: dict[str, Instance] = {}
        page, last, total = 1, 1, 0
        while page <= last:
            listed = self._ask("list", {"page_index": page, "page_size": _PAGE_SIZE})
            rows, last, total = _page(listed)
            found.update((row.id, row) for row in rows)
            page += 1
        if len(found) < total:
            raise _not_understood("list", f"{len(found)} of {total} instances")
        return [*found.values()]

    def start(self, instance_id: str) -> str:
        """Power on with the GPU; the port may be another one afterwards."""
        self._change("power_on", {"instance_uuid": self.check_id(instance_id), "payload": "gpu"})
        return "power_on answered Success"

    def stop(self, instance_id: str) -> str:
        """Power off: compute ends, the disk is kept, and the release clock starts."""
        self._change("power_off", {"instance_uuid": self.check_id(instance_id)})
        return "power_off answered Success"

    def destroy(self, instance_id: str) -> str:
        """Power off, wait until it is off, release: AutoDL releases nothing that is on."""
        try:
            status = self._status(instance_id)
            if status == "released":
                return "status released"
            if status not in _RELEASABLE:
                self._power_off(instance_id, status)
            self._change("release", {"instance_uuid": instance_id})
        except NotFound as problem:
            return problem.seen
        return "release answered Success"

    def leftovers(self, instance: Instance | None) -> Volumes:
        """File storage and saved images outlive a release; no call lists them, so the profile names them instead."""
        return []

    def _power_off(self, instance_id: str, status: str) -> None:
        if status != "shutting_down":
            with contextlib.suppress(UnknownOutcome):  # the state tells whether it took effect
                self.stop(instance_id)
        left = self.patience_seconds
        while (status := self._status(instance_id)) not in _RELEASABLE:
            if left <= 0:
                raise PlatformError(
                    f"{instance_id} is {status}, {self.patience_seconds:.0f} s after power_off",
                    means="Only an instance that is off can be released. Nothing was released.",
                    do="Run the same command again.",
                )
            self._sleep(self.poll_seconds)
            left -= self.poll_seconds

    def _wallet(self) -> dict[str, int]:
        wallet = self._unwrap("balance", self._told(lambda: self._http.ask("/api/v1/dev/wallet/balance", {})))
        members = ("assets", "blocked_asset", "voucher_balance")
        if not isinstance(wallet, dict) or not all(_whole(wallet.get(name)) for name in members):
            raise _not_understood("balance", "no amounts")
        return {name: wallet[name] for name in members}

    def _status(self, instance_id: str) -> str:
        status = self._look("status", instance_id)
        if not isinstance(status, str) or not status:
            raise _not_understood("status", "no state")
        return status

    def _look(self, verb: str, instance_id: str) -> t.Any:
        query = {"instance_uuid": self.check_id(instance_id)}
        return self._unwrap(verb, self._told(lambda: self._http.read(f"{_PRO}/{verb}", query)))

    def _ask(self, verb: str, body: dict[str, t.Any]) -> t.Any:
        return self._unwrap(verb, self._told(lambda: self._http.ask(f"{_PRO}/{verb}", body)))

    def _change(self, verb: str, body: dict[str, t.Any]) -> t.Any:
        try:
            answer = self._told(lambda: self._http.write("POST", f"{_PRO}/{verb}", body))
        except PlatformError as problem:
            if problem.status and problem.status < 300:  # carried out, perhaps, and answered with something unreadable
                raise UnknownOutcome(problem.seen) from problem
            raise
        return self._unwrap(verb, answer)

    @staticmethod
    def _told(call: t.Callable[[], Answer]) -> Answer:
        try:
            return call()
        except NotFound as problem:
            raise PlatformError(
                problem.seen,
                means="AutoDL answers an unknown id with 200 and a code of its own. A 404 proves nothing.",
                do="Check AUTODL_API_BASE_URL and proxies.",
                status=404,
            ) from problem

    def _unwrap(self, verb: str, answer: Answer) -> t.Any:
        """``data`` of a successful answer; the error that the code stands for otherwise."""
        envelope = answer.data
        if not isinstance(envelope, dict) or not isinstance(envelope.get("code"), str):
            raise _not_understood(verb, "no code")
        if envelope["code"] == "Success":
            return envelope.get("data")
        said = " ".join(str(envelope.get("msg") or "").replace(self._token, "…").split())[:200]
        raise _refusal(envelope["code"], said, f"{verb}: {envelope['code']} {said}".rstrip())


def _refusal(code: str, said: str, seen: str) -> PlatformError:
    """Codes and texts as the vendor's pages and clients of 2026 have them; no code table is published."""
    if code == "RecordNotFoundError":
        means = "AutoDL does not know this id, or it is an ordinary box. Alone, it proves nothing."
        return NotFound(seen, means=means, status=200)
    if code == "AuthorizeFailed":
        return AuthError(seen, status=200)
    if code == "TORealName":
        do = "Verify it in the console (实名认证)."
        return AuthError(seen, means="The account is not verified.", do=do, status=200)
    if code == "PermissionDenied" or "无当前资源访问权限" in said:
        return AuthError(seen, means="It is not yours, or the API is not enabled for this account.", status=200)
    if "库存" in said:
        return NoCapacity(seen, status=200)
    if "关机状态" in said:
        return Conflict(seen, means="It must be off first.", do="Run the same command again.", status=200)
    if "余额" in said:
        return PlatformError(
            seen, means="The balance is too small. Nothing was rented.", do="Top up in the console (充值).", status=200
        )
    if code in ("RequestParameterIsWrong", "BadRequest"):
        return PlatformError(seen, means="AutoDL does not accept a parameter. Nothing was changed.", status=200)
    # An InternalError without a known text may have taken effect: without a status its outcome counts as unknown.
    return PlatformError(seen)


def _not_understood(verb: str, lacks: str) -> PlatformError:
    return PlatformError(
        f"{verb}: an answer with {lacks}",
        means="It was not understood whole, so nothing is read from it.",
        do="Run the same command again; if it repeats, the API has changed and the collection needs an update.",
    )


def _whole(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: t.Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _yuan(thousandths: int) -> Money:
    return Money(Decimal(thousandths) / _PER_YUAN, "CNY")


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _fits(spec: str, wanted: Wanted) -> bool:
    """By the specification's id, or by the card's name with or without RTX and memory."""
    card = _CARDS.get(spec)
    names = {_plain(spec)}
    if card:
        short = card.name.removeprefix("RTX ")
        names |= {
            _plain(text) for text in (card.name, short, f"{card.name} {card.vram_gb}G", f"{short} {card.vram_gb}G")
        }
    if _plain(wanted.gpu) not in names:
        return False
    return not wanted.vram_gb or (card is not None and card.vram_gb >= wanted.vram_gb)


def _offer(spec: str, price: Money, wanted: Wanted) -> Offer:
    card = _CARDS.get(spec) or _Card(spec, 0)
    return Offer(
        id=spec,
        gpu=card.name,
        gpu_count=wanted.gpu_count,
        vram_gb=card.vram_gb,
        rate=Money(price.amount * wanted.gpu_count, price.currency),
        region=wanted.region,
        stock="unknown",
    )


def _expansion(disk_gb: int) -> int:
    """GB beyond the system disk that comes with the instance."""
    more = max(0, disk_gb - _SYSTEM_DISK_GB)
    if more > _MAX_EXPANSION_GB:
        raise PlatformError(
            f"a disk of {disk_gb} GB was asked for",
            means=f"AutoDL allows {_SYSTEM_DISK_GB + _MAX_EXPANSION_GB} GB at most. Nothing was rented.",
            do="Lower disk_gb in job_resources.",
        )
    return more


def _cuda(wanted: str | None) -> int:
    """``">=12.1"`` as AutoDL writes it: 121."""
    match = re.fullmatch(r"[>=\s]*(\d+)\.(\d)", wanted or "")
    if wanted and not match:
        raise PlatformError(
            f"cuda is {wanted!r}", means="Nothing was rented.", do="Write it as in job_resources: {cuda: '>=12.1'}."
        )
    return int(match[1] + match[2]) if match else _CUDA_LOWEST


def _authorize(public_key: str) -> str:
    """A shell line that lets this key in, as often as it is run."""
    key, known = shlex.quote(" ".join(public_key.split())), "/root/.ssh/authorized_keys"
    return f"mkdir -p -m 700 /root/.ssh; grep -sqxF {key} {known} || echo {key} >> {known}; chmod 600 {known}"


def _endpoint(seen: dict[str, t.Any]) -> Endpoint | None:
    """From host and port, or from the SSH line that the console shows; None while there is none."""
    host, port = seen.get("proxy_host"), seen.get("ssh_port")
    if not (isinstance(host, str) and host and _whole(port) and port):
        line = re.fullmatch(r"ssh -p (\d+) root@([A-Za-z0-9.-]+)", str(seen.get("ssh_command") or "").strip())
        if line is None:
            return None
        host, port = line[2], int(line[1])
    return Endpoint(host, t.cast(int, port), "root")


def _page(listed: t.Any) -> tuple[Instances, int, int]:
    """One page's rows, the number of the last page, and how many instances there are in all."""
    if not isinstance(listed, dict):
        raise _not_understood("list", "no object")
    rows, last, total = listed.get("list"), listed.get("max_page"), listed.get("result_total")
    if not _whole(last) or not _whole(total) or t.cast(int, last) > _MAX_PAGES:
        raise _not_understood("list", "no page count")
    if rows is None and total == 0:
        rows = []
    if not isinstance(rows, list):
        raise _not_understood("list", "no rows")
    return [_row(row) for row in rows], t.cast(int, last), t.cast(int, total)


def _row(row: t.Any) -> Instance:
    if not isinstance(row, dict) or not _text(row.get("uuid")) or not _text(row.get("status")):
        raise _not_understood("list", "a row without id or state")
    status = row["status"]
    return Instance(
        id=row["uuid"],
        name=str(row.get("name") or ""),
        status=status,
        billing=_BILLING.get(status, UNKNOWN),
        region=_text(row.get("region_sign")),
        gpu=_text(row.get("gpu_spec_uuid")),
        gpu_count=row["req_gpu_amount"] if _whole(row.get("req_gpu_amount")) else 0,
        created_at=_text(row.get("created_at")),
        dead=status in _RELEASABLE or status == "released",
    )

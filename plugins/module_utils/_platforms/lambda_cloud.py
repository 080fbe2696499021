# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lambda Cloud: rent and terminate; there is no stop, no spot and no balance.

Facts: the vendor's OpenAPI file 1.10.0 (2026-08) and pages of 2026-06 to 2026-08. Boxes are virtual machines: an image
is a family or an id, not a container. A shutdown inside the box does not stop the bill.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import typing as t
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from urllib.error import HTTPError

from .base import (
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
    RateLimited,
    UnknownOutcome,
    Volume,
    Volumes,
    Wanted,
    fingerprint,
)
from .http import Answer, HttpClient

#: ``status`` to what is billed. Sources: the enumeration of the spec, the vendor's page on billing (2026-08).
_BILLING = {
    "booting": ON,  # said to be free until health checks pass (docs, medium confidence): counted until that is measured
    "active": ON,  # from passing health checks to terminate, used or not (docs)
    "unhealthy": ON,  # not responding, e.g. after a shutdown inside the box: bills on (docs)
    "terminating": ON,  # nothing says that it is free until it is gone (spec)
    "terminated": OFF,  # gone (spec)
    "preempted": UNKNOWN,  # in the enumeration without a word about the bill (spec): still to be terminated
}
#: None of them runs the job any more; a box that boots and turns unhealthy holds nothing yet.
_DEAD = frozenset({"unhealthy", "terminating", "terminated", "preempted"})

_LAUNCH = "/api/v1/instance-operations/launch"
_TERMINATE = "/api/v1/instance-operations/terminate"
# Spec: one request a second, one launch in twelve; a little more, since calls do not take equally long to arrive.
_PACE_SECONDS, _LAUNCH_PACE_SECONDS = 1.1, 12.5
_NAME_MOST = 64
_FILESYSTEM_NAME = re.compile(r"[a-zA-Z]+[0-9a-zA-Z-]*")
_FILESYSTEM_NAME_MOST = 60
_MOUNT_POINT = re.compile(r"(/home|/lambda/nfs|/data)[/a-zA-Z0-9-]*")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_IMAGE_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ADDRESS = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z.-]*[0-9A-Za-z])?(?::(\d{1,5}))?")
_GIB = 1 << 30

_ACCOUNT = {
    "global/account-inactive": "The account is not active: verify the e-mail address and the payment method.",
    "global/invalid-address": "The billing address of the account is not valid.",
}


@dataclass
class _Http(HttpClient):
    """Lambda's own error codes ("branch on code only", spec) and its pace."""

    pace: dict[str, float] = field(default_factory=lambda: {"": _PACE_SECONDS, _LAUNCH: _LAUNCH_PACE_SECONDS})
    _last: dict[str, float] = field(default_factory=dict)

    def _once(self, method: str, path: str, query: dict[str, t.Any] | None, body: t.Any) -> Answer:
        for what in ("", path):
            due = self._last.get(what, -math.inf) + self.pace.get(what, 0.0)
            if due > time.monotonic():
                self.sleep(due - time.monotonic())
            self._last[what] = time.monotonic()
        answer = super()._once(method, path, query, body)
        if not isinstance(answer.data, dict) or "data" not in answer.data:
            raise _not_understood(f"{method} {path}: {answer.status} without data", answer.status)
        return answer

    def _refusal(self, method: str, path: str, problem: HTTPError, raw: bytes) -> PlatformError:
        plain = super()._refusal(method, path, problem, raw)
        try:
            error = json.loads(raw)["error"]
            code, message = _clean(error["code"], 100), _clean(str(error.get("message") or ""), 200)
        except (ValueError, KeyError, TypeError, AttributeError):
            if problem.code == 404:
                return PlatformError(plain.seen, "A 404 without the API's own code proves nothing.", status=404)
            return plain
        key = self.headers["Authorization"].split()[-1]
        told = _told_apart(f"{method} {path}: {problem.code} {code} {message}".replace(key, "***"), problem.code, code)
        told.retry_after = plain.retry_after
        return told


class Lambda(Platform):
    name = "lambda"
    can = frozenset({"rent", "show", "list", "destroy", "offers", "volumes"})
    console = "https://cloud.lambda.ai/instances"
    id_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
    key_variable = "LAMBDA_API_KEY"

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        key = environ.get(self.key_variable, "").strip() or _key_file(environ)
        if not key:
            raise AuthError(
                f"{self.key_variable} is not set",
                means="Lambda cannot be asked anything.",
                do=f"Create a key in the console (API keys) and type: export {self.key_variable}=…",
            )
        base = (environ.get("LAMBDA_API_BASE_URL") or "https://cloud.lambda.ai").rstrip("/").removesuffix("/api/v1")
        self.fingerprint = fingerprint(key)
        self._http = _Http(self.name, base, {"Authorization": f"Bearer {key}"})

    def whoami(self) -> str:
        return f"key accepted, {len(self._keys())} ssh keys registered"

    def balance(self) -> dict[str, t.Any]:
        problem = PlatformError(
            "the API has no balance",
            means="Lambda bills a card and tells no balance; the cost can only be told from price and time.",
            do="Look at the console under Billing.",
        )
        problem.code = "unsupported"
        raise problem

    def offers(self, wanted: Wanted) -> Offers:
        """One for each type with capacity and each region that has it."""
        _image(wanted.image)
        types = _data(self._http.read("/api/v1/instance-types"), dict)
        place = wanted.volume.region if wanted.volume else wanted.region
        found = [
            _offer(kind, region)
            for kind in map(_type, types.values())
            if _fits(kind, wanted)
            for region in kind.regions
            if place in (None, region)
        ]
        return sorted(found, key=lambda offer: offer.rate.amount)

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        """One launch, one instance; the answer's id is returned before any other call."""
        if len(wanted.name) > _NAME_MOST:
            raise PlatformError(
                f"the name {wanted.name!r} has {len(wanted.name)} characters",
                means=f"Lambda allows {_NAME_MOST}, and a cut name could not be found again. Nothing was rented.",
                do="Shorten job_project or the name of the slot.",
            )
        body: dict[str, t.Any] = {
            "region_name": offer.region,
            "instance_type_name": offer.id,
            "ssh_key_names": [self._key_name(wanted.public_key)],
            "name": wanted.name,
            **_image(wanted.image),
        }
        if wanted.volume:
            body |= _mount(wanted.volume, wanted.volume_path)
        return Instance(
            id=self._launch(body),
            name=wanted.name,
            status="booting",
            billing=_BILLING["booting"],
            rate=offer.rate,
            region=offer.region,
            gpu=offer.gpu,
            gpu_count=offer.gpu_count,
            image=wanted.image,
            volume_ids=(wanted.volume.id,) if wanted.volume else (),
        )

    def show(self, instance_id: str) -> Instance:
        path = f"/api/v1/instances/{self.check_id(instance_id)}"
        instance = _instance(_data(self._http.read(path), dict))
        if instance.id != instance_id:
            raise _not_understood(f"GET {path}: the answer is about instance {instance.id}")
        return instance

    def list(self) -> Instances:
        answer = self._http.read("/api/v1/instances")
        paged = sorted(name for name in answer.data if "next" in name or "page" in name)
        if paged and any(answer.data[name] for name in paged):
            raise _not_understood(f"GET /api/v1/instances: the list is paged ({paged[0]}), which is not known here")
        return [_instance(entry) for entry in _data(answer, list)]

    def destroy(self, instance_id: str) -> str:
        """One id a call: a list with one unknown id is refused whole (spec)."""
        try:
            answer = self._http.write("POST", _TERMINATE, {"instance_ids": [self.check_id(instance_id)]})
        except NotFound as problem:
            return problem.seen
        ended = _data(answer, dict).get("terminated_instances")
        entries = [_instance(entry) for entry in ended] if isinstance(ended, list) else []
        mine = [entry.status for entry in entries if entry.id == instance_id]
        if not mine:
            raise _not_understood(f"POST {_TERMINATE}: {answer.status} without this instance", answer.status)
        return f"terminate answered {answer.status}, status {mine[0]}"

    def leftovers(self, instance: Instance | None) -> Volumes:
        volumes = [_volume(entry) for entry in _data(self._http.read("/api/v1/file-systems"), list)]
        return [one for one in volumes if instance is None or {one.id, one.name} & set(instance.volume_ids)]

    def ensure_key(self, public_key: str) -> bool:
        if any(_same_key(public_key, known) for _, known in self._keys()):
            return False
        # Never without public_key: the service would make a pair and send the private half.
        digest = hashlib.sha256(" ".join(public_key.split()[:2]).encode()).hexdigest()[:12]
        self._http.write("POST", "/api/v1/ssh-keys", {"name": f"tenant-{digest}", "public_key": public_key})
        return True

    def find_volume(self, name: str) -> Volume | None:
        found = [volume for volume in self.leftovers(None) if volume.name == name]
        if len(found) > 1:
            raise PlatformError(
                f"{len(found)} filesystems are named {name!r}: {', '.join(volume.id for volume in found)}",
                means="It cannot be told which one holds the data.",
                do="Delete all but one in the console.",
            )
        return found[0] if found else None

    def create_volume(self, name: str, size_gb: int, region: str | None) -> Volume:
        """``size_gb`` is not sent: a filesystem grows by itself and bills for what is on it (docs)."""
        if not _FILESYSTEM_NAME.fullmatch(name) or len(name) > _FILESYSTEM_NAME_MOST:
            raise PlatformError(
                f"a filesystem named {name!r} was asked for",
                means=f"Lambda allows a letter, then letters, digits and '-', {_FILESYSTEM_NAME_MOST} in all. "
                "Nothing was created.",
                do="Change name in job_volumes.",
            )
        if not region:
            raise PlatformError(
                f"filesystem {name!r} was asked for without a region",
                means="It is bound to one region for ever. Nothing was created.",
                do="Set job_region.",
            )
        return _volume(_data(self._http.write("POST", "/api/v1/filesystems", {"name": name, "region": region}), dict))

    def delete_leftover(self, kind: str, leftover_id: str) -> str:
        if kind != "filesystem":
            return super().delete_leftover(kind, leftover_id)
        path = f"/api/v1/filesystems/{self.check_id(leftover_id)}"
        answer = self._http.write("DELETE", path)
        if leftover_id not in (_data(answer, dict).get("deleted_ids") or []):
            raise _not_understood(f"DELETE {path}: {answer.status} without this id", answer.status)
        return f"DELETE answered {answer.status}, the id among deleted_ids"

    # -- calls --------------------------------------------------------------------------------------------------------

    def _keys(self) -> t.Sequence[tuple[str, str]]:
        """Name and public half of the account's keys."""
        entries = _data(self._http.read("/api/v1/ssh-keys"), list)
        if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries):
            raise _not_understood("GET /api/v1/ssh-keys: a key without a name")
        return [(entry["name"], str(entry.get("public_key") or "")) for entry in entries]

    def _key_name(self, public_key: str | None) -> str:
        """A launch takes exactly one key, by the name that it has in the account (spec)."""
        found = [name for name, known in self._keys() if public_key and _same_key(public_key, known)]
        if not found:
            raise PlatformError(
                "the public key is not registered with the account",
                means="Nobody could log in. Nothing was rented.",
                do="Run the same command again: it registers the key first.",
            )
        return found[0]

    def _launch(self, body: dict[str, t.Any]) -> str:
        try:
            answer = self._http.write("POST", _LAUNCH, body)
        except NotFound as problem:
            # Here a 404 is about what the request names (spec), not about an instance.
            raise PlatformError(
                problem.seen,
                means="The region, type, image, key or filesystem that was asked for does not exist. "
                "Nothing was rented.",
                do="Check job_image, job_region and job_volumes.",
                status=404,
            ) from problem
        ids = answer.data["data"].get("instance_ids") if isinstance(answer.data["data"], dict) else None
        if not isinstance(ids, list) or len(ids) != 1 or not self.id_pattern.fullmatch(str(ids[0])):
            raise UnknownOutcome(f"POST {_LAUNCH}: {answer.status} without one instance id", status=answer.status)
        return str(ids[0])


# -- what is sent -----------------------------------------------------------------------------------------------------


def _key_file(environ: t.Mapping[str, str]) -> str:
    """The file that other clients keep: a line ``api_key = …``."""
    home = environ.get("HOME")
    try:
        text = Path(home, ".lambda_cloud/lambda_keys").read_text(encoding="utf-8") if home else ""
    except OSError:
        return ""
    match = re.search(r"^\s*api_key\s*=\s*(\S+)", text, re.MULTILINE)
    return match[1] if match else ""


def _image(asked: str | None) -> dict[str, t.Any]:
    """A family or an id; nothing for ``lambda-stack``, which is the default. A container image is refused."""
    if not asked or asked == "lambda-stack":
        return {}
    if not _IMAGE.fullmatch(asked):
        raise PlatformError(
            f"job_image is {asked!r}",
            means="Lambda rents virtual machines, which start from a family of images, not from a container. "
            "Nothing was called.",
            do="Set job_image to lambda-stack, or to another family such as lambda-stack-24-04.",
        )
    return {"image": {"id" if _IMAGE_ID.fullmatch(asked) else "family": asked}}


def _mount(volume: Volume, path: str | None) -> dict[str, t.Any]:
    """Attached at launch or never (docs)."""
    if not path:
        return {"file_system_names": [volume.name]}
    if not _MOUNT_POINT.fullmatch(path):
        raise PlatformError(
            f"the path {path!r} was asked for in job_volumes",
            means="Lambda mounts filesystems under /lambda/nfs, /home or /data only. Nothing was rented.",
            do=f"Set path to /lambda/nfs/{volume.name}.",
        )
    return {"file_system_mounts": [{"mount_point": path, "file_system_id": volume.id}]}


# -- what comes back --------------------------------------------------------------------------------------------------


def _told_apart(seen: str, status: int, code: str) -> PlatformError:
    """The error that the code means; texts change and are not read (spec)."""
    if code == "instance-operations/launch/insufficient-capacity":
        return NoCapacity(seen, status=status)
    if code == "global/invalid-api-key":
        return AuthError(seen, status=status)
    if code in _ACCOUNT:
        return AuthError(seen, means=_ACCOUNT[code], do="Look at the console under Settings.", status=status)
    if code == "global/object-does-not-exist" and status == 404:
        return NotFound(seen, status=status)
    if code == "global/quota-exceeded":
        return PlatformError(
            seen,
            means="The account's quota is used up.",
            do="Ask Lambda's support for more, or give something back.",
            status=status,
        )
    if code in ("global/conflict", "filesystems/filesystem-in-use"):
        return Conflict(seen, status=status)
    by_status: dict[int, type[PlatformError]] = {401: AuthError, 403: AuthError, 429: RateLimited}
    return by_status.get(status, PlatformError)(seen, status=status)


def _not_understood(seen: str, status: int | None = None) -> PlatformError:
    return PlatformError(
        seen,
        means="It was not understood whole, so nothing is read from it.",
        do="Run the same command again; if it repeats, the API has changed and the collection needs an update.",
        status=status,
    )


def _data(answer: Answer, kind: type) -> t.Any:
    value = answer.data["data"]
    if not isinstance(value, kind):
        raise _not_understood(f"data is no {'list' if kind is list else 'object'}", answer.status)
    return value


def _object(value: t.Any) -> dict[str, t.Any]:
    """A member that may be missing."""
    return value if isinstance(value, dict) else {}


def _clean(text: str, most: int) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:most]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _same_key(one: str, other: str) -> bool:
    return one.split()[:2] == other.split()[:2]


@dataclass(frozen=True)
class _Type:
    """An instance type: ``gpu`` such as ``H100``, ``form`` such as ``80 GB SXM5``."""

    name: str
    gpu: str
    form: str
    gpus: int
    cents: int
    storage_gib: int
    regions: tuple[str, ...]

    @property
    def vram_gb(self) -> int:
        match = re.search(r"(\d+) ?GB", self.form)
        return int(match[1]) if match else 0


def _type(entry: t.Any) -> _Type:
    try:
        kind, specs = entry["instance_type"], entry["instance_type"]["specs"]
        gpu, _, form = str(kind["gpu_description"]).partition("(")
        numbers = (specs["gpus"], kind["price_cents_per_hour"], specs["storage_gib"])
        regions = tuple(region["name"] for region in entry["regions_with_capacity_available"])
        name = kind["name"]
    except (KeyError, TypeError) as problem:
        raise _not_understood("GET /api/v1/instance-types: a type is not whole") from problem
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise _not_understood(f"GET /api/v1/instance-types: a number of {_clean(str(name), 64)} is none")
    return _Type(str(name), gpu.strip(), form.rstrip(")"), *numbers, regions=regions)


def _fits(kind: _Type, wanted: Wanted) -> bool:
    return (
        _is_card(kind, wanted.gpu)
        and kind.gpus == wanted.gpu_count
        and kind.vram_gb >= (wanted.vram_gb or 0)
        and kind.storage_gib >= (wanted.disk_gb or 0)
    )


def _is_card(kind: _Type, asked: str) -> bool:
    """``H100``, ``H100 SXM``, ``A100 80GB`` or the type's own name; ``A10`` is not ``A100``."""
    wanted, card, form = _model(asked), _model(kind.gpu), _plain(kind.form)
    if asked == kind.name:
        return True
    if not card or not wanted.startswith(card):
        return False
    rest = wanted.removeprefix(card)
    return rest in form and (not rest[:1].isdigit() or re.match(r"\d+gb", rest) is not None)


def _model(text: str) -> str:
    """``NVIDIA RTX A6000``, ``RTX A6000`` and ``A6000`` are one card; ``RTX 6000`` is another."""
    return re.sub(r"^(?:nvidia)?(?:geforce|tesla|rtx(?=a\d))?", "", _plain(text))


def _offer(kind: _Type, region: str) -> Offer:
    arm = "; aarch64: ordinary torch wheels are for the CPU only there" if "gh200" in kind.name else ""
    return Offer(
        id=kind.name,
        gpu=f"{kind.gpu} ({kind.form})",
        gpu_count=kind.gpus,
        vram_gb=kind.vram_gb,
        rate=Money(Decimal(kind.cents) / 100, "USD"),
        region=region,
        stock=f"available{arm}",
    )


def _instance(data: t.Any) -> Instance:
    """Nothing of ``jupyter_token`` and ``jupyter_url`` is kept: they hold a secret."""
    if not isinstance(data, dict) or not isinstance(data.get("id"), str) or not isinstance(data.get("status"), str):
        raise _not_understood("an answer about an instance lacks its id or status")
    kind, specs = _object(data.get("instance_type")), _object(_object(data.get("instance_type")).get("specs"))
    status, cents, gpus = _clean(data["status"], 60), kind.get("price_cents_per_hour"), specs.get("gpus")
    mounts = [str(_object(mount).get("file_system_id")) for mount in data.get("file_system_mounts") or []]
    return Instance(
        id=data["id"],
        name=str(data.get("name") or ""),
        status=status,
        billing=_BILLING.get(status, UNKNOWN),
        rate=Money(Decimal(cents) / 100, "USD") if isinstance(cents, int) else None,
        endpoint=_endpoint(data.get("ip")) if status == "active" else None,
        region=_object(data.get("region")).get("name"),
        gpu=kind.get("gpu_description"),
        gpu_count=gpus if isinstance(gpus, int) else 0,
        volume_ids=tuple(mounts or map(str, data.get("file_system_names") or [])),
        dead=status in _DEAD,
        note="the platform takes it back: terminate it all the same" if status == "preempted" else None,
    )


def _endpoint(ip: t.Any) -> Endpoint | None:
    """``ip`` is missing while booting. SSH is on port 22 (docs) unless the address names another."""
    match = _ADDRESS.fullmatch(ip) if isinstance(ip, str) else None
    if match is None or not 0 < int(match[1] or 22) < 65536:
        return None
    return Endpoint(match[0].partition(":")[0], int(match[1] or 22), "ubuntu")


def _volume(data: t.Any) -> Volume:
    """``bytes_used`` lags by some hours (spec); a filesystem has no size of its own."""
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in ("id", "name")):
        raise _not_understood("an answer about a filesystem lacks its id or name")
    used = data.get("bytes_used")
    size_gb = math.ceil(used / _GIB) if isinstance(used, int) else 0
    return Volume("filesystem", data["id"], data["name"], size_gb, _object(data.get("region")).get("name"))

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RunPod: REST v2, and GraphQL for the balance alone (REST has none).

Facts: the vendor's OpenAPI file 2.0.0 (2026-08) and vendor pages of 2026-08; a stopped or failed pod is not gone.
"""

from __future__ import annotations

import re
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
    Volume,
    Volumes,
    Wanted,
    fingerprint,
)
from .http import Answer, HttpClient

_BILLING = {
    # Provisioning, starting and ERROR are not stated to be free: they count as billing until gone (spec, state table).
    "PROVISIONING": ON,
    "STARTING": ON,
    "RUNNING": ON,
    "ERROR": ON,
    "EXITED": DISK_ONLY,
    "TERMINATED": OFF,
}
_STOCK = {"HIGH": 3, "MEDIUM": 2, "LOW": 1, "NONE": 0}
_CAPACITY_TEXTS = ("no longer any instances available", "not enough free gpus")
_DEFAULT_DISK_GB = 20
_RELAYED = (
    "no direct SSH port is mapped; the relay ssh.runpod.io is a shell for people and carries no commands and no rsync:"
    " rent with 22/tcp"
)
_VOLUME_MIN_GB, _VOLUME_MAX_GB = 10, 4096


class RunPod(Platform):
    name = "runpod"
    can = frozenset({"rent", "show", "list", "destroy", "balance", "offers", "volumes"})
    console = "https://console.runpod.io/pods"
    id_pattern = re.compile(r"[A-Za-z0-9_-]{1,64}")
    key_variable = "RUNPOD_API_KEY"

    def __init__(self, environ: t.Mapping[str, str]) -> None:
        key = environ.get(self.key_variable, "").strip()
        if not key:
            raise AuthError(
                f"{self.key_variable} is not set",
                means="RunPod cannot be asked anything.",
                do=f"Create a key in the console (Settings, API keys) and type: export {self.key_variable}=…",
            )
        self.fingerprint = fingerprint(key)
        headers = {"Authorization": f"Bearer {key}"}
        self._rest = HttpClient(self.name, environ.get("RUNPOD_API_BASE_URL") or "https://api.runpod.io", headers)
        graphql = environ.get("RUNPOD_GRAPHQL_URL") or "https://api.runpod.io/graphql"
        self._graphql = HttpClient(self.name, graphql, headers)

    def whoami(self) -> str:
        keys = _member(self._rest.read("/v2/account/ssh-keys"), "keys", list)
        return f"key accepted, {len(keys)} ssh keys registered"

    def account(self) -> str | None:
        return str(self._myself()["id"])

    def balance(self) -> dict[str, t.Any]:
        myself = self._myself()
        return {
            "balance": Money(Decimal(str(myself["clientBalance"])), "USD").as_dict(),
            "burn_per_hour": Money(Decimal(str(myself["currentSpendPerHr"])), "USD").as_dict(),
        }

    def _myself(self) -> dict[str, t.Any]:
        answer = self._graphql.ask("", {"query": "query { myself { id clientBalance currentSpendPerHr } }"})
        if isinstance(answer.data, dict) and answer.data.get("errors"):
            raise PlatformError("GraphQL myself: " + str(answer.data["errors"][0].get("message", ""))[:200])
        myself = ((answer.data or {}).get("data") or {}).get("myself")
        if not isinstance(myself, dict) or not myself.get("id"):
            raise PlatformError("GraphQL myself: no such member in the answer")
        return myself

    def offers(self, wanted: Wanted) -> Offers:
        query = {"include": "AVAILABILITY", "product": "POD", "count": wanted.gpu_count, "cloud": "SECURE"}
        entries = _member(self._rest.read("/v2/catalog/gpus", query), "gpus", list)
        fitting = [entry for entry in entries if _fits(entry, wanted)]
        return sorted((_offer(entry, wanted) for entry in fitting), key=lambda offer: offer.rate.amount)

    def rent(self, wanted: Wanted, offer: Offer) -> Instance:
        body: dict[str, t.Any] = {
            "name": wanted.name,
            "image": wanted.image,
            "gpu": {"id": offer.id, "count": wanted.gpu_count},
            "cloud": "SECURE",
            "disk": wanted.disk_gb or _DEFAULT_DISK_GB,
            "ports": ["22/tcp"],
            "startSsh": True,
            "env": dict(wanted.env),
        }
        if wanted.cuda:
            body["gpu"]["minCudaVersion"] = wanted.cuda.lstrip(">= ")
        if wanted.public_key:
            body["env"]["PUBLIC_KEY"] = wanted.public_key
        if wanted.volume and wanted.volume_path:
            body["mounts"] = {"network": [{"volumeId": wanted.volume.id, "path": wanted.volume_path}]}
            body["dataCenterIds"] = [wanted.volume.region]
        elif wanted.region:
            body["dataCenterIds"] = [wanted.region]
        return _pod(self._change("POST", "/v2/pods", body).data)

    def show(self, instance_id: str) -> Instance:
        return _pod(self._rest.read(f"/v2/pods/{self.check_id(instance_id)}").data)

    def list(self) -> Instances:
        answer = self._rest.read("/v2/pods")
        for member in ("nextCursor", "next"):
            if isinstance(answer.data, dict) and answer.data.get(member):
                raise PlatformError(f"GET /v2/pods: the list is paged ({member}), which is not known here")
        return [_pod(entry) for entry in _member(answer, "pods", list)]

    def destroy(self, instance_id: str) -> str:
        try:
            answer = self._change("DELETE", f"/v2/pods/{self.check_id(instance_id)}", None)
        except NotFound as problem:
            return problem.seen
        return f"DELETE answered {answer.status}"

    def leftovers(self, instance: Instance | None) -> Volumes:
        volumes = [_volume(entry) for entry in _member(self._rest.read("/v2/network-volumes"), "networkVolumes", list)]
        return [found for found in volumes if instance is None or found.id in instance.volume_ids]

    def ensure_key(self, public_key: str) -> bool:
        keys = _member(self._rest.read("/v2/account/ssh-keys"), "keys", list)
        if any(_same_key(public_key, known) for known in keys):
            return False
        # PUT replaces the whole set, so the others are sent along.
        self._change("PUT", "/v2/account/ssh-keys", {"keys": [*keys, public_key]})
        return True

    def find_volume(self, name: str) -> Volume | None:
        found = [volume for volume in self.leftovers(None) if volume.name == name]
        if len(found) > 1:
            raise PlatformError(
                f"{len(found)} network volumes are named {name!r}: {', '.join(volume.id for volume in found)}",
                means="It cannot be told which one holds the data.",
                do="Rename or delete all but one in the console.",
            )
        return found[0] if found else None

    def create_volume(self, name: str, size_gb: int, region: str | None) -> Volume:
        if not _VOLUME_MIN_GB <= size_gb <= _VOLUME_MAX_GB:
            raise PlatformError(
                f"a network volume of {size_gb} GB was asked for",
                means=f"RunPod allows {_VOLUME_MIN_GB} to {_VOLUME_MAX_GB} GB. Nothing was created.",
                do="Change size_gb in job_volumes.",
            )
        body = {"name": name, "size": size_gb, "dataCenter": region}
        return _volume(self._change("POST", "/v2/network-volumes", body).data)

    def delete_leftover(self, kind: str, leftover_id: str) -> str:
        if kind != "network_volume":
            return super().delete_leftover(kind, leftover_id)
        answer = self._change("DELETE", f"/v2/network-volumes/{self.check_id(leftover_id)}", None)
        return f"DELETE answered {answer.status}"

    def _change(self, method: str, path: str, body: t.Any) -> Answer:
        """A write, with the 400 and 402 that RunPod gives no machine code for told apart by their text."""
        try:
            return self._rest.write(method, path, body)
        except PlatformError as problem:
            if problem.status == 400 and any(text in problem.detail.lower() for text in _CAPACITY_TEXTS):
                raise NoCapacity(problem.seen, status=400) from problem
            if problem.status == 402:
                raise PlatformError(
                    problem.seen,
                    means="The credit is too small: about one hour's cost must be there. Nothing was rented.",
                    do="Add credit in the console under Billing, then run the same command again.",
                    status=402,
                ) from problem
            raise


def _member(answer: Answer, name: str, kind: type) -> t.Any:
    value = answer.data.get(name) if isinstance(answer.data, dict) else None
    if not isinstance(value, kind):
        raise PlatformError(
            f"the answer has no {name}",
            means="It was not understood whole, so nothing is read from it.",
            do="Run the same command again; if it repeats, the API has changed and the collection needs an update.",
        )
    return value


def _same_key(one: str, other: str) -> bool:
    return one.split()[:2] == str(other).split()[:2]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _fits(entry: t.Any, wanted: Wanted) -> bool:
    if _plain(wanted.gpu) not in _plain(f"{entry['id']} {entry['name']}"):
        return False
    if wanted.vram_gb and entry["memory"] < wanted.vram_gb:
        return False
    if entry["maxCount"]["secure"] < wanted.gpu_count or not entry["secure"]:
        return False
    if _STOCK.get(entry.get("availability", "NONE"), 0) == 0:
        return False
    place = wanted.volume.region if wanted.volume else wanted.region
    return place is None or place in _places(entry)


def _places(entry: t.Any) -> list[str]:
    """Data centres where it can be had, best stocked first."""
    centres = [centre for centre in entry.get("dataCenters") or [] if _STOCK.get(centre["availability"], 0) > 0]
    return [centre["id"] for centre in sorted(centres, key=lambda centre: -_STOCK[centre["availability"]])]


def _offer(entry: t.Any, wanted: Wanted) -> Offer:
    places = _places(entry)
    place = wanted.volume.region if wanted.volume else wanted.region
    return Offer(
        id=entry["id"],
        gpu=entry["name"],
        gpu_count=wanted.gpu_count,
        vram_gb=entry["memory"],
        rate=Money(Decimal(str(entry["price"]["secure"])) * wanted.gpu_count, "USD"),
        region=place or (places[0] if places else None),
        stock=entry["availability"].lower(),
    )


def _pod(data: t.Any) -> Instance:
    if not isinstance(data, dict) or not isinstance(data.get("id"), str) or not isinstance(data.get("status"), str):
        raise PlatformError("an answer about a pod lacks its id or status", means="It was not understood whole.")
    status = data["status"]
    direct = (data.get("ssh") or {}).get("direct")
    endpoint = _endpoint(direct) if status == "RUNNING" and isinstance(direct, dict) else None
    gpu = data.get("gpu") or {}
    network = (data.get("mounts") or {}).get("network") or []
    return Instance(
        id=data["id"],
        name=str(data.get("name", "")),
        status=status,
        billing=_BILLING.get(status, UNKNOWN),
        rate=Money(Decimal(str(data.get("cost", 0))), "USD"),
        endpoint=endpoint,
        region=data.get("dataCenterId"),
        gpu=gpu.get("id"),
        gpu_count=int(gpu.get("count", 0)),
        image=data.get("image"),
        disk_gb=data.get("disk"),
        volume_ids=tuple(str(mount["volumeId"]) for mount in network),
        created_at=data.get("createdAt"),
        dead=status in ("ERROR", "EXITED", "TERMINATED"),
        note=_RELAYED if status == "RUNNING" and endpoint is None else None,
    )


def _endpoint(direct: dict[str, t.Any]) -> Endpoint:
    return Endpoint(direct["host"], int(direct["port"]), direct["username"])


def _volume(data: t.Any) -> Volume:
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise PlatformError("an answer about a network volume lacks its id", means="It was not understood whole.")
    return Volume("network_volume", data["id"], data["name"], int(data["size"]), data["dataCenter"])

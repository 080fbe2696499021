# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab for tests and the demo: synchronous, and ended with the process that started it.

with Lab(folder, timing="fast") as lab:
    environment = {**os.environ, **lab.env()}
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lab import control, launcher
from lab.control import LabError

__all__ = ["Lab", "LabError"]

_POLL_SECONDS = 0.05


class Lab:
    """One lab in one state folder. Options are those of `lab.market.Options` and `lab.market.Timing`.

    Every method raises LabError when the lab refuses or is not there.
    """

    def __init__(self, state_dir: str | os.PathLike[str], **options: Any) -> None:
        self.state_dir = Path(state_dir).absolute()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._described: dict[str, Any] = {}

    def __enter__(self) -> Lab:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Lab:
        self._process = launcher.start(self.state_dir, self._options, with_parent=True)
        self._described = launcher.read(self.state_dir)
        return self

    def stop(self) -> None:
        """End the lab and every box; the bill can still be read."""
        launcher.end(self.state_dir, self._process)
        if self._process and self._process.stdin:
            self._process.stdin.close()
        self._process = None

    # Where it is.

    @property
    def pid(self) -> int:
        return self._described["pid"]

    @property
    def namespaces(self) -> bool:
        """False where boxes are plain directories."""
        return self._described["namespaces"]

    @property
    def url(self) -> str:
        """RunPod's base URL, without /v2."""
        return self._platform("runpod")["url"]

    @property
    def graphql_url(self) -> str:
        return f"{self.url}/graphql"

    @property
    def api_key(self) -> str:
        return self._platform("runpod")["api_key"]

    @property
    def read_only_key(self) -> str:
        """A key that may look but not touch (403)."""
        return self._platform("runpod")["read_only_key"]

    def env(self) -> dict[str, str]:
        """The environment variables that point a client at this lab."""
        platforms = self._described["platforms"].values()
        return {name: value for platform in platforms for name, value in platform["env"].items()}

    # What is there.

    def rentals(self) -> list[dict[str, Any]]:
        """All rentals, also those gone: id, name, state, endpoint, generation, rate_per_hour, cost …"""
        return self._call("rentals")

    def rental(self, rental_id: str) -> dict[str, Any]:
        found = next((item for item in self.rentals() if item["id"] == rental_id), None)
        if found is None:
            raise LabError(f"no rental {rental_id!r}")
        return found

    def volumes(self) -> list[dict[str, Any]]:
        return self._call("volumes")

    def bill(self) -> dict[str, Any]:
        """The bill; after the lab has ended, the last one it wrote."""
        return bill(self.state_dir)

    def requests(self) -> list[dict[str, Any]]:
        """Every HTTP request so far: method, path, query, status (None: no answer given), at, seconds."""
        return self._call("requests")

    # What customers do.

    def rent(self, name: str, keys: Sequence[str] = (), **order: Any) -> dict[str, Any]:
        """Rent without the HTTP API; `order` takes `platform` and the fields of `lab.market.Order`."""
        order = {"gpu": "NVIDIA GeForce RTX 4090", "image": "lab/image", **order}
        return self._call("rent", name=name, keys=list(keys), **order)

    def create_volume(
        self, name: str, size_gb: int = 10, region: str = "US-KS-2", platform: str = "runpod"
    ) -> dict[str, Any]:
        return self._call("create_volume", name=name, size_gb=size_gb, region=region, platform=platform)

    def delete_volume(self, volume_id: str) -> None:
        self._call("delete_volume", volume_id=volume_id)

    def start_rental(self, rental_id: str) -> None:
        self._call("start", rental_id=rental_id)

    def stop_rental(self, rental_id: str) -> None:
        self._call("stop", rental_id=rental_id)

    def destroy(self, rental_id: str) -> None:
        self._call("destroy", rental_id=rental_id)

    def wait(self, rental_id: str, state: str = "running", timeout: float = 30.0) -> dict[str, Any]:
        """Until the rental is in that state, and reachable if that is `running`; LabError after the timeout."""
        deadline = time.monotonic() + timeout
        while True:
            rental = self.rental(rental_id)
            if rental["state"] == state and (state != "running" or rental["endpoint"]):
                return rental
            if time.monotonic() > deadline:
                raise LabError(f"rental {rental_id} is {rental['state']} after {timeout} s ({rental['reason']})")
            time.sleep(_POLL_SECONDS)

    # What happens to them.

    def preempt(self, rental_id: str) -> None:
        """SIGTERM, the grace, SIGKILL; then the rental is stopped."""
        self._call("preempt", rental_id=rental_id)

    def kill_host(self, rental_id: str, notice_after: float = 0.0) -> None:
        """The host is gone at once; the platform notices so many seconds later. Returns when it has."""
        self._call("kill_host", rental_id=rental_id, notice_after=notice_after)

    def reboot(self, rental_id: str) -> None:
        self._call("reboot", rental_id=rental_id)

    def exec(self, rental_id: str, argv: Sequence[str]) -> tuple[int, bytes, bytes]:
        """Look inside a box, past its SSH server: exit status, stdout, stderr."""
        answer = self._call("exec", rental_id=rental_id, argv=list(argv))
        return answer["rc"], base64.b64decode(answer["out"]), base64.b64decode(answer["err"])

    def fault(
        self,
        kind: str,
        match: dict[str, str] | None = None,
        *,
        times: int | None = None,
        seconds_long: float | None = None,
        **params: Any,
    ) -> str:
        """Set a fault (kinds: `lab.faults.KINDS`) and return its id. `match` holds regular expressions by matcher."""
        answer = self._call("fault", kind=kind, match=match, params=params, times=times, seconds=seconds_long)
        return answer["id"]

    def faults(self) -> list[dict[str, Any]]:
        return self._call("faults")

    def clear(self, fault_id: str | None = None) -> None:
        """Clear one fault, or all."""
        self._call("clear", fault_id=fault_id)

    def _call(self, verb: str, **arguments: Any) -> Any:
        return control.call(self.state_dir, verb, **arguments)

    def _platform(self, name: str) -> dict[str, Any]:
        if not self._described:
            raise LabError("the lab is not started")
        return self._described["platforms"][name]


def bill(folder: Path) -> dict[str, Any]:
    """The bill of the lab in this folder, running or ended. Raises LabError where there never was one."""
    if launcher.running(folder):
        return control.call(folder, "bill")
    return launcher.read_bill(folder)

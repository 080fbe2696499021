# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Holds boxes for a caller outside the namespaces: JSON lines in on stdin, JSON lines out on stdout.

`python -m lab.boxes.keeper` is for callers that want a box or two without a market around them, such as `lab.soak`.
A request is `{"op": …, "box": id, …}`; `op` is `make` (with the spec), `make_volume`, `drop_volume` or a method of
`Box`; the answer is `{"ok": true, …}` or `{"ok": false, "seen": …}`. At the end of stdin every box dies.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.boxes import Box, BoxError, BoxSpec, Gpu, Mount, drop_volume, enter_argv, make_volume, namespaces_available

_CLONE = Path(__file__).resolve().parents[2]


def keeper_argv() -> list[str]:
    """The command line of a keeper, in namespaces of its own where those are permitted."""
    argv = [sys.executable, "-m", "lab.boxes.keeper"]
    return enter_argv(argv) if namespaces_available()[0] else argv


def _mount(data: dict[str, Any]) -> Mount:
    source = data.pop("source", None)
    return Mount(**data, source=Path(source) if source else None)


def _spec(data: dict[str, Any]) -> BoxSpec:
    data["state_dir"] = Path(data["state_dir"])
    data["gpu"] = Gpu(**data["gpu"]) if data.get("gpu") else None
    data["hide"] = frozenset(data.get("hide", ()))
    data["mounts"] = [_mount(mount) for mount in data.get("mounts", [])]
    if "root" in data:
        data["root"] = _mount(data["root"])
    return BoxSpec(**data)


class Keeper:
    """The boxes by id, and one method for each kind of request."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"ok": True, **await self._do(request.pop("op"), request)}
        except Exception as failure:
            return {"ok": False, "seen": f"{type(failure).__name__}: {failure}"}

    async def _do(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        if op == "make":
            spec = _spec(request["spec"])
            self._boxes[spec.box_id] = Box(spec)
            return self._tell(spec.box_id)
        if op == "make_volume":
            make_volume(Path(request["path"]), request["size_bytes"], request["inodes"])
            return {}
        if op == "drop_volume":
            drop_volume(Path(request["path"]))
            return {}
        name = request.pop("box")
        if op == "exec":
            rc, out, err = await self._boxes[name].exec(request["argv"])
            return {"rc": rc, "out": base64.b64encode(out).decode(), "err": base64.b64encode(err).decode()}
        if op != "tell":
            await getattr(self._boxes[name], op)(**request)
        return self._tell(name)

    def _tell(self, name: str) -> dict[str, Any]:
        fields = ("host", "port", "running", "fallback", "fallback_reason", "path_prefix", "host_public_key")
        return {field: getattr(self._boxes[name], field) for field in fields}

    async def end(self) -> None:
        for box in self._boxes.values():
            await box.kill()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=64 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    keeper = Keeper()
    try:
        while line := await reader.readline():
            print(json.dumps(await keeper.answer(json.loads(line))), flush=True)
    finally:
        await keeper.end()


class KeeperClient:
    """The caller's end, synchronous. A context manager: leaving it ends the keeper and every box."""

    def __init__(self, **popen: Any):
        self._process = subprocess.Popen(
            keeper_argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_CLONE, **popen
        )

    def __enter__(self) -> KeeperClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """One request, answered. Raises BoxError with what the keeper saw."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        said: dict[str, Any] = json.loads(line) if line else {"ok": False, "seen": "the keeper has ended"}
        if not said.pop("ok"):
            raise BoxError(f"{op}: {said['seen']}")
        return said

    def exec(self, box: str, *argv: str) -> tuple[int, bytes, bytes]:
        said = self.ask("exec", box=box, argv=argv)
        return said["rc"], base64.b64decode(said["out"]), base64.b64decode(said["err"])


if __name__ == "__main__":
    asyncio.run(_serve())

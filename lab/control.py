# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's control channel: one JSON line each way over a unix socket in the state folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

SOCKET_NAME = "control.sock"
MAX_LINE = 64 << 20

log = logging.getLogger(__name__)

Verb = Callable[..., Awaitable[Any]]


class LabError(Exception):
    """The lab cannot do what was asked; the text says what was seen and what to do."""


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name of the socket that fits into a socket address (108 bytes) however deep the folder lies."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def alive(folder: Path) -> bool:
    """Whether a lab answers in this state folder."""
    try:
        with _connected(folder, 5.0):
            return True
    except OSError:
        return False


def call(folder: Path, verb: str, timeout: float = 60.0, **arguments: Any) -> Any:
    """Ask the lab of this folder. Raises LabError with its refusal, or when no lab answers there."""
    try:
        with _connected(folder, timeout) as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    except OSError as problem:
        raise LabError(f"no lab answers in {folder} ({problem}); start one with `python -m lab up`") from problem
    if not line:
        raise LabError(f"the lab in {folder} ended while it was asked for {verb!r}; see {folder / 'site.log'}")
    answer = json.loads(line)
    if "error" in answer:
        raise LabError(answer["error"])
    return answer["result"]


@contextlib.contextmanager
def _connected(folder: Path, timeout: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        with _short_path(folder) as path:
            connection.connect(path)
        yield connection


async def serve(folder: Path, verbs: dict[str, Verb], refusals: tuple[type[Exception], ...]) -> asyncio.Server:
    """Answer calls; exceptions in `refusals` are the caller's fault, all others are logged as ours."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            line = await reader.readline()
            if line:
                writer.write(json.dumps(await _result(line, verbs, refusals)).encode() + b"\n")
                await writer.drain()
            writer.close()

    (folder / SOCKET_NAME).unlink(missing_ok=True)
    # Bound by hand: asyncio would remember the short path, which is gone when it wants to unlink the socket.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(folder) as path:
        listening.bind(path)
    return await asyncio.start_server(answer, sock=listening, limit=MAX_LINE)


async def _result(line: bytes, verbs: dict[str, Verb], refusals: tuple[type[Exception], ...]) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        if asked["verb"] not in verbs:
            return {"error": f"the lab does not know {asked['verb']!r}"}
        return {"result": await verbs[asked["verb"]](**asked["arguments"])}
    except refusals as refusal:
        return {"error": str(refusal)}
    except Exception as problem:
        log.exception("control call failed")
        return {"error": f"{type(problem).__name__}: {problem}"}

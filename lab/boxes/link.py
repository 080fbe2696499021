# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wire between a box and the world, for tests that slow or cut it.

It sits between the TCP socket and the SSH protocol, so it can change under a connection that is already open. A cut
wire behaves as one that loses every packet: nothing is closed, nothing arrives, and what was sent arrives after the
repair. Left alone it costs nothing.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

_HIGH_WATER = 256 << 10
_PIECE = 64 << 10

Item = bytes | Callable[[], None]


class Link:
    """Rate (bytes per second and direction, shared by all connections), one-way delay, and whether it is cut."""

    def __init__(self) -> None:
        self.rate: int | None = None
        self.delay = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._free_at = {"in": 0.0, "out": 0.0}

    def set(self, rate: int | None, cut: bool, delay: float) -> None:
        self.rate, self.delay = rate, delay
        if cut:
            self._open.clear()
        else:
            self._open.set()

    @property
    def clear(self) -> bool:
        return self.rate is None and not self.delay and self._open.is_set()

    @property
    def piece(self) -> int:
        """Bytes to carry at once: about a twentieth of a second's worth, so that connections share a slow wire."""
        return _PIECE if self.rate is None else max(1, min(_PIECE, self.rate // 20))

    async def carry(self, direction: str, size: int, sent_at: float) -> None:
        """Return when `size` bytes sent at `sent_at` (loop time) have arrived."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(sent_at + self.delay - clock())
        if self.rate is not None:
            self._free_at[direction] = max(clock(), self._free_at[direction]) + size / self.rate
            await asyncio.sleep(self._free_at[direction] - clock())
        await self._open.wait()


class _Lane:
    """One direction of one connection: bytes and markers (end of file, close) in order."""

    def __init__(self, link: Link, direction: str, deliver: Callable[[bytes], None]):
        self._link, self._direction, self._deliver = link, direction, deliver
        self._queue: deque[tuple[float, Item]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.backlog = 0

    def push(self, item: Item) -> None:
        if self._task is None and self._link.clear:
            self._hand_over(item)
            return
        self._queue.append((asyncio.get_running_loop().time(), item))
        self.backlog += len(item) if isinstance(item, bytes) else 0
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def drop(self) -> None:
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    def _hand_over(self, item: Item) -> None:
        if isinstance(item, bytes):
            self._deliver(item)
        else:
            item()

    async def _run(self) -> None:
        try:
            while self._queue:
                sent_at, item = self._queue.popleft()
                if not isinstance(item, bytes):
                    await self._link.carry(self._direction, 0, sent_at)
                    item()
                    continue
                view, start = memoryview(item), 0
                while start < len(item):
                    piece = bytes(view[start : start + self._link.piece])
                    await self._link.carry(self._direction, len(piece), sent_at)
                    start += len(piece)
                    self.backlog -= len(piece)
                    self._deliver(piece)
        finally:
            self._task = None


class _Wire(asyncio.Protocol):
    """The socket's end: hands what arrives to the SSH protocol through the link."""

    def __init__(self, link: Link, inner: asyncio.Protocol, wires: set[_Wire]):
        self._inner, self._wires = inner, wires
        self._inbound = _Lane(link, "in", self._arrived)
        self.outbound = _Lane(link, "out", self._leaves)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._wires.add(self)
        self._inner.connection_made(_WireTransport(self))

    def data_received(self, data: bytes) -> None:
        self._inbound.push(data)
        if self._inbound.backlog > _HIGH_WATER:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        # The SSH protocol closes the connection itself once the end has reached it.
        self._inbound.push(self._end)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._wires.discard(self)
        self.outbound.drop()
        self._inbound.push(lambda: self._inner.connection_lost(exc))

    def reset_on_close(self) -> None:
        """Make the kernel answer with RST, not FIN, when this process is gone: that is how a lost host looks."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _end(self) -> None:
        self._inner.eof_received()

    def _arrived(self, data: bytes) -> None:
        self._inner.data_received(data)
        if self._inbound.backlog < _HIGH_WATER // 2 and not self.transport.is_closing():
            self.transport.resume_reading()

    def _leaves(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class _WireTransport(asyncio.Transport):
    """The transport that the SSH protocol sees."""

    def __init__(self, wire: _Wire):
        super().__init__()
        self._wire = wire

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._wire.transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._wire.transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._wire.outbound.push(bytes(data))

    def close(self) -> None:
        self._wire.outbound.push(self._wire.transport.close)

    def abort(self) -> None:
        # asyncssh aborts right after its last message (a disconnect with a reason): let that one out first.
        self._wire.outbound.push(self._wire.transport.close)


class LinkListener:
    """Listens on the link: what asyncssh takes as `tunnel`. The port is in `port` once it listens."""

    def __init__(self, link: Link):
        self._link = link
        self._wires: set[_Wire] = set()
        self.port = 0

    async def create_server(
        self, factory: Callable[[str, int], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Wire(self._link, factory(host, port), self._wires), host, port, backlog=512
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    def reset_on_close(self) -> None:
        for wire in self._wires:
            wire.reset_on_close()

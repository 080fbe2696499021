# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SSH server of a box, and the box's hand: it does inside what `Box` asks for from outside.

`python -m lab.boxes.sshd FD`: FD is a connected socket to the lab. The first line on it is the configuration, every
further line a request `{"id", "op", …}`, answered with `{"id", "ok", …}`. Unasked it
tells of every command: `{"event": "exec", "at", "command"}`. When the socket closes, the lab is gone and
so is the server.

asyncssh, because OpenSSH's sshd needs mapped groups, which a user namespace made by an ordinary user has not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import asyncssh

from lab.boxes import processes
from lab.boxes.link import Link, LinkListener
from lab.boxes.session import Login, Session

_CIPHERS = ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr"]
"""AES-GCM first: measured, the fastest that asyncssh and OpenSSH share; ChaCha20 costs asyncssh twice the calls."""

_MESSAGE_LIMIT = 64 << 20


def public_keys(lines: Iterable[str]) -> set[bytes]:
    """The keys in `authorized_keys` lines; comments, options and lines that are not keys are passed over."""
    keys = set()
    for line in lines:
        words = line.split()
        for index, word in enumerate(words):
            if word.startswith("#"):
                break
            if word.startswith(("ssh-", "ecdsa-", "sk-")):
                with contextlib.suppress(asyncssh.KeyImportError):
                    keys.add(asyncssh.import_public_key(" ".join(words[index : index + 2])).public_data)
                break
    return keys


class Server(asyncssh.SSHServer):
    """Keys only, user root only, sessions and forwarding without limits."""

    def __init__(self, authorized: list[str], login: Login):
        self._authorized, self._login = authorized, login

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and key.public_data in public_keys([*self._authorized, *self._keys_in_home()])

    def _keys_in_home(self) -> list[str]:
        try:
            return Path(self._login.home, ".ssh/authorized_keys").read_text(errors="replace").splitlines()
        except OSError:
            return []

    def session_requested(self) -> Session:
        return Session(self._login)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


class Hand:
    """Answers the lab's requests; each `op` is a method `op_<name>`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._link = Link()
        self._listener = LinkListener(self._link)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self._config = json.loads(await self._reader.readline())
        self._login = Login(
            shell="/bin/bash",
            home=self._config["home"],
            environment=self._config["environment"],
            sftp=self._config["sftp"],
            tell=lambda command: self._send({"event": "exec", "at": time.time(), "command": command}),
        )
        os.chdir(self._login.home)
        if not self._config["sandboxed"]:
            self._start(_adopt_orphans())
        self._set_link(self._config["link"])
        try:
            self._acceptor = await self._listen()
        except OSError as failure:
            self._send({"event": "failed", "seen": f"port {self._config['port']}: {failure.strerror}"})
            return
        self._send({"event": "ready", "port": self._listener.port})
        while line := await self._reader.readline():
            self._start(self._answer(json.loads(line)))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            self._config["port"],
            tunnel=self._listener,
            server_factory=lambda: Server(self._config["authorized_keys"], self._login),
            server_host_keys=[asyncssh.import_private_key(self._config["host_key"])],
            server_version="OpenSSH_9.2p1",
            encryption_algs=_CIPHERS,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            # Otherwise every login asks DNS for the box's own name inside the event loop (stalls of 5 s seen).
            gss_host=None,
            login_timeout=120,
        )

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = await getattr(self, f"op_{request['op']}")(request) or {}
            self._send({"id": request["id"], "ok": True, **answer})
        except Exception as failure:
            self._send({"id": request["id"], "ok": False, "seen": f"{type(failure).__name__}: {failure}"})

    def _send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    def _set_link(self, link: dict[str, Any]) -> None:
        self._link.set(link["rate_bytes_per_second"], link["cut"], link["delay_seconds"])

    async def op_link(self, request: dict[str, Any]) -> None:
        self._set_link(request["link"])

    async def op_vanish(self, _request: dict[str, Any]) -> None:
        """Prepare for a death that looks like a lost host: no new connections, resets instead of goodbyes."""
        self._listener.reset_on_close()

    async def op_exec(self, request: dict[str, Any]) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *request["argv"],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._login.home,
            env=dict(self._login.environment),
            start_new_session=True,
        )
        out, err = await process.communicate()
        returncode = process.returncode or 0
        return {"rc": returncode, "out": base64.b64encode(out).decode(), "err": base64.b64encode(err).decode()}

    async def op_terminate(self, request: dict[str, Any]) -> dict[str, Any]:
        """SIGTERM to every process of the box; returns when they are gone or the grace is over."""
        self._acceptor.close()
        end = time.monotonic() + request["grace_seconds"]
        for pid in self._others():
            _send_signal(pid, signal.SIGTERM)
        while (left := self._others()) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return {"left": len(left)}

    def _others(self) -> list[int]:
        """Everything else that lives in the box. In a sandbox that is all there is to see; else, what we begot."""
        if self._config["sandboxed"]:
            return [pid for pid in processes.living() if pid not in (1, os.getpid())]
        return processes.descendants(os.getpid())


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _adopt_orphans() -> None:
    """Do what a sandbox's first process does: be the parent of what the commands leave behind, and bury it.

    Only what has been dead for a whole round is buried: a command's exit status belongs to the session that waits.
    """
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    before: set[int] = set()
    while True:
        dead = processes.zombies_of(os.getpid())
        for pid in before & dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        before = dead
        await asyncio.sleep(2)


async def _serve(fd: int) -> None:
    with socket.socket(fileno=fd) as sock:
        sock.set_inheritable(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=_MESSAGE_LIMIT)
        await Hand(reader, writer).run()
        await writer.drain()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The lab decides when the box stops. A handler, because an ignored signal stays ignored in every command.
        signal.signal(number, lambda *_: None)
    os.umask(0o022)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The proof that the lab does not flake: fresh SSH connections as Ansible makes them, every answer checked.

A connection that ends with an unexpected status, lacks output or brings wrong bytes is a drop. One is too many.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.boxes import BoxError
from lab.boxes.keeper import KeeperClient

_COMMAND_SECONDS = 60
_FILE_BYTES = 1 << 20
_PAYLOAD_BYTES = 300_000  # what Ansible sends through a pipeline for a module of its own
_SESSIONS_AT_ONCE = 6


class Drop(Exception):
    """One connection that did not do what it should have; the text says what was seen."""


@dataclass
class Report:
    """What was done and what went wrong: connections by kind, the drops, wall-clock seconds."""

    made: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    drops: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.drops

    def count(self, kind: str) -> None:
        self.made[kind] += 1

    def drop(self, kind: str, seen: str) -> None:
        self.made[kind] += 1
        self.dropped[kind] += 1
        self.drops.append(f"{kind} {seen}")

    def lines(self) -> list[str]:
        """One line a kind, one a drop, and the sum."""
        kinds = [f"{kind:<12} {count:>4} made, {self.dropped[kind]} dropped" for kind, count in self.made.items()]
        total = f"{self.made.total()} connections in {self.seconds:.1f} s, {len(self.drops)} dropped"
        return [*kinds, *(f"drop: {drop}" for drop in self.drops), total]


@dataclass(frozen=True)
class _Target:
    host: str
    port: int
    key: Path
    scratch: Path

    def options(self, **more: str) -> list[str]:
        """The options of Ansible's ssh connection plugin, with a fresh connection unless `more` says otherwise."""
        options = {
            "Port": str(self.port),
            "User": "root",
            "IdentityFile": f'"{self.key}"',
            "IdentitiesOnly": "yes",
            "ControlMaster": "no",
            "ControlPath": "none",
            "KbdInteractiveAuthentication": "no",
            "PreferredAuthentications": "publickey",
            "PasswordAuthentication": "no",
            "ConnectTimeout": "10",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            **more,
        }
        return ["-F", "none", "-C", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


Tally = Callable[[str], None]  # called once for each connection that went well
Kind = Callable[[_Target, int, Tally], Awaitable[None]]


async def _run(argv: list[str], stdin: bytes = b"", want: int = 0) -> bytes:
    """Run a client to its end; its stdout. Raises Drop when it takes too long or ends with another status."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), _COMMAND_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise Drop(f"{argv[0]}: no end after {_COMMAND_SECONDS} s") from None
    if process.returncode != want:
        said = err.decode(errors="replace").strip()[-300:]
        raise Drop(f"{argv[0]}: exit status {process.returncode}, expected {want}: {said}")
    return out


def _ssh(target: _Target, command: str, *flags: str, **options: str) -> list[str]:
    return ["ssh", *target.options(**options), *flags, target.host, f"/bin/sh -c {shlex.quote(command)}"]


def _expect(seen: bytes, wanted: bytes, what: str) -> None:
    if seen != wanted:
        raise Drop(f"{what}: {len(seen)} bytes {seen[:80]!r}, expected {len(wanted)} bytes {wanted[:80]!r}")


async def _pipelined(target: _Target, number: int, done: Tally) -> None:
    """A module payload through stdin into Python, as with `pipelining = true`."""
    blob = os.urandom(_PAYLOAD_BYTES // 2).hex()
    status = number % 3
    program = f"import hashlib\nprint({number}, hashlib.sha256(b'{blob}').hexdigest())\nraise SystemExit({status})\n"
    out = await _run(_ssh(target, "python3 && sleep 0"), program.encode(), want=status)
    _expect(out, f"{number} {hashlib.sha256(blob.encode()).hexdigest()}\n".encode(), "payload")
    done("pipelined")


async def _terminal(target: _Target, number: int, done: Tally) -> None:
    """A command on a terminal, as with `ssh -tt` without pipelining."""
    out = await _run(_ssh(target, f"test -t 0 && test -t 1 && echo seen {number}; exit 7", "-tt"), want=7)
    _expect(out.replace(b"\r\n", b"\n"), f"seen {number}\n".encode(), "terminal")
    done("terminal")


async def _sftp(target: _Target, number: int, done: Tally) -> None:
    """A file put by one connection and got by the next."""
    there, back = f"/tmp/soak-sftp-{number}", target.scratch / f"sftp-back-{number}"
    with _file(target, f"sftp-{number}") as here:
        sftp = ["sftp", *target.options(), "-b", "-", target.host]
        await _run(sftp, f"put {shlex.quote(str(here))} {there}\n".encode())
        done("sftp put")
        await _run(sftp, f"get {there} {shlex.quote(str(back))}\nrm {there}\n".encode())
        _same(here, back)
        done("sftp get")


async def _scp(target: _Target, number: int, done: Tally) -> None:
    """A file there and back; scp, unlike sftp, wants an exit status from the far end."""
    there, back = f"/tmp/soak-scp-{number}", target.scratch / f"scp-back-{number}"
    with _file(target, f"scp-{number}") as here:
        await _run(["scp", *target.options(), str(here), f"{target.host}:{there}"])
        done("scp put")
        await _run(["scp", *target.options(), f"{target.host}:{there}", str(back)])
        _same(here, back)
        done("scp get")
    await _run(_ssh(target, f"rm {there}"))
    done("command")


async def _rsync(target: _Target, number: int, done: Tally) -> None:
    """A file pushed and pulled; rsync's own check is not taken on trust."""
    there, back = f"/tmp/soak-rsync-{number}", target.scratch / f"rsync-back-{number}"
    with _file(target, f"rsync-{number}") as here:
        shell = shlex.join(["ssh", *target.options(Compression="no")])
        await _run(["rsync", "-a", "-e", shell, str(here), f"{target.host}:{there}"])
        done("rsync push")
        await _run(["rsync", "-a", "--remove-source-files", "-e", shell, f"{target.host}:{there}", str(back)])
        _same(here, back)
        done("rsync pull")


async def _left_behind(target: _Target, number: int, done: Tally) -> None:
    """A tmux session started, left, and found again with its work done by the next connection."""
    name = f"soak-{number}"
    start = f"tmux new-session -d -s {name} 'echo alive > /tmp/{name}; exec sleep 600'"
    await _run(_ssh(target, start))
    done("tmux start")
    wait = f"for i in $(seq 50); do [ -s /tmp/{name} ] && break; sleep 0.1; done"
    end = f"cat /tmp/{name}; rm /tmp/{name}; tmux kill-session -t ={name}"
    out = await _run(_ssh(target, f"tmux has-session -t ={name} && {{ {wait}; {end}; }}"))
    _expect(out, b"alive\n", "tmux session")
    done("tmux find")


async def _multiplexed(target: _Target, number: int, done: Tally) -> None:
    """Several sessions at once over one master, as with ControlPersist."""
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as short:  # a socket path has about 100 bytes
        options = {"ControlMaster": "auto", "ControlPersist": "30", "ControlPath": f"{short}/c"}
        await _run(_ssh(target, "true", **options))
        done("multiplexed")
        try:
            argv = [_ssh(target, f"echo {number}.{session}; cat", **options) for session in range(_SESSIONS_AT_ONCE)]
            outs = await asyncio.gather(*(_run(one, b"x" * 100_000) for one in argv))
            for session, out in enumerate(outs):
                _expect(out, f"{number}.{session}\n".encode() + b"x" * 100_000, "multiplexed session")
        finally:
            await _run(["ssh", *target.options(**options), "-O", "exit", target.host])


_KINDS: dict[str, Kind] = {
    "pipelined": _pipelined,
    "terminal": _terminal,
    "sftp": _sftp,
    "scp": _scp,
    "rsync": _rsync,
    "tmux": _left_behind,
    "multiplexed": _multiplexed,
}
_CYCLE = (
    *("pipelined", "terminal"),
    *("pipelined", "sftp"),
    *("pipelined", "rsync"),
    *("pipelined", "scp"),
    "tmux",
    "multiplexed",
)


@contextlib.contextmanager
def _file(target: _Target, name: str) -> Iterator[Path]:
    path = target.scratch / name
    path.write_bytes(os.urandom(_FILE_BYTES))
    try:
        yield path
    finally:
        path.unlink()


def _same(sent: Path, back: Path) -> None:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (sent, back)]
    back.unlink()
    if digests[0] != digests[1]:
        raise Drop(f"{sent.name}: came back with other bytes")


async def _work(target: _Target, turns: Iterator[int], report: Report, connections: int) -> None:
    """Take turns until enough connections were made, by this worker and its siblings."""
    while report.made.total() < connections:
        number = next(turns)
        name = _CYCLE[number % len(_CYCLE)]
        try:
            await _KINDS[name](target, number, report.count)
        except Drop as drop:
            report.drop(name, f"#{number}: {drop}")


@contextlib.contextmanager
def _own_box(scratch: Path) -> Iterator[tuple[str, int, Path]]:
    """A box for this soak alone: host, port, key."""
    key = scratch / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    spec = {
        "box_id": "soak",
        "hostname": "soak",
        "state_dir": str(scratch),
        "authorized_keys": [key.with_suffix(".pub").read_text()],
        "env": {},
        "gpu": None,
        "root": {"path": "/root", "size_bytes": 1 << 30, "inodes": 100_000},
    }
    with KeeperClient() as keeper:
        keeper.ask("make", spec=spec)
        box = keeper.ask("start", box="soak")
        if box["fallback"]:
            print(f"soak: the box is a plain directory: {box['fallback_reason']}")
        yield box["host"], box["port"], key


async def soak(
    connections: int, *, parallel: int = 4, host: str | None = None, port: int | None = None, key: Path | None = None
) -> Report:
    """Make at least `connections` SSH connections, `parallel` at a time, to a box of its own unless one is named.

    Raises ValueError when a host is named without port or key.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, contextlib.ExitStack() as stack:
        scratch = Path(folder)
        if host is None:
            host, port, key = stack.enter_context(_own_box(scratch))
        if port is None or key is None:
            raise ValueError(f"soak of {host}: say its port and the private key to log in with, too")
        target, report, turns = _Target(host, port, key, scratch), Report(), itertools.count()
        began = time.monotonic()
        await asyncio.gather(*(_work(target, turns, report, connections) for _ in range(parallel)))
        report.seconds = time.monotonic() - began
        return report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m lab soak`."""
    parser.add_argument("--connections", type=int, default=500, help="how many SSH connections at least (%(default)s)")
    parser.add_argument("--parallel", type=int, default=4, help="how many at a time (%(default)s)")
    parser.add_argument("--host", help="a box that runs already; without it the soak starts its own")
    parser.add_argument("--port", type=int, help="SSH port of --host")
    parser.add_argument("--key", type=Path, help="private key for --host")


def run(arguments: argparse.Namespace) -> int:
    """Soak, print the report, and return the exit status: 1 on any drop."""
    try:
        report = asyncio.run(
            soak(
                arguments.connections,
                parallel=arguments.parallel,
                host=arguments.host,
                port=arguments.port,
                key=arguments.key,
            )
        )
    except (ValueError, BoxError) as failure:
        print(f"soak: {failure}", file=sys.stderr)
        return 2
    print("\n".join(report.lines()))
    return 0 if report.ok else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab soak", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands and shells of an SSH session, as OpenSSH's server runs them.

The bytes are carried by loops of our own: asyncssh 2.24's `process.redirect` into a subprocess now and then raises
`KeyError` in `feed_eof` and drops the whole connection (about 1 in 50 with pipelined payloads).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import asyncssh
from asyncssh.stream import SSHServerStreamSession

_READ_SIZE = 256 << 10
_HIGH_WATER = 1 << 20
_IDLE_PIPE_SECONDS = 0.25
"""How long a pipe must be silent, after its command has exited, to be taken as held by a daemon that stays behind."""


@dataclass(frozen=True)
class Login:
    """What a login gives to its commands, and who is told of each: `tell(command)`, None for a shell."""

    shell: str
    home: str
    environment: Mapping[str, str]
    sftp: bool
    tell: Callable[[str | None], None]


class Inlet:
    """Feeds a file descriptor from memory without blocking; asks for a pause when too much has piled up."""

    def __init__(self, fd: int, pause: Callable[[], None], resume: Callable[[], None]):
        os.set_blocking(fd, False)
        self._fd, self._pause, self._resume = fd, pause, resume
        self._pending: deque[memoryview] = deque()
        self._size = 0
        self._paused = self._waiting = self._ending = False
        self._loop = asyncio.get_running_loop()

    def feed(self, data: bytes) -> None:
        if self._fd < 0 or self._ending:
            return
        self._pending.append(memoryview(data))
        self._size += len(data)
        if not self._waiting:
            self._flush()
        if self._size > _HIGH_WATER and not self._paused:
            self._paused = True
            self._pause()

    def end(self) -> None:
        """Close once everything fed so far is written."""
        self._ending = True
        if not self._pending:
            self.close()

    def close(self) -> None:
        if self._fd < 0:
            return
        if self._waiting:
            self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._pending.clear()
        self._size = 0
        self._resume_if_paused()

    def _flush(self) -> None:
        try:
            while self._pending:
                view = self._pending[0]
                written = os.write(self._fd, view)
                self._size -= written
                if written == len(view):
                    self._pending.popleft()
                else:
                    self._pending[0] = view[written:]
        except BlockingIOError:
            if not self._waiting:
                self._waiting = True
                self._loop.add_writer(self._fd, self._flush)
        except OSError:  # the command does not read any more: as with any pipe, the rest is lost
            self.close()
            return
        else:
            if self._waiting:
                self._waiting = False
                self._loop.remove_writer(self._fd)
            if self._ending:
                self.close()
                return
        if self._size < _HIGH_WATER // 2:
            self._resume_if_paused()

    def _resume_if_paused(self) -> None:
        if self._paused:
            self._paused = False
            self._resume()


class Outlet:
    """Hands on what a file descriptor yields, until its end or until it stays silent after `release`."""

    def __init__(self, fd: int, sink: Callable[[bytes], None]):
        os.set_blocking(fd, False)
        self._fd, self._sink = fd, sink
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._last_read = 0.0
        self.done: asyncio.Future[None] = self._loop.create_future()
        self.resume()

    def pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self._fd >= 0 and not self._reading:
            self._reading = True
            self._last_read = self._loop.time()  # while it was paused nobody listened, so it was not silent
            self._loop.add_reader(self._fd, self._read)

    def release(self) -> None:
        """The command is gone: whoever still holds the other end without writing is a daemon, so wait only briefly."""
        self._last_read = self._loop.time()
        self._close_when_silent()

    def _close_when_silent(self) -> None:
        if self._reading:
            self._read()  # what the command wrote before it ended must not be lost to a late event loop
        if self._fd < 0:
            return
        left = self._last_read + _IDLE_PIPE_SECONDS - self._loop.time() if self._reading else _IDLE_PIPE_SECONDS
        if left <= 0:
            self.close()
        else:
            self._loop.call_later(left, self._close_when_silent)

    def close(self) -> None:
        if self._fd < 0:
            return
        self.pause()
        os.close(self._fd)
        self._fd = -1
        if not self.done.done():
            self.done.set_result(None)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last process has closed the terminal
            data = b""
        if data:
            self._last_read = self._loop.time()
            self._sink(data)
        else:
            self.close()


class Sftp(asyncssh.SFTPServer):
    """asyncssh's server; it closes the channel without an exit status, which scp takes for a failed transfer."""

    def exit(self) -> None:
        self.channel.exit(0)


class Session(asyncssh.SSHServerSession[bytes]):
    """One session channel: a command, a shell, or sftp (which asyncssh serves itself)."""

    def __init__(self, login: Login):
        self._login = login
        self._chan: asyncssh.SSHServerChannel[bytes]
        self._sftp: SSHServerStreamSession[bytes] | None = None
        self._command: str | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stdin: Inlet | None = None
        self._outlets: list[Outlet] = []
        self._terminal: int | None = None
        self._early: list[bytes] = []
        self._early_end = False
        self._lost = False

    # What the client asks for

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        self._chan = chan

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._command = command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        if subsystem != "sftp" or not self._login.sftp:
            return False
        self._sftp = SSHServerStreamSession(None, cast(Any, Sftp), 3)
        self._sftp.connection_made(self._chan)
        return True

    def session_started(self) -> None:
        if self._sftp is not None:
            self._sftp.session_started()
        else:
            task = asyncio.create_task(self._run())
            _RUNNING.add(task)
            task.add_done_callback(_RUNNING.discard)

    # What arrives

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self._sftp is not None:
            self._sftp.data_received(data, datatype)
        elif self._stdin is not None:
            self._stdin.feed(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool:
        if self._sftp is not None:
            return bool(self._sftp.eof_received())
        self._early_end = True
        self._end_stdin()
        return True  # the other direction stays open

    def signal_received(self, signal: str) -> None:
        self._signal(signal)

    def break_received(self, msec: int) -> bool:
        self._signal("INT")
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._terminal is not None:
            _set_size(self._terminal, width, height, pixwidth, pixheight)

    def pause_writing(self) -> None:
        if self._sftp is not None:
            self._sftp.pause_writing()
        for outlet in self._outlets:
            outlet.pause()

    def resume_writing(self) -> None:
        if self._sftp is not None:
            self._sftp.resume_writing()
        for outlet in self._outlets:
            outlet.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sftp is not None:
            self._sftp.connection_lost(exc)
        self._lost = True
        self._close_files()

    # The command

    async def _run(self) -> None:
        self._login.tell(self._command)
        try:
            process = await self._spawn()
        except OSError as failure:
            if not self._lost:
                self._chan.write_stderr(f"{self._login.shell}: {failure.strerror}\r\n".encode())
                self._chan.exit(126)
            return
        returncode = await process.wait()
        for outlet in self._outlets:
            outlet.release()
        for outlet in self._outlets:
            await outlet.done
        self._report(returncode)

    async def _spawn(self) -> asyncio.subprocess.Process:
        start = self._start_on_terminal if self._chan.get_terminal_type() is not None else self._start_on_pipes
        self._process = await start()
        if self._lost:
            self._close_files()
            return self._process
        assert self._stdin is not None
        for data in self._early:
            self._stdin.feed(data)
        self._early.clear()
        if self._early_end:
            self._end_stdin()
        return self._process

    async def _start_on_pipes(self) -> asyncio.subprocess.Process:
        (child_in, in_end), (out_end, child_out), (err_end, child_err) = os.pipe(), os.pipe(), os.pipe()
        try:
            process = await self._start_shell(child_in, child_out, child_err, {}, start_new_session=True)
        except OSError:
            for fd in (in_end, out_end, err_end):
                os.close(fd)
            raise
        finally:
            for fd in (child_in, child_out, child_err):
                os.close(fd)
        self._stdin = Inlet(in_end, self._chan.pause_reading, self._chan.resume_reading)
        self._outlets = [Outlet(out_end, self._chan.write), Outlet(err_end, self._chan.write_stderr)]
        return process

    async def _start_on_terminal(self) -> asyncio.subprocess.Process:
        ours, theirs = os.openpty()
        _set_modes(theirs, self._chan.get_terminal_modes())
        _set_size(ours, *self._chan.get_terminal_size())
        try:
            name = {"SSH_TTY": os.ttyname(theirs)}
            process = await self._start_shell(theirs, theirs, theirs, name, preexec_fn=lambda: os.login_tty(theirs))
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._terminal = ours
        self._stdin = Inlet(os.dup(ours), self._chan.pause_reading, self._chan.resume_reading)
        self._outlets = [Outlet(os.dup(ours), self._chan.write)]
        return process

    async def _start_shell(
        self, stdin: int, stdout: int, stderr: int, environment: dict[str, str], **how: Any
    ) -> asyncio.subprocess.Process:
        shell = self._login.shell
        name = os.path.basename(shell)
        argv = [f"-{name}"] if self._command is None else [name, "-c", self._command]
        return await asyncio.create_subprocess_exec(
            *argv,
            executable=shell,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=self._login.home,
            env={**self._environment(), **environment},
            **how,
        )

    def _environment(self) -> dict[str, str]:
        peer, here = (self._chan.get_extra_info(name, ("127.0.0.1", 0))[:2] for name in ("peername", "sockname"))
        env = dict(self._login.environment)
        env["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {here[1]}"
        env["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {here[0]} {here[1]}"
        for name, value in self._chan.get_environment().items():
            if name == "LANG" or name.startswith("LC_"):  # AcceptEnv as Debian sets it
                env[name] = value
        terminal = self._chan.get_terminal_type()
        if terminal is not None:
            env["TERM"] = terminal or "dumb"
        return env

    def _end_stdin(self) -> None:
        """Close the command's input. A terminal has no half-close: as with OpenSSH, the command goes on waiting."""
        if self._stdin is not None and self._terminal is None:
            self._stdin.end()

    def _signal(self, name: str) -> None:
        number = getattr(signal, f"SIG{name}", None)
        if number is None or self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _report(self, returncode: int) -> None:
        self._close_files()
        if self._lost:
            return
        if returncode >= 0:
            self._chan.exit(returncode)
        else:
            name = signal.Signals(-returncode).name.removeprefix("SIG")
            self._chan.exit_with_signal(name, False, signal.strsignal(-returncode) or name, "en")

    def _close_files(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        for outlet in self._outlets:
            outlet.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


_RUNNING: set[asyncio.Task[None]] = set()  # the event loop itself keeps only weak references


def _set_size(terminal: int, width: int, height: int, pixwidth: int, pixheight: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixwidth, pixheight))


_FLAG_MODES = {  # RFC 4254 §8: opcode → (index in tcgetattr's answer, flag)
    asyncssh.PTY_ICRNL: (0, termios.ICRNL),
    asyncssh.PTY_IXON: (0, termios.IXON),
    asyncssh.PTY_OPOST: (1, termios.OPOST),
    asyncssh.PTY_ONLCR: (1, termios.ONLCR),
    asyncssh.PTY_ISIG: (3, termios.ISIG),
    asyncssh.PTY_ICANON: (3, termios.ICANON),
    asyncssh.PTY_ECHO: (3, termios.ECHO),
}


def _set_modes(terminal: int, modes: Mapping[int, int]) -> None:
    """Apply the client's terminal modes, such as echo and line ends."""
    attributes = termios.tcgetattr(terminal)
    for opcode, (index, flag) in _FLAG_MODES.items():
        if opcode in modes:
            attributes[index] = attributes[index] | flag if modes[opcode] else attributes[index] & ~flag
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)

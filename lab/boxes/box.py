# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One box: started, looked into, disturbed and ended from outside."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from lab.boxes import image, namespaces, processes
from lab.boxes.ownership import ownership_filter
from lab.boxes.sandbox import Places, bwrap_options
from lab.boxes.spec import BoxSpec, Mount

_START_SECONDS = 60.0
_VANISH_SECONDS = 0.3
_MESSAGE_LIMIT = 64 << 20
_Result = TypeVar("_Result")


class BoxError(Exception):
    """A box could not do what it was asked; the text says what was seen and where to look."""


class _Control:
    """The line to the hand inside the box (`lab.boxes.sshd`): requests out, answers in."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Callable[[dict[str, Any]], None],
    ):
        self._reader, self._writer, self._note = reader, writer, note
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = itertools.count(1)
        self._listening: asyncio.Task[None] | None = None

    async def configure(self, config: dict[str, Any]) -> dict[str, Any] | None:
        """Send the configuration; returns the first message, whether the server listens, or None if it has ended."""
        self._write(config)
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line:
            return None
        self._listening = asyncio.create_task(self._listen())
        return dict(json.loads(line))

    async def ask(self, op: str, **details: Any) -> dict[str, Any]:
        """One request and its answer. Raises BoxError when the box says no or is gone."""
        if self._listening is None or self._listening.done():
            raise BoxError(f"{op}: the box is gone")
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write({"id": number, "op": op, **details})
        said = await answer
        if not said["ok"]:
            raise BoxError(f"{op}: {said['seen']}")
        return said

    def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        self._fail_waiting()
        self._writer.close()

    def _write(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                said = json.loads(line)
                if "event" in said:
                    self._note(said)
                    continue
                waiting = self._waiting.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BoxError("the box is gone"))
        self._waiting.clear()


class Box:
    """A rented machine as seen from outside: an SSH server, a disk, mounts, processes, a card.

    `fallback` is true where the box is a plain directory instead of a sandbox (`fallback_reason` says why); paths in
    it then begin with `path_prefix`. `port` and `host_public_key` are known once it has started.
    """

    host = "127.0.0.1"

    def __init__(self, spec: BoxSpec):
        self.spec = spec
        sandboxed, self.fallback_reason = namespaces.sandboxed()
        self.fallback = not sandboxed
        self.port = spec.port or 0
        self.host_public_key = ""
        self._place = Path(spec.state_dir, spec.box_id).absolute()
        self._disk = spec.root.source.absolute() if spec.root.source is not None else self._place / "disk"
        self.path_prefix = str(self._disk) if self.fallback else ""
        self._process: asyncio.subprocess.Process | None = None
        self._first_pid = 0
        self._control: _Control | None = None
        self._link: dict[str, Any] = {"rate_bytes_per_second": None, "cut": False, "delay_seconds": 0.0}
        self._gpu_present = True
        self._changing = asyncio.Lock()  # a boot and an end never overlap
        self._dropping = threading.Lock()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Boot on the disk there is, or on a fresh one; returns when the SSH port answers."""
        async with self._changing:
            await self._boot(self.spec.port or 0)

    async def kill(self) -> None:
        """The host is gone at once: connections reset, port closed, processes and everything not a volume lost."""
        async with self._changing:
            await self._die()
            self._lose_disk()

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to every process, SIGKILL to what is left after the grace; then as `kill`, but said goodbye."""
        process = self._process
        with contextlib.suppress(BoxError):
            await self._ask("terminate", grace_seconds=grace_seconds)
        async with self._changing:
            if self._process is process:  # nobody has killed it meanwhile and started it anew
                await self._end()
                self._lose_disk()

    async def reboot(self, port: int | None = None) -> None:
        """Processes and memory are lost at once, the disk and the volumes stay; same port unless given (0: a free one).

        Mounts without a source are scratch space and come back empty.
        """
        async with self._changing:
            await self._die()
            await self._boot(self.port if port is None else port)

    async def set_link(
        self, *, rate_bytes_per_second: int | None = None, cut: bool = False, delay_seconds: float = 0.0
    ) -> None:
        """Disturb the wire, also under open connections; without arguments it is repaired. It outlives a reboot."""
        if rate_bytes_per_second is not None and rate_bytes_per_second <= 0:
            raise ValueError(f"rate {rate_bytes_per_second}: bytes per second, more than 0; for a dead wire say cut")
        self._link = {"rate_bytes_per_second": rate_bytes_per_second, "cut": cut, "delay_seconds": delay_seconds}
        if self.running:
            await self._ask("link", link=self._link)

    async def set_gpu(self, present: bool) -> None:
        """Take the card away or bring it back; it outlives a reboot."""
        self._gpu_present = present
        if self._place.is_dir():
            image.write_hardware(self._place / "hardware", self.spec, present)

    async def exec(self, argv: list[str]) -> tuple[int, bytes, bytes]:
        """Run a command inside, past SSH and link: exit status (negative: signal), stdout, stderr."""
        said = await self._ask("exec", argv=argv)
        return said["rc"], base64.b64decode(said["out"]), base64.b64decode(said["err"])

    def _note_command(self, event: dict[str, Any]) -> None:
        """Keep a record of what was run over SSH, in `execs.jsonl` beside the log; command null: a shell."""
        at = datetime.fromtimestamp(event["at"], UTC).isoformat(timespec="milliseconds")
        with contextlib.suppress(FileNotFoundError), (self._place / "execs.jsonl").open("a") as record:
            record.write(json.dumps({"at": at, "command": event["command"]}) + "\n")

    # Boot

    async def _boot(self, port: int) -> None:
        if self.running:
            raise BoxError(f"box {self.spec.box_id} runs already; stop or kill it first")
        await self._end()  # of a boot whose server ended by itself, mounts may be left
        try:
            self.port = await self._boot_once(port)
        except (BoxError, OSError, TimeoutError) as failure:
            await self._end()
            raise BoxError(f"box {self.spec.box_id} did not start: {failure}; see {self._log}") from failure
        except asyncio.CancelledError:
            await self._end()
            raise

    async def _boot_once(self, port: int) -> int:
        """Prepare, spawn, configure; the port that the server listens on."""
        host_key = await _to_its_end(self._prepare)
        ours, theirs = socket.socketpair()
        with theirs:
            await (self._spawn_plain(theirs) if self.fallback else self._spawn_sandbox(theirs))
        reader, writer = await asyncio.open_connection(sock=ours, limit=_MESSAGE_LIMIT)
        self._control = _Control(reader, writer, self._note_command)
        said = await asyncio.wait_for(self._control.configure(self._config(host_key, port)), _START_SECONDS)
        if said is None:
            raise BoxError(f"it ended at once: {self._last_words()}")
        if said["event"] != "ready":
            raise BoxError(said["seen"])
        return int(said["port"])

    def _config(self, host_key: asyncssh.SSHKey, port: int) -> dict[str, Any]:
        return {
            "port": port,
            "authorized_keys": self.spec.authorized_keys,
            "host_key": host_key.export_private_key().decode(),
            "home": f"{self.path_prefix}/root",
            "environment": image.session_environment(self.path_prefix),
            "link": self._link,
            "sandboxed": not self.fallback,
            "sftp": not image.is_hidden("sftp-server", self.spec.hide),
        }

    def _prepare(self) -> asyncssh.SSHKey:
        """Make everything that a boot needs; returns the host key, which belongs to the disk."""
        self._place.mkdir(parents=True, exist_ok=True)
        if self.spec.root.source is None and not self._has_disk():
            self._mount(self._disk, self.spec.root)
        hardware = str(self._place / "hardware") if self.fallback else image.HARDWARE
        image.furnish(self._disk, self.spec, hardware)
        image.write_hardware(self._place / "hardware", self.spec, self._gpu_present)
        image.write_identity(self._place / "identity", self.spec)
        image.write_cgroup(self._place / "cgroup", self.spec)
        self._mount_all()
        return self._host_key()

    def _has_disk(self) -> bool:
        return self._disk.is_dir() if self.fallback else os.path.ismount(self._disk)

    def _host_key(self) -> asyncssh.SSHKey:
        # Below the disk's own etc, which the box does not see: it has the host's, read-only.
        path = self._disk / "etc/ssh/ssh_host_ed25519_key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            key = asyncssh.generate_private_key("ssh-ed25519")
            path.write_bytes(key.export_private_key())
            path.chmod(0o600)
        key = asyncssh.import_private_key(path.read_bytes())
        self.host_public_key = key.export_public_key().decode().strip()
        return key

    def _mount(self, path: Path, limits: Mount) -> None:
        if self.fallback:
            path.mkdir(parents=True, exist_ok=True)
        else:
            namespaces.mount_tmpfs(path, limits.size_bytes, limits.inodes)

    def _mount_all(self) -> None:
        """Fresh memory-backed mounts for this boot."""
        scratch = self._place / "mounts"
        self._places = Places(
            disk=self._disk,
            identity=self._place / "identity",
            hardware=self._place / "hardware",
            cgroup=self._place / "cgroup",
            run=scratch / "run",
            shm=scratch / "shm",
        )
        self._mount(self._places.run, Mount("/run", 64 << 20))
        self._mount(self._places.shm, Mount("/dev/shm", self.spec.shm_bytes))
        if not self.fallback:
            self._places.shm.chmod(0o1777)
            self._hide(scratch / "hidden")
        for number, mount in enumerate(self.spec.mounts):
            source = mount.source
            if source is None:
                source = scratch / str(number)
                self._mount(source, mount)
            elif not source.is_dir():
                raise BoxError(f"mount {mount.path}: volume {source} is not there; make it first (make_volume)")
            self._places.mounts[mount.path] = source.absolute()
            if self.fallback:
                _link_mount(self._disk / mount.path.lstrip("/"), source)

    def _hide(self, scratch: Path) -> None:
        for number, (folder, names) in enumerate(image.hidden_programs(self.spec.hide).items()):
            view = namespaces.mount_without(folder, names, scratch / str(number))
            if view is not None:
                self._places.views[folder] = view
            else:
                self._places.masked += [folder / name for name in names]

    @property
    def _log(self) -> Path:
        return self._place / "box.log"

    def _server_argv(self, fd: int) -> list[str]:
        return [sys.executable, "-m", "lab.boxes.sshd", str(fd)]

    async def _spawn_sandbox(self, control: socket.socket) -> None:
        options = bwrap_options(self.spec, self._places, image.server_environment())
        info, info_end = os.pipe()
        with contextlib.ExitStack() as passed:
            passed.callback(os.close, info_end)
            arguments = passed.enter_context(_memory_file(b"".join(option.encode() + b"\0" for option in options)))
            fds = [control.fileno(), info_end, arguments]
            argv = ["bwrap", "--args", str(arguments), "--info-fd", str(info_end)]
            program = ownership_filter()
            if program is not None:
                fds.append(passed.enter_context(_memory_file(program)))
                argv += ["--seccomp", str(fds[-1])]
            # The sandbox's first process keeps this environment: /proc/1/environ is where a pod's own env is found.
            first = {"PATH": image.SYSTEM_PATH, "HOME": "/root", "HOSTNAME": self.spec.hostname, **self.spec.env}
            await self._spawn([*argv, *self._server_argv(control.fileno())], first, fds)
        with open(info, "rb") as reader:
            told = await asyncio.to_thread(reader.read)
        if not told:
            raise BoxError(f"it ended at once: {self._last_words()}")
        self._first_pid = json.loads(told)["child-pid"]

    async def _spawn_plain(self, control: socket.socket) -> None:
        await self._spawn(self._server_argv(control.fileno()), image.server_environment(), [control.fileno()])
        assert self._process is not None
        self._first_pid = self._process.pid

    async def _spawn(self, argv: list[str], env: dict[str, str], fds: list[int]) -> None:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                executable=shutil.which(argv[0]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd="/",
                pass_fds=fds,
                start_new_session=True,
            )

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "it said nothing"
        return f"no log at {self._log}"

    # End

    async def _ask(self, op: str, **details: Any) -> dict[str, Any]:
        if not self.running or self._control is None:
            raise BoxError(f"{op}: box {self.spec.box_id} does not run")
        return await self._control.ask(op, **details)

    async def _die(self) -> None:
        with contextlib.suppress(BoxError, TimeoutError):
            await asyncio.wait_for(self._ask("vanish"), _VANISH_SECONDS)
        await self._end()

    async def _end(self) -> None:
        """SIGKILL to every process, then give back what this boot had mounted."""
        if self._process is not None:
            if self.fallback:
                _kill_descendants(self._first_pid)
            for pid in (self._first_pid, self._process.pid):
                if pid and self._process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            await self._process.wait()
        if self._control is not None:
            self._control.close()
        self._process, self._control, self._first_pid = None, None, 0
        await asyncio.to_thread(self._drop_mounts)

    def _drop_mounts(self) -> None:
        scratch = self._place / "mounts"
        with self._dropping:
            for path in sorted(scratch.glob("**/"), reverse=True) if scratch.is_dir() else []:
                namespaces.unmount(path)
            shutil.rmtree(scratch, ignore_errors=True)

    def _lose_disk(self) -> None:
        if self.spec.root.source is None:
            namespaces.drop_volume(self._disk)


async def _to_its_end(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a thread; when cancelled, wait for it all the same, for what it mounts must be unmounted."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """A file descriptor to read `content` from."""
    fd = os.memfd_create("box")
    try:
        os.write(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _link_mount(path: Path, source: Path) -> None:
    """In a plain directory a mount is a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    path.symlink_to(source)


def _kill_descendants(ancestor: int) -> None:
    """SIGKILL to all that `ancestor` and its children begot; it is frozen first, so that nothing new comes."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(ancestor, signal.SIGSTOP)
    while victims := processes.descendants(ancestor):
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

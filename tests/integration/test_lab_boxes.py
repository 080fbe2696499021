# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The boxes, seen as a tenant sees them: through real ssh, sftp, scp, rsync and tmux."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from lab.boxes import Box, BoxError, BoxSpec, Mount, namespaces, namespaces_available
from lab.boxes.keeper import KeeperClient
from lab.soak import soak

pytestmark = [pytest.mark.lab, pytest.mark.timeout(90)]

needs_namespaces = pytest.mark.skipif(
    not namespaces_available()[0], reason=f"boxes are plain directories here: {namespaces_available()[1]}"
)
RTX4090 = {"name": "NVIDIA GeForce RTX 4090", "count": 2, "memory_mib": 24564}


@dataclass
class Tenant:
    """A box with the clients that reach it."""

    keeper: KeeperClient
    name: str
    key: Path
    told: dict[str, Any] = field(default_factory=dict)

    def do(self, op: str, **details: Any) -> Tenant:
        self.told = self.keeper.ask(op, box=self.name, **details)
        return self

    @property
    def port(self) -> int:
        return int(self.told["port"])

    def options(self, *more: str, key: Path | None = None) -> list[str]:
        pairs = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "ConnectTimeout=5", *more]
        words = [word for pair in pairs for word in ("-o", pair)]
        return ["-F", "none", "-i", str(key or self.key), "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR", *words]

    def ssh_argv(self, *command: str, flags: tuple[str, ...] = (), user: str = "root", **how: Any) -> list[str]:
        return ["ssh", *self.options(**how), "-p", str(self.port), *flags, f"{user}@127.0.0.1", *command]

    def ssh(self, command: str, *, stdin: bytes = b"", **how: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(self.ssh_argv(command, **how), input=stdin, capture_output=True, timeout=60, check=False)

    def out(self, command: str) -> str:
        done = self.ssh(command)
        assert done.returncode == 0, done
        return done.stdout.decode().strip()

    def transport(self) -> str:
        return shlex.join(["ssh", *self.options(), "-p", str(self.port)])


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("key"))


def new_key(folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id")], check=True)
    return folder / "id"


@pytest.fixture(scope="module")
def keeper() -> Iterator[KeeperClient]:
    with KeeperClient() as client:
        yield client


Maker = Callable[..., Tenant]
_numbers = itertools.count(1)


def make_box(keeper: KeeperClient, key: Path, folder: Path, **more: Any) -> Tenant:
    name = f"box-{next(_numbers)}"
    spec = {
        "box_id": name,
        "hostname": "pod-7",
        "state_dir": str(folder),
        "authorized_keys": [key.with_suffix(".pub").read_text()],
        "env": {},
        "gpu": None,
        "root": {"path": "/root", "size_bytes": 256 << 20, "inodes": 20_000},
        **more,
    }
    keeper.ask("make", spec=spec)
    return Tenant(keeper, name, key).do("start")


@pytest.fixture
def boxes(keeper: KeeperClient, key: Path, tmp_path: Path) -> Iterator[Maker]:
    """Makes boxes of one test, which end with it."""
    made: list[Tenant] = []

    def make(**more: Any) -> Tenant:
        made.append(make_box(keeper, key, tmp_path, **more))
        return made[-1]

    yield make
    for box in made:
        box.do("kill")


@pytest.fixture(scope="module")
def box(keeper: KeeperClient, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Tenant:
    """One box for all tests that leave it as it was."""
    return make_box(keeper, key, tmp_path_factory.mktemp("boxes"), gpu=RTX4090, env={"RUNPOD_POD_ID": "abc123"})


def eventually(true: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# Commands


def test_exec_gives_output_and_status(box: Tenant) -> None:
    done = box.ssh("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_command_killed_by_a_signal_is_told_as_one(box: Tenant) -> None:
    done = box.ssh("kill -TERM $$", flags=("-v",), stdin=b"")
    assert done.returncode == 255
    assert b"exit-signal" in done.stderr


def test_stdin_is_half_closed_and_complete(box: Tenant) -> None:
    data = os.urandom(20 << 20)
    done = box.ssh("sha256sum; echo after", stdin=data)
    assert done.stdout.decode().split() == [hashlib.sha256(data).hexdigest(), "-", "after"]


def test_output_to_a_slow_reader_is_complete(box: Tenant) -> None:
    with subprocess.Popen(box.ssh_argv("head -c 30000000 /dev/zero"), stdout=subprocess.PIPE) as client:
        time.sleep(0.5)
        assert client.stdout is not None
        assert len(client.stdout.read()) == 30_000_000


def test_command_that_does_not_read_its_stdin(box: Tenant) -> None:
    assert box.ssh("exec true", stdin=bytes(10 << 20)).returncode == 0


def test_terminal_is_one(box: Tenant) -> None:
    done = box.ssh("tty && stty -echo && stty -a && exit 5", flags=("-tt",))
    assert done.returncode == 5
    assert done.stdout.startswith(b"/dev/pts/")


def test_interactive_login_shell_sees_the_image(box: Tenant) -> None:
    done = subprocess.run(
        box.ssh_argv(flags=("-tt",)),
        input=b"stty -echo; echo shell=$0\ncommand -v nvidia-smi\nexit 4\n",
        capture_output=True,
    )
    assert done.returncode == 4
    assert b"shell=-bash" in done.stdout
    assert b"/opt/image/bin/nvidia-smi" in done.stdout


def test_hangup_ends_what_runs_on_the_terminal(box: Tenant) -> None:
    with subprocess.Popen(box.ssh_argv("exec sleep 4242", flags=("-tt",)), stdin=subprocess.PIPE) as client:
        eventually(lambda: box.ssh("pgrep -f '^sleep 424[2]'").returncode == 0)
        client.kill()
    eventually(lambda: box.ssh("pgrep -f '^sleep 424[2]'").returncode == 1)


def test_daemon_does_not_hold_the_session_and_outlives_it(box: Tenant) -> None:
    began = time.monotonic()
    assert box.out("setsid sleep 4343 & echo started") == "started"
    assert time.monotonic() - began < 5
    assert box.out("tmux new-session -d -s left 'sleep 4344'; tmux list-sessions -F '#S'") == "left"
    assert box.out("tmux list-sessions -F '#S'; pgrep -f '^sleep 434[34]' | wc -l") == "left\n2"
    assert box.out("tmux kill-server; pkill -f '^sleep 434[3]'; echo done") == "done"


async def test_signal_sent_by_the_client_arrives(box: Tenant) -> None:
    async with asyncssh.connect(
        "127.0.0.1", box.port, username="root", client_keys=[str(box.key)], known_hosts=None, config=None
    ) as connection:
        process = await connection.create_process(
            "trap 'echo caught; exit 9' USR1; echo up; while :; do sleep 0.1; done"
        )
        assert await process.stdout.readline() == "up\n"
        process.send_signal("USR1")
        assert await process.stdout.readline() == "caught\n"
        assert (await process.wait()).exit_status == 9


def test_last_words_after_a_long_silence_arrive(box: Tenant) -> None:
    words = box.ssh("sleep 100 & sleep 1; echo last words; kill %1; exec true")
    assert words.stdout == b"last words\n"


def test_orphans_are_buried(box: Tenant) -> None:
    box.out("for i in 1 2 3; do (setsid sleep 0.1 &) ; done; echo")
    time.sleep(0.5)
    eventually(lambda: box.out("ps -eo stat= | grep -c ^Z || true") == "0")


def test_login_environment_holds_nothing_of_the_host_or_the_pod(box: Tenant) -> None:
    names = {line.split("=")[0] for line in box.out("env").splitlines()}
    known = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "SSH_CLIENT", "SSH_CONNECTION", "PWD", "SHLVL", "_"}
    assert names <= known
    assert "RUNPOD_POD_ID=abc123" in box.out("tr '\\0' '\\n' < /proc/1/environ")


@needs_namespaces
def test_first_process_shows_only_the_pods_environment(box: Tenant) -> None:
    names = {line.split("=")[0] for line in box.out("tr '\\0' '\\n' < /proc/1/environ").splitlines()}
    assert names == {"PATH", "HOME", "HOSTNAME", "RUNPOD_POD_ID"}


def test_image_has_numpy_and_scikit_learn(box: Tenant) -> None:
    assert box.out("python3 -c 'import numpy, sklearn.datasets, sys; print(sys.prefix)'").endswith("/opt/image")


def test_forwarding_reaches_a_server_in_the_box(box: Tenant) -> None:
    inner, outer = free_port(), free_port()
    serve = f"cd /tmp && echo board > board && exec python3 -m http.server --bind 127.0.0.1 {inner}"
    flags = ("-L", f"{outer}:127.0.0.1:{inner}", "-o", "ExitOnForwardFailure=yes")
    with subprocess.Popen(box.ssh_argv(serve, flags=(*flags, "-tt")), stdin=subprocess.PIPE) as client:
        eventually(lambda: answers(outer))
        page = subprocess.run(["curl", "-s", f"http://127.0.0.1:{outer}/board"], capture_output=True, check=True)
        client.kill()
    assert page.stdout == b"board\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return bool(client.recv(1))
    except OSError:
        return False


def test_forty_sessions_over_one_connection(box: Tenant, tmp_path_factory: pytest.TempPathFactory) -> None:
    control = f"/tmp/tenant-{os.getpid()}"
    shared = ("-o", f"ControlPath={control}", "-o", "ControlMaster=auto", "-o", "ControlPersist=20")
    assert box.ssh("true", flags=shared).returncode == 0
    try:
        clients = [
            subprocess.Popen(box.ssh_argv(f"sleep 0.5; echo {n}", flags=shared), stdout=subprocess.PIPE)
            for n in range(40)
        ]
        assert [int(client.communicate(timeout=30)[0]) for client in clients] == list(range(40))
    finally:
        subprocess.run(box.ssh_argv(flags=(*shared, "-O", "exit")), capture_output=True, check=False)


def test_commands_are_recorded(boxes: Maker, tmp_path: Path) -> None:
    box = boxes()
    for command in ("echo 'one'", "echo two"):
        box.out(command)
    (record,) = tmp_path.rglob("execs.jsonl")
    assert [json.loads(line)["command"] for line in record.read_text().splitlines()] == ["echo 'one'", "echo two"]


# Who may log in


def test_unknown_key_and_unknown_user_are_refused(box: Tenant, tmp_path: Path) -> None:
    refused = box.ssh("true", key=new_key(tmp_path))
    assert refused.returncode == 255 and b"Permission denied" in refused.stderr
    assert b"Permission denied" in box.ssh("true", user="ubuntu").stderr


def test_key_added_in_the_box_counts(box: Tenant, tmp_path: Path) -> None:
    other = new_key(tmp_path)
    line = other.with_suffix(".pub").read_text()
    box.out(f"echo '# a colleague' >> ~/.ssh/authorized_keys; echo {shlex.quote(line)} >> ~/.ssh/authorized_keys")
    assert box.ssh("true", key=other).returncode == 0


# Files


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    path = tmp_path / "payload"
    path.write_bytes(os.urandom(3 << 20))
    return path


def test_sftp_both_ways(box: Tenant, payload: Path, tmp_path: Path) -> None:
    batch = f"put {payload} up\nget up {tmp_path}/back\nchmod 600 up\nls -l up\nrm up\n"
    argv = ["sftp", *box.options(), "-P", str(box.port), "-b", "-", "root@127.0.0.1"]
    done = subprocess.run(argv, input=batch.encode(), capture_output=True, timeout=30, check=True)
    assert (tmp_path / "back").read_bytes() == payload.read_bytes()
    assert b"-rw-------" in done.stdout


@pytest.mark.parametrize("protocol", [(), ("-O",)], ids=["sftp protocol", "old protocol"])
def test_scp_both_ways(box: Tenant, payload: Path, tmp_path: Path, protocol: tuple[str, ...]) -> None:
    scp = ["scp", *protocol, *box.options(), "-P", str(box.port)]
    subprocess.run([*scp, str(payload), "root@127.0.0.1:/tmp/scp"], check=True, timeout=30)
    subprocess.run([*scp, "root@127.0.0.1:/tmp/scp", str(tmp_path / "back")], check=True, timeout=30)
    assert (tmp_path / "back").read_bytes() == payload.read_bytes()


def test_rsync_both_ways(box: Tenant, payload: Path, tmp_path: Path) -> None:
    rsync = ["rsync", "-a", "-e", box.transport()]
    subprocess.run([*rsync, str(payload), "root@127.0.0.1:/tmp/rs/"], check=True, timeout=30)
    subprocess.run([*rsync, "root@127.0.0.1:/tmp/rs/payload", str(tmp_path / "back")], check=True, timeout=30)
    assert (tmp_path / "back").read_bytes() == payload.read_bytes()


def test_root_can_give_files_away(box: Tenant, payload: Path, tmp_path: Path) -> None:
    assert box.ssh("touch /tmp/given && chown 1000:1000 /tmp/given").returncode == 0
    if os.geteuid() == 0:
        os.chown(payload, 4321, 4321)
    argv = ["rsync", "-a", "-e", box.transport(), str(payload), "root@127.0.0.1:/tmp/owned/"]
    assert subprocess.run(argv, capture_output=True, timeout=30, check=False).stderr == b""


# Limits and what survives


@needs_namespaces
def test_inode_limit_is_real(boxes: Maker, tmp_path: Path) -> None:
    box = boxes(mounts=[{"path": "/data", "size_bytes": 8 << 20, "inodes": 100}])
    assert box.out("df --output=itotal /data | tail -1").strip() == "100"
    done = box.ssh("for i in $(seq 200); do : > /data/$i || break; done; ls /data | wc -l")
    assert b"No space left on device" in done.stderr
    assert int(done.stdout) == 99  # the root of the mount is the hundredth
    assert int(box.out("df --output=iavail /data | tail -1")) == 0


@needs_namespaces
def test_byte_limit_is_real(boxes: Maker) -> None:
    box = boxes(root={"path": "/root", "size_bytes": 8 << 20, "inodes": 5000})
    done = box.ssh("head -c 20000000 /dev/zero > /root/big; stat -c %s /root/big; df -B1 --output=size /root | tail -1")
    assert b"No space left on device" in done.stderr
    size, limit = map(int, done.stdout.split())
    assert 7 << 20 < size <= limit == 8 << 20


@needs_namespaces
def test_shared_memory_has_dockers_default(box: Tenant) -> None:
    assert box.out("df -B1 --output=size /dev/shm | tail -1").strip() == str(64 << 20)
    assert box.out("python3 -c 'import multiprocessing as m; m.Lock(); print(1)'") == "1"


@needs_namespaces
def test_system_is_read_only_and_the_lab_is_not_to_be_seen(box: Tenant, tmp_path: Path) -> None:
    assert b"Read-only file system" in box.ssh("touch /usr/bin/x").stderr
    assert box.out("hostname; cat /etc/hostname") == "pod-7\npod-7"
    assert box.ssh(f"ls {tmp_path}").returncode != 0
    clone = Path(__file__).parents[2]
    assert box.ssh(f"ls {clone}/tests").returncode != 0
    assert set(box.out("ps -eo pid= --sort pid | head -2").split()) == {"1", "2"}


def test_volume_survives_the_host_and_the_container_disk_does_not(
    boxes: Maker, keeper: KeeperClient, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    keeper.ask("make_volume", path=str(volume), size_bytes=16 << 20, inodes=500)
    mounts = [{"path": "/workspace", "source": str(volume)}]
    first = boxes(mounts=mounts)
    where = first.told["path_prefix"]
    first.out(f"echo kept > {where}/workspace/a; echo lost > ~/a")
    first_key = first.told["host_public_key"]
    first.do("kill")

    second = boxes(mounts=mounts)
    where = second.told["path_prefix"]
    assert second.out(f"cat {where}/workspace/a; ls ~") == "kept"
    second.do("kill")

    first.do("start")
    assert first.out("ls ~") == ""
    assert first.told["host_public_key"] != first_key
    first.do("kill")
    keeper.ask("drop_volume", path=str(volume))
    assert not volume.exists()


def test_volume_in_use_is_not_made_twice(keeper: KeeperClient, tmp_path: Path) -> None:
    request = {"path": str(tmp_path / "v"), "size_bytes": 1 << 20, "inodes": None}
    keeper.ask("make_volume", **request)
    (tmp_path / "v" / "x").touch()
    if namespaces_available()[0]:
        with pytest.raises(BoxError, match="exists already"):
            keeper.ask("make_volume", **request)
    keeper.ask("drop_volume", path=request["path"])


def test_missing_volume_is_named(boxes: Maker, tmp_path: Path) -> None:
    with pytest.raises(BoxError, match=r"/workspace: volume .* is not there; make it first"):
        boxes(mounts=[{"path": "/workspace", "source": str(tmp_path / "none")}])


@needs_namespaces
def test_sandbox_that_cannot_be_made_says_why(boxes: Maker) -> None:
    with pytest.raises(BoxError, match=r"did not start: it ended at once: bwrap: .*/usr/nowhere"):
        boxes(mounts=[{"path": "/usr/nowhere", "size_bytes": 1 << 20}])


def test_box_whose_server_died_starts_again_on_its_disk(boxes: Maker) -> None:
    box = boxes(mounts=[{"path": "/scratch", "size_bytes": 1 << 20}])
    box.out("echo kept > ~/a")
    box.ssh("kill -9 $(ps -o ppid= -p $$)")
    eventually(lambda: not box.do("tell").told["running"])
    box.do("start")
    assert box.out("cat ~/a") == "kept"


def test_port_in_use_is_named(boxes: Maker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BoxError, match=rf"did not start: port {port}: "):
            boxes(port=port)


# Ends and new beginnings


def test_reboot_keeps_the_disk_and_ends_the_processes(boxes: Maker) -> None:
    box = boxes(mounts=[{"path": "/scratch", "size_bytes": 1 << 20}])
    where = box.told["path_prefix"]
    box.out(f"echo kept > ~/a; echo gone > {where}/scratch/b; tmux new-session -d -s job 'sleep 4545'")
    before = (box.port, box.told["host_public_key"], box.out("cat /proc/sys/kernel/random/boot_id"))
    box.do("reboot")
    assert box.out(f"cat ~/a; ls {where}/scratch") == "kept"
    assert box.ssh("pgrep -f '^sleep 454[5]'").returncode == 1
    assert (box.port, box.told["host_public_key"]) == before[:2]
    if not box.told["fallback"]:
        assert box.out("cat /proc/sys/kernel/random/boot_id") != before[2]
    box.do("reboot", port=0)
    assert box.out("cat ~/a") == "kept"


async def test_start_given_up_leaves_nothing(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "sandboxed", lambda: (False, "this test is not in a namespace"))
    spec = BoxSpec("given-up", "pod", tmp_path, [key.with_suffix(".pub").read_text()], {}, None)
    for patience in (0.0, 0.01, 0.05, 0.1, 0.15, 0.2):
        box = Box(spec)
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(patience)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await box.kill()
        assert not box.running
        assert not (tmp_path / "given-up" / "mounts").exists()
        assert not (tmp_path / "given-up" / "disk").exists()
        with pytest.raises(BoxError, match="does not run"):
            await box.exec(["true"])


async def test_kill_overtakes_a_slow_stop(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "sandboxed", lambda: (False, "this test is not in a namespace"))
    box = Box(BoxSpec("slow", "pod", tmp_path, [], {}, None))
    await box.start()
    await box.exec(["/bin/bash", "-c", "(trap '' TERM; sleep 60) >/dev/null 2>&1 & sleep 0.2"])
    stopping = asyncio.create_task(box.stop(50))
    await asyncio.sleep(0.3)
    assert not stopping.done()
    await asyncio.wait_for(box.kill(), 5)
    await asyncio.wait_for(stopping, 5)
    assert not box.running


def test_killed_host_resets_connections_and_closes_the_port(boxes: Maker) -> None:
    box = boxes()
    with (
        socket.create_connection(("127.0.0.1", box.port)) as raw,
        subprocess.Popen(
            box.ssh_argv("echo up; exec sleep 60"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as client,
    ):
        assert raw.recv(8) == b"SSH-2.0-"
        assert client.stdout is not None and client.stdout.readline() == b"up\n"
        began = time.monotonic()
        box.do("kill")
        assert client.wait(5) == 255
        assert time.monotonic() - began < 2
        with pytest.raises(ConnectionResetError):
            while raw.recv(4096):
                pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", box.port))
    assert not box.told["running"]


def test_stop_lets_a_process_finish_within_the_grace(boxes: Maker, keeper: KeeperClient, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    keeper.ask("make_volume", path=str(volume), size_bytes=1 << 20, inodes=None)
    box = boxes(mounts=[{"path": "/workspace", "source": str(volume)}])
    at = f"{box.told['path_prefix']}/workspace"
    obedient = f"trap 'sleep 0.3; echo saved > {at}/obedient; exit' TERM; touch {at}/a; while :; do sleep 0.1; done"
    stubborn = f"trap '' TERM; touch {at}/b; while :; do sleep 0.1; echo $SECONDS > {at}/stubborn; done"
    for command in (obedient, stubborn):
        box.out(f"setsid bash -c {shlex.quote(command)} >/dev/null 2>&1 </dev/null & echo")
    eventually(lambda: box.out(f"ls {at}").split()[:2] == ["a", "b"])
    began = time.monotonic()
    box.do("stop", grace_seconds=1.5)
    assert 1.4 < time.monotonic() - began < 5
    box.do("start")
    assert box.out(f"cat {at}/obedient") == "saved"
    before = box.out(f"cat {at}/stubborn")
    time.sleep(1.2)
    assert box.out(f"cat {at}/stubborn") == before
    box.do("kill")
    keeper.ask("drop_volume", path=str(volume))


def test_stop_of_an_idle_box_does_not_wait_for_the_grace(boxes: Maker) -> None:
    box = boxes()
    began = time.monotonic()
    box.do("stop", grace_seconds=30)
    assert time.monotonic() - began < 5


def test_boxes_end_with_their_keeper(key: Path, tmp_path: Path) -> None:
    with KeeperClient() as keeper:
        box = make_box(keeper, key, tmp_path)
        box.out("setsid sleep 4646 >/dev/null 2>&1 </dev/null & echo")
        port = box.port
        os.kill(keeper.pid, 9)
        eventually(lambda: refused(port))
    eventually(
        lambda: subprocess.run(["pgrep", "-f", "^sleep 464[6]"], capture_output=True, check=False).returncode == 1
    )


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


# The wire


def test_cut_wire_stalls_and_heals_under_an_open_connection(boxes: Maker) -> None:
    box = boxes()
    with subprocess.Popen(box.ssh_argv("cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(b"one\n")
        assert client.stdout.read(4) == b"one\n"
        box.do("set_link", cut=True)
        client.stdin.write(b"two\n")
        os.set_blocking(client.stdout.fileno(), False)
        time.sleep(0.5)
        assert client.stdout.read(4) is None
        timed_out = box.ssh("true")  # ConnectTimeout=5 covers the banner
        assert timed_out.returncode == 255 and b"timed out" in timed_out.stderr
        box.do("set_link")
        os.set_blocking(client.stdout.fileno(), True)
        assert client.stdout.read(4) == b"two\n"
        client.stdin.close()
        assert client.wait(5) == 0


def test_slow_wire_is_as_slow_as_asked_in_each_direction(boxes: Maker) -> None:
    box = boxes()
    box.do("set_link", rate_bytes_per_second=1_000_000)
    for command, data in (("cat > /dev/null", bytes(2_000_000)), ("head -c 2000000 /dev/zero", b"")):
        began = time.monotonic()
        assert box.ssh(command, stdin=data).returncode == 0
        assert 1.8 < time.monotonic() - began < 4
    box.do("set_link")
    began = time.monotonic()
    box.ssh("cat > /dev/null", stdin=bytes(2_000_000))
    assert time.monotonic() - began < 1


def test_distant_box_is_slow_to_answer_but_not_to_carry(boxes: Maker) -> None:
    box = boxes()
    box.do("set_link", delay_seconds=0.1)
    began = time.monotonic()
    assert box.ssh("head -c 20000000 /dev/zero | wc -c; head -c 1500000 /dev/zero").returncode == 0
    assert 1.0 < time.monotonic() - began < 8


# The hardware


def nvidia_smi(box: Tenant, arguments: str) -> list[str]:
    return box.out(f"nvidia-smi {arguments}").splitlines()


def test_nvidia_smi_answers_as_the_real_one(box: Tenant) -> None:
    query = "--query-gpu=index,name,memory.total,driver_version,compute_cap"
    assert nvidia_smi(box, f"{query} --format=csv") == [
        "index, name, memory.total [MiB], driver_version, compute_cap",
        "0, NVIDIA GeForce RTX 4090, 24564 MiB, 570.124.06, 8.9",
        "1, NVIDIA GeForce RTX 4090, 24564 MiB, 570.124.06, 8.9",
    ]
    assert nvidia_smi(box, f"{query} --format=csv,noheader,nounits -i 1") == [
        "1, NVIDIA GeForce RTX 4090, 24564, 570.124.06, 8.9"
    ]
    listed = nvidia_smi(box, "-L")
    assert len(listed) == 2 and listed[0].startswith("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-")
    assert "CUDA Version: 12.8" in "\n".join(nvidia_smi(box, ""))
    health = "--query-gpu=utilization.gpu,temperature.gpu,power.draw,clocks.sm,clocks_throttle_reasons.active"
    assert len(nvidia_smi(box, f"{health},ecc.errors.uncorrected.volatile.total --format=csv,noheader")) == 2
    wrong = box.ssh("nvidia-smi --query-gpu=colour --format=csv")
    assert wrong.returncode == 2 and b'Field "colour" is not a valid field to query.' in wrong.stdout


def test_nvidia_smi_shows_who_computes(box: Tenant) -> None:
    assert nvidia_smi(box, "--query-compute-apps=pid,used_memory --format=csv,noheader") == []
    program = (
        "import numpy, time\nend = time.time() + 20\nprint('up', flush=True)\nwhile time.time() < end: numpy.ones(9)"
    )
    with subprocess.Popen(
        box.ssh_argv(f"exec python3 -c {shlex.quote(program)}", flags=("-tt",)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as client:
        assert client.stdout is not None and client.stdout.readline().strip() == b"up"
        apps = nvidia_smi(box, "--query-compute-apps=pid,used_memory,name --format=csv,noheader,nounits")
        busy, idle = nvidia_smi(box, "--query-gpu=utilization.gpu --format=csv,noheader,nounits")
        client.kill()
    assert len(apps) == 1 and int(apps[0].split(", ")[1]) > 300
    assert int(busy) > 20 and int(idle) == 0


def test_lost_gpu_says_so_and_stays_lost_over_a_reboot(boxes: Maker) -> None:
    box = boxes(gpu=RTX4090)
    box.do("set_gpu", present=False)
    for _ in range(2):
        gone = box.ssh("nvidia-smi -L")
        assert (gone.returncode, gone.stdout) == (6, b"No devices were found\n")
        box.do("reboot")
    box.do("set_gpu", present=True)
    assert len(nvidia_smi(box, "-L")) == 2


def test_box_without_a_gpu_has_no_nvidia_smi(boxes: Maker) -> None:
    assert boxes().ssh("nvidia-smi").returncode == 127


@needs_namespaces
def test_cgroup_files_of_both_versions(boxes: Maker) -> None:
    newer = boxes(cpus=6, memory_bytes=48 << 30)
    assert newer.out("cd /sys/fs/cgroup; cat memory.max cpu.max") == f"{48 << 30}\n600000 100000"
    assert int(newer.out("cat /sys/fs/cgroup/memory.current")) < 48 << 30
    older = boxes(cpus=6, memory_bytes=48 << 30, cgroup=1)
    files = "memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us"
    assert older.out(f"cd /sys/fs/cgroup; cat {files}") == f"{48 << 30}\n600000\n100000"
    assert older.ssh("cat /sys/fs/cgroup/memory.max").returncode == 1


@needs_namespaces
def test_hidden_programs_are_not_there(boxes: Maker) -> None:
    box = boxes(hide=["tmux", "rsync", "python*", "sftp-server"])
    for name in ("tmux", "rsync", "python", "python3"):
        assert box.ssh(f"command -v {name}").returncode != 0
        assert box.ssh(name).returncode == 127
    assert box.out("command -v bash")
    argv = ["sftp", *box.options(), "-P", str(box.port), "-b", "-", "root@127.0.0.1"]
    assert subprocess.run(argv, input=b"ls\n", capture_output=True, check=False).returncode != 0


def test_spec_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absolute"):
        Mount("workspace")
    with pytest.raises(ValueError, match="version 1 or 2"):
        BoxSpec("b", "h", tmp_path, [], {}, None, cgroup=3)
    with pytest.raises(ValueError, match="box id"):
        BoxSpec("../b", "h", tmp_path, [], {}, None)


# Where namespaces are not permitted, and who runs it


def test_plain_directory_says_so_and_works(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "TENANT_LAB_PLAIN": "1"}
    monkeypatch.setattr("lab.boxes.keeper.namespaces_available", lambda: (False, "asked for"))
    with KeeperClient(env=environment) as keeper:
        volume = tmp_path / "volume"
        keeper.ask("make_volume", path=str(volume), size_bytes=1 << 20, inodes=None)
        box = make_box(keeper, key, tmp_path, gpu=RTX4090, mounts=[{"path": "/workspace", "source": str(volume)}])
        assert box.told["fallback"] and "TENANT_LAB_PLAIN" in box.told["fallback_reason"]
        where = box.told["path_prefix"]
        assert box.out("pwd") == f"{where}/root"
        assert box.out("nvidia-smi -L | wc -l; python3 -c 'import numpy; print(1)'") == "2\n1"
        box.out("tmux new-session -d -s private 'sleep 60'")
        mine = subprocess.run(["tmux", "has-session", "-t", "=private"], capture_output=True, check=False)
        assert mine.returncode != 0, "the box uses the tmux server of whoever runs the lab"
        box.out(f"echo kept > {where}/workspace/a; setsid env -i sleep 4747 >/dev/null 2>&1 </dev/null & echo")
        box.do("reboot")
        assert box.out("pgrep -f '^sleep 474[7]' || true") == ""
        box.out("setsid env -i sleep 4747 >/dev/null 2>&1 </dev/null & echo")
        box.do("kill")
        assert subprocess.run(["pgrep", "-f", "^sleep 474[7]"], check=False).returncode == 1
        assert (volume / "a").read_text() == "kept\n"
        assert refused(box.port)


def test_soak_slice_has_no_drops() -> None:
    report = asyncio.run(soak(30, parallel=2))
    assert report.ok, "\n".join(report.lines())
    assert report.made.total() >= 30


def test_soak_counts_a_drop(box: Tenant, tmp_path: Path) -> None:
    report = asyncio.run(soak(2, parallel=1, host="127.0.0.1", port=box.port, key=new_key(tmp_path)))
    assert not report.ok
    assert "exit status 255" in report.lines()[-2]


@needs_namespaces
def test_ordinary_user_can_run_boxes(tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    clone = Path(__file__).parents[2]
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed; type: apt-get install util-linux")
    if subprocess.run([*become, sys.executable, "-c", ""], capture_output=True, cwd=clone, check=False).returncode:
        pytest.skip(f"{sys.executable} cannot be run by an ordinary user (a home folder that is closed to others)")
    argv = [*become, sys.executable, "-m", "lab.soak", "--connections", "12", "--parallel", "2"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=clone, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done
    assert "plain directory" not in done.stdout

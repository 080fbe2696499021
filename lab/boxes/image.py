# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The image of a box: what is on a fresh container disk, and the files that tell the box what hardware it has.

`/opt/image` is a Python environment with what a prebuilt image would have: it links to the packages of the
environment that the lab runs in, so nothing is copied, and `pip install` in the box goes to the box's own disk.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.metadata
import json
import os
import re
import shlex
import site
import sys
import uuid
from pathlib import Path

from lab.boxes.spec import BoxSpec

IMAGE_BIN = "/opt/image/bin"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HARDWARE = "/opt/image/hardware"

_PACKAGES = ("numpy", "scikit-learn", "pip")
_CLONE = Path(__file__).resolve().parents[2]

_SYSTEM_FOLDERS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "sys", "usr")
_OWN_FOLDERS = ("dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "tmp", "var/tmp", "var/log")


def system_folders() -> list[str]:
    """Top-level folders of the host that a box shows read-only; `/var/lib` comes along for the package database."""
    folders = [f"/{name}" for name in _SYSTEM_FOLDERS if Path("/", name).is_dir() and not Path("/", name).is_symlink()]
    return [*folders, "/var/lib"]


def interpreter_folders() -> list[str]:
    """Folders that the lab's own Python needs and that may lie anywhere, e.g. in a home folder or under /tmp."""
    folders = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), str(_CLONE / "lab")}
    folders |= {folder for folder in (*site.getsitepackages(), site.getusersitepackages()) if Path(folder).is_dir()}
    shown = system_folders()
    return sorted(folder for folder in folders if not any(Path(folder).is_relative_to(one) for one in shown))


def furnish(disk: Path, spec: BoxSpec, hardware: str = HARDWARE) -> None:
    """Put on an empty container disk what the image has. On a disk that has it already nothing changes.

    `hardware` is the folder, as commands in the box see it, that holds what `write_hardware` writes.
    """
    if (disk / "opt/image/bin").is_dir():
        return
    for name in _OWN_FOLDERS:
        (disk / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (disk / name).chmod(0o1777)
    (disk / "var/run").symlink_to("/run")
    for name in _SYSTEM_FOLDERS:
        if Path("/", name).is_symlink():
            (disk / name).symlink_to(os.readlink(Path("/", name)))
    _furnish_home(disk / "root", spec)
    _furnish_image(disk / "opt/image", spec, hardware)


def _furnish_home(home: Path, spec: BoxSpec) -> None:
    home.chmod(0o700)
    (home / ".ssh").mkdir(mode=0o700)
    keys = home / ".ssh/authorized_keys"
    keys.write_text("".join(f"{key.strip()}\n" for key in spec.authorized_keys))
    keys.chmod(0o600)


def _furnish_image(image: Path, spec: BoxSpec, hardware: str) -> None:
    packages = image / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for folder in (image / "bin", packages):
        folder.mkdir(parents=True)
    python = Path(sys.executable).resolve()
    (image / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    for entry in _package_entries():
        (packages / entry.name).symlink_to(entry)
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        if not is_hidden(name, spec.hide):
            (image / "bin" / name).symlink_to(python)
    for name in ("pip", "pip3"):
        if not is_hidden(name, spec.hide):
            _write_script(image / "bin" / name, 'exec "${0%/*}/python3" -m pip "$@"')
    if spec.gpu is not None and not is_hidden("nvidia-smi", spec.hide):
        answer = [sys.executable, "-IS", str(Path(__file__).with_name("nvidia_smi.py")), f"{hardware}/gpu.json"]
        _write_script(image / "bin/nvidia-smi", f'exec {shlex.join(answer)} "$@"')


def _write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@functools.cache
def _package_entries() -> list[Path]:
    """What the image's packages and all that they require consist of, in the lab's environment, where it has them."""
    entries: set[Path] = set()
    wanted, seen = list(_PACKAGES), set()
    while wanted:
        package = wanted.pop()
        if package in seen:
            continue
        seen.add(package)
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        required = [line for line in distribution.requires or [] if "extra ==" not in line]
        wanted += [match[0].lower() for line in required if (match := re.match(r"[\w.-]+", line))]
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
        entries |= {Path(str(distribution.locate_file(top))).resolve() for top in tops - {"__pycache__"}}
    return sorted(entries)


def is_hidden(name: str, hide: frozenset[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in hide)


def hidden_programs(hide: frozenset[str]) -> dict[Path, list[str]]:
    """Folder of the host → names in it that this image lacks.

    The lab's own interpreter stays when it is used directly: the box's SSH server runs on it.
    """
    kept = Path(sys.executable).resolve() if sys.prefix == sys.base_prefix else None
    found = {}
    for folder in map(Path, ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")):
        entries = folder.iterdir() if folder.is_dir() else ()
        names = sorted(entry.name for entry in entries if is_hidden(entry.name, hide) and entry != kept)
        if names:
            found[folder] = names
    return found


def write_hardware(folder: Path, spec: BoxSpec, gpu_present: bool) -> None:
    """Write the cards for `nvidia-smi`, atomically: a running box reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    cards = None
    if spec.gpu is not None:
        cards = {**vars(spec.gpu), "present": gpu_present, "seed": spec.box_id}
    draft = folder / "gpu.json.new"
    draft.write_text(json.dumps(cards))
    draft.replace(folder / "gpu.json")


def write_identity(folder: Path, spec: BoxSpec) -> None:
    """Write host name, hosts, shell profile and a fresh boot id, to be bound over the host's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hostname").write_text(f"{spec.hostname}\n")
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {spec.hostname}\n")
    (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
    # Debian's own profile sets PATH anew and would hide the image from login shells.
    prompt = "[ -n \"$BASH\" ] && PS1='\\u@\\h:\\w\\$ '"
    (folder / "profile").write_text(f"export PATH={IMAGE_BIN}:{SYSTEM_PATH}\n{prompt}\n")
    (folder / "shadow").write_text("root:*:19000:0:99999:7:::\n")
    (folder / "nothing").write_text("")


def write_cgroup(folder: Path, spec: BoxSpec) -> None:
    """Write the files of /sys/fs/cgroup that tell a container its limits, in the layout of the version asked for."""
    used, period = 412 << 20, 100_000
    quota = round(spec.cpus * period)
    if spec.cgroup == 2:
        files = {
            "cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
            "cgroup.procs": "1\n",
            "cpu.max": f"{quota} {period}\n",
            "cpu.stat": "usage_usec 8120334\nuser_usec 6010221\nsystem_usec 2110113\nnr_periods 0\nnr_throttled 0\n"
            "throttled_usec 0\n",
            "memory.max": f"{spec.memory_bytes}\n",
            "memory.high": "max\n",
            "memory.swap.max": "0\n",
            "memory.swap.current": "0\n",
            "memory.current": f"{used}\n",
            "memory.peak": f"{used + (64 << 20)}\n",
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
            "memory.stat": f"anon {used // 4}\nfile {used // 2}\nkernel {used // 8}\nshmem 0\n"
            f"inactive_file {used // 3}\nactive_file {used // 6}\n",
            "pids.max": "max\n",
            "pids.current": "7\n",
        }
    else:
        files = {
            "memory/memory.limit_in_bytes": f"{spec.memory_bytes}\n",
            "memory/memory.soft_limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": f"{used}\n",
            "memory/memory.max_usage_in_bytes": f"{used + (64 << 20)}\n",
            "memory/memory.failcnt": "0\n",
            "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            "memory/memory.stat": f"cache {used // 2}\nrss {used // 4}\ninactive_file {used // 3}\n"
            f"active_file {used // 6}\ntotal_cache {used // 2}\ntotal_rss {used // 4}\n"
            f"total_inactive_file {used // 3}\n"
            f"hierarchical_memory_limit {spec.memory_bytes}\n",
            "cpu/cpu.cfs_quota_us": f"{quota}\n",
            "cpu/cpu.cfs_period_us": f"{period}\n",
            "cpu/cpu.shares": "1024\n",
            "cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            "pids/pids.max": "max\n",
            "pids/pids.current": "7\n",
        }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def session_environment(prefix: str = "") -> dict[str, str]:
    """The environment of a login: nothing of the lab's own. `prefix` is where a plain directory stands for `/`."""
    # Without a /tmp of its own a box must not find, or end, the tmux server of whoever runs the lab.
    temporary = {"TMPDIR": f"{prefix}/tmp", "TMUX_TMPDIR": f"{prefix}/tmp"} if prefix else {}
    return {
        **temporary,
        "PATH": f"{prefix}{IMAGE_BIN}:{SYSTEM_PATH}",
        "HOME": f"{prefix}/root",
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
    }


def server_environment() -> dict[str, str]:
    """The environment of the box's SSH server; its commands do not inherit it."""
    return {
        "PATH": SYSTEM_PATH,
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_CLONE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
    }

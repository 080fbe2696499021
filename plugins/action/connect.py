# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb connect: see plugins/modules/connect.py."""

from __future__ import annotations

import random
import re
import shlex
import time
import typing as t
from pathlib import Path

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure

from ansible_collections.tenant.gpu.plugins.plugin_utils import kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused, as_result

_BEGIN = "=====tenant.gpu probe begins====="
_END = "=====tenant.gpu probe ends====="
# Plain sh, since nothing about the box is known yet. Paths come as arguments and are never part of the program.
_PROBE = rf"""
data=$1; project=$2; kit=$3; shift 3
[ -n "${{HOME:-}}" ] || HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
[ -n "${{HOME:-}}" ] && [ -w "$HOME" ] || HOME=/tmp
case $data in '~'|'~/'*) data=$HOME${{data#'~'}};; '$HOME'*) data=$HOME${{data#'$HOME'}};; esac
root=$data/$project
echo; echo "{_BEGIN}"
echo "data_dir=$data"; echo "root=$root"; echo "uid=$(id -u)"; echo "home=$HOME"
echo "boot_id=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
[ -f "$root/bin/$kit" ] && echo "kit=$(cksum < "$root/bin/$kit")"
for python in "$@"; do
  found=$(command -v "$python" 2>/dev/null) || continue
  version=$("$found" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  real=$("$found" -I -c 'import sys; print(sys.executable)' 2>/dev/null)
  echo "python=$version ${{real:-$found}}"
done
echo "{_END}"
"""
_PUT = r"""
umask 022; mkdir -p "$1/bin" || exit 1
temporary=$1/bin/.$2.$$
cat > "$temporary" && mv "$temporary" "$1/bin/$2" && cksum < "$1/bin/$2"
"""
_OLDEST_PYTHON = (3, 8)


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        if args["flavour"] == "relayed":
            raise Refused(
                "relayed",
                "the address is the platform's relay",
                "It gives a shell to a person, and neither commands, sftp nor rsync to a program.",
                "Rent with a direct port (22/tcp), and use its public address.",
            )
        # ssh makes the file of host keys at first contact, but not its folder.
        (Path(args["tenant_home"]).expanduser() / "known_hosts").mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.check and not args["address"]:
            return self._answer({"reachable": False, "why": "nothing is rented yet (check mode)"}, changed=False)
        probe, why = self._reach(args)
        if probe is None:
            return self._out_of_reach(args, why)
        box, changed = self._box(args, probe)
        return self._answer(box, changed)

    def _out_of_reach(self, args: dict[str, t.Any], why: str) -> dict[str, t.Any]:
        if not args["required"]:
            return self._answer({"reachable": False, "why": why}, changed=False)
        seen, means, do = _explained(why, self.slot, args["address"])
        failure = as_result("unreachable", seen, means, do, {"box": {"reachable": False, "why": why}})
        return {**failure, "failed": False, "unreachable": True}

    def _reach(self, args: dict[str, t.Any]) -> tuple[dict[str, t.Any] | None, str]:
        """The probe's facts, or why there are none, after tries with growing pauses until ``timeout``."""
        if not args["address"]:
            return None, "no address: nothing is rented on this slot, or the instance is down"
        command = self._program(_PROBE, [args["data_dir"], args["project"], kit.build().name, *args["python"]])
        deadline = time.monotonic() + args["timeout"]
        pause, why = 0.5, "no answer"
        while True:
            try:
                reply = self._low_level_execute_command(command)
                facts = _parse(reply["stdout"])
                if facts is not None:
                    return facts, ""
                why = " ".join(f"{reply['stdout']} {reply['stderr']}".split())[-400:] or f"status {reply['rc']}"
            except AnsibleAuthenticationFailure as problem:
                return None, str(problem)
            except AnsibleConnectionFailure as problem:
                why = str(problem)
                if "HOST IDENTIFICATION HAS CHANGED" in why or "Host key verification failed" in why:
                    return None, why
            if "doesn't support PTY" in why or time.monotonic() + pause > deadline:
                return None, why
            time.sleep(pause * (0.7 + 0.6 * random.random()))
            pause = min(pause * 1.7, 8.0)

    @staticmethod
    def _program(program: str, words: list[str]) -> str:
        return " ".join(["sh", "-c", shlex.quote(program), "tenant", *(shlex.quote(word) for word in words)])

    def _box(self, args: dict[str, t.Any], probe: dict[str, t.Any]) -> tuple[dict[str, t.Any], bool]:
        serving = [path for version, path in probe["pythons"] if version >= _OLDEST_PYTHON]
        if not serving:
            older = ", ".join(f"{major}.{minor} at {path}" for (major, minor), path in probe["pythons"]) or "none"
            raise Refused(
                "no_python",
                f"Python on the box: {older}",
                "The kit needs Python 3.8 or newer; the box itself is reachable.",
                "Put the path of a newer one (conda, uv) first in profile_python.",
            )
        ready = kit.build()
        box = {
            "reachable": True,
            "why": None,
            "python": serving[0],
            "root": probe["root"],
            "data_dir": probe["data_dir"],
            "home": probe["home"],
            "uid": probe.get("uid"),
            "boot_id": probe["boot_id"],
            "kit": f"{probe['root']}/bin/{ready.name}",
        }
        there = probe.get("kit", "").split()[1:2] == [str(len(ready.content))]
        if not there and self.check:
            return {**box, "reachable": False, "why": "the kit is not on the box yet (check mode)"}, True
        if not there:
            self._put_kit(box["root"], ready)
        return box, not there

    def _put_kit(self, root: str, ready: kit.Kit) -> None:
        reply = self._low_level_execute_command(self._program(_PUT, [root, ready.name]), in_data=ready.content)
        size = reply["stdout"].split()[-1:] or ["0"]
        if reply["rc"] != 0 or size[0] != str(len(ready.content)):
            raise Refused(
                "kit_not_placed",
                " ".join(f"{reply['stdout']} {reply['stderr']}".split())[-300:] or f"status {reply['rc']}",
                f"The box is reachable, and {root}/bin cannot be written.",
                "Look for a full or read-only disk; choose another profile_data_dir.",
            )

    @staticmethod
    def _answer(box: dict[str, t.Any], changed: bool) -> dict[str, t.Any]:
        return {"changed": changed, "box": box, **difference(changed, "", f"{box.get('kit')}\n")}


def _parse(stdout: str) -> dict[str, t.Any] | None:
    _, begin, rest = stdout.partition(_BEGIN)
    text, end, _ = rest.partition(_END)
    if not begin or not end:
        return None
    facts: dict[str, t.Any] = {"pythons": []}
    for line in text.splitlines():
        name, _, value = line.strip().partition("=")
        if name == "python":
            match = re.fullmatch(r"(\d+)\.(\d+) (/.+)", value)
            if match:
                facts["pythons"].append(((int(match[1]), int(match[2])), match[3]))
        elif name:
            facts[name] = value
    return facts if facts.get("root", "").startswith("/") else None


#: What ssh says, what it means, what to do (ssh(1); field reports).
_EXPLAINED = (
    ("HOST IDENTIFICATION HAS CHANGED", "The box answers with another key than at first contact.",
     "If you re-created it, remove its file in tenant_home/known_hosts; otherwise do not connect."),
    ("Host key verification failed", "The box's key is not the one on record.",
     "If you re-created it, remove its file in tenant_home/known_hosts; otherwise do not connect."),
    ("Permission denied", "The box does not accept the key.", "Register the key in rent_ssh_key with the platform."),
    ("doesn't support PTY", "The address is the platform's relay, which serves no programs.",
     "Expose 22/tcp and use the public address and its mapped port."),
    ("Connection refused", "A host is there, and no SSH server on that port: wrong port, or sshd does not run.",
     "Check that the image starts sshd and that port 22 is exposed."),
    ("no address", "There is no box to reach.",
     "Look: ansible-playbook playbooks/watch.yml -l <slot>; recover a run: tick.yml; rent: train.yml."),
)  # fmt: skip


def _explained(why: str, slot: str, address: str) -> tuple[str, str, str]:
    seen = f"{address or slot}: {' '.join(why.split())[-300:]}"
    for text, means, do in _EXPLAINED:
        if text.lower() in why.lower():
            return seen, means, do
    means = "The box does not answer. It may still be booting, be gone, or be cut off; it may be billing."
    return seen, means, f"Try again; to give it up: ansible-playbook playbooks/teardown.yml -l {slot} -e discard=<id>"

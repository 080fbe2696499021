# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the kit (one zipapp, named by its digest) and call its verbs on a box: one exec a call.

A call sends one JSON object on stdin and gets one JSON object between two marker lines on stdout; banners and other
noise outside the markers do not matter. A box that cannot be reached is an answer too: ``Unreachable``.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import shlex
import typing as t
import zipfile
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure

from ansible_collections.tenant.gpu.plugins.module_utils._kit.frame import unframe

from .errors import Refused

_PACKAGE = "tenant_kit"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = f"import sys\nfrom {_PACKAGE}._kit.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_SHARED = ("__init__.py", "roster.py", "manifest.py", "structure.py")


class Unreachable(Exception):
    """No answer from the box. It says nothing about what runs there."""


class Kit(t.NamedTuple):
    digest: str
    content: bytes

    @property
    def name(self) -> str:
        return f"kit-{self.digest}.pyz"


@functools.cache
def build() -> Kit:
    """The same bytes for the same sources, on every controller."""
    root = Path(__file__).parent.parent / "module_utils"
    members = {"__main__.py": _MAIN.encode(), f"{_PACKAGE}/__init__.py": b""}
    for source in sorted((root / "_kit").rglob("*.py")):
        members[f"{_PACKAGE}/{source.relative_to(root).as_posix()}"] = source.read_bytes()
    for name in _SHARED:
        members[f"{_PACKAGE}/_artifacts/{name}"] = (root / "_artifacts" / name).read_bytes()
    stream = io.BytesIO()
    # Stored, not deflated: compressors differ between machines, and the digest must not.
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    content = stream.getvalue()
    return Kit(hashlib.sha256(content).hexdigest()[:16], content)


def call(action: t.Any, box: dict[str, t.Any], verb: str, request: dict[str, t.Any], deadline: int) -> dict[str, t.Any]:
    """Run one verb of the kit on the box of ``action``'s host; ``deadline`` in seconds ends it there.

    Raises Unreachable where no answer came, Refused where the kit answered with an error.
    """
    if not box.get("reachable"):
        raise Unreachable(box.get("why") or "the box was not reachable")
    command = " ".join(shlex.quote(word) for word in (box["python"], "-I", box["kit"], verb))
    payload = json.dumps({**request, "root": box["root"], "deadline": deadline}).encode()
    try:
        reply = action._low_level_execute_command(f"exec {command}", in_data=payload)
    except AnsibleConnectionFailure as problem:
        raise Unreachable(str(problem)) from problem
    answer = unframe(reply["stdout"])
    if answer is None:
        raise _no_answer(verb, reply)
    if not answer.get("ok"):
        error = answer.get("error") or {}
        raise Refused(
            str(error.get("code", "kit")),
            str(error.get("seen", f"kit {verb} failed")),
            str(error.get("means", "")),
            str(error.get("do", "")),
            answer=answer,
        )
    return answer


def _no_answer(verb: str, reply: dict[str, t.Any]) -> Refused | Unreachable:
    noise = " ".join(f"{reply['stdout']} {reply['stderr']}".split())[-400:]
    if reply["rc"] == 255:
        return Unreachable(noise or "the connection ended without an answer")
    return Refused(
        "kit_no_answer",
        f"kit {verb} ended with status {reply['rc']} and no answer: {noise}",
        "The box could be reached, but its Python or our kit did not run to the end.",
        "Run `ansible-playbook playbooks/audit.yml -l <slot>`; look for a full disk or a missing interpreter.",
    )

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb push: see plugins/modules/push.py."""

from __future__ import annotations

import subprocess
import tarfile
import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.plugin_utils import kit, source, transfer
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.fetch import rsync_is_missing
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs

_TRIES = 4


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        tree = source.read(args["source"], Path(args["tenant_home"]).expanduser() / "sources")
        release = self._pinned(args, tree)
        box = args["box"]
        if release in args["present"]:
            self.say(f"release {release}: there already")
            return {"changed": False, "release": release, "files": len(tree.names), "bytes": tree.size}
        if not self.check:
            self._send(box, tree, args["deadline"])
            self.say(f"release {release}: {len(tree.names)} files, {tree.size} bytes pushed")
        diff = difference(True, "", "".join(f"{name}\n" for name in tree.names))
        return {"changed": True, "release": release, "files": len(tree.names), "bytes": tree.size, **diff}

    def _pinned(self, args: dict[str, t.Any], tree: source.Tree) -> str:
        """The release of this run. A run keeps its first source: a resumed run uses the identical one."""
        book = Runs(args["tenant_home"])
        record = book.get(args["run_id"]) if args["run_id"] else None
        if record and record.get("release") and record["release"] != tree.digest:
            raise Refused(
                "source_changed",
                f"run {args['run_id']} was launched from release {record['release']}; the source is now {tree.digest}",
                "A run is resumed from the identical source, or its results could not be attributed.",
                "Put the source back (git stash), or start another run with -e run_id=new.",
            )
        if record and not self.check:
            book.update(args["run_id"], release=tree.digest)
        return tree.digest

    def _send(self, box: dict[str, t.Any], tree: source.Tree, deadline: int) -> None:
        """rsync into an incoming folder, then one exec that checks the digest there and seals it."""
        try:
            route = transfer.route(self)
            incoming = f"{box['root']}/releases/.incoming-{tree.digest}/"
            listed = "\0".join(tree.names)
            for attempt in range(1, _TRIES + 1):
                code, text = self._copy(route, tree, listed, incoming)
                if code == 0:
                    break
                if rsync_is_missing(code, text):
                    self._pack(route, tree, incoming)
                    break
                if code not in transfer.RETRYABLE or attempt == _TRIES:
                    raise transfer.refusal(code, text)
                route = transfer.route(self)
            kit.call(self, box, "release", {"digest": tree.digest}, deadline)
        except kit.Unreachable as problem:
            raise Refused(
                "unreachable",
                str(problem),
                "The box went out of reach while the source was pushed.",
                "Run the same command again: only what is missing travels.",
            ) from problem

    def _pack(self, route: transfer.Route, tree: source.Tree, incoming: str) -> None:
        """Where the box has no rsync: everything in one tar over ssh."""
        place = transfer.quoted(incoming)
        remote = f"mkdir -p {place} && tar -C {place} -xf -"
        receiving = subprocess.Popen(
            route.command(remote), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert receiving.stdin is not None and receiving.stderr is not None
        try:
            with tarfile.open(fileobj=receiving.stdin, mode="w|") as archive:
                for name in tree.names:
                    archive.add(tree.root / name, name, recursive=False)
            receiving.stdin.close()
        except BrokenPipeError:
            pass
        text = receiving.stderr.read().decode(errors="replace")
        if receiving.wait():
            raise transfer.refusal(23, f"tar over ssh: {text}")

    @staticmethod
    def _copy(route: transfer.Route, tree: source.Tree, listed: str, incoming: str) -> tuple[int, str]:
        return transfer.rsync(
            route,
            [
                "--links",
                "--perms",
                "--times",
                "--checksum",
                "--from0",
                "--files-from=-",
                f"--rsync-path=mkdir -p {transfer.quoted(incoming)} && rsync",
                f"{tree.root}/",
                f"{route.target}:{incoming}",
            ],
            feed=listed.encode("utf-8", "surrogateescape"),
        )

# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`make demo`: a training job's whole life on a rented box, played in the lab by the commands a user would type.

Rented, audited, pushed, launched, interrupted by a host failure, resumed on a fresh box, finished, pulled, verified,
torn down, and the meter proven off. Everything goes over real HTTP, SSH, rsync and tmux; only the market is ours.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from lab.api import Lab, LabError

ROOT = Path(__file__).resolve().parent.parent
SLOT = "runpod-1"
JOB = "examples/digits/job.yml"
FAIL_AFTER_STEP = 120
_POLL_SECONDS = 1.0
_STATE = re.compile(rf"^  {SLOT}  \S+  (\w+)", re.MULTILINE)
_STEP = re.compile(r"step (\d+)/")


class Stopped(Exception):
    """The demo cannot go on; the message says why."""


@dataclass
class Phase:
    """One command: when it ran, and what it printed."""

    name: str
    started: float
    ended: float = 0.0
    output: str = ""


@dataclass
class Story:
    """What the demo saw, for the table at its end."""

    phases: list[Phase] = field(default_factory=list)
    host_failed_at: float = 0.0
    dead: str = ""


class Demo:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.results, self.inventory = folder / "home", folder / "results", folder / "inventory"
        self.approvals = self.inventory / "group_vars" / "all" / "approvals.yml"
        self.lab = Lab(folder / "lab")
        self.story = Story()
        self.began = time.time()

    # -- setting the stage -------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        if self.folder.exists():
            if any(self.folder.iterdir()) and not self.approvals.exists():
                raise Stopped(f"{self.folder} is not empty and not a demo's: choose another --folder")
            shutil.rmtree(self.folder)
        variables = self.inventory / "group_vars"
        (variables / "all").mkdir(parents=True)
        shared = ROOT / "inventories" / "rentals" / "group_vars"
        for name in ("runpod", "all"):
            target = variables / ("all/platform.yml" if name == "all" else f"{name}.yml")
            target.symlink_to(shared / f"{name}.yml")
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"runpod": {"hosts": {SLOT: None}}}))
        self.approve({"tenant_home": str(self.home), "results_dir": str(self.results), "rent_approve": "true"})
        say("Approvals of this demo, given in advance in its inventory (a user types them): rent_approve=true, capped")
        say("by job_max_price 0.80 USD an hour and job_max_cost 1 USD of examples/digits/job.yml.")

    def approve(self, more: dict[str, str]) -> None:
        known = yaml.safe_load(self.approvals.read_text()) if self.approvals.exists() else {}
        self.approvals.write_text(yaml.safe_dump({**known, **more}))

    # -- commands ----------------------------------------------------------------------------------------------------

    def play(self, phase: str, command: str, *, echo: bool = True) -> Phase:
        """Run one command as a user would type it, and print the collection's own lines of it."""
        if echo:
            say("")
            say(f"$ {command}")
        done = Phase(phase, time.time())
        self.story.phases.append(done)
        environment = {
            **os.environ,
            **self.lab.env(),
            "ANSIBLE_INVENTORY": str(self.inventory),
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        process = subprocess.Popen(
            command.split(),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                done.output += line
                if line.startswith(f"  {SLOT}  "):
                    say(line.rstrip())
            process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        done.ended = time.time()
        with (self.folder / "log").open("a") as log:
            log.write(f"$ {command}\n{done.output}\n")
        if process.returncode:
            say(done.output)
            raise Stopped(f"`{command}` ended with {process.returncode}")
        return done

    def watch_on(self, *, to_the_end: bool) -> None:
        """watch.yml again and again, until the run has finished, or has come far enough for a failure."""
        command = f"ansible-playbook playbooks/watch.yml -l {SLOT}"
        say("")
        say(f"$ {command}        # again and again")
        while True:
            output = self.play("watch", command, echo=False).output
            state = (_STATE.search(output) or ["", ""])[1]
            step = int((_STEP.search(output) or [0, 0])[1])
            if state == "finished" or (not to_the_end and step > FAIL_AFTER_STEP):
                return
            if state in ("failed", "dead", "stopped", "preempted"):
                raise Stopped(f"the run is {state}")
            time.sleep(_POLL_SECONDS)

    # -- the story ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        self.play("train", f"ansible-playbook playbooks/train.yml -l {SLOT} -e @{JOB}")
        self.watch_on(to_the_end=False)
        first = self.rental()
        say("")
        say(f"--- the host of {first} fails: the pod is gone with its GPU; the network volume is not ---")
        self.story.host_failed_at, self.story.dead = time.time(), first
        self.lab.kill_host(first)
        self.play("tick", f"ansible-playbook playbooks/tick.yml -l {SLOT}")
        say(f"--- approval written into the inventory: discard: {first} (dead; its checkpoints are on the volume) ---")
        self.approve({"discard": first})
        self.play("discard", f"ansible-playbook playbooks/teardown.yml -l {SLOT}")
        self.approve({"discard": ""})
        self.watch_on(to_the_end=True)
        run_id = self.record()["run_id"]
        self.play("collect", f"ansible-playbook playbooks/collect.yml -l {SLOT}")
        say(f"--- approval written into the inventory: teardown_approve: {run_id} (its receipt is complete) ---")
        self.approve({"teardown_approve": run_id})
        torn = self.play("teardown", f"ansible-playbook playbooks/teardown.yml -l {SLOT}")
        left = re.search(r"leftovers_approve=(\S+)", torn.output)
        if left is None:
            raise Stopped("teardown named no volume that still bills")
        say(f"--- approval written into the inventory: leftovers_approve: {left[1]} ---")
        self.approve({"leftovers_approve": left[1]})
        self.play("leftovers", f"ansible-playbook playbooks/teardown.yml -l {SLOT}")
        return self.summary(run_id)

    def rental(self) -> str:
        """The instance that the slot stands for now, as the ledger has it."""
        return str([line for line in self.ledger() if line["action"] == "created"][-1]["instance_id"])

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "ledger.jsonl").read_text().splitlines()]

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(next((self.home / "runs").glob("*/run.json")).read_text())
        return found

    # -- the account of it -------------------------------------------------------------------------------------------

    def summary(self, run_id: str) -> dict[str, Any]:
        folder = self.results / run_id
        receipt = json.loads((folder / "RECEIPT.json").read_text())
        result = json.loads(sorted(folder.glob("cells/main/attempt-*/result.json"))[-1].read_text())
        metrics = json.loads((folder / "cells/main/out/metrics.json").read_text())
        bill = self.lab.bill()
        verdicts = [line for line in self.ledger() if line["action"] == "verdict"]
        claimed = sum((spent for *_, spent in self.claims()), Decimal(0))
        return {
            "schema": "tenant.gpu/demo/1",
            "run_id": run_id,
            "state": result["state"],
            "attempts": result["attempt"],
            "resumed_from_step": result["resumed_from"]["step"],
            "final_step": result["step"],
            "accuracy": metrics["accuracy"],
            "artifacts": {"verified": len(receipt["artifacts"]), "failed": receipt["failed"]},
            "receipt": os.path.relpath(folder / "RECEIPT.json", ROOT),
            "meter": "off" if {line["verdict"] for line in verdicts} == {"off"} else "unknown",
            "evidence": [f"{line['instance_id']}: {line['saw']}" for line in verdicts],
            "leftovers": [volume["id"] for volume in self.lab.volumes() if volume["state"] != "gone"],
            "cost": {"claimed": f"{claimed:.6f}", "lab_bill": f"{Decimal(bill['total']):.6f}", "currency": "USD"},
            "paid_idle_seconds": round(self.idle_seconds(folder), 1),
            "phase_seconds": self.by_phase(lambda phase: phase.ended - phase.started),
            "phase_cost": self.by_phase(lambda phase: float(self.cost_between(phase.started, phase.ended))),
            "box_execs": self.box_execs(),
            "wall_seconds": round(time.time() - self.began, 1),
        }

    def claims(self) -> list[tuple[str, float, float, Decimal, Decimal]]:
        """(id, from, to, rate an hour, cost) of everything that billed, by the collection's own ledger."""
        begun: dict[str, tuple[float, Decimal]] = {}
        rows = []
        for line in self.ledger():
            key = line.get("instance_id", "")
            if line["action"] in ("created", "volume_created"):
                begun[key] = (_epoch(line["at"]), Decimal(line["rate"]["amount"]))
            elif line["action"] in ("destroyed", "leftover_deleted") and key in begun:
                start, rate = begun.pop(key)
                end = _epoch(line["at"])
                rows.append((key, start, end, rate, rate * Decimal(str(end - start)) / 3600))
        return rows

    def cost_between(self, start: float, end: float) -> Decimal:
        overlaps = [(rate, min(end, until) - max(start, since)) for _, since, until, rate, _ in self.claims()]
        return sum((rate * Decimal(str(max(0.0, seconds))) / 3600 for rate, seconds in overlaps), Decimal(0))

    def by_phase(self, measure: Any) -> dict[str, float]:
        totals: dict[str, float] = {}
        for phase in self.story.phases:
            totals[phase.name] = totals.get(phase.name, 0.0) + measure(phase)
        return {name: round(value, 6 if value < 0.1 else 1) for name, value in totals.items()}

    def idle_seconds(self, folder: Path) -> float:
        """Paid seconds of boxes in which neither the trainer ran on them nor a command of ours was at work."""
        busy = [(phase.started, phase.ended) for phase in self.story.phases if phase.name != "watch"]
        attempts = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        starts = [_epoch(line["at"]) for line in attempts if line["event"] == "cell_started"]
        ends = [self.story.host_failed_at, *(_epoch(line["at"]) for line in attempts if line["event"] == "cell_ended")]
        volumes = {line["instance_id"] for line in self.ledger() if line["action"] == "volume_created"}
        idle = 0.0
        for key, since, until, *_ in self.claims():
            if key not in volumes:
                trained = [(starts[0], ends[0])] if key == self.story.dead else [(starts[-1], ends[-1])]
                idle += _uncovered(since, until, busy + trained)
        return idle

    def box_execs(self) -> dict[str, int]:
        """How often each verb of the kit was called on a box, as the boxes' own SSH servers counted."""
        counted: Counter[str] = Counter()
        for log in (self.folder / "lab").rglob("execs.jsonl"):
            for line in log.read_text().splitlines():
                match = re.search(r"kit-[0-9a-f]+\.pyz (\w+)", json.loads(line)["command"])
                if match:
                    counted[match[1]] += 1
        return dict(sorted(counted.items()))

    def end(self) -> None:
        """Say what was left, then end the lab and every box in it."""
        try:
            left = [rental["id"] for rental in self.lab.rentals() if rental["state"] != "gone"]
            left += [volume["id"] for volume in self.lab.volumes() if volume["state"] != "gone"]
        except LabError:
            left = []
        if left:
            say(f"Left in the lab, which ends now with everything in it: {', '.join(left)}.")
            say(f"At a real platform these would bill on. The ledger has them: {self.home}/ledger.jsonl")
        self.lab.stop()


def _uncovered(since: float, until: float, covered: list[tuple[float, float]]) -> float:
    idle, at = 0.0, since
    for start, end in sorted(covered):
        if start > at:
            idle += min(start, until) - at if min(start, until) > at else 0.0
        at = max(at, end)
        if at >= until:
            return idle
    return idle + max(0.0, until - at)


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).astimezone(UTC).timestamp()


def say(text: str) -> None:
    print(text, flush=True)


def table(facts: dict[str, Any]) -> list[str]:
    cost = facts["cost"]
    rows = [
        ("what ran", f"{facts['run_id']}: {facts['state']}, {facts['attempts']} attempts"),
        ("resumed", f"from step {facts['resumed_from_step']} of {facts['final_step']}, on a fresh box"),
        ("accuracy", f"{facts['accuracy']:.4f} on digits it had not seen"),
        ("verified", f"{facts['artifacts']['verified']} artifacts loaded, {facts['artifacts']['failed']} failed"),
        ("receipt", facts["receipt"]),
        ("cost", f"{cost['claimed']} {cost['currency']} claimed, {cost['lab_bill']} on the bill"),
        ("idle", f"{facts['paid_idle_seconds']} paid seconds without work"),
        ("meter", facts["meter"]),
        *[("evidence", line) for line in facts["evidence"]],
        ("left over", ", ".join(facts["leftovers"]) or "nothing bills"),
        ("wall time", f"{facts['wall_seconds']} s"),
    ]
    lines = [
        "",
        *(f"  {name:<10} {text}" for name, text in rows),
        "",
        f"  {'phase':<10} {'seconds':>8} {'cost USD':>10}",
    ]
    for name, seconds in facts["phase_seconds"].items():
        lines.append(f"  {name:<10} {seconds:>8.1f} {facts['phase_cost'][name]:>10.6f}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="where it keeps everything (emptied first)")
    demo = Demo(parser.parse_args().folder.absolute())
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        demo.prepare()
        demo.lab.start()
        say(
            "A lab is up: a RunPod that bills in lab money. Its boxes are "
            + (
                "sandboxes (bubblewrap)."
                if demo.lab.namespaces
                else "plain directories: namespaces are not permitted here."
            )
        )
        demo.began = time.time()
        facts = demo.run()
    except KeyboardInterrupt:
        say("\nInterrupted.")
        return 130
    except (Stopped, LabError) as problem:
        say(f"\nThe demo stopped: {problem}. What it printed so far is in {demo.folder}/log.")
        return 1
    finally:
        demo.end()
    (demo.folder / "summary.json").write_text(json.dumps(facts, indent=1) + "\n")
    for line in table(facts):
        say(line)
    say("")
    say(f"Open it: ls {os.path.relpath(demo.results / facts['run_id'], ROOT)}")
    say(f"The account is in {os.path.relpath(demo.folder / 'summary.json', ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

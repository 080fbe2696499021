# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`python -m lab up|down|status|rent|stop|start|…`: the lab by hand."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from lab import api, control, launcher, soak
from lab.control import LabError
from lab.market import TIMINGS, Options, Timing

_KEY_FILES = ("id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub")


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except LabError as refusal:
        print(f"lab: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description="A rental market on your own machine.")
    parser.add_argument(
        "--state", type=lambda text: Path(text).absolute(), default=launcher.default_folder(),
        help=f"the lab's folder (default ./.lab, or ${launcher.STATE_VARIABLE})",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_up(verbs)
    _add(verbs, "down", _down, "end the lab and every box in it; the bill stays readable")
    _add(verbs, "env", _env, 'print the exports that point a client here: eval "$(python -m lab env)"')
    _json(_add(verbs, "status", _status, "one line a rental and a volume"))
    _add_rent(verbs)
    for name, says in (
        ("stop", "stop a rental, with a grace"),
        ("start", "start a stopped rental again"),
        ("restart", "restart a running rental's container"),
        ("destroy", "delete a rental for good"),
        ("preempt", "take a rental away: SIGTERM, a grace, SIGKILL"),
    ):
        _add(verbs, name, _on_rental, says).add_argument("id")
    _add_fault(verbs)
    _json(_add(verbs, "faults", _faults, "list the faults that are set, and the kinds there are"))
    _add(verbs, "clear", _clear, "clear one fault, or all").add_argument("id", nargs="?")
    _json(_add(verbs, "bill", _bill, "what everything has cost; also after the lab has ended"))
    _json(_add(verbs, "requests", _requests, "the HTTP requests that reached the lab"))
    soaking = verbs.add_parser("soak", help="make hundreds of fresh connections to a box and count drops")
    soak.add_arguments(soaking)
    soaking.set_defaults(run=soak.run)
    return parser


Run = Callable[[argparse.Namespace], int | None]


def _add(verbs: Any, name: str, run: Run, says: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=says, description=says)
    parser.set_defaults(run=run)
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _call(arguments: argparse.Namespace, verb: str, **more: Any) -> Any:
    return control.call(arguments.state, verb, **more)


# up, down, env


def _add_up(verbs: Any) -> None:
    parser = _add(verbs, "up", _up, "start a lab in the background and print what to export")
    parser.add_argument("--timing", choices=TIMINGS, default="default", help="how long the steps of a rental take")
    for step in fields(Timing):
        flag = f"--{step.name.replace('_', '-')}"
        parser.add_argument(flag, type=float, metavar="SECONDS", help=f"seconds of {step.name.replace('_', ' ')}")
    parser.add_argument("--balance", help="credit of the account (100)")
    parser.add_argument("--list-lag", type=float, metavar="SECONDS", help="lists do not show what is younger")
    parser.add_argument("--linger", type=float, metavar="SECONDS", help="a destroyed rental is shown by id so long")
    parser.add_argument("--rate-limit", type=int, metavar="N", help="requests a minute and key")
    parser.add_argument("--inodes", type=int, metavar="N", help="inode limit of every disk and volume")
    parser.add_argument("--hide", action="append", metavar="PROGRAM", help="a program that the image lacks")
    parser.add_argument("--cgroup", type=int, choices=(1, 2), help="version of the cgroup files in a box")


def _up(arguments: argparse.Namespace) -> None:
    if launcher.running(arguments.state):
        print(f"# a lab runs in {arguments.state} already", file=sys.stderr)
        _env(arguments)
        return
    names = [item.name for kind in (Options, Timing) for item in fields(kind)]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name, None) is not None}
    launcher.start(arguments.state, given)
    described = launcher.read(arguments.state)
    if not described["namespaces"]:
        print(f"# namespaces not permitted: boxes are plain directories ({described['reason']})", file=sys.stderr)
    _env(arguments)


def _down(arguments: argparse.Namespace) -> None:
    was = launcher.running(arguments.state)
    launcher.end(arguments.state)
    print(f"the lab in {arguments.state} has ended" if was else f"no lab runs in {arguments.state}")


def _env(arguments: argparse.Namespace) -> None:
    for name, value in _call(arguments, "env").items():
        print(f"export {name}={shlex.quote(value)}")


# Rentals


def _add_rent(verbs: Any) -> None:
    parser = _add(verbs, "rent", _rent, "rent a box without a client")
    parser.add_argument("--name", default="by-hand")
    parser.add_argument("--gpu", default="NVIDIA GeForce RTX 4090")
    parser.add_argument("--count", type=int, default=1, help="how many cards")
    parser.add_argument("--disk", type=int, default=20, metavar="GB", help="container disk")
    parser.add_argument("--volume", type=int, metavar="GB", help="with a new network volume at /workspace")
    parser.add_argument("--key", type=Path, help="public key that may log in (default: the first in ~/.ssh)")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it can be reached")


def _rent(arguments: argparse.Namespace) -> None:
    lab = api.Lab(arguments.state)
    order: dict[str, Any] = {"gpu": arguments.gpu, "gpu_count": arguments.count, "disk_gb": arguments.disk}
    if arguments.volume:
        order["volume"] = (lab.create_volume(f"{arguments.name}-volume", arguments.volume)["id"], "/workspace")
    rental = lab.rent(arguments.name, [_public_key(arguments.key)], **order)
    if arguments.no_wait:
        print(rental["id"])
        return
    there = lab.wait(rental["id"], timeout=300)["endpoint"]
    print(rental["id"])
    print(f"ssh -p {there['port']} {there['user']}@{there['host']}")


def _public_key(asked: Path | None) -> str:
    candidates = [asked] if asked else [Path.home() / ".ssh" / name for name in _KEY_FILES]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise LabError(f"no public key at {candidates[0]}; name one with --key, or make one with ssh-keygen")
    return found.read_text().strip()


def _on_rental(arguments: argparse.Namespace) -> None:
    _call(arguments, arguments.verb, rental_id=arguments.id)


def _status(arguments: argparse.Namespace) -> None:
    rentals, volumes = _call(arguments, "rentals"), _call(arguments, "volumes")
    if arguments.json:
        return _print_json({**launcher.read(arguments.state), "rentals": rentals, "volumes": volumes})
    described = launcher.read(arguments.state)
    places = ", ".join(f"{name} at {platform['url']}" for name, platform in described["platforms"].items())
    print(f"lab in {arguments.state}, pid {described.get('pid')}: {places}")
    for item in rentals:
        print(_rental_line(item))
    for item in volumes:
        print(f"{item['id']}  volume    {item['name']}  {item['size_gb']} GB  {item['region']}  {item['state']}")
    if not rentals:
        print("nothing is rented")
    return None


def _rental_line(item: dict[str, Any]) -> str:
    there = item["endpoint"]
    where = f"ssh -p {there['port']} {there['user']}@{there['host']}" if there else item["reason"] or "not reachable"
    rate, cost = float(item["rate_per_hour"]), float(item["cost"])
    cards = f"{item['gpu_count']} x {item['gpu']}"
    return f"{item['id']}  {item['state']:<8}  {item['name']}  {cards}  {rate:.4f}/h  {cost:.6f}  {where}"


# Faults


def _add_fault(verbs: Any) -> None:
    parser = _add(verbs, "fault", _fault, "set a fault; `python -m lab faults` tells the kinds")
    parser.add_argument("kind")
    parser.add_argument("params", nargs="*", metavar="NAME=VALUE", help="the kind's parameters (values: JSON or text)")
    for matcher in ("rental", "name", "gpu", "method", "path", "platform", "where"):
        dest = "verb_matcher" if matcher == "where" else matcher
        says = "only for rent or start" if matcher == "where" else f"regular expression for the {matcher}"
        parser.add_argument(f"--{matcher}", dest=f"match_{dest}", metavar="REGEX", help=says)
    parser.add_argument("--times", type=int, metavar="N", help="strike so often, then no more")
    parser.add_argument("--for", type=float, dest="seconds", metavar="SECONDS", help="hold so long")


def _fault(arguments: argparse.Namespace) -> None:
    match = {
        name.removeprefix("match_"): value
        for name, value in vars(arguments).items()
        if name.startswith("match_") and value is not None
    }
    if "verb_matcher" in match:
        match["verb"] = match.pop("verb_matcher")
    params = dict(_parameter(text) for text in arguments.params)
    answer = _call(
        arguments, "fault", kind=arguments.kind, match=match, params=params, times=arguments.times,
        seconds=arguments.seconds,
    )  # fmt: skip
    print(answer["id"])


def _parameter(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LabError(f"{text!r} is no parameter; write NAME=VALUE, e.g. seconds=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _faults(arguments: argparse.Namespace) -> None:
    faults, kinds = _call(arguments, "faults"), _call(arguments, "fault_kinds")
    if arguments.json:
        return _print_json({"faults": faults, "kinds": kinds})
    for fault in faults:
        left = "" if fault["times"] is None else f" of {fault['times']}"
        print(f"{fault['id']}  {fault['kind']}  {fault['match']} {fault['params']}  struck {fault['struck']}{left}")
    print("kinds:")
    for kind in kinds:
        print(f"  {kind['kind']:<14} {kind['says']} [{', '.join(kind['params'])}]")
    return None


def _clear(arguments: argparse.Namespace) -> None:
    print("cleared:", ", ".join(_call(arguments, "clear", fault_id=arguments.id)) or "nothing was set")


# What it cost, what was asked


def _bill(arguments: argparse.Namespace) -> None:
    bill = api.bill(arguments.state)
    if arguments.json:
        return _print_json(bill)
    for platform, account in bill["accounts"].items():
        for name, item in _of(platform, bill["rentals"]):
            lasted = ", ".join(f"{state} {seconds:.1f} s" for state, seconds in item["seconds"].items())
            print(f"{name}  {item['name']}  compute {item['compute']}  disk {item['disk']}  {lasted}")
        for name, item in _of(platform, bill["volumes"]):
            print(f"{name}  {item['name']}  volume {item['total']}  {item['seconds']:.1f} s")
        print(f"{platform}: {account['total']} {account['currency']}, {account['balance']} left")
    return None


def _of(platform: str, items: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, item) for name, item in items.items() if item["platform"] == platform]


def _requests(arguments: argparse.Namespace) -> None:
    requests = _call(arguments, "requests")
    if arguments.json:
        return _print_json(requests)
    for item in requests:
        print(f"{item['at']:.3f}  {item['method']:<6} {item['path']}  {item['status'] or 'no answer'}")
    return None


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))

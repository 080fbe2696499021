# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb instance: see plugins/modules/instance.py. The gate stands here, in the task that makes the call."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import (
    OFF,
    Instance,
    NotFound,
    PlatformError,
    Volume,
    now,
    verdict,
)
from ansible_collections.tenant.gpu.plugins.plugin_utils import card, gate, kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental, spent
from ansible_collections.tenant.gpu.plugins.plugin_utils.rental import Plan, Renter, key_pair
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs, slot_lock

_GLANCE_SECONDS = 5.0


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        self.ledger = Ledger(args["tenant_home"])
        platform = self.platform(args["api"])
        self.renter = Renter(platform, self.ledger, self.slot, self.say, dry=self.check)
        with slot_lock(args["tenant_home"], self.slot):
            if "rent" not in platform.can:
                return self._by_hand(args)
            if args["state"] == "running":
                return self._running(args)
            result = self._absent(args)
            return self._delete_leftovers(args, result) if args["leftovers_approve"] else result

    # -- running ----------------------------------------------------------------------------------------------------

    def _running(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        self._warn_open_elsewhere()
        bound = self.ledger.bound(self.slot)
        instance = self._still_there(bound, args) if bound else self.renter.settle_intent(args["run_id"])
        if instance is not None:
            changed = self._bind(bound, args["run_id"])
            if instance.endpoint and bound and not bound.reached:
                self.renter.note("ready", instance_id=instance.id, endpoint=instance.endpoint.as_dict())
            ready = instance if instance.endpoint or self.check else self._ready(instance, args)
            return self._result(changed, ready, "bound already")
        return self._rent(args, self._dead(bound))

    def _still_there(self, bound: Rental, args: dict[str, t.Any]) -> Instance | None:
        """The bound instance while it lives; None where a replacement is due; a dead one is refused otherwise."""
        try:
            seen = self.renter.platform.show(bound.instance_id)
        except NotFound:
            # Gone for good only with the whole proof; otherwise the slot stays bound and the user is told.
            if self.renter.prove(bound.instance_id, _GLANCE_SECONDS)["state"] == OFF:
                return None
            raise
        if not seen.dead:
            return seen
        if args["replace_dead"]:
            return None
        raise Refused(
            "bound_dead",
            f"slot {self.slot} is bound to {seen.id}, which is {seen.status}",
            "It does not run any more, and may still be billing.",
            f"Recover the run: ansible-playbook playbooks/tick.yml -l {self.slot} ; "
            f"or give it up: ansible-playbook playbooks/teardown.yml -l {self.slot} -e discard={seen.id}",
        )

    @staticmethod
    def _dead(bound: Rental | None) -> str | None:
        return bound.instance_id if bound else None

    def _bind(self, bound: Rental | None, run_id: str | None) -> bool:
        """The instance serves this run from now on, so that its cost is counted there."""
        if bound is None or not run_id or bound.run_id == run_id or self.check:
            return False
        self.renter.note("bound", instance_id=bound.instance_id, run_id=run_id)
        return True

    def _warn_open_elsewhere(self) -> None:
        for rental in self.ledger.open_beside(self.slot):
            self.say(card.still_open(self.slot, rental))

    def _rent(self, args: dict[str, t.Any], supersedes: str | None) -> dict[str, t.Any]:
        job, run_id = args["job"], args["run_id"]
        if not job or not run_id:
            raise Refused("no_job", "no job was given", "It is not known what to rent.", "Pass -e @job.yml.")
        if job["platforms"] and args["platform"] not in job["platforms"]:
            raise Refused(
                "other_platform",
                f"job_platforms allows {', '.join(job['platforms'])}; slot {self.slot} is on {args['platform']}",
                "Nothing was rented.",
                "Choose a slot of an allowed platform, or add this one to job_platforms.",
            )
        plan, wanted = self.renter.plan(job, run_id, args["storage_price"], args["boot_timeout"])
        for line in plan.lines():
            self.say(line)
        if self.check:
            diff = difference(True, "", "\n".join(plan.lines()) + "\n")
            return {"changed": True, "plan": plan.as_dict(), "instance": None, **diff}
        self._refuse_unapproved(plan, args)
        try:
            instance = self.renter.rent(plan, wanted, run_id, key_pair(args["ssh_key"]))
        except PlatformError as problem:
            for volume in self.ledger.volumes():
                if volume.ended_at is None and volume.platform == self.renter.platform.name:
                    problem.do += f" Volume {volume.name} ({volume.volume_id}) is there and bills until it is deleted."
            raise
        self.say(f"rented {instance.id} ({instance.status}); it bills from now on")
        if supersedes:
            self.renter.note("superseded", instance_id=supersedes, note=instance.id)
        ready = self._ready(instance, args)
        return self._result(True, ready, "rented", plan=plan.as_dict(), superseded=supersedes)

    def _refuse_unapproved(self, plan: Plan, args: dict[str, t.Any]) -> None:
        job, approve = args["job"], args["approve"].strip()
        if approve == plan.digest:
            return
        if approve.lower() in ("true", "yes") and job["max_price"] and job["max_cost"]:
            return
        seen = "; ".join(plan.lines())
        do = f"Add to the same command: -e rent_approve={plan.digest}"
        if approve.lower() in ("true", "yes"):
            do += " (rent_approve=true needs job_max_price and job_max_cost)"
        elif approve:
            do += f" (rent_approve={approve} was for another plan)"
        means = "Renting costs money, so it waits for your word. Nothing was rented."
        raise Refused("not_approved", seen, means, do, plan=plan.as_dict())

    def _ready(self, instance: Instance, args: dict[str, t.Any]) -> Instance:
        """Wait for the address. A box that never let anybody in holds nothing: it is given back, as the plan said."""
        try:
            return self.renter.wait_ready(instance, args["boot_timeout"])
        except Refused as problem:
            rental = self.ledger.rental(instance.id)
            if rental is None or rental.reached:
                problem.do = (
                    "It was reachable before, so it is kept: it may hold results. Look at it in "
                    f"{self.renter.platform.console}; to give it up: teardown.yml -e discard={instance.id}"
                )
                raise
            found = self.renter.destroy(instance.id, args["prove_timeout"], note="never reachable")
            if found["state"] == OFF:
                problem.do = f"It was given back; the meter is off. Spent: {self._spent(instance.id)}. Rent again."
            else:
                problem.do = (
                    f"Its meter is {found['state']}. {found['advice']} Then: teardown.yml -e discard={instance.id}"
                )
            problem.facts["verdict"] = found
            raise

    def _spent(self, instance_id: str) -> str:
        rental = self.ledger.rental(instance_id)
        amount = spent(rental) if rental else None
        return "unknown" if rental is None or amount is None else f"{amount:.4f} {(rental.rate or {})['currency']}"

    # -- absent -----------------------------------------------------------------------------------------------------

    def _absent(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        rental = self._target(args)
        if rental is None:
            return self._rest(args, {"changed": False, "instance": None, "verdict": None, "msg": "nothing is rented"})
        instance_id = rental.instance_id
        discard = args["discard"] if args["discard"] == instance_id else ""
        checked = self._pass_gate(rental, {**args, "discard": discard})
        if self.check:
            diff = difference(True, f"{instance_id} exists\n", f"{instance_id} destroyed\n")
            return {"changed": True, "instance": None, "verdict": None, "gate": checked, **diff}
        for line in checked:
            self.say(f"gate: {line}")
        receipt = None if discard else args["results_dir"]
        found = self.renter.destroy(instance_id, args["prove_timeout"], receipt=receipt, note="; ".join(checked))
        if found["state"] != OFF:
            raise Refused(
                "not_proven_off",
                "; ".join(f"{line['call']}: {line['saw']}" for line in found["evidence"]),
                f"The meter of {instance_id} is {found['state']}: it counts as billing.",
                f"{found['advice']} Then run the same command again.",
                verdict=found,
            )
        self._close_run(args, rental, discard)
        return self._rest(args, self._gone(instance_id, found, checked))

    def _target(self, args: dict[str, t.Any]) -> Rental | None:
        """What to destroy: what is named and still open, else what the slot is bound to."""
        for named in (args["id"], args["discard"]):
            if not named:
                continue
            self.renter.platform.check_id(named)
            known = self.ledger.rental(named)
            if known is None and any(volume.volume_id == named for volume in self.ledger.volumes()):
                continue  # a discard can name a volume too: see _refuse_open_runs_on
            if known is None:
                return self._stranger(named)
            if known.open:
                return known
            self.say(f"{named}: its meter was proven off before")
        return self.ledger.bound(self.slot)

    def _rest(self, args: dict[str, t.Any], result: dict[str, t.Any]) -> dict[str, t.Any]:
        """Nobody shall think that nothing bills any more while something does."""
        self._warn_open_elsewhere()
        shown = {left["id"] for left in (result.get("verdict") or {}).get("leftovers", [])}
        wanted = args["leftovers_approve"]
        for volume in self.ledger.volumes():
            mine = volume.ended_at is None and volume.platform == self.renter.platform.name
            if mine and volume.volume_id not in shown and volume.volume_id not in wanted:
                self.say(card.still_bills("network_volume", volume.volume_id, volume.name))
        return result

    def _stranger(self, instance_id: str) -> Rental:
        """An id that the ledger does not know: adopted if the platform shows it alive, otherwise refused at once."""
        try:
            seen = self.renter.platform.show(instance_id)
        except NotFound as problem:
            raise Refused(
                "unknown_instance",
                f"neither the ledger nor {self.renter.platform.name} knows {instance_id} ({problem.seen})",
                "A wrong id, or one of another account. Nothing was called, and nothing is proven.",
                f"See what is open: ansible-playbook playbooks/watch.yml -l {self.slot}; then copy the id.",
            ) from problem
        rate = seen.rate.as_dict() if seen.rate else None
        if not self.check:
            self.renter.adopt(seen, rate, None, "adopted")
        return Rental(seen.id, self.slot, self.renter.platform.name, seen.name, None, rate, seen.created_at or now())

    def _pass_gate(self, rental: Rental, args: dict[str, t.Any]) -> list[str]:
        status, why = None, "it was not asked"
        bound = self.ledger.bound(self.slot)
        if bound and bound.instance_id == rental.instance_id:  # the connection leads to the bound instance, no other
            try:
                status = kit.call(self, args["box"] or {}, "status", {}, args["deadline"])
            except kit.Unreachable as problem:
                why = str(problem)
            except Refused as problem:
                why = problem.seen
        else:
            why = "the slot is bound to another instance now"
        book = Runs(args["tenant_home"])
        served = [run_id for run_id, _ in rental.served if run_id]
        launched = [run_id for run_id in served if (book.get(run_id) or {}).get("instance_id") == rental.instance_id]
        question = gate.Question(
            instance_id=rental.instance_id,
            approve=args["approve"],
            discard=args["discard"],
            results_dir=Path(args["results_dir"]).expanduser(),
            status=status,
            why_unreachable=why,
            recorded_runs=served,
            launched_runs=launched,
            data_survives=args["data_survives"],
        )
        return gate.decide(question)

    def _close_run(self, args: dict[str, t.Any], rental: Rental, discard: str) -> None:
        """A run whose last box is gone needs no more care; one that was superseded lives on elsewhere."""
        if rental.run_id and not rental.superseded_by:
            why = f"{rental.instance_id} {'given up by discard' if discard else 'destroyed'}"
            Runs(args["tenant_home"]).close(rental.run_id, why, proven=not discard)

    def _gone(self, instance_id: str, found: dict[str, t.Any], checked: list[str]) -> dict[str, t.Any]:
        self.say(f"{instance_id}: meter {found['state']}")
        for line in found["evidence"]:
            self.say(f"  {line['call']}: {line['saw']}")
        for left in found["leftovers"]:
            self.say(card.still_bills(left["kind"], left["id"], left["name"]))
        diff = difference(True, f"{instance_id} exists\n", f"{instance_id} meter {found['state']}\n")
        return {"changed": True, "instance": None, "verdict": found, "gate": checked, **diff}

    # -- leftovers --------------------------------------------------------------------------------------------------

    def _delete_leftovers(self, args: dict[str, t.Any], result: dict[str, t.Any]) -> dict[str, t.Any]:
        """Delete named storage, each only when no open rental of this platform may still use it."""
        deleted = []
        for word in filter(None, (part.strip() for part in args["leftovers_approve"].split(","))):
            kind, _, leftover_id = word.partition(":")
            there = {volume.id: volume for volume in self.renter.platform.leftovers(None)}
            if leftover_id not in there:
                self._refuse_unknown_leftover(word, leftover_id)
                continue
            self._refuse_open_runs_on(there[leftover_id], args)
            self._refuse_in_use(kind, leftover_id)
            if not self.check:
                saw = self.renter.platform.delete_leftover(kind, leftover_id)
                self._prove_deleted(kind, leftover_id, saw)
            deleted.append(word)
        earlier = result.get("diff") or {"before": "", "after": ""}
        gone = "".join(f"{word}\n" for word in deleted)
        changed = result["changed"] or bool(deleted)
        diff = difference(changed, earlier["before"] + gone, earlier["after"])
        return {**result, "changed": changed, "deleted": deleted, **diff}

    def _refuse_unknown_leftover(self, word: str, leftover_id: str) -> None:
        if any(volume.volume_id == leftover_id and volume.ended_at for volume in self.ledger.volumes()):
            self.say(f"{word}: deleted before")
            return
        raise Refused(
            "unknown_leftover",
            f"leftovers_approve names {word}, and the platform lists no such storage",
            "A wrong id, or one of another account. Nothing was deleted.",
            "Copy kind:id from the line that says STILL BILLS.",
        )

    def _refuse_in_use(self, kind: str, leftover_id: str) -> None:
        mine = [rental for rental in self.ledger.rentals() if rental.platform == self.renter.platform.name]
        using = [rental.instance_id for rental in mine if rental.open]
        if using:
            raise Refused(
                "leftover_in_use",
                f"{', '.join(using)} is not proven off",
                f"It may still use {kind} {leftover_id}: storage goes last. Nothing was deleted.",
                f"Tear it down first: ansible-playbook playbooks/teardown.yml -l {self.slot}",
            )

    def _refuse_open_runs_on(self, volume: Volume, args: dict[str, t.Any]) -> None:
        """Results that nobody collected may lie on it: they go only when the volume itself is given up by name."""
        if args["discard"] == volume.id:
            self.say(f"discard: what lies on volume {volume.name} ({volume.id}) is given up unseen")
            return
        records = [record for record in Runs(args["tenant_home"]).all() if record.get("instance_id")]
        using = [record for record in records if volume.name in [one["name"] for one in record["job"]["volumes"]]]
        waiting = [record["run_id"] for record in using if not (record.get("closed") or {}).get("proven")]
        if waiting:
            raise Refused(
                "leftover_holds_results",
                f"run {', '.join(waiting)} used volume {volume.name}, and its results were not collected and verified",
                "They may lie on it, and nowhere else. Nothing was deleted.",
                f"Collect them first: ansible-playbook playbooks/collect.yml -l {self.slot} ; "
                f"or give them up: -e discard={volume.id}",
            )

    def _prove_deleted(self, kind: str, leftover_id: str, saw: str) -> None:
        if leftover_id in {volume.id for volume in self.renter.platform.leftovers(None)}:
            raise Refused(
                "leftover_there",
                f"{saw}, and {kind} {leftover_id} is still listed",
                "It bills on.",
                f"Run the same command again; then look at {self.renter.platform.console}.",
            )
        self.renter.note("leftover_deleted", instance_id=leftover_id, saw=saw)
        self.say(f"{kind} {leftover_id} deleted: {saw}, no longer listed")

    # -- boxes without an API ---------------------------------------------------------------------------------------

    def _by_hand(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        """A bare box is its slot: it is adopted, and its end is declared, never proven."""
        bound = self.ledger.bound(self.slot)
        if args["state"] == "absent":
            checked = self._pass_gate(bound, args) if bound else []
            advice = f"Give it back at {self.renter.platform.console}; nothing here can prove that the meter stopped."
            self.say(advice)
            found = verdict(self.renter.platform, self.slot, True)
            return {"changed": False, "instance": None, "verdict": {**found, "advice": advice}, "gate": checked}
        changed = bound is None
        instance = Instance(id=self.slot, name=self.slot, status="declared", billing="on")
        if changed and not self.check:
            self.renter.adopt(instance, args["declared_rate"] or None, args["run_id"], "adopted")
        elif not changed:
            changed = self._bind(bound, args["run_id"])
        return self._result(changed, instance, "adopted" if bound is None else "bound already")

    def _result(self, changed: bool, instance: Instance, msg: str, **more: t.Any) -> dict[str, t.Any]:
        diff = difference(changed, "", f"{instance.id} {instance.status}\n")
        return {"changed": changed, "instance": instance.as_dict(), "verdict": None, "msg": msg, **diff, **more}

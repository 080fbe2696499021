# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Verb instance: see plugins/modules/instance.py. The gate stands here, in the task that makes the call."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import OFF, Instance, NotFound, now, verdict
from ansible_collections.tenant.gpu.plugins.plugin_utils import gate, kit
from ansible_collections.tenant.gpu.plugins.plugin_utils.action import TenantAction, difference
from ansible_collections.tenant.gpu.plugins.plugin_utils.errors import Refused
from ansible_collections.tenant.gpu.plugins.plugin_utils.ledger import Ledger, Rental, cost
from ansible_collections.tenant.gpu.plugins.plugin_utils.rental import Plan, Renter, key_pair
from ansible_collections.tenant.gpu.plugins.plugin_utils.runs import Runs


class ActionModule(TenantAction):
    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        self.ledger = Ledger(args["tenant_home"])
        platform = self.platform(args["api"])
        self.renter = Renter(platform, self.ledger, self.slot, self.say)
        if "rent" not in platform.can:
            return self._by_hand(args)
        if args["leftovers_approve"]:
            return self._delete_leftovers(args)
        return self._absent(args) if args["state"] == "absent" else self._running(args)

    # -- running ----------------------------------------------------------------------------------------------------

    def _running(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        self._warn_open_elsewhere()
        bound = self.ledger.bound(self.slot)
        instance = self._still_there(bound, args) if bound else self.renter.settle_intent(args["run_id"])
        if instance is not None:
            changed = self._bind(bound, args["run_id"])
            ready = instance if instance.endpoint or self.check else self._ready(instance, args)
            return self._result(changed, ready, "bound already")
        return self._rent(args, self._dead(bound))

    def _still_there(self, bound: Rental, args: dict[str, t.Any]) -> Instance | None:
        """The bound instance while it lives; None where a replacement is due; a dead one is refused otherwise."""
        try:
            seen = self.renter.platform.show(bound.instance_id)
        except NotFound:
            self.renter.prove(bound.instance_id, True, 0)
            if self.ledger.bound(self.slot) is None:
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
        bound = self.ledger.bound(self.slot)
        for rental in self.ledger.rentals():
            stale = rental.slot == self.slot and rental.open and (bound is None or rental is not bound)
            if stale and (bound is None or rental.instance_id != bound.instance_id):
                self.say(
                    f"STILL OPEN: {rental.instance_id} of this slot is not proven off. "
                    f"ansible-playbook playbooks/teardown.yml -l {self.slot} -e discard={rental.instance_id}"
                )

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
        name = f"{job['project']}-{self.slot}-{run_id}"
        plan, wanted = self.renter.plan(job, name, args["storage_price"], args["boot_timeout"])
        for line in plan.lines():
            self.say(line)
        if self.check:
            diff = difference(True, "", "\n".join(plan.lines()) + "\n")
            return {"changed": True, "plan": plan.as_dict(), "instance": None, **diff}
        self._refuse_unapproved(plan, args)
        instance = self.renter.rent(plan, wanted, run_id, key_pair(args["ssh_key"]))
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
        spent = cost(rental.rate, rental.created_at, rental.ended_at) if rental else None
        return "unknown" if rental is None or spent is None else f"{spent:.4f} {(rental.rate or {})['currency']}"

    # -- absent -----------------------------------------------------------------------------------------------------

    def _absent(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        instance_id = args["id"] or args["discard"] or self._dead(self.ledger.bound(self.slot))
        if not instance_id:
            return {"changed": False, "instance": None, "verdict": None, "msg": "nothing is rented on this slot"}
        self.renter.platform.check_id(instance_id)
        rental = self.ledger.rental(instance_id) or self._stranger(instance_id)
        if not rental.open:
            return self._gone(instance_id, {"state": OFF, "instance_id": instance_id, "evidence": [], "leftovers": []})
        checked = self._pass_gate(instance_id, rental, args)
        if self.check:
            diff = difference(True, f"{instance_id} exists\n", f"{instance_id} destroyed\n")
            return {"changed": True, "instance": None, "verdict": None, "gate": checked, **diff}
        for line in checked:
            self.say(f"gate: {line}")
        receipt = args["results_dir"] if not args["discard"] else None
        found = self.renter.destroy(instance_id, args["prove_timeout"], receipt=receipt, note="; ".join(checked))
        if found["state"] != OFF:
            raise Refused(
                "not_proven_off",
                "; ".join(f"{line['call']}: {line['saw']}" for line in found["evidence"]),
                f"The meter of {instance_id} is {found['state']}: it counts as billing.",
                f"{found['advice']} Then run the same command again.",
                verdict=found,
            )
        self._close_runs(args, rental)
        return self._gone(instance_id, found, changed=True, gate=checked)

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

    def _pass_gate(self, instance_id: str, rental: Rental | None, args: dict[str, t.Any]) -> list[str]:
        status, why = None, "it was not asked"
        bound = self.ledger.bound(self.slot)
        if bound and bound.instance_id == instance_id:  # the connection leads to the bound instance, to no other
            try:
                status = kit.call(self, args["box"] or {}, "status", {}, args["deadline"])
            except kit.Unreachable as problem:
                why = str(problem)
            except Refused as problem:
                why = problem.seen
        else:
            why = "the slot is bound to another instance now"
        question = gate.Question(
            instance_id=instance_id,
            approve=args["approve"],
            discard=args["discard"],
            results_dir=Path(args["results_dir"]).expanduser(),
            status=status,
            why_unreachable=why,
            recorded_runs=[rental.run_id] if rental and rental.run_id else [],
            data_survives=args["data_survives"],
        )
        return gate.decide(question)

    def _close_runs(self, args: dict[str, t.Any], rental: Rental | None) -> None:
        """A run whose last box is gone needs no more care; one that was superseded lives on elsewhere."""
        if rental and rental.run_id and not rental.superseded_by:
            Runs(args["tenant_home"]).close(rental.run_id, f"{rental.instance_id} destroyed")

    def _gone(
        self, instance_id: str, found: dict[str, t.Any], changed: bool = False, **more: t.Any
    ) -> dict[str, t.Any]:
        self.say(f"{instance_id}: meter {found['state']}")
        for line in found["evidence"]:
            self.say(f"  {line['call']}: {line['saw']}")
        for left in found["leftovers"]:
            self.say(
                f"STILL BILLS: {left['kind']} {left['id']} ({left['name']}, {left['size_gb']} GB). Delete it with "
                f"-e leftovers_approve={left['kind']}:{left['id']}"
            )
        gone = difference(changed, f"{instance_id} exists\n", f"{instance_id} meter {found['state']}\n")
        return {"changed": changed, "instance": None, "verdict": found, **gone, **more}

    # -- leftovers --------------------------------------------------------------------------------------------------

    def _delete_leftovers(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        """Delete named volumes, each only when no open rental of the ledger may still use it."""
        deleted = []
        open_rentals = [rental.instance_id for rental in self.ledger.rentals() if rental.open]
        for word in args["leftovers_approve"].split(","):
            kind, _, leftover_id = word.strip().partition(":")
            there = {volume.id: volume for volume in self.renter.platform.leftovers(None)}
            if leftover_id not in there:
                continue
            self._refuse_open_runs_on(there[leftover_id].name, args["tenant_home"])
            if open_rentals:
                raise Refused(
                    "leftover_in_use",
                    f"{', '.join(open_rentals)} is not proven off",
                    f"It may still use {kind} {leftover_id}: storage goes last. Nothing was deleted.",
                    f"Tear it down first: ansible-playbook playbooks/teardown.yml -l {self.slot}",
                )
            if not self.check:
                saw = self.renter.platform.delete_leftover(kind, leftover_id)
                self._prove_deleted(kind, leftover_id, saw)
            deleted.append(word.strip())
        diff = difference(bool(deleted), "".join(f"{word}\n" for word in deleted), "")
        return {"changed": bool(deleted), "instance": None, "verdict": None, "deleted": deleted, **diff}

    def _refuse_open_runs_on(self, volume: str, home: str) -> None:
        """Results that nobody collected may lie on it."""
        records = Runs(home).all()
        using = [record for record in records if volume in [entry["name"] for entry in record["job"]["volumes"]]]
        waiting = [record["run_id"] for record in using if not record.get("closed")]
        if waiting:
            raise Refused(
                "leftover_holds_results",
                f"run {', '.join(waiting)} used volume {volume} and is not closed",
                "Its results were not collected and verified. Nothing was deleted.",
                f"Collect them first: ansible-playbook playbooks/collect.yml -l {self.slot}",
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
            checked = self._pass_gate(self.slot, bound, args) if bound else []
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

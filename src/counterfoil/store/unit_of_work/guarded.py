"""The part of a batch's unit that guards: gates, approvals, keys, and the policies in force."""

from __future__ import annotations

from typing import TypeVar

from counterfoil.domain.errors import UnknownApproval
from counterfoil.domain.policies.controls import Controls, KeptPolicy
from counterfoil.domain.policies.policy_set import PolicySet
from counterfoil.domain.records import Approval, Gate, KeyOwner, Record
from counterfoil.domain.subscriptions.definitions import Audience, Delivery
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.loaded import Loaded
from counterfoil.store.unit_of_work.read_set import NotLoaded, ReadSet, step_key
from counterfoil.store.unit_of_work.shelf import Shelf

R = TypeVar("R", bound=Record)


class Guarded(Loaded):
    """Gates and approvals change by events, as all records do; keys and policies are put."""

    def __init__(self, known: DefinitionCache) -> None:
        super().__init__(known)
        self.changes = Changes()
        self._controls: Controls | None = known.controls
        """As they were when the batch began: it decides by the same ones from the first command to the last."""

    def want_controls(self, needs: ReadSet) -> None:
        """Every batch knows what guards and who is told: nobody writes who has not seen it."""
        if self._controls is None:
            needs.controls.add("-1")

    @property
    def controls_revision(self) -> int:
        """The revision that this batch has seen."""
        return -1 if self._controls is None else self._controls.revision

    def add_controls(self, controls: Controls) -> None:
        """Policies and subscriptions as they are now, if the batch has not seen them before."""
        if self._controls is None:
            self._controls = controls
        if controls.revision > self._known.controls_revision:
            self._known.controls = controls

    def forget_controls(self) -> None:
        """They have changed since this batch saw them: the next one looks again."""
        if self._known.controls_revision <= self.controls_revision:
            self._known.controls = None

    def find_gate(self, flow_id: str, step_id: str) -> Gate | None:
        return self.gates.get(step_key(flow_id, step_id))

    def approval(self, approval_id: str) -> Approval:
        approval = self.approvals.get(approval_id)
        if approval is None:
            raise UnknownApproval
        return approval

    def delivery(self, delivery_id: str) -> Delivery | None:
        """What is still to be told; what goes with its flow in this very batch is gone."""
        found = self.deliveries.get(delivery_id)
        return None if found is None or found.flow_id in self.changes.pruned.ids else found

    def find_key(self, key_id: str) -> KeyOwner | None:
        return self.keys.get(key_id)

    def controls(self) -> Controls:
        """Policies and subscriptions in force, with what this batch has put or taken out."""
        known = self._controls
        if known is None:
            raise NotLoaded("controls", "-1")
        policies, subscriptions = self.changes.policies, self.changes.subscriptions
        if not (policies or subscriptions or self.touched_shelves):
            return known
        return known.with_changes(
            {**policies, **self.kept_policies.drafts}, {**subscriptions, **self.subscriptions.drafts}
        )

    def policies(self) -> PolicySet:
        return self.controls().policies

    def audience(self) -> Audience:
        """Who is told of what. Nobody, in a unit that has never heard of controls."""
        return {} if self._controls is None else self.controls().audience

    def draft_gate(self, flow_id: str, step_id: str) -> Gate:
        return self._drafted(self.gates, step_key(flow_id, step_id))

    def create_gate(self, gate: Gate) -> None:
        self.gates.put(step_key(gate.flow_id, gate.step_id), gate)

    def draft_approval(self, approval_id: str) -> Approval:
        return self._drafted(self.approvals, approval_id)

    def create_approval(self, approval: Approval) -> None:
        self.approvals.put(approval.approval_id, approval)

    def _drafted(self, shelf: Shelf[R], key: str) -> R:
        draft = shelf.drafts.get(key)
        if draft is None:
            record = shelf.get(key)
            assert record is not None, f"an event tells of {key}, which is not there"
            draft = record.draft()
            shelf.put(key, draft)
        return draft

    def give_key(self, owner: KeyOwner) -> None:
        self.keys.put(owner.key_id, owner)

    def put_policy(self, policy: KeptPolicy) -> None:
        """Another version of a policy, or its end: each is kept."""
        self.kept_policies.put(policy.policy_id, policy)

    def _keep_shelves(self) -> None:
        """The command was decided: what it has put is what the batch knows, and writes."""
        for shelf in self.touched_shelves:
            shelf.keep(self.changes)
        self._clear_shelves()

    def _clear_shelves(self) -> None:
        for shelf in self.touched_shelves:
            shelf.drafts = {}
        self.touched_shelves.clear()

"""Wake-ups after a commit: what is due at a time that is known now wakes its sweep then."""

from __future__ import annotations

from counterfoil.domain.states import ApprovalStatus
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.unit import UnitOfWork


class DueTimes:
    """Notes the due times of everything but work, which ``SendingRoom`` looks at."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        changes, at = unit.changes, self._wakeups.at
        for flow in changes.flows.values():
            if flow.deadline_at is not None:
                at(SweepName.FLOW_CLOCKS, flow.deadline_at)
        for step in changes.steps.values():
            if step.due_at is not None:
                at(SweepName.FLOW_CLOCKS, step.due_at)
        for approval in changes.approvals.values():
            if approval.status is ApprovalStatus.PENDING:
                at(SweepName.APPROVALS, approval.expires_at)
        for schedule in changes.schedules.values():
            if schedule is not None and schedule.next_at is not None:
                at(SweepName.SCHEDULES, schedule.next_at)
        if changes.calls or changes.deliveries:
            self._note_messages(changes)
        if changes.reconciliations or changes.dedup:
            self._note_effects(changes)
        if changes.hook_tokens:
            self._note_hooks(changes)

    def _note_messages(self, changes: Changes) -> None:
        at = self._wakeups.at
        for call in changes.calls.values():
            if call is not None:
                at(SweepName.CANCEL_CALLS, call.due_at)
        for delivery in changes.deliveries.values():
            if delivery is not None and delivery.due_at is not None:
                at(SweepName.DELIVERIES, delivery.due_at)

    def _note_hooks(self, changes: Changes) -> None:
        for token in changes.hook_tokens.values():
            if token is not None and token.wake_at is not None:
                self._wakeups.at(SweepName.HOOKS, token.wake_at)

    def _note_effects(self, changes: Changes) -> None:
        at = self._wakeups.at
        for record in changes.reconciliations.values():
            if record is not None and record.due_at is not None:
                at(SweepName.PROBES, record.due_at)
        for key in changes.dedup.values():
            if key is not None and key.wake_at is not None:
                at(SweepName.DEDUP, key.wake_at)
            if key is not None and key.expires_at is not None:
                at(SweepName.FORGETTING, key.expires_at)

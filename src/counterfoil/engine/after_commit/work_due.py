"""Work after a commit: due times wake their sweep, attempts that ended make room, and other nodes are told of both."""

from __future__ import annotations

from counterfoil.domain.states import WorkStatus
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.sending_room import SendingRoom
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.unit import UnitOfWork


class WorkDue:
    """Looks at each changed work item for its due time, and at those that are no longer out for the room they leave."""

    def __init__(self, wakeups: Wakeups, room: SendingRoom, peers: Peers) -> None:
        self._wakeups = wakeups
        self._room = room
        self._peers = peers

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        changes = unit.changes
        due_here = self._note_due(changes)
        active, items = WorkStatus.ACTIVE, changes.work.values()
        came_back = {(item.step_id, item.version) for item in items if item.sent_at and item.status is not active}
        back = {step_id for step_id, version in came_back if unit.is_limited(version)}
        back.update(changes.current)  # another definition may allow more
        self._room.make(back, changes.current)
        if self._peers.has_others:
            self._peers.tell(changes.journaled(), back, due=due_here)

    def _note_due(self, changes: Changes) -> bool:
        """Wake the sweeps when committed work is due; returns whether some is by now, and was not claimed."""
        at, due_here = self._wakeups.at, False
        for work in changes.work.values():
            if work.due_at is None:
                continue
            if work.status is WorkStatus.ACTIVE:
                at(SweepName.DEADLINES, work.due_at)
            else:
                if work.due_at <= changes.at:
                    self._room.wait_for(work)
                    due_here = True
                at(SweepName.REQUEUE, work.due_at)
        return due_here

"""Open flows as the last commit left them, so that their next change need not load them again.

Most events of a work item follow soon after the one before: an acknowledgement after the dispatch, a completion after
the acknowledgement. A flow is cached as its last commit left it, never as a batch that is still under way would have
it: what a batch changes is taken out before it is written, and put back once it is known to be durable. If the batch
fails, or its outcome is unknown, the flow stays out of the cache.

A store with one writer may rely on the cache. Where several nodes write, each flow has a revision, which every commit
that changes anything of the flow raises by one: a cached flow is valid exactly as long as the revision is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import Flow, StepRun, Work
from counterfoil.domain.states import FINAL_FLOWS, FINAL_STEPS, FINAL_WORK
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.kinds.work import WORK
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork

MOST_ITEMS = 10_000
"""Work items, over all flows. The flows that changed longest ago are dropped first."""
MOST_OF_FLOW = 256
"""Open items of one flow. A flow with more is not cached: every change of it would touch all of them."""
MOST_TEXT = 4_096
"""An item that carries more text than this, in its arguments or in what its worker said, is not cached: a number
of items would otherwise be no bound."""


class CachedFlow:
    """A flow, and those of its open items that passed here, each with its step."""

    __slots__ = ("flow", "revision", "steps", "work")

    def __init__(self, flow: Flow, revision: int) -> None:
        self.flow = flow
        self.revision = revision
        self.steps: dict[str, StepRun] = {}
        self.work: dict[str, Work] = {}

    def learn_step(self, step: StepRun) -> None:
        """Of a step that has ended nothing is open, and what it gave may be large."""
        if step.status in FINAL_STEPS:
            self.steps.pop(step.step_id, None)
        else:
            self.steps[step.step_id] = step

    def learn_work(self, work: Work, unit: UnitOfWork) -> None:
        """What undoes another item is left out: its step has ended, and it will soon have."""
        if work.status in FINAL_WORK or work.undoes is not None or _carries_much(work):
            self.work.pop(work.work_id, None)
            return
        self.work[work.work_id] = work
        if work.step_id not in self.steps:
            self.steps[work.step_id] = unit.step_run(work.flow_id, work.step_id)


def _carries_much(work: Work) -> bool:
    """Open work has no result yet: what it holds are its arguments, and its worker's words in the last failure."""
    carried = len(work.message or "")
    for value in (work.error, work.arguments):
        if value is not None:
            carried += len(dump_json(value))
    return carried > MOST_TEXT


class OpenFlowCache:
    """Open flows by id, in the order of their last change."""

    def __init__(self, *, alone: bool, most_items: int = MOST_ITEMS) -> None:
        self._alone = alone
        """There is no other writer, so nothing can be out of date."""
        self._most_items = most_items
        self._flows: dict[str, CachedFlow] = {}
        self._flow_of: dict[str, str] = {}

    def recall(self, unit: UnitOfWork, needs: ReadSet, revisions: Mapping[str, int] | None = None) -> ReadSet:
        """Put the cached part of the needed work into the unit of work; returns the needs that are left.

        ``revisions``: flows as they are now. What is cached of another revision is out of date, and dropped.
        """
        left = set()
        for work_id in needs.work:
            flow_id = self._flow_of.get(work_id, "")
            cached = self._flows.get(flow_id)
            if cached is not None and revisions is not None and revisions.get(flow_id) != cached.revision:
                self.take_out([flow_id])
                cached = None
            if cached is None:
                left.add(work_id)
                continue
            work = cached.work[work_id]
            unit.add_whole(work, cached.steps[work.step_id], cached.flow, cached.revision)
        return needs.with_work(left)

    def take_out(self, flow_ids: Iterable[str]) -> dict[str, CachedFlow]:
        """Drop these flows; returns what was cached of them, for ``learn``."""
        taken: dict[str, CachedFlow] = {}
        for flow_id in flow_ids:
            cached = self._flows.pop(flow_id, None)
            if cached is not None:
                taken[flow_id] = cached
                for work_id in cached.work:
                    del self._flow_of[work_id]
        return taken

    def learn(self, unit: UnitOfWork, taken: Mapping[str, CachedFlow]) -> None:
        """The batch is durable: cache the flows that it changed as it left them, unless they have ended.

        ``taken`` is what was cached of them before.
        """
        changes = unit.changes
        touched: dict[str, CachedFlow] = {}
        for flow_id in changes.touched():
            flow = unit.loaded_flow(flow_id)
            if flow is None or flow.status in FINAL_FLOWS:
                continue
            found = unit.revisions.get(flow_id, -1)  # a new flow has revision 0 in the end
            cached = taken.get(flow_id)
            if cached is None or not (self._alone or cached.revision == found):  # others have changed it since
                cached = CachedFlow(flow, found + 1)
            else:
                cached.flow, cached.revision = flow, found + 1
            touched[flow_id] = cached
        if not touched:  # all of them have ended
            return
        for (flow_id, _), step in changes.peek(STEPS).items():
            if step is not None and flow_id in touched:
                touched[flow_id].learn_step(step)
        for work in changes.peek(WORK).values():
            if work is not None and work.flow_id in touched:
                touched[work.flow_id].learn_work(work, unit)
        self._put_back(touched)

    def _put_back(self, flows: Mapping[str, CachedFlow]) -> None:
        for flow_id, cached in flows.items():
            there = self._flows.get(flow_id)
            if there is not None:  # two batches changed the flow at once: the later one may have been heard of first
                if there.revision > cached.revision:
                    continue
                self.take_out([flow_id])
            if 0 < len(cached.work) <= MOST_OF_FLOW:
                self._flows[flow_id] = cached
                self._flow_of.update(dict.fromkeys(cached.work, flow_id))
        while len(self._flow_of) > self._most_items:
            self.take_out([next(iter(self._flows))])

    def clear(self) -> None:
        """The database may not be the one that it was."""
        self._flows.clear()
        self._flow_of.clear()

    def __len__(self) -> int:
        """How many work items are cached."""
        return len(self._flow_of)

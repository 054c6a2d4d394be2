"""Putting, deleting and firing schedules: a firing starts the flows of its ticks and moves on, in one transaction.

So however many nodes search for due schedules, and wherever one of them crashes, each tick is fired exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import structlog
from pydantic import ValidationError

from counterfoil.domain import schedules
from counterfoil.domain.errors import (
    CounterfoilError,
    InternalError,
    InvalidInput,
    InvalidSchedule,
    RunKeyConflict,
    RunKeyReused,
    UnknownSchedule,
)
from counterfoil.domain.flows.launch import plan_launch
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.schedules import Fired, Schedule, ScheduleDefinition
from counterfoil.domain.steps.checks import CheckNeeded
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.start import Reuse, Start
from counterfoil.engine.queries.documents import schedule_document
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.kinds.schedules import SCHEDULES
from counterfoil.store.unit_of_work.read_set import Find, NotLoaded, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.schedules import ScheduleDocument

MOST_AT_ONCE = 16
"""Most schedules fired in one transaction: each may start a hundred flows."""

log = structlog.get_logger(__name__)


@dataclass
class PutSchedule:
    """``PUT /api/v1/schedules/{schedule_id}``. The same definition again changes nothing.

    A flow that could not be started now is refused, as its start would be. Pausing such a schedule is allowed, so that
    an operator can stop it from being fired.
    """

    schedule_id: str
    definition: ScheduleDefinition
    context: EngineContext

    def needs(self, needs: ReadSet) -> None:
        needs.schedules.add(self.schedule_id)
        needs.registers.add(str(self.context.known.register.revision))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[Schedule, bool]:
        """The schedule, and whether it is new."""
        found = unit.records(SCHEDULES).get(self.schedule_id)
        schedule = schedules.put(self.schedule_id, self.definition, found, now)
        if schedule is not found:
            if schedule.enabled or found is None or not schedules.same_flow(found.flow, schedule.flow):
                plan_launch(unit, self.definition.flow.goals, self.definition.flow.init)
            unit.records(SCHEDULES).put(self.schedule_id, schedule)
        return schedule, found is None


@dataclass
class DeleteSchedule:
    """Forget a schedule; the flows that it has started are not touched."""

    schedule_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.schedules.add(self.schedule_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        if unit.records(SCHEDULES).get(self.schedule_id) is None:
            raise UnknownSchedule
        unit.records(SCHEDULES).put(self.schedule_id, None)


@dataclass(frozen=True)
class Firing:
    """The outcome of a due schedule: how many of its ticks ended how, and the last refusal.

    ``reused``: the tick was answered with the flow that owns its run key.
    """

    schedule_id: str
    started: int = 0
    reused: int = 0
    refused: int = 0
    refusal: CounterfoilError | None = None


@dataclass
class FireSchedule:
    """Start the flows of a due schedule, and move it on to its next tick. None: it is no longer due.

    A start that is refused, or that fails, does not hold the schedule up: it moves on, and remembers why.
    """

    schedule_id: str
    context: EngineContext

    def needs(self, needs: ReadSet) -> None:
        needs.schedules.add(self.schedule_id)

    def decide(self, unit: UnitOfWork, now: int) -> Firing | None:
        schedule = unit.records(SCHEDULES).get(self.schedule_id)
        if schedule is None or schedule.next_at is None or schedule.next_at > now:
            return None
        try:
            due = schedules.due(schedule, now)
        except InvalidSchedule as fault:  # its next tick cannot be computed: it does not fire until it is put again
            unit.records(SCHEDULES).put(self.schedule_id, schedules.refused(schedule, None, fault, now))
            return Firing(self.schedule_id, refused=1, refusal=fault)
        try:
            fired = [self._start(unit, schedule, tick, now) for tick in due.ticks]
        except (NotLoaded, CheckNeeded):
            raise
        except Exception as error:  # noqa: BLE001 - told by _refusal
            unit.discard()  # all ticks ask for the same at the same moment: what one is refused, all are
            refusal = _refusal(self.schedule_id, error)
            unit.records(SCHEDULES).put(self.schedule_id, schedules.refused(schedule, due.next_at, refusal, now))
            return Firing(self.schedule_id, refused=len(due.ticks), refusal=refusal)
        unit.records(SCHEDULES).put(self.schedule_id, schedules.moved_on(schedule, due.next_at, fired, now))
        return _firing(self.schedule_id, fired)

    def _start(self, unit: UnitOfWork, schedule: Schedule, tick: int, now: int) -> Fired:
        """Start the flow of a tick. A run key that is taken refuses this tick alone: an earlier one may have it."""
        try:
            answer = Start(_request(schedule, tick), self.context).decide(unit, now)
        except (RunKeyConflict, RunKeyReused) as refusal:  # raised before anything was changed
            return Fired(tick, None, refusal)
        if isinstance(answer, Reuse):
            return Fired(tick, answer.flow_id, reused=True)
        return Fired(tick, answer["flow_id"])


def _firing(schedule_id: str, fired: list[Fired]) -> Firing:
    refusals = [each.refusal for each in fired if each.refusal is not None]
    reused = sum(each.reused for each in fired)
    started = len(fired) - len(refusals) - reused
    return Firing(schedule_id, started, reused, len(refusals), refusals[-1] if refusals else None)


def _request(schedule: Schedule, tick: int) -> StartFlow:
    try:
        return schedules.request_at(schedule, tick)
    except ValidationError:
        raise InvalidInput("this version does not accept the flow of this schedule: PUT the schedule again") from None


def _refusal(schedule_id: str, error: Exception) -> CounterfoilError:
    if isinstance(error, CounterfoilError):
        return error
    log.error("schedule_failed", schedule_id=schedule_id, exc_info=error)
    return InternalError()


class Schedules:
    """The use cases of schedules."""

    def __init__(self, context: EngineContext, commit: GroupCommit, metrics: Metrics) -> None:
        self._context = context
        self._commit = commit
        self._metrics = metrics

    async def put(self, schedule_id: str, definition: ScheduleDefinition) -> tuple[ScheduleDocument, bool]:
        """The schedule as it is now, and whether it is new."""
        schedule, created = await self._commit.submit(PutSchedule(schedule_id, definition, self._context))
        return schedule_document(schedule), created

    async def delete(self, schedule_id: str) -> None:
        await self._commit.submit(DeleteSchedule(schedule_id))

    def due(self, now: int, limit: int) -> ForEach[Firing | None]:
        """The search for schedules that are due, and the command that fires each."""
        find = Find.of("find_due_schedules", now=now, limit=min(limit, MOST_AT_ONCE))
        return ForEach(find, partial(FireSchedule, context=self._context))

    async def fired(self, answers: list[Firing | None]) -> int:
        """Count and log the firings; returns how many there were."""
        firings = [firing for firing in answers if firing is not None]
        for firing in firings:
            self._tell(firing)
        return len(firings)

    def _tell(self, firing: Firing) -> None:
        refusal = firing.refusal
        counts = {"started": firing.started, "reused": firing.reused, "refused": firing.refused}
        for outcome, ticks in counts.items():
            if ticks:
                self._metrics.schedule_fired(outcome, ticks)
        if refusal is not None:
            log.warning("schedule_refused", schedule_id=firing.schedule_id, code=refusal.code, reason=refusal.message)
        elif not any(counts.values()):
            self._metrics.schedule_fired("skipped")

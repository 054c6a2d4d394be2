"""Schedules: when their ticks are due, which missed ticks still start a flow, and which definitions are refused.

A *tick* is one time at which a flow starts. A schedule keeps its next tick and no history: firing it determines which
ticks start a flow and which tick comes next, and both are committed together. Ticks are computed from the calendar, or
from the time at which the interval was set, so firing one late does not move the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator
from pydantic.functional_validators import AfterValidator

from counterfoil.domain.errors import CounterfoilError, InvalidSchedule
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.steps.attributes import YEAR_MS
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN
from counterfoil.domain.time import rfc3339

SCHEDULE_ID_PATTERN = STEP_ID_PATTERN
SHORTEST_MS = 100
"""The shortest interval. For anything more frequent, use a loop in a worker."""
GRACE_MS = 2_000
"""How late a tick may be fired and still count as on time: more than a wake-up or an interval of the sweeps takes."""
MOST_TICKS = 100
"""The most ticks that one firing catches up. The others stay due and are fired by the next rounds."""
UPCOMING = 5

CatchUp = Literal["skip", "one", "all"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------------------------------------------- on the wire


def _cron(expression: str) -> str:
    """A valid cron expression; raises ValueError if it is not one, or if no date ever matches it."""
    try:
        next(CronSim(expression, _ANY_DAY))
    except CronSimError as error:
        raise ValueError(f"is not a cron expression: {_fault(error)}") from None
    except StopIteration:
        raise ValueError("is never due") from None
    return expression


def _fault(error: CronSimError) -> str:
    """The library's message, in a form that fits into a sentence."""
    text = str(error)
    return f"{text[:1].lower()}{text[1:]}"


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    """A time zone by its name; raises ValueError for a name that the time zone database does not have."""
    if name == "UTC":
        return UTC  # the built-in UTC is also faster
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a directory of the database
        raise ValueError("is not a time zone: give a name such as Europe/Vienna") from None


def _timezone(name: str) -> str:
    _zone(name)
    return name


class ScheduleDefinition(BaseModel):
    """``PUT /api/v1/schedules/{schedule_id}``: a cron expression or an interval, and the flow that each tick starts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    cron: Annotated[str, Field(max_length=256), AfterValidator(_cron)] | None = None
    timezone: Annotated[str, Field(max_length=64), AfterValidator(_timezone)] | None = None
    every_ms: Annotated[StrictInt, Field(ge=SHORTEST_MS, le=YEAR_MS)] | None = None
    flow: StartFlow
    catch_up: CatchUp = "one"
    enabled: StrictBool = True

    @model_validator(mode="after")
    def _has_one_rhythm(self) -> Self:
        if self.cron is None and self.every_ms is None:
            raise ValueError("cron: give cron or every_ms")
        if self.cron is not None and self.every_ms is not None:
            raise ValueError("every_ms: give cron or every_ms, not both")
        if self.cron is None and self.timezone is not None:
            raise ValueError("timezone: only a cron expression has one")
        for name in ("flow_id", "if_owner"):
            if getattr(self.flow, name) is not None:
                raise ValueError(f"flow.{name}: not allowed, because each tick starts a new flow")
        return self


# ---------------------------------------------------------------------------------------------------- ticks


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Computes ticks: by the calendar of a time zone, or at a fixed interval from an anchor."""

    cron: str | None
    timezone: str | None
    every_ms: int | None
    anchor_at: int

    def next_after(self, moment: int) -> int | None:
        """The first tick after a moment; None: there is none within fifty years.

        Raises InvalidSchedule if it can no longer be computed, for example for a time zone that this machine does not
        have.
        """
        if self.every_ms is not None:
            return self.anchor_at + ((moment - self.anchor_at) // self.every_ms + 1) * self.every_ms
        try:
            since = (_EPOCH + moment * _MILLISECOND).astimezone(_zone(self.timezone or "UTC"))
            for found in CronSim(self.cron or "", since):
                tick = (found - _EPOCH) // _MILLISECOND
                # When clocks are set back, the library may return the first of two equal times, which is not later.
                if tick > moment:
                    return tick
        except (CronSimError, ValueError) as error:
            raise InvalidSchedule(f"the next ticks of this schedule cannot be computed: {error}") from None
        return None

    def latest(self, first: int, now: int) -> int:
        """The last tick up to now, given a first one that has passed. A binary search, so a long time costs little."""
        low, high = first, now
        while low < high:
            middle = (low + high) // 2
            tick = self.next_after(middle)
            if tick is not None and tick <= now:
                low = tick
            else:
                high = middle  # there is no tick between the middle and now
        return low


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it is stored. ``next_at`` is its next tick, perhaps overdue; None while it is paused."""

    schedule_id: str
    cron: str | None
    timezone: str | None
    every_ms: int | None
    flow: dict[str, Any]
    """The start request of each flow, as it was given: validated again whenever a flow starts."""
    catch_up: CatchUp
    enabled: bool
    anchor_at: int
    """The origin of an interval: the time at which it was set."""
    next_at: int | None
    last_at: int | None
    """The last tick that started a flow, or was answered with the owner of its run key; ``last_flow_id`` is it."""
    last_flow_id: str | None
    last_error: dict[str, Any] | None
    """Why the last tick was refused: code, message and time; None if it was not."""
    created_at: int
    updated_at: int

    @property
    def rhythm(self) -> Rhythm:
        return Rhythm(self.cron, self.timezone, self.every_ms, self.anchor_at)

    def upcoming(self, count: int = UPCOMING) -> list[int]:
        """The next ticks, as far as they can be computed."""
        ticks: list[int] = []
        following = self.next_at
        try:
            while following is not None and len(ticks) < count:
                ticks.append(following)
                following = self.rhythm.next_after(following)
        except InvalidSchedule:
            pass  # firing the schedule will report the error
        return ticks


class Due(NamedTuple):
    """The result of a firing: the ticks that start one flow each, and the next tick."""

    ticks: list[int]
    next_at: int | None


def due(schedule: Schedule, now: int) -> Due:
    """The passed ticks that start a flow. ``next_at`` alone tells which ticks were fired before."""
    first, rhythm = schedule.next_at, schedule.rhythm
    if first is None or first > now:
        return Due([], first)
    if schedule.catch_up == "all":
        ticks = [first]
        while (following := rhythm.next_after(ticks[-1])) is not None and following <= now and len(ticks) < MOST_TICKS:
            ticks.append(following)
        return Due(ticks, following)
    missed = now - first > GRACE_MS
    ticks = [] if missed and schedule.catch_up == "skip" else [rhythm.latest(first, now)]
    return Due(ticks, rhythm.next_after(now))


# ---------------------------------------------------------------------------------------------------- moves


def same_flow(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two schedules start the same flow; compared as text, because in Python true equals 1."""
    return dump_json(one) == dump_json(other)


def put(schedule_id: str, definition: ScheduleDefinition, found: Schedule | None, now: int) -> Schedule:
    """The schedule that a definition creates, or changes an existing one to. The same definition changes nothing.

    A rhythm that is changed or resumed begins now: earlier ticks are not caught up. An unchanged one keeps its next
    tick, and with it the ticks that are still to be caught up.
    """
    timezone = None if definition.cron is None else definition.timezone or "UTC"
    flow = definition.flow.model_dump(mode="json", by_alias=True, exclude_unset=True)
    given = (definition.cron, timezone, definition.every_ms, flow, definition.catch_up, definition.enabled)
    same_rhythm = found is not None and (found.cron, found.timezone, found.every_ms) == given[:3]
    if found is not None and same_rhythm:
        if same_flow(found.flow, flow) and (found.catch_up, found.enabled) == given[4:]:
            return found
        anchor_at, goes_on = found.anchor_at, found.enabled
    else:
        anchor_at, goes_on = now, False
    if not definition.enabled:
        next_at = None
    elif found is not None and goes_on:
        next_at = found.next_at
    else:
        next_at = Rhythm(*given[:3], anchor_at).next_after(now)
    return Schedule(
        schedule_id,
        *given,
        anchor_at=anchor_at,
        next_at=next_at,
        last_at=None if found is None else found.last_at,
        last_flow_id=None if found is None else found.last_flow_id,
        last_error=None if found is None else found.last_error,
        created_at=now if found is None else found.created_at,
        updated_at=now,
    )


class Fired(NamedTuple):
    """What became of one tick: its flow, or why it has none."""

    tick: int
    flow_id: str | None
    refusal: CounterfoilError | None = None
    reused: bool = False
    """The flow is the owner of the run key: the tick started none."""


def moved_on(schedule: Schedule, next_at: int | None, fired: Sequence[Fired], now: int) -> Schedule:
    """The schedule after a firing: at its next tick, with its last flow and the error of its last tick.

    If missed ticks were only skipped, nothing else changes.
    """
    changed = replace(schedule, next_at=next_at)
    for each in fired:
        if each.refusal is not None:
            error = {"code": each.refusal.code, "message": each.refusal.message, "at": rfc3339(now)}
            changed = replace(changed, last_error=error)
        else:
            changed = replace(changed, last_at=each.tick, last_flow_id=each.flow_id, last_error=None)
    return changed


def refused(schedule: Schedule, next_at: int | None, refusal: CounterfoilError, now: int) -> Schedule:
    """The schedule after a firing all ticks of which were refused: moved to its next tick, with the error."""
    return moved_on(schedule, next_at, [Fired(now, None, refusal)], now)


def request_at(schedule: Schedule, tick: int) -> StartFlow:
    """The start request for the flow of a tick; raises pydantic's ValidationError if it is no longer valid."""
    request = StartFlow.model_validate(schedule.flow)
    names = {"schedule_id": schedule.schedule_id, "scheduled_at": rfc3339(tick)}
    return request.model_copy(update={"metadata": {**request.metadata, **names}})

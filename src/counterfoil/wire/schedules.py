"""Schedules: what they start, when they fire next, and the result of the last firing."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from counterfoil.wire.schema import OneOf, Time, Values, described, keyword


class ScheduleFailure(TypedDict):
    """Why a schedule started nothing at its last tick."""

    code: str
    message: str
    at: Time


class ScheduleDocument(TypedDict):
    """A schedule: its definition, its next ticks, and the result of its last one."""

    schedule_id: str
    cron: Annotated[str | None, keyword(examples=["*/5 * * * *"])]
    timezone: Annotated[str | None, keyword(examples=["Europe/Vienna"])]
    every_ms: int | None
    flow: Annotated[Values, described("the body of the flow start, as it was given")]
    catch_up: Annotated[str, OneOf(Literal["skip", "one", "all"])]
    enabled: bool
    next_at: Annotated[Time | None, described("the next tick; null while the schedule is paused")]
    last_at: Annotated[Time | None, described("the last tick that led to a flow")]
    last_flow_id: Annotated[str | None, described("the flow that it started, or that owned its run key")]
    last_error: ScheduleFailure | None
    upcoming: Annotated[list[Time], described("the next five ticks")]
    created_at: Time
    updated_at: Time


class SchedulesPage(TypedDict):
    schedules: list[ScheduleDocument]
    next_cursor: str | None

"""The journal: each change of a flow as one event."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from counterfoil.domain.journal.event_types import EventType
from counterfoil.wire.schema import OneOf, Time, Values, described


class JournalEvent(TypedDict):
    seq: int
    type: Annotated[str, OneOf(EventType)]
    at: Time
    flow_id: str
    step_id: str | None
    work_id: str | None
    attempt: int | None
    data: Annotated[Values, described("what changed; its members depend on the type")]


class EventsPage(TypedDict):
    events: list[JournalEvent]
    next_cursor: str | None

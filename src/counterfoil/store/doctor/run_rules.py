"""The doctor's rules for run keys: at most one open flow for each, and the key that the journal tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.runs.requests import KEY


def owner_problems(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Flow and problem of each row of ``doctor_key_owners``."""
    for flow_id, problem in rows:
        yield flow_id, _PROBLEMS[problem]


def journaled_key(events: Iterable[Event]) -> str | None:
    """The run key that a flow was started with, as its journal tells."""
    for event in events:
        if event.type is EventType.FLOW_STARTED:
            key: str | None = event.data.get("options", {}).get(KEY)
            return key
    return None


_PROBLEMS = {
    "several": "is open, but another flow has claimed its run key since: a key has one open flow at most",
    "lost": "a run key belongs to a flow that is not in the store",
}

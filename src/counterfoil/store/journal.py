"""The journal as the stores keep it: one row, an entry, holds a run of consecutive events of one flow in one commit.

An entry is as long as it can be: events of the same flow and time, of at most one work item among them, and no more
than ``MOST_EVENTS``. The number of an event is that of its entry times ``MOST_EVENTS``, plus its place in it. So
numbers rise as those of the entries do, an entry can be found by the number of any of its events, and whatever is
appended later has higher ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from counterfoil.domain.journal.events import Event
from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.store.kinds.columns import written
from counterfoil.store.protocol import Row

MOST_EVENTS = 64
"""Events of one entry. Clients hold numbers that were made with it, and the queries know it: it never changes."""
READS = frozenset({"journal_of_flow", "journal_of_work", "journal_of_works", "journal_after"})
"""The read queries whose SQL gives entries (seq, flow_id, work_id, at, events), and whose answer is events."""


def pack(events: Iterable[Event]) -> list[Row]:
    """Events in their order as entries for ``append_journal``: flow_id, work_id, at, and the events as JSON."""
    entries: list[Row] = []
    run: list[list[Any]] = []
    flow_id = work_id = at = None
    for event in events:
        if not event.journaled:
            continue
        own = event.work_id
        if (
            event.flow_id != flow_id
            or event.at != at
            or (own != work_id and own is not None and work_id is not None)
            or len(run) == MOST_EVENTS
        ):
            if run:
                entries.append((flow_id, work_id, at, written(run)))
            run = []
            flow_id, work_id, at = event.flow_id, None, event.at
        if own is None:
            run.append([event.type._value_, event.step_id, 0, event.attempt, event.data])
        else:
            work_id = own
            run.append([event.type._value_, event.step_id, 1, event.attempt, event.data])
    if run:
        entries.append((flow_id, work_id, at, written(run)))
    return entries


def unpack(
    entries: Iterable[Sequence[Any]], after: int = 0, limit: int | None = None, *, only_of_work: bool = False
) -> list[Row]:
    """The events of entries: number, type, at, flow_id, step_id, work_id, attempt, data as JSON text.

    Only those behind the number ``after``, at most ``limit``; ``only_of_work``: only those about the entry's work item.
    """
    return list(islice(_events(entries, after, only_of_work=only_of_work), limit))


def unpack_read(query: str, parameters: Mapping[str, Any], entries: Iterable[Sequence[Any]]) -> list[Row]:
    """What one of ``READS`` answers, by the entries that its SQL gave."""
    only_of_work = query in ("journal_of_work", "journal_of_works")
    return unpack(entries, parameters.get("after", 0), parameters.get("limit"), only_of_work=only_of_work)


def seen_entry(query: str, parameters: Mapping[str, Any]) -> int | None:
    """The entry that a page of ``READS`` begins with though all of its events may have been seen: it has no size."""
    return parameters.get("after", 0) // MOST_EVENTS if query in READS else None


def _events(entries: Iterable[Sequence[Any]], after: int, *, only_of_work: bool) -> Iterator[Row]:
    for seq, flow_id, work_id, at, text in entries:
        for number, (kind, step_id, of_work, attempt, data) in enumerate(parse_entry(text), seq * MOST_EVENTS):
            if number > after and (of_work or not only_of_work):
                own = work_id if of_work else None
                yield number, kind, at, flow_id, step_id, own, attempt, dump_json(data).decode()


def parse_entry(text: str) -> list[Any]:
    """The events of an entry: each its type, step_id, whether it is about the entry's work item, attempt and data."""
    events = parse_json(text)
    if not (isinstance(events, list) and 0 < len(events) <= MOST_EVENTS):
        raise ValueError(f"an entry is a list of 1 to {MOST_EVENTS} events")
    return events

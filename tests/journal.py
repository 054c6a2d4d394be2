"""The journal without the store that wrote it: its entries read by hand, and broken by hand, event by event."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.by_hand import Place, by_hand

ENTRIES = "SELECT seq, flow_id, work_id, at, events FROM journal ORDER BY seq"

Fields = list[Any]
"""An event in its entry: type, step_id, whether it is about the entry's work item, attempt, data."""
Breakage = Callable[[Place], None]


def events_of(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """The events of entries, as the API numbers and names them."""
    return [
        {
            "seq": seq * 64 + place,
            "type": kind,
            "at": at,
            "flow_id": flow_id,
            "step_id": step_id,
            "work_id": work_id if of_work else None,
            "attempt": attempt,
            "data": data,
        }
        for seq, flow_id, work_id, at, events in entries
        for place, (kind, step_id, of_work, attempt, data) in enumerate(json.loads(events))
    ]


def changed_event(kind: str, change: Callable[[Fields], Fields], flow_id: str | None = None) -> Breakage:
    """Change events of a type, of one flow or of all."""
    return _rewritten(kind, flow_id, lambda fields: [change(fields)])


def lost_event(kind: str, flow_id: str | None = None) -> Breakage:
    """Take events of a type out of the journal."""
    return _rewritten(kind, flow_id, lambda fields: [])


def repeated_event(kind: str, again: str) -> Breakage:
    """Append events of a type once more, as if they were of another one."""

    def breakage(place: Place) -> None:
        found = [
            (flow_id, work_id, at, [again, *fields[1:]])
            for _, flow_id, work_id, at, events in by_hand(place, ENTRIES)
            for fields in json.loads(events)
            if fields[0] == kind
        ]
        assert found, f"there is no {kind}"
        for flow_id, work_id, at, fields in found:
            values = f"{_quoted(flow_id)}, {_quoted(work_id)}, {at}, {_quoted(json.dumps([fields]))}"
            by_hand(place, f"INSERT INTO journal (flow_id, work_id, at, events) VALUES ({values})")

    return breakage


def _rewritten(kind: str, flow_id: str | None, change: Callable[[Fields], list[Fields]]) -> Breakage:
    """Put other events, or none, in the place of those of a type. An entry of which nothing is left goes with them."""

    def breakage(place: Place) -> None:
        count = 0
        for seq, flow, _, _, events in by_hand(place, ENTRIES):
            if flow_id not in (None, flow):
                continue
            before = json.loads(events)
            after = [each for fields in before for each in (change(fields) if fields[0] == kind else [fields])]
            if after == before:
                continue
            count += 1
            kept = f"UPDATE journal SET events = {_quoted(json.dumps(after))}" if after else "DELETE FROM journal"
            by_hand(place, f"{kept} WHERE seq = {seq}")
        assert count, f"there is no {kind} to change"

    return breakage


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"

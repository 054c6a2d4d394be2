"""Reading the callback inbox, newest first: accepted callbacks from the journal, all others from their table.

Both are walked backwards and merged by time. A cursor holds a position in each, so that no callback is listed twice or
left out, whatever the clocks of several nodes say. The journal has no index of callbacks: a page looks at a bounded
number of its entries, and may therefore be shorter than its limit, or empty, while ``next_cursor`` goes on.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import orjson

from counterfoil.domain.callbacks.inbox import ACCEPTED, AcceptedCallback, Callback, CallbackKind, accepted_in
from counterfoil.domain.errors import UnknownCallback, UnknownWork
from counterfoil.domain.time import rfc3339
from counterfoil.engine.queries.reading import not_a_cursor, read
from counterfoil.store.journal import MOST_EVENTS, parse_entry
from counterfoil.store.kinds.work import CALLBACK_COLUMNS
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.callbacks import CallbackDetail, CallbackDocument, CallbackPage

ENTRIES_TOGETHER = 2_000
ENTRIES_A_PAGE = 20_000
"""Entries of the journal that one page looks at, at most."""
CLOCKS_DIFFER_MS = 60_000
"""How far the clocks of nodes may differ: the times in the journal rise only as exactly as that."""
HIGHEST = 2**62
_FROM_JOURNAL = re.compile(r"j([0-9]{1,18})")
_CURSOR = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})\.([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class CallbackFilters:
    """Which callbacks are wanted; None: no matter."""

    flow_id: str | None = None
    step_id: str | None = None
    work_id: str | None = None
    kind: str | None = None
    verdict: str | None = None
    since: int | None = None
    until: int | None = None

    def match(self, found: AcceptedCallback) -> bool:
        return (
            self.step_id in (None, found.step_id)
            and self.work_id in (None, found.work_id)
            and self.kind in (None, found.kind)
            and (self.since is None or found.at >= self.since)
            and (self.until is None or found.at < self.until)
        )


class _Position(NamedTuple):
    """How far a list has come: everything before these is still to be listed."""

    number: int = HIGHEST
    """The number of an event in the journal."""
    at: int = HIGHEST
    ordinal: int = HIGHEST

    @classmethod
    def of(cls, cursor: str | None) -> _Position:
        if cursor is None:
            return cls()
        found = _CURSOR.fullmatch(cursor)
        if found is None or any(int(number) > HIGHEST for number in found.groups()):
            raise not_a_cursor()
        return cls(*map(int, found.groups()))

    def __str__(self) -> str:
        return f"{self.number}.{self.at}.{self.ordinal}"


class _Walked(NamedTuple):
    """Accepted callbacks in the order of the journal, backwards, and how far it was looked at."""

    found: list[AcceptedCallback]
    number: int
    """All events from this number on were looked at."""
    at: int | None
    """The time of the last of them; None: there are no earlier ones to be looked at."""


class _Stored(NamedTuple):
    ordinal: int
    callback: Callback


class CallbackQueries:
    """Every read of the inbox."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def callbacks(self, filters: CallbackFilters, cursor: str | None = None, limit: int = 100) -> CallbackPage:
        """One page; ``next_cursor`` is null when nothing earlier can follow."""
        position = _Position.of(cursor)
        walked = await self._walk(filters, position.number, limit + 1)
        stored = await self._stored(filters, position, limit + 1)
        listed, position, more = _merged(walked, stored, position, limit)
        kept = await self._kept([each for each in listed if isinstance(each, AcceptedCallback)])
        documents = [
            _document(each if isinstance(each, Callback) else _complete(each, _taken(each, kept))) for each in listed
        ]
        return {"callbacks": documents, "next_cursor": str(position) if more else None}

    async def callback(self, callback_id: str) -> Callback:
        """One callback with everything that is kept of it; raises UnknownCallback."""
        number = _FROM_JOURNAL.fullmatch(callback_id)
        if number is None:
            rows = await read(self._store, "get_callback", callback_id=callback_id)
            if not rows:
                raise UnknownCallback
            return CALLBACK_COLUMNS.read(rows[0])
        found = await self._in_journal(int(number[1]))
        return _complete(found, _taken(found, await self._kept([found])))

    async def _in_journal(self, number: int) -> AcceptedCallback:
        rows = await read(self._store, "journal_entry", seq=number // MOST_EVENTS)
        for found in _accepted_of(rows):
            if found.number == number:
                return found
        raise UnknownCallback

    async def detail(self, callback_id: str) -> CallbackDetail:
        callback = await self.callback(callback_id)
        return {**_document(callback), "body": callback.body}

    async def hook_tokens(self, callback: Callback) -> list[str]:
        """The tokens of the hooks that a callback may be for, as digests."""
        rows = await read(self._store, "hook_tokens_of_callback", flow_id=callback.flow_id, step_id=callback.step_id)
        return [row[0] for row in rows]

    async def hook_token_of(self, work_id: str) -> str | None:
        """The token of the hook of a work item, as a digest; None: its hook does not wait. Raises UnknownWork."""
        rows = await read(self._store, "hook_token_of_work", work_id=work_id)
        if not rows:
            raise UnknownWork
        token: str | None = rows[0][0]
        return token

    async def oldest(self) -> int | None:
        """When the oldest callback of the table arrived."""
        at: int | None = (await read(self._store, "next_old_callback"))[0][0]
        return at

    # The journal -------------------------------------------------------------------------------------------------

    async def _walk(self, filters: CallbackFilters, before: int, limit: int) -> _Walked:
        """Accepted callbacks before an event, at most ``limit`` and a few more."""
        if filters.verdict not in (None, ACCEPTED):
            return _Walked([], before, None)
        flow_id = filters.flow_id
        if filters.work_id is not None:
            rows = await read(self._store, "get_work", work_id=filters.work_id)
            if not rows:
                return _Walked([], before, None)
            _, _, of_flow, *_ = rows[0]
            if flow_id not in (None, of_flow):
                return _Walked([], before, None)
            flow_id = of_flow
        elif flow_id is None and filters.until is not None and before == HIGHEST:
            before = await self._number_after(filters.until + CLOCKS_DIFFER_MS)
        found: list[AcceptedCallback] = []
        at = None
        for _ in range(ENTRIES_A_PAGE // ENTRIES_TOGETHER):
            rows = await self._entries(flow_id, filters.work_id, (before - 1) // MOST_EVENTS)
            found += [each for each in _accepted_of(rows) if each.number < before and filters.match(each)]
            if len(rows) < ENTRIES_TOGETHER or _is_earlier(rows[-1][3], filters.since):
                return _Walked(found, 0, None)
            before, at = rows[-1][0] * MOST_EVENTS, rows[-1][3]
            if len(found) >= limit:
                break
        return _Walked(found, before, at)

    async def _entries(self, flow_id: str | None, work_id: str | None, seq: int) -> list[Row]:
        if flow_id is None:
            return await read(self._store, "callbacks_in_journal", before=seq, limit=ENTRIES_TOGETHER)
        return await read(
            self._store,
            "callbacks_in_journal_of_flow",
            flow_id=flow_id,
            work_id=work_id,
            before=seq,
            limit=ENTRIES_TOGETHER,
        )

    async def _number_after(self, at: int) -> int:
        """The number of an event behind which all are later than a time, by a binary search over the entries."""
        last = (await read(self._store, "last_seq"))[0][0] // MOST_EVENTS
        low, high = 0, last + 1
        while low < high:
            middle = (low + high) // 2
            rows = await read(self._store, "journal_entry_from", seq=middle)
            if rows and rows[0][1] <= at:
                low = rows[0][0] + 1
            else:
                high = middle
        return low * MOST_EVENTS

    # The table ---------------------------------------------------------------------------------------------------

    async def _stored(self, filters: CallbackFilters, position: _Position, limit: int) -> list[_Stored]:
        if filters.verdict == ACCEPTED:
            return []
        rows = await read(
            self._store,
            "list_callbacks",
            before_at=position.at,
            before_ordinal=position.ordinal,
            flow_id=filters.flow_id,
            step_id=filters.step_id,
            work_id=filters.work_id,
            kind=filters.kind,
            verdict=filters.verdict,
            since=filters.since,
            until=filters.until,
            limit=limit,
        )
        return [_Stored(row[0], CALLBACK_COLUMNS.read(row[1:])) for row in rows]

    async def _kept(self, accepted: list[AcceptedCallback]) -> dict[tuple[Any, ...], deque[Callback]]:
        """What is kept of accepted callbacks besides the journal, by ``_place``."""
        found: dict[tuple[Any, ...], deque[Callback]] = defaultdict(deque)
        wanted = sorted({(each.flow_id, each.at) for each in accepted})
        if wanted:
            rows = await read(self._store, "accepted_callbacks", wanted=orjson.dumps(wanted).decode())
            for callback in map(CALLBACK_COLUMNS.read, rows):
                found[_place(callback)].appendleft(callback)  # as lists are: newest first
        return found


def _is_earlier(at: int, since: int | None) -> bool:
    return since is not None and at < since - CLOCKS_DIFFER_MS


def _accepted_of(rows: Iterable[Row]) -> list[AcceptedCallback]:
    """Accepted callbacks of entries, in the order of the entries, and within one backwards."""
    accepted = []
    for seq, flow_id, work_id, at, text in rows:
        if text is not None:
            events = list(enumerate(parse_entry(text), seq * MOST_EVENTS))
            for number, (kind, step_id, of_work, attempt, data) in reversed(events):
                own = work_id if of_work else None
                accepted.append(accepted_in(number, kind, at, flow_id, step_id, own, attempt, data))
    return [each for each in accepted if each is not None]


def _merged(
    walked: _Walked, stored: list[_Stored], position: _Position, limit: int
) -> tuple[list[AcceptedCallback | Callback], _Position, bool]:
    """The newest of both, at most ``limit``, where the list has come to, and whether more may follow.

    What is stored and earlier than the part of the journal that was looked at waits for the rest of the journal.
    """
    accepted, rows = deque(walked.found), deque(stored)
    listed: list[AcceptedCallback | Callback] = []
    number, at, ordinal = position
    while (accepted or rows) and len(listed) < limit:
        if accepted and (not rows or accepted[0].at >= rows[0].callback.at):
            each = accepted.popleft()
            number = each.number
            listed.append(each)
        elif not accepted and walked.at is not None and rows[0].callback.at < walked.at:
            break
        else:
            ordinal, callback = rows.popleft()
            at = callback.at
            listed.append(callback)
    if not accepted:
        number = walked.number
    more = bool(accepted or rows) or walked.at is not None
    return listed, _Position(number, at, ordinal), more


def _place(callback: AcceptedCallback | Callback) -> tuple[Any, ...]:
    """By what an event and the record that completes it are the same. The record of a payload knows its step only."""
    of_hook = callback.kind == CallbackKind.HOOK
    return callback.kind, callback.at, callback.step_id if of_hook else callback.work_id, callback.flow_id


def _taken(found: AcceptedCallback, kept: dict[tuple[Any, ...], deque[Callback]]) -> Callback | None:
    """What is kept of an accepted callback. Of several in one millisecond, each is taken once."""
    own = kept.get(_place(found))
    return own.popleft() if own else None


def _complete(found: AcceptedCallback, kept: Callback | None) -> Callback:
    """An accepted callback with what is kept of it: size, digest, source, trace and body are not in the journal."""
    callback_id = f"j{found.number}"
    if kept is not None:
        return replace(kept, callback_id=callback_id, work_id=found.work_id, attempt=found.attempt)
    return Callback(
        callback_id,
        found.at,
        found.kind,
        ACCEPTED,
        found.status,
        found.flow_id,
        found.step_id,
        found.work_id,
        found.attempt,
    )


def _document(callback: Callback) -> CallbackDocument:
    return {
        "callback_id": callback.callback_id,
        "at": rfc3339(callback.at),
        "kind": CallbackKind(callback.kind).value,
        "verdict": callback.verdict,
        "status": callback.status,
        "flow_id": callback.flow_id,
        "step_id": callback.step_id,
        "work_id": callback.work_id,
        "attempt": callback.attempt,
        "size": callback.size,
        "digest": callback.digest,
        "source": callback.source,
        "trace_id": callback.trace_id,
        "body_kept": callback.body is not None,
    }

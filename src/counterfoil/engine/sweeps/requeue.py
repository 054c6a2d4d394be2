"""The search for due work: items that wait for their first or next attempt are claimed, as far as there is room.

Lanes (a step, its endpoint's host and its limits) take turns: a lane without room is not searched, so however much is
due for a slow host, the work of the others is found at once.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import orjson

from counterfoil.domain.records import host_of
from counterfoil.engine.engine import Engine
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find


class RequeueSearch:
    """Remembers when its lanes are due next. An item without room stays, and is searched for when some is free."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_due: int | None = None
        self._now = 0
        self._due: list[str] = []
        self._ready: list[str] = []

    async def search(self, now: int, limit: int) -> AsyncIterator[ForEach[bool]]:
        engine, slots = self._engine, self._engine.slots
        self._now, self._due, self._ready = now, [], []
        if not engine.accepting or not engine.lease.held:
            self._next_due = None
            return
        lanes = await engine.store.read("due_lanes")
        due = [lane for lane, due_at in lanes if due_at <= now]
        self._next_due = min((due_at for _, due_at in lanes if due_at > now), default=None)
        slots.waiting = set(due)
        ready = [lane for lane in due if slots.may_send(lane, now) and slots.free_to(host_of(lane)) > 0]
        self._wait_for_rests(due)
        if not ready:
            return
        self._due, self._ready = due, ready
        random.shuffle(ready)
        room = min(limit, slots.free(), sum(slots.free_to(host) for host in {host_of(lane) for lane in ready}))
        share = max(1, room // len(ready))
        lanes_text = orjson.dumps(ready).decode()
        find = Find.of("find_claimable", lanes=lanes_text, now=now, share=share, limit=room)
        yield ForEach(find, ClaimDue)

    async def claimed(self, answers: list[bool]) -> int:
        """How many items were claimed."""
        claimed, slots = sum(answers), self._engine.slots
        if not claimed and any(slots.may_send(lane, self._now) for lane in self._ready):
            self._next_due = self._now  # there is room, and yet nothing was found: another node has it locked
        self._wait_for_rests(self._due)
        return claimed

    def _wait_for_rests(self, lanes: list[str]) -> None:
        """Look again as soon as the first step that is at its rate limit, with something due, may go on."""
        slots = self._engine.slots
        ends = [rest.until for lane in lanes if (rest := slots.rest_of(lane)) is not None]
        if self._next_due is not None:
            ends.append(self._next_due)
        self._next_due = min(ends, default=None)

    async def next_due(self) -> int | None:
        return self._next_due

"""The sweep over due work: what waits for its first or its next attempt is claimed and sent, as far as there is room.

Lanes (a step and its endpoint's host) take turns: a lane without room is not asked for, so however much is due for a
slow host, the others' work is found at once.
"""

from __future__ import annotations

import random

import orjson

from counterfoil.domain.records import host_of, step_of
from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find


class RequeueSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.REQUEUE

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next_due: int | None = None

    async def run_once(self, now: int, limit: int) -> int:
        """How many were claimed: what finds no room stays, and is looked at again when some is free."""
        engine, slots = self._engine, self._engine.slots
        if not engine.accepting or not engine.lease.held:
            self._next_due = None
            return 0
        lanes = await engine.store.read("due_lanes")
        due = [lane for lane, due_at in lanes if due_at <= now]
        self._next_due = min((due_at for _, due_at in lanes if due_at > now), default=None)
        slots.waiting = set(due)
        ready = [lane for lane in due if slots.may_send(step_of(lane), now) and slots.free_to(host_of(lane)) > 0]
        self._wait_for_rests(due)
        if not ready:
            return 0
        random.shuffle(ready)
        room = min(limit, slots.free(), sum(slots.free_to(host) for host in {host_of(lane) for lane in ready}))
        share = max(1, room // len(ready))
        lanes_text = orjson.dumps(ready).decode()
        find = Find.of("find_claimable", lanes=lanes_text, now=now, share=share, limit=room)
        claimed = sum(await engine.commit.submit(ForEach(find, ClaimDue)))
        if not claimed and any(slots.may_send(step_of(lane), now) for lane in ready):
            self._next_due = now  # there is room, and yet nothing was to be had: another node has it in hand
        self._wait_for_rests(due)
        return claimed

    def _wait_for_rests(self, lanes: list[str]) -> None:
        """Look again as soon as the first of the steps may go on that rest with something due."""
        resting = self._engine.slots.resting
        ends = [resting[step_of(lane)].until for lane in lanes if step_of(lane) in resting]
        if self._next_due is not None:
            ends.append(self._next_due)
        self._next_due = min(ends, default=None)

    async def next_due(self) -> int | None:
        return self._next_due

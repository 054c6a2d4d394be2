"""The sweep over cancel calls: workers that are still to be told."""

from __future__ import annotations

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.model import CancelCall
from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class CancelCallSweep:
    """See scheduler/sweep.py."""

    name = SweepName.CANCEL_CALLS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        rows = await self._engine.store.read("due_calls", now=now, limit=min(limit, 64))
        calls = [
            CancelCall(call_id, flow_id, step_id, work_id, url, parse_json(body), attempt, due_at)
            for call_id, flow_id, step_id, work_id, url, body, attempt, due_at in rows
        ]
        await self._engine.cancel_caller.make(calls)
        return len(calls)

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_call"))[0][0]
        return due

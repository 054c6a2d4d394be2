"""The sweep over the clocks of flows: deadlines, and steps that wait for something optional."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.flows.clocks import LookAtFlow
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find


class FlowClockSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.FLOW_CLOCKS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        find = Find.of("find_due_flows", now=now, limit=limit)
        return sum(await self._engine.commit.submit(ForEach(find, LookAtFlow)))

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_flow_clock"))[0][0]
        return due

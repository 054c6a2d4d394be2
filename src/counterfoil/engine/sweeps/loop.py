"""The loop that runs the sweeps: APScheduler on the server's own event loop.

Each sweep has a job that fires every interval, as a safety net, and earlier when a due time is known in advance: a
backoff of 200 ms is not rounded up to the next tick. Firing only rings the sweep's runner, which runs one round at a
time and once more if it was rung meanwhile; so no firing is ever lost to a round that takes long.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from counterfoil.domain.errors import Unavailable
from counterfoil.engine.engine import Engine
from counterfoil.engine.sweeps.declarations import sweeps_of
from counterfoil.engine.sweeps.sweep import Sweep
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.group_commit.commit import StoreFailure

ROUND = 256
"""Items that one round of a sweep treats at most: they share a commit, and leave room for others in it."""
POSTPONED_MS = 500
"""When a sweep looks again after the store was unavailable, if its interval is longer."""
LOCKED_ELSEWHERE_RETRY_MS = 50
"""When a sweep looks again for items that are due but were passed over: another node has them locked."""

log = structlog.get_logger(__name__)


class SweepRunner:
    """Runs one sweep, one round at a time."""

    def __init__(self, sweep: Sweep, engine: Engine, loop: SweepLoop) -> None:
        self.sweep = sweep
        self._engine = engine
        self._loop = loop
        self._rung = False
        self._stopped = False
        self._postponed = False
        self._task: asyncio.Task[None] | None = None

    def ring(self) -> None:
        if self._stopped:
            return
        self._rung = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"sweep-{self.sweep.name}")

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        clock = self._engine.context.clock
        while self._rung:
            self._rung = False
            try:
                now = clock()
                items = await self.sweep.run_once(self._engine.commit, now, ROUND)
                due_at = await self.sweep.next_due()
            except (StoreFailure, Unavailable) as error:
                if not self._postponed:  # one line an outage is enough
                    log.warning("sweep_postponed", sweep=self.sweep.name, reason=str(error))
                self._postponed = True
                self._loop.wake(self.sweep.name, clock() + POSTPONED_MS)
                return
            except Exception:
                log.exception("sweep_failed", sweep=self.sweep.name)
                return
            self._postponed = False
            self._engine.metrics.swept(self.sweep.name, items)
            self._engine.sweep_progress.finished(self.sweep.name, clock())
            if items and not self.sweep.pauses:
                self._rung = True  # there may be more: look again before resting
            elif due_at is not None:
                self._loop.wake(self.sweep.name, due_at if due_at > now else clock() + LOCKED_ELSEWHERE_RETRY_MS)


class SweepLoop:
    """All sweeps of a node, and when each is due next."""

    def __init__(self, engine: Engine, interval_ms: int) -> None:
        self._engine = engine
        self._interval_ms = interval_ms
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            # It calls a job on the spot. A job here only rings; as a task it could be cancelled before it has begun.
            executors={"default": DebugExecutor()},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": None},
        )
        self._runners = {sweep.name: SweepRunner(sweep, engine, self) for sweep in sweeps_of(engine)}
        self._planned: dict[SweepName, int] = {}

    def start(self) -> None:
        self._engine.sweep_progress.expect(self._runners, self._interval_ms, self._engine.context.clock())
        self._engine.wakeups.listen(self.wake)
        interval = timedelta(milliseconds=self._interval_ms)
        for name in self._runners:
            self._scheduler.add_job(self._fire, "interval", seconds=interval.total_seconds(), args=(name,), id=name)
            self._plan_tick(name)
        self._scheduler.start()
        for runner in self._runners.values():
            runner.ring()

    async def stop(self) -> None:
        self._engine.wakeups.stop_listening()
        self._scheduler.shutdown(wait=False)
        for runner in self._runners.values():
            await runner.stop()

    def wake(self, name: SweepName, due_at: int | None) -> None:
        """Run a sweep at a given time if it is not planned earlier; None: now."""
        now = self._engine.context.clock()
        if due_at is None or due_at <= now:
            self._runners[name].ring()
        elif due_at < self._planned.get(name, 0):
            self._planned[name] = due_at
            moment = datetime.now(UTC) + timedelta(milliseconds=due_at - now)
            self._scheduler.modify_job(name, next_run_time=moment)

    def _fire(self, name: SweepName) -> None:
        self._plan_tick(name)
        self._runners[name].ring()

    def _plan_tick(self, name: SweepName) -> None:
        self._planned[name] = self._engine.context.clock() + self._interval_ms

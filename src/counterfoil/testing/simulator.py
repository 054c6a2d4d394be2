"""A simulator for tests: a whole engine on a real database, with its network, clock and crashes under control.

    async with Simulator(tmp_path / "counterfoil.db") as simulator:     # or "postgresql://localhost/some_database"
        await simulator.engine.steps.put("resize", StepDefinition(endpoint="http://worker/resize"))
        await simulator.engine.flows.start(StartFlow(goals=["resize"]))
        [call] = simulator.network.waiting()
        await simulator.network.answer(call, answered(503))
        simulator.clock.advance(1_000)
        await simulator.sweep(SweepName.REQUEUE)            # the second attempt is on the wire
        await simulator.crash()
        await simulator.start()                             # another process, the same database

Nothing happens by itself: no sweep runs and no time passes unless the test says so. When a command returns, the
requests that its commit made ready have been sent on the simulated network.

On PostgreSQL the test must own the database; its schema is created if there is none. Leases are measured by the
server's clock, which the simulated clock does not move: a lease lasts until the engine is stopped or crashed, and
``crash`` returns only after the lease has ended, so that the next process finds the in-flight attempts of the crashed
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.work.receipts import Receipts
from counterfoil.domain.work.replies import NOT_ALLOWED, Reply, SendOutcome
from counterfoil.engine import Engine, EngineContext, Limits, Retention, assemble
from counterfoil.engine.subscriptions.messages import MessageSigner
from counterfoil.engine.sweeps.declarations import sweeps_of
from counterfoil.engine.sweeps.sweep import Sweep
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.reports import MessageVerifier
from counterfoil.observability.metrics import Metrics
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.protocol import Store
from counterfoil.testing.database import database_at

START_MS = 1_800_000_000_000
SWEEP_LIMIT = 256


class StillClock:
    """A clock that stands still until it is moved, so that a test controls every time."""

    def __init__(self, now: int = START_MS) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> int:
        """Move the clock forward and return the new time."""
        self.now += milliseconds
        return self.now


@dataclass(eq=False)
class Call:
    """One request on the simulated network; it waits until the test answers it, or until its sender has ended."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str]
    timeout_ms: int
    reply: asyncio.Future[Reply]
    task: asyncio.Task[Any] | None

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.body["metadata"]
        return metadata

    @property
    def token(self) -> str:
        """The receipt token: a credential, so do not print it."""
        return str(self.metadata["receipt_token"])

    @property
    def attempt(self) -> int:
        return int(self.metadata["attempt"])

    def __repr__(self) -> str:
        about = self.body.get("metadata", {})
        return f"<Call {self.url} {about.get('work_id')} attempt {about.get('attempt')}>"


def answered(status: int = 200, body: Any = None, retry_after_ms: int | None = None) -> Reply:
    """The endpoint answered; ``body`` may be bytes or any JSON value."""
    content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    return Reply(SendOutcome.ANSWERED, status, retry_after_ms, content)


def connection_refused() -> Reply:
    """The request was provably not delivered."""
    return Reply(SendOutcome.NOT_DELIVERED, error="cannot connect: Connection refused")


def timed_out() -> Reply:
    """The request may have been delivered."""
    return Reply(SendOutcome.UNKNOWN, error="no complete response in time", timed_out=True)


class Network:
    """The engine's transport: requests wait for the test's answer, or get the fixed answer of their URL."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """Every request that was ever sent, in order."""
        self._always: dict[str, Callable[[], Reply]] = {}

    async def post(
        self, url: str, *, body: bytes, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply:
        if not may_send():
            return Reply(SendOutcome.NOT_DELIVERED, error=NOT_ALLOWED)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.calls.append(Call(url, orjson.loads(body), headers, timeout_ms, reply, asyncio.current_task()))
        always = self._always.get(url)
        return always() if always is not None else await reply

    async def get(self, url: str, *, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]) -> Reply:
        """A question to a ``status_url``: it waits like any other request, and has no body."""
        return await self.post(url, body=b"{}", headers=headers, timeout_ms=timeout_ms, may_send=may_send)

    def always(self, url: str, reply: Reply | Callable[[], Reply]) -> None:
        """Answer every request to this URL like this from now on, without waiting for the test."""
        self._always[url] = reply if callable(reply) else lambda: reply

    def waiting(self, url: str | None = None) -> list[Call]:
        """Requests that are not answered yet."""
        return [
            call
            for call in self.calls
            if not call.reply.done() and call.url not in self._always and url in (None, call.url)
        ]

    async def answer(self, call: Call, reply: Reply) -> None:
        """Answer a request, and return when the engine has recorded the outcome."""
        call.reply.set_result(reply)
        if call.task is not None:
            await asyncio.wait({call.task})

    def drop(self) -> list[asyncio.Task[Any]]:
        """Forget all open requests, because their sender has ended. Returns the tasks that still waited for them."""
        running = [call.task for call in self.calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        for call in self.calls:
            call.reply.cancel()
        return running


class CrashPoint(Enum):
    """The point of a commit at which a process crashes: no command is answered in either case."""

    BEFORE_COMMIT = "before"
    AFTER_COMMIT = "after"


class _HaltingStore:
    """Wraps the real store. Its next commit can be halted at a point for good, to crash the engine there."""

    def __init__(self, store: Store) -> None:
        self.open = store.open
        self.batches = 1
        self.close = store.close
        self.read = store.read
        self.read_page = store.read_page
        self.join = store.join
        self.renew = store.renew
        self.leave = store.leave
        self.notify = store.notify
        self.listen = store.listen
        self.receipt_secret = store.receipt_secret
        self.note_receipt_secret = store.note_receipt_secret
        self.probe = store.probe
        self.point: CrashPoint | None = None
        self.reached = asyncio.Event()
        self._store = store

    async def execute(self, batch: Batch) -> None:
        await self._halt_at(CrashPoint.BEFORE_COMMIT)
        await self._store.execute(batch)
        await self._halt_at(CrashPoint.AFTER_COMMIT)

    async def _halt_at(self, point: CrashPoint) -> None:
        if self.point is point:
            self.reached.set()
            await asyncio.Event().wait()


class Simulator:
    """An engine on a real database that can be stopped, crashed and started again, any number of times.

    ``place`` is the path of a SQLite file, or the ``postgresql://`` URL of a database that nothing else uses.
    """

    engine: Engine
    store: Store

    def __init__(
        self,
        place: Path | str,
        *,
        defaults: WorkDefaults | None = None,
        limits: Limits | None = None,
        retry_after_limit_ms: int = 3_600_000,
        retention: Retention | None = None,
        signer: MessageSigner | None = None,
        verifier: MessageVerifier | None = None,
    ) -> None:
        self.place = place
        self.clock = StillClock()
        self.network = Network()
        self.defaults = defaults or WorkDefaults(jitter=False)
        self._database = database_at(place)
        self.limits = replace(limits or Limits(), lease_ms=self._database.lease_ms)
        self.wakeups: list[tuple[SweepName, int | None]] = []
        """Each wake-up of a sweep that the engine requested since it was started; the simulator does not act on it."""
        self._retry_after_limit_ms = retry_after_limit_ms
        self._retention = retention or Retention()
        self._signer = signer
        self._verifier = verifier
        self._background: set[asyncio.Task[Any]] = set()
        self._sweeps: dict[SweepName, Sweep] = {}
        self._running = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running:
            await self.crash()

    async def start(self) -> Engine:
        """Start a new process: it has another node id, and knows only what the database holds."""
        self.store = self._database.make_store(self.clock, self.defaults)
        self._caught = _HaltingStore(self.store)
        await self.store.open()
        context = EngineContext(
            Receipts([b"the simulator's own secret"]),
            defaults=self.defaults,
            retry_after_limit_ms=self._retry_after_limit_ms,
            clock=self.clock,
            webhook_base_url="http://engine",
            retention=self._retention,
        )
        self.engine = assemble(
            self._caught,
            context,
            self.network,
            Metrics(),
            signer=self._signer,
            verifier=self._verifier,
            limits=self.limits,
        )
        self.wakeups = []
        self.engine.wakeups.listen(lambda sweep, due_at: self.wakeups.append((sweep, due_at)))
        self._sweeps = {sweep.name: sweep for sweep in sweeps_of(self.engine)}
        await self.engine.lease.keep()
        others = asyncio.all_tasks()
        self.engine.start()
        self._background = asyncio.all_tasks() - others
        self._running = True
        return self.engine

    async def stop(self, grace_seconds: float = 0.0) -> int:
        """Stop as SIGTERM does; returns how many attempts were left in flight."""
        left = await self.engine.stop(grace_seconds)
        await self._leave([])
        return left

    async def crash(self) -> None:
        """Crash as kill -9 does: nothing is finished, and the database stays as the last commit left it.

        An open transaction is cut off without a rollback. If the node had a lease, it has expired afterwards.
        """
        tasks = [*self._background, *self.network.drop()]
        for task in tasks:
            task.cancel()
        await self.engine.peers.stop()
        self.engine.checker.close()
        await self._leave(tasks)
        await self._database.bury(self.engine.context.node_id)

    async def crash_during(self, action: Coroutine[Any, Any, Any], point: CrashPoint) -> bool:
        """Crash when the commit of an action reaches a point; False: the action ended without a commit."""
        self._caught.point = point
        halted = asyncio.create_task(self._caught.reached.wait())
        acting = asyncio.create_task(action)
        await asyncio.wait({halted, acting}, return_when=asyncio.FIRST_COMPLETED)
        reached = self._caught.reached.is_set()
        halted.cancel()
        acting.cancel()
        await self.crash()
        await asyncio.gather(halted, acting, return_exceptions=True)
        return reached

    async def sweep(self, name: SweepName, limit: int = SWEEP_LIMIT) -> int:
        """Run one round of a sweep at the current time; returns the number of items that it handled."""
        return await self._sweeps[name].run_once(self.engine.commit, self.clock(), limit)

    async def next_due(self, name: SweepName) -> int | None:
        """The time of the sweep's next run, as the sweep computes it after a round."""
        return await self._sweeps[name].next_due()

    def examine(self) -> list[Finding]:
        """The doctor's findings in the database, which may be in use."""
        return self._database.examine(self.defaults)

    async def _leave(self, tasks: list[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        self.network.drop()
        await self.store.close()
        self._running = False

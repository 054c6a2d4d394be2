"""A whole engine in a test's hand: its database is real, its network, its clock and its crashes are the test's.

    async with Simulator(tmp_path / "counterfoil.db") as simulator:     # or "postgresql://localhost/some_database"
        await simulator.engine.steps.put("resize", StepDefinition(endpoint="http://worker/resize"))
        await simulator.engine.flows.start(StartFlow(goals=["resize"]))
        [call] = simulator.network.waiting()
        await simulator.network.answer(call, answered(503))
        simulator.clock.advance(1_000)
        await simulator.sweep(SweepName.REQUEUE)            # the second attempt is on the wire
        await simulator.crash()
        await simulator.start()                             # another process, the same database

Nothing happens by itself: no sweep runs and no time passes unless the test says so. What a commit makes ready is on
the (simulated) wire when the command that committed it returns.

On PostgreSQL the database must be the test's own; its schema is made where there is none. Leases are counted by the
server's clock, which the simulated one does not move: a lease holds until the engine is stopped or crashed, and a crash
is told only after the lease has ended, so that the next process finds what the dead one was sending.
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
from counterfoil.domain.work.replies import Reply, SendOutcome
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
    """A clock that stands still until it is moved, so that a test can name every moment."""

    def __init__(self, now: int = START_MS) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, milliseconds: int) -> int:
        """Move on and return the new time."""
        self.now += milliseconds
        return self.now


@dataclass(eq=False)
class Call:
    """One request on the simulated wire; it waits until the test answers it, or until its sender is gone."""

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
    """The endpoint answered; ``body`` may be bytes, or anything that is JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    return Reply(SendOutcome.ANSWERED, status, retry_after_ms, content)


def connection_refused() -> Reply:
    """Nothing was delivered, provably."""
    return Reply(SendOutcome.NOT_DELIVERED, error="cannot connect: Connection refused")


def timed_out() -> Reply:
    """Perhaps delivered, perhaps not."""
    return Reply(SendOutcome.UNKNOWN, error="no complete response in time")


class Network:
    """The engine's transport: requests wait for the test's answer, or get the one that their URL always gives."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """Every request that was ever sent, in order."""
        self._always: dict[str, Callable[[], Reply]] = {}

    async def post(
        self, url: str, *, body: bytes, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply:
        if not may_send():
            return Reply(
                SendOutcome.NOT_DELIVERED, error="not sent: the attempt's deadline passed or this node's lease expired"
            )
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.calls.append(Call(url, orjson.loads(body), headers, timeout_ms, reply, asyncio.current_task()))
        always = self._always.get(url)
        return always() if always is not None else await reply

    def always(self, url: str, reply: Reply | Callable[[], Reply]) -> None:
        """Answer every request to this URL so, from now on, without waiting for the test."""
        self._always[url] = reply if callable(reply) else lambda: reply

    def waiting(self, url: str | None = None) -> list[Call]:
        """Requests that are not answered yet."""
        return [
            call
            for call in self.calls
            if not call.reply.done() and call.url not in self._always and url in (None, call.url)
        ]

    async def answer(self, call: Call, reply: Reply) -> None:
        """Answer a request, and return when the engine has recorded what that means."""
        call.reply.set_result(reply)
        if call.task is not None:
            await asyncio.wait({call.task})

    def drop(self) -> list[asyncio.Task[Any]]:
        """The sender is gone: its requests are never answered. Returns what was still running for them."""
        running = [call.task for call in self.calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        for call in self.calls:
            call.reply.cancel()
        return running


class CrashPoint(Enum):
    """Where a process may crash during a commit: no command is answered either way."""

    BEFORE_COMMIT = "before"
    AFTER_COMMIT = "after"


class _HaltingStore:
    """The real store, whose next commit can be caught at a point, for ever: what comes then is the crash."""

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
    """An engine on a real database that can be stopped, crashed and started again, as often as a test likes.

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
        """When the engine asked for which sweep, since it was started; nothing here answers."""
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
        """A new process: another node id, nothing known but what the database holds."""
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
        """Stop as SIGTERM does; returns how many attempts were left behind."""
        left = await self.engine.stop(grace_seconds)
        await self._leave([])
        return left

    async def crash(self) -> None:
        """Be gone as after kill -9: nothing is finished, the database stays as the last commit left it.

        A transaction that was under way is cut off, not rolled back politely. If the node had a lease it has lapsed.
        """
        tasks = [*self._background, *self.network.drop()]
        for task in tasks:
            task.cancel()
        await self.engine.peers.stop()
        self.engine.checker.close()
        await self._leave(tasks)
        await self._database.bury(self.engine.context.node_id)

    async def crash_during(self, action: Coroutine[Any, Any, Any], point: CrashPoint) -> bool:
        """Crash when the commit of an action gets to a point; False: it submitted nothing, and ended before."""
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
        """One round of a sweep at the present time; how many items it treated."""
        return await self._sweeps[name].run_once(self.engine.commit, self.clock(), limit)

    async def next_due(self, name: SweepName) -> int | None:
        """When a sweep wants to run next, as it says after a round."""
        return await self._sweeps[name].next_due()

    def examine(self) -> list[Finding]:
        """What the doctor finds in the database, which may be in use."""
        return self._database.examine(self.defaults)

    async def _leave(self, tasks: list[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        self.network.drop()
        await self.store.close()
        self._running = False

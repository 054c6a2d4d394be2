"""Group commit: one writer, many commands to a transaction.

The protocol. Commands wait in a bounded queue. The writer takes all that are there, loads what they need in one go,
lets each decide against the same unit, writes the sum of the changes and commits; only then is any of them answered.
Whatever arrives meanwhile goes into the next batch, so one disk flush serves as many commands as there are.

- Durable when answered: a command is answered after the commit that holds its change, never before.
- What was committed is handed to the after-commit handlers, in their order, before the next batch begins; its commands
  are answered while that one runs. A handler that raises is logged, and the next one is called nevertheless.
- A refused command leaves no trace (its drafts are discarded) and is answered with its refusal.
- A failed load or commit fails the whole batch with ``Unavailable``: nothing of it was written, all may be sent again.
- A guard that refuses (``GuardRefused``) rolls the batch back. Its commands are executed again in two batches, and so
  on by halves: a command that is refused alone is answered with ``InternalError``, and the others are committed.
- A commit whose outcome is unknown is answered with ``Unavailable``, too. Nothing else is written before
  the database has said which it was; if it holds, it is acted upon then.
- Several batches may be under way, where the backend keeps them apart by its locks. Each is decided and answered as if
  it were alone. Commands are shared out among them (batch_sizes.py), and may wait some milliseconds for company.
- A command that needs the finding of a long check (domain/steps/checks.py) is put back until the check was made.
  Then it is decided as if it had come only now; the batch does not wait for it.
- The winner of a race is the command that is decided first. Within a batch that is the order of the queue, but for
  commands that miss something: they are decided again behind the others. The second always sees what the first did.
- A writer ends by ``close``. If a bug ends one, the log says ``writer_ended``, ``failed`` is set, and no more is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable
from counterfoil.domain.steps.checks import CheckNeeded, Findings, ValueCheck
from counterfoil.domain.time import Clock
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.group_commit.batch import Batch, Command, Entry, ReadOnlyCommand, Resolve, answer_all
from counterfoil.store.group_commit.batch_sizes import BatchSizer
from counterfoil.store.kinds.definitions import PLANS
from counterfoil.store.kinds.policies import changes_controls
from counterfoil.store.unit_of_work.unit import UnitOfWork

Answer = TypeVar("Answer")

TOLD_AGAIN_SECONDS = 5.0
"""How often the log is told that the store still fails: a busy engine fails hundreds of batches a second then."""

SHORTEST_WAIT_SECONDS = 0.0005
"""The loop's clock has a resolution of a millisecond: a shorter timer fires at once, again and again."""

log = structlog.get_logger(__name__)


class StoreFailure(Exception):
    """The database could not do it, and nothing was written."""


class CommitUnknown(Exception):
    """The connection broke during the commit, and the database cannot be asked now whether it holds.

    ``resolve`` asks: True or False is the truth; StoreFailure means that it still cannot be told.
    """

    def __init__(self, resolve: Callable[[], Awaitable[bool]]) -> None:
        self.resolve = resolve
        super().__init__("the outcome of the last commit is not known yet")


class GuardRefused(Exception):
    """A row was not in the state that the decision saw: a bug, or another program writes to the database."""


class Backend(Protocol):
    """What group commit needs of a database."""

    def execute(self, batch: Batch) -> Awaitable[None]:
        """Load what the batch needs, let it decide until it misses nothing, write its changes, commit.

        Begins at once, if it can; else when it is awaited. The awaitable ends with the commit, or raises StoreFailure,
        and then nothing was written, or CommitUnknown.
        """
        ...


class Checker(Protocol):
    """Makes checks that take long, in no time of this thread's."""

    def check(self, checks: Sequence[ValueCheck], done: Callable[[Findings | None], None], *, urgent: bool) -> bool:
        """``done`` is called later, by the event loop; None: they cannot be made now. False: too many wait already."""
        ...


class AfterCommit(Protocol):
    """Acts upon what was committed. Called on the event loop, where it must not wait; a task that it starts may."""

    def __call__(self, unit: UnitOfWork, commit: GroupCommit, /) -> None:
        """``unit``: what was committed. ``commit``: where a handler submits what follows from it later."""
        ...


class CommitMetrics(Protocol):
    """What the writer tells about itself."""

    def committed(self, batch_size: int, seconds: float) -> None: ...
    def set_backlog(self, commands: int) -> None: ...
    def store_failed(self) -> None: ...


class Outage:
    """What the log is told of a store that fails: at once, again from time to time, and when it is over."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._told = 0.0
        self._commands = 0

    @property
    def lasts(self) -> bool:
        """Whether no batch was committed since one failed."""
        return self._began is not None

    def failed(self, failure: StoreFailure, commands: int) -> None:
        now = time.monotonic()
        self._commands += commands
        if self._began is None or now - self._told >= TOLD_AGAIN_SECONDS:
            log.error("store_unavailable", reason=str(failure), commands=self._commands)
            self._began = now if self._began is None else self._began
            self._told = now
            self._commands = 0

    def over(self) -> None:
        """A batch was committed."""
        if self._began is not None:
            log.info("store_available", after_seconds=round(time.monotonic() - self._began, 3), commands=self._commands)
            self._began = None
            self._commands = 0


class GroupCommit:
    """The writer of a process. A backend that works apart may be given several batches at once."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        metrics: CommitMetrics,
        known: DefinitionCache,
        *,
        backlog_limit: int,
        batch_limit: int,
        batches: int = 1,
        sizer: BatchSizer | None = None,
        prepare: Callable[[UnitOfWork], None] | None = None,
        after_commit: Sequence[AfterCommit] = (),
        checker: Checker | None = None,
    ) -> None:
        """``prepare`` is given the empty unit of each batch: the engine sets its capacity there.

        ``after_commit``: called after each commit that changed something, before any of its commands is answered.
        ``checker``: makes long checks; without one, commands that need such a check are refused.
        """
        self._backend = backend
        self._clock = clock
        self._metrics = metrics
        self._known = known
        self._backlog_limit = backlog_limit
        self._batch_limit = batch_limit
        self._batches = batches
        self._queue: deque[Entry] = deque()
        self._wake = asyncio.Event()
        self._wanted = 1
        """How many commands must wait before the writer that gathers them is woken."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.failed = False
        """Whether a writer has ended though it was not closed: only a restart of the process brings it back."""
        self._under_way = 0
        self._unanswered: set[Batch] = set()
        self.sizer = sizer or BatchSizer(batches)
        self.outage = Outage()
        self._doubtful: list[tuple[UnitOfWork, Callable[[], Awaitable[bool]]]] = []
        self._prepare = prepare
        self._after_commit = tuple(after_commit)
        self._checker = checker

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = [asyncio.create_task(self._run(), name="group-commit") for _ in range(self._batches)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Commit what is waiting, then stop."""
        self._closed = True
        self._wake.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # _ended tells of those

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Make it loud if a writer ends otherwise than by ``close``; the last one to end leaves no command waiting."""
        error = None if task.cancelled() else task.exception()
        if error is not None or not (self._closed or self.failed):
            log.critical("writer_ended", waiting=len(self._queue), cancelled=task.cancelled(), exc_info=error)
            self.failed = True
            self._wake.set()
        if self.failed and all(each.done() and not each.cancelled() for each in self._tasks):
            for batch in tuple(self._unanswered):
                batch.fail(InternalError())
                self._answer(batch)
            answer_all(self._queue, self._no_room())
            self._queue.clear()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def backlog(self) -> int:
        return len(self._queue)

    async def submit(self, command: Command[Answer]) -> Answer:
        """Decide and commit a command; returns its answer once it is durable, or raises its refusal."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self.enqueue(command, partial(_settle_future, future)):
            raise self._no_room()
        return await future

    def _no_room(self) -> Unavailable:
        if self._closed:
            return Unavailable("the engine is stopping; retry later")
        if self.failed:
            return Unavailable("the writer of this engine has failed; retry after a restart")
        return Unavailable("too many commands are waiting to be written; retry later")

    def enqueue(self, command: Command[Answer], resolve: Callable[[Answer | CounterfoilError], None]) -> bool:
        """The same without waiting: ``resolve`` is called once the command is durable or refused. False: no room."""
        if self._closed or self.failed or len(self._queue) >= self._backlog_limit:
            return False
        self._queue.append((command, resolve))
        if len(self._queue) >= self._wanted:
            self._wake.set()
        return True

    async def _run(self) -> None:
        batch = unanswered = None
        while True:
            if self._queue:
                if self._batches > 1:
                    if unanswered is not None:
                        self._answer(unanswered)
                        unanswered = batch = None
                    await self._gather()
                    if not self._queue:  # another has taken them
                        continue
                batch = self._next_batch()
                execution = self._execute(batch)
                if unanswered is not None:
                    self._answer(unanswered)
                await self._finish(batch, execution)
                unanswered = batch
            elif unanswered is not None:
                self._answer(unanswered)
                unanswered = batch = None
            elif self._closed or self.failed:
                return
            else:
                await self._woken_by(1)

    async def _woken_by(self, commands: int) -> None:
        """Wait until so many commands wait, or something else calls for a look."""
        self._wanted = commands
        self._wake.clear()
        await self._wake.wait()

    async def _gather(self) -> None:
        """Wait until the next batch has its share, for a moment at most; without delay if no more are coming."""
        seen = 0
        began = self._loop.time()
        while self._queue and len(self._queue) < self.sizer.enough:
            if not self._under_way and len(self._queue) > seen:
                seen = len(self._queue)
                await asyncio.sleep(0)
                continue
            patience = self.sizer.patience if self._under_way else self.sizer.patience_at_rest
            left = began + patience - self._loop.time()
            if left < SHORTEST_WAIT_SECONDS:
                return
            alarm = self._loop.call_later(left, self._wake.set)
            await self._woken_by(self.sizer.enough)
            alarm.cancel()

    def _next_batch(self) -> Batch:
        count = min(self.sizer.take(len(self._queue), self._under_way), self._batch_limit)
        return self._new_batch([self._queue.popleft() for _ in range(count)])

    def _new_batch(self, entries: list[Entry]) -> Batch:
        """A batch of these commands; without any if there can be no unit for them, and then they are answered so."""
        try:
            batch = Batch(entries, self._new_unit, self._clock)
        except Exception:
            log.exception("batch_failed", commands=len(entries))
            answer_all(entries, InternalError())
            batch = Batch([], partial(UnitOfWork, self._known), self._clock)
        self._under_way += len(batch)
        self._unanswered.add(batch)
        return batch

    def _answer(self, batch: Batch) -> None:
        self._unanswered.discard(batch)
        batch.answer(self._postpone)

    def _new_unit(self) -> UnitOfWork:
        unit = UnitOfWork(self._known)
        if self._prepare is not None:
            self._prepare(unit)
        return unit

    def _execute(self, batch: Batch) -> Awaitable[None]:
        try:
            return self._execute_after_doubt(batch) if self._doubtful else self._backend.execute(batch)
        except Exception as error:  # noqa: BLE001 (it is raised where the batch is waited for)
            return _raise(error)

    async def _execute_after_doubt(self, batch: Batch) -> None:
        """Settle what became of commits in doubt, then go on; StoreFailure while that cannot be told."""
        for doubt in tuple(self._doubtful):
            unit, resolve = doubt
            holds = await resolve()
            if doubt in self._doubtful:  # another writer has not settled it meanwhile
                self._doubtful.remove(doubt)
                if holds:
                    self._follow_up(unit, 0)
        await self._backend.execute(batch)

    async def _finish(self, batch: Batch, execution: Awaitable[None]) -> None:
        """Wait for the commit and act upon it; a failure becomes the answer of every command in the batch.

        But if a guard refused it, it is executed in parts, which are answered here.
        """
        started, count, parts = time.perf_counter(), len(batch), list[list[Entry]]()
        try:
            try:
                await execution
            finally:
                batch.unit.capacity.give_back()
        except StoreFailure as failure:
            self._metrics.store_failed()
            self.outage.failed(failure, len(batch))
            batch.fail(Unavailable("the store cannot be written now; retry later"))
        except CommitUnknown as unknown:
            self._metrics.store_failed()
            log.error("commit_unknown", reason=str(unknown), commands=len(batch))  # noqa: TRY400
            self._doubtful.append((batch.unit, unknown.resolve))
            batch.fail(Unavailable("the connection to the store was lost during this commit; send the request again"))
        except GuardRefused as refusal:
            parts = self._split(batch, refusal)
        except Exception:
            log.exception("batch_failed", commands=len(batch))
            batch.fail(InternalError())
        else:
            self.outage.over()
            self._follow_up(batch.unit, len(batch))
            self._metrics.committed(len(batch), time.perf_counter() - started)
        self._under_way -= count
        self._wake.set()
        self._metrics.set_backlog(len(self._queue))
        for entries in parts:
            part = self._new_batch(entries)
            await self._finish(part, self._execute(part))
            self._answer(part)

    @staticmethod
    def _split(batch: Batch, refusal: GuardRefused) -> list[list[Entry]]:
        """The parts of a batch that a guard refused; none if it was the only command, which is failed then."""
        if parts := batch.split():
            log.warning("batch_split", reason=str(refusal), commands=sum(map(len, parts)))
        else:
            log.error("guard_refused", reason=str(refusal), command=batch.refuse())
        return parts

    def _postpone(self, command: Command[Any], resolve: Resolve, needed: CheckNeeded) -> None:
        """Put a command back until the values are checked that it needs to know of."""

        def done(findings: Findings | None) -> None:
            if findings is None:
                resolve(Unavailable("a value cannot be checked against its schema now; retry later"))
                return
            self._known.learn_findings(findings)
            if not self.enqueue(command, resolve):
                resolve(self._no_room())

        if self._checker is None or self._closed:
            done(None)
        elif not self._checker.check(needed.checks, done, urgent=not isinstance(command, ReadOnlyCommand)):
            resolve(Unavailable("too many values are waiting to be checked; retry later"))

    def _follow_up(self, unit: UnitOfWork, commands: int) -> None:
        self._known.learn_plans(plan for plan in unit.changes.peek(PLANS).values() if plan is not None)
        if changes_controls(unit.changes):
            unit.forget_controls()
        if not unit.changes.any():
            return
        for handle in self._after_commit:
            try:
                handle(unit, self)
            except Exception:  # the batch is durable: its commands are answered so, whatever a handler does
                log.exception("follow_up_failed", commands=commands)


async def _raise(error: Exception) -> None:
    raise error


def _settle_future(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # the caller no longer waits
        return
    if isinstance(answer, CounterfoilError):
        future.set_exception(answer)
    else:
        future.set_result(answer)

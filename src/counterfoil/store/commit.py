"""Group commit: one writer, many commands to a transaction.

The protocol. Commands wait in a bounded queue. The writer takes all that are there, loads what they need in one go,
lets each decide against the same world, writes the sum of the changes and commits; only then is any of them answered.
Whatever arrives meanwhile goes into the next batch, so one disk flush serves as many commands as there are.

- Durable when answered: a future resolves after the commit that holds its change, never before.
- A refused command leaves no trace (its drafts are discarded) and is answered with its refusal.
- A failed load or commit fails the whole batch with ``Unavailable``: nothing of it was written, all may be sent again.
- Who wins a race: the command that is earlier in the queue. Within a batch the second sees what the first did.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable
from counterfoil.domain.model import StepVersion
from counterfoil.domain.time import Clock
from counterfoil.store.world import Changes, Needs, NotLoaded, World

Answer_co = TypeVar("Answer_co", covariant=True)
Answer = TypeVar("Answer")
Resolve = Callable[[Any], None]
"""Told what became of a command: its answer, or the error that refused it."""
_Entry = tuple["Command[Any]", Resolve]

log = structlog.get_logger(__name__)


class StoreFailure(Exception):
    """The database could not do it, and nothing was written."""


class GuardRefused(Exception):
    """A row was not in the state that the decision saw: a bug, or another program writes to the database."""


class Command(Protocol[Answer_co]):
    """Something that changes state: names what it needs, then decides. Deciding is pure but for the world's drafts."""

    def needs(self, needs: Needs) -> None: ...

    def decide(self, world: World, now: int) -> Answer_co: ...


class Transaction(Protocol):
    """One transaction of a backend. Every method raises StoreFailure when the database fails."""

    async def load(self, needs: Needs, world: World) -> None: ...
    async def commit(self, changes: Changes) -> None: ...
    async def rollback(self) -> None: ...


class CommitMetrics(Protocol):
    """What the writer tells about itself."""

    def committed(self, batch_size: int, seconds: float) -> None: ...
    def set_backlog(self, commands: int) -> None: ...
    def store_failed(self) -> None: ...


class Backend(Protocol):
    """What group commit needs of a database."""

    async def begin(self, needs: Needs, world: World) -> Transaction: ...


class GroupCommit:
    """The one writer of a process."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        metrics: CommitMetrics,
        versions: dict[str, StepVersion],
        *,
        backlog_limit: int,
        batch_limit: int,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._metrics = metrics
        self._versions = versions
        self._backlog_limit = backlog_limit
        self._batch_limit = batch_limit
        self._queue: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.prepare: Callable[[World], None] = lambda world: None
        """Called with the empty world of each batch: where the engine puts its capacity."""
        self.committed: Callable[[World], None] = lambda world: None
        """Called after each commit, before anybody is answered: what was committed decides what happens next."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="group-commit")

    async def close(self) -> None:
        """Commit what is waiting, then stop."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await self._task

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
            if self._closed:
                raise Unavailable("the engine is stopping, send it again to the next one")
            raise Unavailable("too much is waiting to be written, send it again later")
        return await future

    def enqueue(self, command: Command[Answer], resolve: Callable[[Answer | CounterfoilError], None]) -> bool:
        """The same without waiting: ``resolve`` is called once the command is durable or refused. False: no room."""
        if self._closed or len(self._queue) >= self._backlog_limit:
            return False
        self._queue.append((command, resolve))
        self._wake.set()
        return True

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            count = min(len(self._queue), self._batch_limit)
            batch = [self._queue.popleft() for _ in range(count)]
            try:
                await self._process(batch)
            except StoreFailure as failure:
                self._metrics.store_failed()
                log.error("store_unavailable", reason=str(failure), commands=len(batch))  # noqa: TRY400 (no bug: no trace)
                _fail(batch, Unavailable("the store cannot be written now, send it again later"))
            except Exception:
                log.exception("batch_failed", commands=len(batch))
                _fail(batch, InternalError())

    async def _process(self, batch: list[_Entry]) -> None:
        started = time.perf_counter()
        needs = Needs()
        world = World(self._versions)
        self.prepare(world)
        for command, _ in batch:
            command.needs(needs)
        transaction = await self._backend.begin(needs, world)
        try:
            answers = await self._decide(batch, world, transaction)
            if world.changes.any():
                await transaction.commit(world.changes)
            else:
                await transaction.rollback()
        except BaseException:
            with suppress(StoreFailure):
                await transaction.rollback()
            raise
        try:
            self.committed(world)
        except Exception:  # what is durable is answered so, whatever follows from it
            log.exception("follow_up_failed", commands=len(batch))
        for (_, resolve), answer in zip(batch, answers, strict=True):
            _tell(resolve, answer)
        self._metrics.committed(len(batch), time.perf_counter() - started)
        self._metrics.set_backlog(len(self._queue))

    async def _decide(self, batch: list[_Entry], world: World, transaction: Transaction) -> list[Any]:
        """Decide every command; those that missed something are decided again once it is loaded."""
        now = world.changes.at = self._clock()
        answers: list[Any] = [None] * len(batch)
        undecided = list(range(len(batch)))
        looked_for: set[tuple[str, str]] = set()
        while undecided:
            missed = Needs()
            again = []
            for index in undecided:
                try:
                    answers[index] = batch[index][0].decide(world, now)
                except NotLoaded as missing:
                    world.discard()
                    if (missing.kind, missing.key) in looked_for:  # it is not there: looking again would never end
                        log.exception("record_missing", command=type(batch[index][0]).__name__, missing=str(missing))
                        answers[index] = InternalError()
                        continue
                    getattr(missed, missing.kind).add(missing.key)
                    again.append(index)
                except CounterfoilError as refusal:
                    world.discard()
                    answers[index] = refusal
                except Exception:
                    world.discard()
                    log.exception("command_failed", command=type(batch[index][0]).__name__)
                    answers[index] = InternalError()
                else:
                    world.keep()
            if again:
                looked_for.update((kind, key) for kind, keys in vars(missed).items() for key in keys)
                await transaction.load(missed, world)
            undecided = again
        return answers


def _fail(batch: list[_Entry], error: CounterfoilError) -> None:
    for _, resolve in batch:
        _tell(resolve, error)


def _tell(resolve: Resolve, answer: Any) -> None:
    """One that cannot be told must not keep the others from being told, nor the writer from going on."""
    try:
        resolve(answer)
    except Exception:
        log.exception("answer_lost")


def _settle_future(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(answer, CounterfoilError):
        future.set_exception(answer)
    else:
        future.set_result(answer)

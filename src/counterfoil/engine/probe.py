"""Readiness: whether the engine can commit, write durably, and open a descriptor for the next connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from counterfoil.domain.errors import Unavailable
from counterfoil.store.group_commit.commit import GroupCommit, StoreFailure
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.transport.descriptors import take_one
from counterfoil.transport.exhaustion import DESCRIPTORS, Shortage

EVERY_SECONDS = 1.0
"""How often the store is written to at most: frequent readiness checks must not load the disk."""


class Probe:
    """Needs nothing and changes nothing: an answer shows that the writer takes commands."""

    def needs(self, needs: ReadSet) -> None:
        pass

    def decide(self, unit: UnitOfWork, now: int) -> None:
        pass


class Readiness:
    """What is checked before the engine calls itself ready; raises Unavailable, which says what failed."""

    def __init__(self, commit: GroupCommit, store: Store, node_id: Callable[[], str], shortage: Shortage) -> None:
        self._commit = commit
        self._store = store
        self._node_id = node_id
        self._shortage = shortage
        self._writing: asyncio.Task[str | None] | None = None
        self._written_at = -EVERY_SECONDS

    async def check(self) -> None:
        if self._commit.failed:
            raise Unavailable("the writer has failed (writer_ended in the log): restart the engine", failed="writer")
        self._check_descriptors()
        if self._writing is None or self._is_outdated(self._writing):
            self._writing = asyncio.create_task(self._write(), name="readiness")
        failure = await asyncio.shield(self._writing)
        if failure is not None:
            raise Unavailable(failure, failed="store")

    def _is_outdated(self, writing: asyncio.Task[str | None]) -> bool:
        """Whether the store must be written to again: some time has passed, or a batch has failed since it worked."""
        if not writing.done():
            return False
        failed_since = self._commit.outage.lasts and writing.result() is None
        return failed_since or time.monotonic() - self._written_at >= EVERY_SECONDS

    def _check_descriptors(self) -> None:
        try:
            take_one()
        except OSError as error:
            self._shortage.note(DESCRIPTORS)
            raise Unavailable(
                f"no file descriptor is available: {error.strerror}; raise the limit (ulimit -n)", failed="descriptors"
            ) from None
        if (lack := self._shortage.lack) is not None:
            raise Unavailable(f"work cannot be dispatched: this machine lacks {lack}", failed=lack.replace(" ", "_"))

    async def _write(self) -> str | None:
        """What failed, if anything did. Callers that ask meanwhile, or shortly after, get the same answer."""
        try:
            await self._commit.submit(Probe())
            await self._store.probe(self._node_id())
        except Unavailable as unavailable:
            return unavailable.message
        except StoreFailure as failure:
            return f"the store cannot be written: {failure}"
        finally:
            self._written_at = time.monotonic()
        return None

    async def close(self) -> None:
        """Wait for a write that is under way."""
        if self._writing is not None:
            await self._writing

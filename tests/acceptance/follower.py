"""A client that follows the journal of all flows from node to node, and must not miss an event."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import aiohttp

from tests.acceptance.chaos import PAUSE_SECONDS
from tests.eventually import elapsed, eventually
from tests.journal import ENTRIES, events_of
from tests.postgres import Cluster
from tests.sse import EventStream

SILENCE_SECONDS = 1.5
"""A node that says nothing for so long may be stopped: another one is asked."""


@contextlib.asynccontextmanager
async def following(session: aiohttp.ClientSession, urls: list[str], seed: int) -> AsyncIterator[Follower]:
    """Follow a stream while the block runs."""
    follower = Follower(session, urls, seed)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Follower:
    """Reads the stream until cancelled, each time behind the last event that it has seen."""

    def __init__(self, session: aiohttp.ClientSession, urls: list[str], seed: int) -> None:
        self.seen: list[int] = [0]
        self._session = session
        self._urls = urls
        self._random = random.Random(seed)

    async def run(self) -> None:
        while True:
            try:
                await self._follow(self._random.choice(self._urls))
            except (aiohttp.ClientError, TimeoutError, ConnectionError, EOFError):
                await elapsed(PAUSE_SECONDS)

    async def _follow(self, url: str) -> None:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.seen[-1])}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS)
        async with self._session.get(f"{url}/api/v1/stream", headers=headers, timeout=timeout) as response:
            response.raise_for_status()
            stream = EventStream(response)
            while True:
                self.seen.append(int((await stream.next(SILENCE_SECONDS)).id))

    async def check(self, cluster: Cluster, database: str, within: float) -> None:
        """Wait for the last event of the journal: then everything was seen, once and in its order."""
        connection = await cluster.connect(database)
        try:
            async with asyncio.timeout(within):
                last = events_of(await connection.fetch(ENTRIES))[-1]["seq"]
                await eventually(lambda: self.seen[-1] >= last, within=within, what=f"event {last} in the stream")
                events = events_of(await connection.fetch(ENTRIES))
        finally:
            await connection.close()
        journal, seen = [event["seq"] for event in events], self.seen[1:]
        missed = sorted(set(journal) - set(seen))
        assert not missed, f"the stream left out {missed}"
        assert seen == journal, "the stream told something twice, or in another order"

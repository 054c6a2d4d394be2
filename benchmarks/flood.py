"""Completions during a flood of forged receipts: what the flood costs, and what recording some of it costs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from benchmarks.flows import Receipts, register
from benchmarks.load import post_request, run_load
from benchmarks.measures import Measure, Outcome, Size, complete
from benchmarks.processes import Server, engine
from benchmarks.worker import RESULT

PACED_PER_SECOND = 1_000
PACE_SECONDS = 0.01
FLOODING = 16
"""Connections of the flood, beside those of the workers."""
PER_SECOND, BURST = 10, 50
"""The defaults of the engine: how many unknown receipts are recorded."""


def forged(url: str) -> bytes:
    """A completion with a receipt of the right form and a wrong signature."""
    return post_request(f"{url.rpartition('.')[0]}.{'A' * 43}", RESULT)


async def flood(size: Size) -> list[Outcome]:
    """(8) Completions/s while forged receipts arrive over the same without, and over the same with nothing recorded."""
    paced, unpaced, recorded = [], [], []
    receipts = Receipts()
    endpoint = await receipts.serve()
    began = time.perf_counter()
    with engine() as ours, engine(COUNTERFOIL_CALLBACKS__UNKNOWN_PER_SECOND="0") as silent:
        for server in (ours, silent):
            await register(server, endpoint)
            await complete(await receipts.fill(server, size.completions), server)
        for number in range(size.rounds):
            rates = {}
            for flooded in (False, True) if number % 2 else (True, False):
                urls = await receipts.fill(ours, 5 * size.completions)
                during = _paced if flooded else _quiet
                rates[flooded] = await _completed(urls, ours, during)
            paced.append(rates[True] / rates[False])
            both = {}
            for server in (ours, silent) if number % 2 else (silent, ours):
                urls = await receipts.fill(server, 5 * size.completions)
                both[server.url] = await _unpaced(urls, server, size.forged // size.rounds)
            unpaced.append(both[ours.url] / rates[False])
            recorded.append(both[ours.url] / both[silent.url])
        await _check_bounds(ours, silent, time.perf_counter() - began)
    name = f"completions/s with {PACED_PER_SECOND:,} forged receipts/s over those without"
    flooded_over = f"completions/s in a flood of {size.forged:,} forged receipts over those"
    return [
        Outcome(name, statistics.median(paced), 0.8, rounds=paced),
        Outcome(f"{flooded_over} without", statistics.median(unpaced), 0.8, rounds=unpaced),
        Outcome(f"{flooded_over} of an engine that records none", statistics.median(recorded), 0.95, rounds=recorded),
    ]


During = Callable[[Server, str], contextlib.AbstractAsyncContextManager[None]]


async def _completed(urls: list[str], server: Server, during: During) -> float:
    async with during(server, urls[0]):
        return await complete(urls, server)


@contextlib.asynccontextmanager
async def _quiet(_server: Server, _url: str) -> AsyncIterator[None]:
    yield


@contextlib.asynccontextmanager
async def _paced(server: Server, url: str) -> AsyncIterator[None]:
    """So many forged receipts a second, in small portions, whether they are answered or not."""
    streams = [await asyncio.open_connection(server.host, server.port) for _ in range(FLOODING)]
    reading = [asyncio.create_task(_drop(reader)) for reader, _ in streams]
    request, portion = forged(url), round(PACED_PER_SECOND * PACE_SECONDS)

    async def send() -> None:
        number = 0
        while True:
            for _ in range(portion):
                streams[number % FLOODING][1].write(request)
                number += 1
            await asyncio.sleep(PACE_SECONDS)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        for task in (sending, *reading):
            task.cancel()
        await asyncio.gather(sending, *reading, return_exceptions=True)
        for _, writer in streams:
            writer.close()


async def _drop(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _unpaced(urls: list[str], server: Server, count: int) -> float:
    """The rate of completions beside a flood that sends as fast as it is answered."""
    flooding = asyncio.create_task(run_load([server], [forged(urls[0])] * count, FLOODING))
    rate = await complete(urls, server)
    statuses = (await flooding).statuses
    assert set(statuses) == {404}, statuses
    return rate


async def _check_bounds(ours: Server, silent: Server, seconds: float) -> None:
    """However many there were, the inbox has so many as its rate allows, and the other none."""
    for server, most in ((ours, BURST + PER_SECOND * (seconds + 1)), (silent, 0)):
        found, cursor = 0, ""
        async with aiohttp.ClientSession() as session:
            while True:
                query = f"verdict=UNKNOWN_RECEIPT&limit=1000{cursor}"
                async with session.get(f"{server.url}/api/v1/callbacks?{query}") as answer:
                    page = await answer.json()
                found += len(page["callbacks"])
                if page["next_cursor"] is None:
                    break
                cursor = f"&cursor={page['next_cursor']}"
        assert found <= most, (found, most)


MEASURES: dict[str, Measure] = {"flood": flood}

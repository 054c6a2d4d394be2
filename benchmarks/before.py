"""This engine over that of another checkout, measured in turns in one run: what a change costs, or brings.

``make bench ARGS="--before ../other completions cycle latency"``. Both engines run at once, each on a database of its
own, and take turns; the machine's ups and downs meet both alike.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from benchmarks.flows import Cycle, Receipts, register
from benchmarks.measures import Outcome, Size, Turn, complete, in_starts, in_turns, middle_of
from benchmarks.nodes import IN_FLIGHT, database, node
from benchmarks.processes import Server, engine

NO_LOSS = 0.97
"""What cannot be told from noise on a machine whose own speed changes from second to second."""

Rate = Callable[[Server], Awaitable[float]]
Start = Callable[[str], contextlib.AbstractAsyncContextManager[Server]]
"""Starts an engine from the sources in a directory."""


@contextlib.asynccontextmanager
async def _on_sqlite(sources: str) -> AsyncIterator[Server]:
    with engine(PYTHONPATH=sources) as server:
        yield server


@contextlib.asynccontextmanager
async def _on_postgresql(sources: str) -> AsyncIterator[Server]:
    async with database() as store:
        with node(store, PYTHONPATH=sources) as server:
            yield server


STORES: dict[str, Start] = {"SQLite": _on_sqlite, "PostgreSQL": _on_postgresql}


async def _completions(size: Size) -> Rate:
    receipts = Receipts()
    endpoint = await receipts.serve()

    async def rate(server: Server) -> float:
        await register(server, endpoint)
        return await complete(await receipts.fill(server, size.completions), server)

    return rate


async def _flows(measure: Callable[[Cycle, Server], Awaitable[float]]) -> Rate:
    cycle = Cycle()
    endpoint = await cycle.serve()

    async def rate(server: Server) -> float:
        await register(server, endpoint)
        return await measure(cycle, server)

    return rate


async def _cycle(size: Size) -> Rate:
    async def measure(cycle: Cycle, server: Server) -> float:
        return (await cycle.run(server, max(size.flows // 4, 3 * IN_FLIGHT), IN_FLIGHT)).rate

    return await _flows(measure)


async def _latency(size: Size) -> Rate:
    async def measure(cycle: Cycle, server: Server) -> float:
        return 1 / statistics.median((await cycle.run(server, size.latency_flows // 4, 1)).latencies)

    return await _flows(measure)


MEASURES: dict[str, tuple[str, Callable[[Size], Awaitable[Rate]]]] = {
    "completions": ("durable completions/s", _completions),
    "cycle": (f"full cycle, {IN_FLIGHT} in flight", _cycle),
    "latency": ("speed of one flow at a time", _latency),
}


async def compare(name: str, size: Size, before: Path) -> list[Outcome]:
    """One measure of this checkout's engine over that of another one, on each store."""
    title, prepare = MEASURES[name]
    rate = await prepare(size)
    sources = [str(checkout.resolve() / "src") for checkout in (Path(__file__).parents[1], before)]
    outcomes = []
    for store, start_engine in STORES.items():

        @contextlib.asynccontextmanager
        async def start(start_engine: Start = start_engine) -> AsyncIterator[Turn[float]]:
            async with start_engine(sources[0]) as now, start_engine(sources[1]) as then:

                async def turn(number: int) -> float:
                    return await in_turns(number, lambda: rate(now), lambda: rate(then))

                yield turn

        outcomes.append(middle_of(f"{store}: {title}, now over before", await in_starts(size, start), NO_LOSS))
    return outcomes

"""This engine over that of another checkout, measured alternately in one run: the cost or gain of a change.

``make bench ARGS="--before ../other completions cycle latency flat nodes gate"``. Both engines run at once, each on its
own database, and are measured alternately; a change in the machine's speed affects both alike.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import gates
from benchmarks.fill import copy_waiting
from benchmarks.flows import Cycle, Receipts, register
from benchmarks.measures import Outcome, Size, Turn, complete, in_starts, in_turns, leave_one_waiting, middle_of
from benchmarks.nodes import IN_FLIGHT, database, node
from benchmarks.processes import Server, engine

NO_LOSS = 0.97
"""A smaller loss cannot be distinguished from noise on a machine whose speed changes from second to second."""

Rate = Callable[[tuple[Server, ...]], Awaitable[float]]
Start = Callable[[str, Size], contextlib.AbstractAsyncContextManager[tuple[Server, ...]]]
"""Starts an engine, of one node or several, from the sources in a directory."""


@contextlib.asynccontextmanager
async def _on_sqlite(sources: str, _size: Size) -> AsyncIterator[tuple[Server, ...]]:
    with engine(PYTHONPATH=sources) as server:
        yield (server,)


@contextlib.asynccontextmanager
async def _on_postgresql(sources: str, _size: Size) -> AsyncIterator[tuple[Server, ...]]:
    async with database() as store:
        with node(store, PYTHONPATH=sources) as server:
            yield (server,)


@contextlib.asynccontextmanager
async def _with_many_waiting(sources: str, size: Size) -> AsyncIterator[tuple[Server, ...]]:
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        data, receipts = Path(directory), Receipts()
        await leave_one_waiting(data, receipts, await receipts.serve(), PYTHONPATH=sources)
        copy_waiting(data / "counterfoil.db", size.waiting, "wait")
        with engine(data, PYTHONPATH=sources) as server:
            yield (server,)


@contextlib.asynccontextmanager
async def _of_two_nodes(sources: str, _size: Size) -> AsyncIterator[tuple[Server, ...]]:
    async with database() as store:
        with node(store, PYTHONPATH=sources) as first, node(store, PYTHONPATH=sources) as second:
            yield first, second


BOTH_STORES: dict[str, Start] = {"SQLite": _on_sqlite, "PostgreSQL": _on_postgresql}


async def _completions(size: Size) -> Rate:
    receipts = Receipts()
    endpoint = await receipts.serve()

    async def rate(nodes: tuple[Server, ...]) -> float:
        await register(nodes[0], endpoint)
        return await complete(await receipts.fill(nodes[0], size.completions), *nodes)

    return rate


async def _flows(measure: Callable[[Cycle, Server], Awaitable[float]]) -> Rate:
    cycle = Cycle()
    endpoint = await cycle.serve()

    async def rate(nodes: tuple[Server, ...]) -> float:
        await register(nodes[0], endpoint)
        return await measure(cycle, nodes[0])

    return rate


async def _cycle(size: Size) -> Rate:
    async def measure(cycle: Cycle, server: Server) -> float:
        return (await cycle.run(server, max(size.flows // 4, 3 * IN_FLIGHT), IN_FLIGHT)).rate

    return await _flows(measure)


async def _latency(size: Size) -> Rate:
    async def measure(cycle: Cycle, server: Server) -> float:
        return 1 / statistics.median((await cycle.run(server, size.latency_flows // 4, 1)).latencies)

    return await _flows(measure)


async def _gates(size: Size) -> Rate:
    guarded: set[str] = set()

    async def rate(nodes: tuple[Server, ...]) -> float:
        (server,) = nodes
        if server.url not in guarded:
            guarded.add(server.url)
            await gates.put_policies(server)
        return await gates.rate(server, size.gates)

    return rate


@dataclass(frozen=True)
class Comparison:
    """What is measured, and how the engines are started for it."""

    title: str
    prepare: Callable[[Size], Awaitable[Rate]]
    starts: dict[str, Start]


MEASURES = {
    "completions": Comparison("durable completions/s", _completions, BOTH_STORES),
    "cycle": Comparison(f"full cycle, {IN_FLIGHT} in flight", _cycle, BOTH_STORES),
    "latency": Comparison("speed of one flow at a time", _latency, BOTH_STORES),
    "flat": Comparison("durable completions/s with much waiting", _completions, {"SQLite": _with_many_waiting}),
    "nodes": Comparison("durable completions/s of two nodes", _completions, {"PostgreSQL": _of_two_nodes}),
    "gate": Comparison(f"gates/s of new steps, {gates.POLICIES} policies", _gates, BOTH_STORES),
}


async def compare(name: str, size: Size, before: Path) -> list[Outcome]:
    """One measure of this checkout's engine over that of another one, on each of its stores."""
    comparison = MEASURES[name]
    rate = await comparison.prepare(size)
    sources = [str(checkout.resolve() / "src") for checkout in (Path(__file__).parents[1], before)]
    outcomes = []
    for store, start_engine in comparison.starts.items():

        @contextlib.asynccontextmanager
        async def start(start_engine: Start = start_engine) -> AsyncIterator[Turn[float]]:
            async with start_engine(sources[0], size) as now, start_engine(sources[1], size) as then:

                async def turn(number: int) -> float:
                    return await in_turns(number, lambda: rate(now), lambda: rate(then))

                yield turn

        title = f"{store}: {comparison.title}, now over before"
        outcomes.append(middle_of(title, await in_starts(size, start), NO_LOSS))
    return outcomes

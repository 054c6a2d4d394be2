"""The measures: each gives the ratio of two rates or times, measured alternately in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import aiohttp

from benchmarks.bulk import rate_over_values
from benchmarks.fill import copy_waiting
from benchmarks.flows import Cycle, Receipts, register
from benchmarks.load import post_request, run_load
from benchmarks.processes import Server, engine, running
from benchmarks.worker import RESULT

CONNECTIONS = 64
HANDLER = ("-m", "benchmarks.bare", "handler")
"""On uvloop, like the engine; ``--asyncio``: on asyncio's own loop, the default of aiohttp."""


@dataclass
class Outcome:
    """One result: a ratio, and its target, if it has one."""

    name: str
    ratio: float
    target: float | None
    at_least: bool = True
    """False: the ratio must not exceed the target."""
    rounds: list[float] = field(default_factory=list)

    @property
    def reached(self) -> bool:
        if self.target is None:
            return True
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


@dataclass(frozen=True)
class Size:
    """The sizes of all measures."""

    rounds: int = 5
    turns: int = 40
    """The number of short rounds, for measures with a smaller difference than the machine's own variation."""
    starts: int = 5
    """The rounds are distributed over this many starts of everything: see ``in_starts``."""
    completions: int = 2_000
    flows: int = 4_000
    latency_flows: int = 400
    waiting: int = 1_000_000
    few_waiting: int = 1_000
    claims: int = 6_000
    in_flight: int = 100_000
    many_items: int = 10_000
    chains: int = 3
    gates: int = 2_000
    results: int = 1_000_000
    few_results: int = 1_000
    forgotten: int = 20_000
    calls: int = 2_000
    forged: int = 100_000


QUICK = Size(
    rounds=1,
    turns=1,
    starts=1,
    completions=400,
    flows=400,
    latency_flows=50,
    waiting=1_500,
    claims=400,
    in_flight=300,
    many_items=200,
    chains=1,
    gates=100,
    results=1_500,
    forgotten=300,
    calls=200,
    forged=2_000,
)
Measure = Callable[[Size], Awaitable[list[Outcome]]]


async def completions(size: Size) -> list[Outcome]:
    """(1) Durable completions/s over the requests/s of a bare handler that validates the same JSON."""
    return await completions_over_bare(size, _new_engine, "durable completions/s over a bare handler")


@contextlib.asynccontextmanager
async def _new_engine() -> AsyncIterator[Server]:
    with engine() as server:
        yield server


async def completions_over_bare(
    size: Size, begin: Callable[[], contextlib.AbstractAsyncContextManager[Server]], name: str
) -> list[Outcome]:
    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Turn[tuple[float, float]]]:
        receipts = Receipts()
        async with begin() as ours:
            with running(*HANDLER) as bare, running(*HANDLER, "--asyncio") as ordinary:
                await register(ours, await receipts.serve())

                async def over(number: int, other: Server) -> float:
                    urls = await receipts.fill(ours, size.completions)
                    return await in_turns(number, lambda: complete(urls, ours), lambda: complete(urls, other))

                async def turn(number: int) -> tuple[float, float]:
                    return await over(number, bare), await over(number, ordinary)

                yield turn

    strict, usual = zip(*await in_starts(size, start), strict=True)
    return [
        middle_of(f"{name} on uvloop", strict, 0.85),
        middle_of(f"{name} on asyncio's own loop", usual, 0.85),
    ]


Result = TypeVar("Result")
Turn = Callable[[int], Awaitable[Result]]
"""Measures once; called with the number of the round."""


async def in_starts(
    size: Size, start: Callable[[], contextlib.AbstractAsyncContextManager[Turn[Result]]]
) -> list[Result]:
    """The rounds of several starts. The first round of each start is a warm-up.

    One start differs from the next by a tenth and more, with all of its rounds, so no single start is representative.
    """
    results: list[Result] = []
    for _ in range(size.starts):
        async with start() as turn:
            await turn(0)
            results += [await turn(number) for number in range(size.turns // size.starts)]
    return results


async def in_turns(number: int, one: Callable[[], Awaitable[float]], other: Callable[[], Awaitable[float]]) -> float:
    """The rate of one over that of the other, measured directly after each other, in alternating order."""
    if number % 2:
        divisor = await other()
        return await one() / divisor
    rate = await one()
    return rate / await other()


def middle_of(name: str, ratios: Sequence[float], target: float | None, *, at_least: bool = True) -> Outcome:
    """The outcome of alternating rounds: their median."""
    return Outcome(name, statistics.median(ratios), target, at_least=at_least, rounds=list(ratios))


async def complete(urls: list[str], *servers: Server) -> float:
    """Complete all of them, on any of these servers; returns the rate per second."""
    load = await run_load(servers, [post_request(url, RESULT) for url in urls], CONNECTIONS)
    assert set(load.statuses) == {200}, load.statuses
    return load.rate


async def full_cycle(size: Size) -> list[Outcome]:
    """(2) Flows/s (start, dispatch, acknowledge, webhook, completed) over a bare relay with the same hops."""
    return [
        await cycle_over_relay(size, engine(), f"full cycle over a bare relay, {in_flight} in flight", in_flight)
        for in_flight in (32, 128)
    ]


async def cycle_over_relay(
    size: Size, started: contextlib.AbstractContextManager[Server], name: str, in_flight: int
) -> Outcome:
    ratios = []
    cycle = Cycle()
    endpoint = await cycle.serve()
    with started as ours, running("-m", "benchmarks.bare", "relay", endpoint) as relay:
        await register(ours, endpoint)
        for server in (ours, relay):
            await cycle.run(server, 500, in_flight)
        for _ in range(size.rounds):
            rate = (await cycle.run(ours, size.flows, in_flight)).rate
            ratios.append(rate / (await cycle.run(relay, size.flows, in_flight)).rate)
    return Outcome(name, statistics.median(ratios), 0.6, rounds=ratios)


async def latency(size: Size) -> list[Outcome]:
    """(7) Time of one flow at a time, start to completed (median), over that of the bare relay."""
    ratios = []
    cycle = Cycle()
    endpoint = await cycle.serve()
    with engine() as ours, running("-m", "benchmarks.bare", "relay", endpoint) as relay:
        await register(ours, endpoint)
        for _ in range(size.rounds):
            our_times = (await cycle.run(ours, size.latency_flows, 1)).latencies
            bare_times = (await cycle.run(relay, size.latency_flows, 1)).latencies
            ratios.append(statistics.median(our_times) / statistics.median(bare_times))
    name = "latency of one flow at a time over the bare relay's"
    return [Outcome(name, statistics.median(ratios), 5.0, at_least=False, rounds=ratios)]


async def flat(size: Size) -> list[Outcome]:
    """(3) Completions/s, whole flows/s, claims/s and memory with very many waiting items over the same with few."""
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        little, much = Path(directory, "little"), Path(directory, "much")
        receipts = Receipts()
        endpoint = await receipts.serve()
        cycle = Cycle()
        cycle_endpoint = await cycle.serve()
        await leave_one_waiting(little, receipts, endpoint)
        shutil.copytree(little, much)
        copy_waiting(little / "counterfoil.db", size.few_waiting, "wait")
        copy_waiting(much / "counterfoil.db", size.waiting, "wait")
        rates: dict[Path, list[float]] = {little: [], much: []}
        claims: dict[Path, list[float]] = {little: [], much: []}
        flows: dict[Path, list[float]] = {little: [], much: []}
        memory: dict[Path, int] = {}
        for turn in range(size.rounds):
            for data in (little, much):
                due = {"status": "not_completed", "due_at": 1, "deadline_at": None, "acknowledged_at": None}
                copy_waiting(data / "counterfoil.db", size.claims, f"due{turn}-", **due)
                claims[data].append(await _claim(data, receipts, size.claims))
                with engine(data) as server:
                    await register(server, endpoint)
                    urls = await receipts.fill(server, size.completions)
                    rates[data].append(await complete(urls, server))
                    await register(server, cycle_endpoint)
                    flows[data].append((await cycle.run(server, size.flows, 128)).rate)
                    memory[data] = server.memory_bytes()
    waiting = f"{size.waiting:,} waiting over {size.few_waiting:,}"
    return [
        Outcome(f"completions/s, {waiting}", _middle_ratio(rates[much], rates[little]), 0.9),
        Outcome(f"full cycle, {waiting}", _middle_ratio(flows[much], flows[little]), 0.9),
        Outcome(f"claims/s, {waiting}", _middle_ratio(claims[much], claims[little]), 0.9),
        Outcome(f"memory, {waiting}", memory[much] / memory[little], 1.2, at_least=False),
    ]


def _middle_ratio(much: list[float], little: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(much, little, strict=True))


async def leave_one_waiting(data: Path, receipts: Receipts, endpoint: str, **environment: str) -> None:
    """Create a new database with one flow that is dispatched, acknowledged and waiting."""
    with engine(data, **environment) as server:
        await register(server, endpoint, deadline_ms=30 * 24 * 3_600_000)
        await receipts.fill(server, 1)
        server.stop()


async def _claim(data: Path, receipts: Receipts, count: int) -> float:
    """Claims/s: from the first to the last dispatch of the work that is due when the engine starts."""
    before = len(receipts.urls)
    with engine(data) as server:
        while len(receipts.urls) == before:
            await asyncio.sleep(0.001)
        started, already = time.perf_counter(), len(receipts.urls) - before
        while len(receipts.urls) < before + count:
            await asyncio.sleep(0.001)
        rate = (count - already) / (time.perf_counter() - started)
        server.stop()  # so that every acknowledgement is recorded, and the next start finds nothing to send again
    return rate


async def restart(size: Size) -> list[Outcome]:
    """(5) Time to ready after kill -9 with very many items in flight, over a start with an empty database."""
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        data = Path(directory, "full")
        receipts = Receipts()
        endpoint = await receipts.serve()
        await leave_one_waiting(data, receipts, endpoint)
        copy_waiting(data / "counterfoil.db", size.in_flight, "wait")
        ratios = []
        for turn in range(size.rounds):
            with engine(data) as server:  # leaving the block is kill -9
                await receipts.fill(server, 500)
            full = await _seconds_to_ready(data)
            empty = await _seconds_to_ready(Path(directory, f"empty-{turn}"))
            ratios.append(full / empty)
    name = f"start after kill -9 with {size.in_flight:,} in flight over an empty start"
    return [Outcome(name, statistics.median(ratios), 2.0, at_least=False, rounds=ratios)]


async def _seconds_to_ready(data: Path) -> float:
    started = time.perf_counter()
    with engine(data) as server:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{server.url}/readyz") as answer:
                    if answer.status == 200:
                        return time.perf_counter() - started


async def bulk(size: Size) -> list[Outcome]:
    """Rows/s of two other ways to write, over those of bulk statements with VALUES, which the store uses."""
    ratios = rate_over_values(size.rounds)
    return [
        Outcome(f"rows/s written with {name} over VALUES", ratios[name], 1.0, at_least=False)
        for name in ("executemany", "json_each")
    ]


MEASURES: dict[str, Measure] = {
    "completions": completions,
    "cycle": full_cycle,
    "flat": flat,
    "restart": restart,
    "latency": latency,
    "bulk": bulk,
}

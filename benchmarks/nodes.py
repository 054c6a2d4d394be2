"""The measures on PostgreSQL: one node against a bare handler, two nodes against one, and a node that dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from benchmarks.flows import Receipts, register
from benchmarks.measures import (
    Measure,
    Outcome,
    Pair,
    Size,
    complete,
    completions_over_bare,
    cycle_over_relay,
    fastest_over_fastest,
    in_turns,
)
from benchmarks.processes import Server, engine
from tests.postgres import Cluster

LEASE_MS = 2_000
SWEEP_MS = 500
IN_FLIGHT = 128


@contextlib.contextmanager
def database() -> Iterator[str]:
    """The address of a new PostgreSQL that flushes every commit."""
    with Cluster(fsync=True) as cluster:
        yield cluster.dsn("postgres")


def node(store: str, **environment: str) -> contextlib.AbstractContextManager[Server]:
    return engine(None, COUNTERFOIL_STORE=store, **environment)


async def completions(size: Size) -> list[Outcome]:
    """(1) Durable completions/s over the requests/s of a bare handler that validates the same JSON."""
    with database() as store, node(store) as ours:
        return await completions_over_bare(size, ours, "PostgreSQL: durable completions/s over a bare handler")


async def full_cycle(size: Size) -> list[Outcome]:
    """Flows/s over a bare relay with the same hops."""
    name = f"PostgreSQL: full cycle over a bare relay, {IN_FLIGHT} in flight"
    with database() as store:
        return [await cycle_over_relay(size, node(store), name, IN_FLIGHT)]


async def two_nodes(size: Size) -> list[Outcome]:
    """Completions/s of two nodes on one database, half of the connections each, over those of one with all of them.

    All of the work was sent by the first: half of the results come to a node that has to read what they are about.
    """
    receipts = Receipts()
    with database() as store, node(store) as first, node(store) as second:
        await register(first, await receipts.serve())

        async def turn(number: int) -> Pair:
            urls = await receipts.fill(first, 2 * size.completions)
            of_two, of_one = urls[: size.completions], urls[size.completions :]
            return await in_turns(number, lambda: complete(of_two, first, second), lambda: complete(of_one, first))

        await turn(0)
        pairs = [await turn(number) for number in range(size.turns)]
    return [fastest_over_fastest("PostgreSQL: completions/s of two nodes over one, on one machine", pairs, 1.0)]


async def forgotten(size: Size) -> list[Outcome]:
    """Completions/s on a node that has never seen the work over those on the node that sent it, and remembers it."""
    receipts = Receipts()
    with database() as store, node(store) as sender, node(store) as stranger:
        await register(sender, await receipts.serve())

        async def turn(number: int) -> Pair:
            urls = await receipts.fill(sender, 2 * size.completions)
            strange, known = urls[: size.completions], urls[size.completions :]
            return await in_turns(number, lambda: complete(strange, stranger), lambda: complete(known, sender))

        await turn(0)
        pairs = [await turn(number) for number in range(size.turns)]
    name = "PostgreSQL: completions/s on another node than the one that sent the work over those on that one"
    return [fastest_over_fastest(name, pairs, 1.0, at_least=False)]


async def takeover(size: Size) -> list[Outcome]:
    """From the death of a node until its work is sent by another, over the lease and one sweep interval."""
    ratios = []
    quick = {"COUNTERFOIL_LEASE_MS": str(LEASE_MS), "COUNTERFOIL_SWEEP_INTERVAL_MS": str(SWEEP_MS)}
    for _ in range(size.rounds):
        silent = _SilentEndpoint()
        endpoint = await silent.serve()
        with database() as store, node(store, **quick) as heir:
            with node(store, **quick) as victim:
                await register(victim, endpoint, init_backoff_ms=1, jitter=False, ack_timeout_ms=60_000)
                await silent.occupy(victim)
                died = time.perf_counter()  # leaving the block is kill -9
            await silent.sent_again()
            ratios.append((time.perf_counter() - died) * 1000 / (LEASE_MS + SWEEP_MS))
            del heir
        silent.close()
    name = "PostgreSQL: time until a dead node's work is sent again over its lease and one sweep"
    return [Outcome(name, max(ratios), 1.0, at_least=False, rounds=ratios)]


class _SilentEndpoint:
    """Takes requests and never answers: whoever sent them is still sending when it dies."""

    def __init__(self) -> None:
        self._requests = 0
        self._arrived = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/work"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            async with self._arrived:
                self._requests += 1
                self._arrived.notify_all()

    async def occupy(self, server: Server) -> None:
        """One flow whose request has arrived."""
        await Receipts.start(server, 1)
        await self._wait_for(1)

    async def sent_again(self) -> None:
        await self._wait_for(2)

    async def _wait_for(self, requests: int) -> None:
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._requests >= requests)

    def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


MEASURES: dict[str, Measure] = {
    "postgres": completions,
    "postgres-cycle": full_cycle,
    "nodes": two_nodes,
    "forgotten": forgotten,
    "takeover": takeover,
}

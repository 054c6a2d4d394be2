"""The measures on PostgreSQL: one node against a bare handler, two nodes against one, and a node that crashes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from benchmarks.flows import Receipts, register
from benchmarks.measures import (
    Measure,
    Outcome,
    Size,
    Turn,
    complete,
    completions_over_bare,
    cycle_over_relay,
    in_starts,
    in_turns,
    middle_of,
)
from benchmarks.processes import Server, engine
from tests.postgres import Cluster

LEASE_MS = 2_000
SWEEP_MS = 500
IN_FLIGHT = 128
LOG_FILES = 24
SETTINGS = {"shared_buffers": "128MB", "max_wal_size": "1GB", "min_wal_size": "512MB"}
"""PostgreSQL's own defaults, in place of the smaller values of the tests, and as many log files as a start may fill."""


@contextlib.asynccontextmanager
async def database() -> AsyncIterator[str]:
    """The URL of a new PostgreSQL that flushes every commit.

    Its log is like that of a server that has run for a while: a new server creates each log file when it is first
    needed, and all writers wait for that; later, files are reused.
    """
    with Cluster(fsync=True, settings=SETTINGS) as cluster:
        connection = await cluster.connect()
        try:
            for _ in range(LOG_FILES):
                await connection.execute("SELECT pg_logical_emit_message(FALSE, '', ''), pg_switch_wal()")
            await connection.execute("CHECKPOINT")
        finally:
            await connection.close()
        yield cluster.dsn("postgres")


def node(store: str, **environment: str) -> contextlib.AbstractContextManager[Server]:
    return engine(None, COUNTERFOIL_STORE=store, **environment)


@contextlib.asynccontextmanager
async def new_node() -> AsyncIterator[Server]:
    """A node on a new database."""
    async with database() as store:
        with node(store) as server:
            yield server


async def completions(size: Size) -> list[Outcome]:
    """(1) Durable completions/s over the requests/s of a bare handler that validates the same JSON."""
    return await completions_over_bare(size, new_node, "PostgreSQL: durable completions/s over a bare handler")


async def full_cycle(size: Size) -> list[Outcome]:
    """Flows/s over a bare relay with the same hops."""
    name = f"PostgreSQL: full cycle over a bare relay, {IN_FLIGHT} in flight"
    async with database() as store:
        return [await cycle_over_relay(size, node(store), name, IN_FLIGHT)]


Compare = Callable[[int, Server, Server, list[str], list[str]], Awaitable[float]]
"""Called with the number of the round, two nodes, and two lists of work that the first of them has sent."""


def _two_on_one_database(
    size: Size, compare: Compare
) -> Callable[[], contextlib.AbstractAsyncContextManager[Turn[float]]]:
    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Turn[float]]:
        receipts = Receipts()
        async with database() as store:
            with node(store) as first, node(store) as second:
                await register(first, await receipts.serve())

                async def turn(number: int) -> float:
                    urls = await receipts.fill(first, 2 * size.completions)
                    return await compare(number, first, second, urls[: size.completions], urls[size.completions :])

                yield turn

    return start


async def two_nodes(size: Size) -> list[Outcome]:
    """Completions/s of two nodes on one database, half of the connections each, over those of one with all of them.

    All of the work was sent by the first node: the second one gets half of the results, and has to load their work.
    """

    async def compare(number: int, first: Server, second: Server, of_two: list[str], of_one: list[str]) -> float:
        return await in_turns(number, lambda: complete(of_two, first, second), lambda: complete(of_one, first))

    ratios = await in_starts(size, _two_on_one_database(size, compare))
    return [middle_of("PostgreSQL: completions/s of two nodes over one, on one machine", ratios, 1.0)]


async def forgotten(size: Size) -> list[Outcome]:
    """Completions/s on a node that has never seen the work over those on the node that sent it and has it cached."""

    async def compare(number: int, sender: Server, stranger: Server, strange: list[str], known: list[str]) -> float:
        return await in_turns(number, lambda: complete(strange, stranger), lambda: complete(known, sender))

    ratios = await in_starts(size, _two_on_one_database(size, compare))
    name = "PostgreSQL: completions/s on another node than the one that sent the work over those on that one"
    return [middle_of(name, ratios, 1.0, at_least=False)]


async def takeover(size: Size) -> list[Outcome]:
    """From the crash of a node until another node sends its work, over the lease and one sweep interval."""
    ratios = []
    quick = {"COUNTERFOIL_LEASE_MS": str(LEASE_MS), "COUNTERFOIL_SWEEP_INTERVAL_MS": str(SWEEP_MS)}
    for _ in range(size.rounds):
        silent = _SilentEndpoint()
        endpoint = await silent.serve()
        async with database() as store:
            with node(store, **quick):
                with node(store, **quick) as victim:
                    await register(victim, endpoint, init_backoff_ms=1, jitter=False, ack_timeout_ms=60_000)
                    await silent.occupy(victim)
                    died = time.perf_counter()  # leaving the block is kill -9
                await silent.sent_again()
                ratios.append((time.perf_counter() - died) * 1000 / (LEASE_MS + SWEEP_MS))
        silent.close()
    name = "PostgreSQL: time until a dead node's work is sent again over its lease and one sweep"
    return [Outcome(name, max(ratios), 1.0, at_least=False, rounds=ratios)]


class _SilentEndpoint:
    """Takes requests and never answers: the node that sent them is still sending when it is killed."""

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
        """Start one flow, and wait until its request has arrived."""
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

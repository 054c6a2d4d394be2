"""The cost of the effects API: reserved and completed effects, and dedup hits, over durable completions of work."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import orjson

from benchmarks.flows import Receipts, register
from benchmarks.load import post_request, run_load
from benchmarks.measures import CONNECTIONS, Measure, Outcome, Size, Turn, complete, in_starts, in_turns, middle_of
from benchmarks.processes import Server, engine

TOOL = "issue_refund"
OUTCOME = orjson.dumps({"fence": 1, "success": True, "result": {"refund_id": "re_1"}})
_numbers = itertools.count()


async def effects(size: Size) -> list[Outcome]:
    """Pairs/s (reserve, complete) and hits/s over completions/s of work items, all at one engine."""

    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Turn[tuple[float, float]]]:
        receipts = Receipts()
        with engine() as server:
            await register(server, await receipts.serve())

            async def turn(number: int) -> tuple[float, float]:
                keys = [f"order-{next(_numbers)}" for _ in range(size.completions)]
                urls = await receipts.fill(server, size.completions)
                pairs = await in_turns(number, lambda: _pairs(server, keys), lambda: complete(urls, server))
                urls = await receipts.fill(server, size.completions)
                hits = await in_turns(number, lambda: _reserve(server, keys, 200), lambda: complete(urls, server))
                return pairs, hits

            yield turn

    pairs, hits = zip(*await in_starts(size, start), strict=True)
    return [
        middle_of("effects reserved and completed/s over durable completions/s", pairs, 0.25),
        middle_of("dedup hits of the effects API/s over durable completions/s", hits, 0.4),
    ]


async def _pairs(server: Server, keys: list[str]) -> float:
    """Effects/s that are reserved and then completed: one after the other in their halves, all callers at once."""
    reserved = await _reserve(server, keys, 201)
    requests = [post_request(f"{server.url}/api/v1/effects/{TOOL}/{key}/complete", OUTCOME) for key in keys]
    load = await run_load([server], requests, CONNECTIONS)
    assert set(load.statuses) == {200}, load.statuses
    return 1 / (1 / reserved + 1 / load.rate)


async def _reserve(server: Server, keys: list[str], status: int) -> float:
    """Reservations/s; 201: each is granted, 200: each is a hit."""
    wanted = {"tool": TOOL, "class": "write-non-idempotent", "holder": "bench"}
    requests = [post_request(f"{server.url}/api/v1/effects", orjson.dumps({**wanted, "key": key})) for key in keys]
    load = await run_load([server], requests, CONNECTIONS)
    assert set(load.statuses) == {status}, load.statuses
    return load.rate


MEASURES: dict[str, Measure] = {"effects": effects}

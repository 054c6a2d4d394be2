"""The cost of large flows: an item of a wide fan-out over one of a narrow one, a step of a long chain over a short one.

The steps are sync steps at an endpoint that answers at once, so that the engine is measured. One flow at a time: a
narrow fan-out and a short chain are repeated until there are as many items or steps as in the large one.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from typing import Any, cast

import aiohttp

from benchmarks.measures import Measure, Outcome, Size
from benchmarks.nodes import new_node
from benchmarks.processes import Server, engine
from benchmarks.worker import split_messages

CHAIN = 100
SHORT_CHAIN = 5
FEW_ITEMS = 100
STEPS = "step-"


class Quick(asyncio.Protocol):
    """Answers every dispatch at once with success."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        messages, self._buffer = split_messages(self._buffer + data)
        self._transport.write(b"".join(_answer(head) for head, _ in messages))


def _answer(head: bytes) -> bytes:
    """Each step of a chain gives a different value, named in its path."""
    name = head.split(b" ", 2)[1].rpartition(b"/")[2]
    body = b'{"success":true,"outputs":{"%s":1}}' % name
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Flows:
    """Runs flows of one server, one after the other."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, endpoint: str) -> None:
        self._session = session
        self._url = server.url
        self._endpoint = endpoint

    async def register(self) -> None:
        fanned = {"n": {"role": "required", "for_each": True}, "out": {"role": "output"}}
        await self._put("each", "out", fanned)
        for number in range(1, CHAIN + 1):
            attributes = {f"v{number - 1}": {"role": "required"}, f"v{number}": {"role": "output"}}
            await self._put(f"{STEPS}{number}", f"v{number}", attributes)

    async def _put(self, step_id: str, name: str, attributes: dict[str, Any]) -> None:
        definition = {"kind": "sync", "endpoint": f"{self._endpoint}/{name}", "attributes": attributes}
        async with self._session.put(f"{self._url}/api/v1/steps/{step_id}", json=definition) as answer:
            assert answer.status in (200, 201), await answer.text()

    async def fan_out(self, items: int) -> float:
        """The seconds that a flow with this many items takes."""
        return await self._run({"goals": ["each"], "init": {"n": list(range(items))}})

    async def chain(self, steps: int) -> float:
        """The seconds that a flow with this many steps takes."""
        return await self._run({"goals": [f"{STEPS}{steps}"], "init": {"v0": 0}})

    async def _run(self, start: dict[str, Any]) -> float:
        started = time.perf_counter()
        async with self._session.post(f"{self._url}/api/v1/flows", json=start) as answer:
            assert answer.status == 201, await answer.text()
            flow_id = (await answer.json())["flow_id"]
        while True:
            async with self._session.get(f"{self._url}/api/v1/flows/{flow_id}/result?wait=60") as answer:
                if answer.status == 200:
                    assert (await answer.json())["status"] == "completed"
                    return time.perf_counter() - started


async def large_flows(size: Size) -> list[Outcome]:
    """(8) Time per item of a wide fan-out, and per step of a long chain, over that of small ones. SQLite."""
    with engine() as server:
        return await _measured(server, size, "")


async def large_flows_postgres(size: Size) -> list[Outcome]:
    """(8) The same on PostgreSQL."""
    async with new_node() as server:
        return await _measured(server, size, ", PostgreSQL")


async def _measured(server: Server, size: Size, where: str) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(Quick, "127.0.0.1", 0, backlog=1024)
    endpoint = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with contextlib.AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=600)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        flows = Flows(session, server, endpoint)
        await flows.register()
        await flows.fan_out(FEW_ITEMS)  # warm-up
        await flows.chain(CHAIN)
        items, steps = [], []
        for _ in range(size.rounds):
            few = sum([await flows.fan_out(FEW_ITEMS) for _ in range(size.many_items // FEW_ITEMS)])
            items.append(await flows.fan_out(size.many_items) / few)
            for _ in range(size.chains):
                short = sum([await flows.chain(SHORT_CHAIN) for _ in range(CHAIN // SHORT_CHAIN)])
                steps.append(await flows.chain(CHAIN) / short)
    listening.close()
    return [
        _at_most(f"fan-out: time per item, {size.many_items:,} items over {FEW_ITEMS}{where}", items),
        _at_most(f"chain: cost per step, {CHAIN} steps over {SHORT_CHAIN}{where}", steps),
    ]


def _at_most(name: str, ratios: list[float]) -> Outcome:
    return Outcome(name, statistics.median(ratios), 1.5, at_least=False, rounds=ratios)


MEASURES: dict[str, Measure] = {"large-flows": large_flows, "postgres-large-flows": large_flows_postgres}

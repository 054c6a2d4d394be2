"""Runs whole flows through the engine or a bare relay: start, dispatch, acknowledgement, webhook."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp

from benchmarks.load import Load, post_request, run_load
from benchmarks.processes import Server
from benchmarks.worker import ReporterPool, serve_endpoint

STEP = "bench"
START = b'{"goals":["bench"],"init":{"n":1}}'


async def register(server: Server, endpoint: str, effect: dict[str, str] | None = None, **work: Any) -> None:
    step = {"endpoint": endpoint, "work": work, "effect": effect or {}}
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{server.url}/api/v1/steps/{STEP}", json=step) as answer,
    ):
        assert answer.status in (200, 201), await answer.text()


class Receipts:
    """An endpoint that acknowledges and keeps the webhook URLs, for work that waits to be completed."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def serve(self) -> str:
        self._server, url = await serve_endpoint(lambda metadata: self.urls.append(metadata["webhook_url"]))
        return url

    @staticmethod
    async def start(server: Server, count: int) -> None:
        request = post_request(f"{server.url}/api/v1/flows", START)
        await run_load([server], [request] * count, min(count, 64))

    async def fill(self, server: Server, count: int) -> list[str]:
        """Start ``count`` flows; returns their webhook URLs once all are dispatched."""
        before = len(self.urls)
        await self.start(server, count)
        while len(self.urls) < before + count:
            await asyncio.sleep(0.01)
        return self.urls[before:]


class Cycle:
    """Keeps a number of flows in flight: as soon as the webhook of one is answered, the next one is started."""

    def __init__(self) -> None:
        self._metadata: dict[str, Any] = {}
        self._load = Load(0.0)
        self._finished = asyncio.Event()
        self._pool = ReporterPool(self._reported)

    async def serve(self) -> str:
        """The endpoint's URL."""
        self._server, url = await serve_endpoint(lambda metadata: self._pool.report(metadata["webhook_url"]))
        return url

    async def run(self, server: Server, flows: int, in_flight: int) -> Load:
        self._load = Load(0.0)
        self._finished.clear()
        self._left_to_start = flows - in_flight
        self._left_to_finish = flows
        self._started_at: list[float] = []
        self._pool = ReporterPool(self._reported)
        await self._pool.connect(server.host, server.port, in_flight)
        self._starters = ReporterPool(lambda status: None)
        await self._starters.connect(server.host, server.port, in_flight)
        self._request = post_request(f"{server.url}/api/v1/flows", START)
        started = time.perf_counter()
        for _ in range(in_flight):
            self._start()
        await self._finished.wait()
        self._load.seconds = time.perf_counter() - started
        self._pool.close()
        self._starters.close()
        return self._load

    def _start(self) -> None:
        self._started_at.append(time.perf_counter())
        self._starters.send(self._request)

    def _reported(self, status: int) -> None:
        self._load.statuses[status] += 1
        # With one flow in flight this is its latency; with several it is not exact, and not used.
        self._load.latencies.append(time.perf_counter() - self._started_at.pop(0))
        self._left_to_finish -= 1
        if not self._left_to_finish:
            self._finished.set()
        elif self._left_to_start:
            self._left_to_start -= 1
            self._start()

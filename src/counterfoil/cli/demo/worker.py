"""The worker of the demo: one HTTP server with an endpoint for each behaviour, and a process that dies.

Well-behaved steps use ``Worker`` of the client library. The others handle the dispatch themselves, because the library
never does what they do: refuse, forget, and send duplicate or conflicting results.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from counterfoil.cli.demo.charging import CardProvider, ChargeWorker
from counterfoil.cli.demo.scenarios import CHARGE, SLOW_SECONDS, answer_of, round_of
from counterfoil.client import Assignment, Receipt, Reporter, StepFailed, Worker

Deed = Callable[[Receipt, Reporter], Awaitable[web.Response | None]]


class DemoWorker:
    """Serves on a free loopback port while its block runs.

    ``refused`` counts the duplicate results that the engine refused, by step; ``taken_twice`` those that it
    wrongly accepted. ``provider`` has the charges that were made,
    ``charger`` is the process that makes them.
    """

    def __init__(self) -> None:
        self.url = ""
        self.refused: Counter[str] = Counter()
        self.taken_twice: Counter[str] = Counter()
        self.provider = CardProvider()
        self._afterwards: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.charger = ChargeWorker()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        await self.charger.start(f"{self.url}/provider/charges")
        return self

    def url_of(self, step_id: str) -> str:
        """The address of the worker of a step."""
        return self.charger.url if step_id == CHARGE.step_id else self.url

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._afterwards:
            task.cancel()
        await self.charger.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def idle(self) -> None:
        """Wait for all deferred reports, so that every duplicate has been sent."""
        while self._afterwards:
            await asyncio.wait(self._afterwards)

    def _app(self) -> web.Application:
        worker = Worker(heartbeat_every=0.3, grace=0.5)
        worker.step("/steady")(_steady)
        worker.step("/slow", heartbeat_every=5.0)(_slow)  # it sends its own, with its progress
        worker.step("/hopeless")(_hopeless)
        worker.step("/sync")(_sync)
        app = worker.app()
        by_hand = {
            "/flaky": self._flaky,
            "/gives-back": self._gives_back,
            "/twice": self._twice,
            "/early": self._early,
            "/silent": self._silent,
        }
        for path, deed in by_hand.items():
            app.router.add_post(path, self._handler(deed))
        app.router.add_post("/provider/charges", self.provider.charge)
        return app

    def _handler(self, deed: Deed) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            assert self._session is not None
            receipt = Receipt.from_request(await request.read())
            return await deed(receipt, Reporter(self._session, receipt)) or web.Response()

        return handle

    def _later(self, seconds: float, deed: Callable[[], Awaitable[object]]) -> None:
        """Act after the endpoint has returned, as a worker behind a queue would."""

        async def do() -> None:
            await asyncio.sleep(seconds)
            await deed()

        task = asyncio.create_task(do())
        self._afterwards.add(task)
        task.add_done_callback(self._afterwards.discard)

    async def _flaky(self, receipt: Receipt, reporter: Reporter) -> web.Response | None:
        failures = 1 + round_of(_number(receipt)) % 2
        if receipt.attempt <= failures:
            return web.Response(status=503)
        self._later(0.1, lambda: reporter.succeed(answer_of(_number(receipt))))
        return None

    async def _gives_back(self, receipt: Receipt, reporter: Reporter) -> None:
        if receipt.attempt == 1:
            self._later(0.1, lambda: reporter.not_completed("rate limited upstream", retry_after=0.4))
        else:
            self._later(0.1, lambda: reporter.succeed(answer_of(_number(receipt))))

    async def _twice(self, receipt: Receipt, reporter: Reporter) -> None:
        """The result, a duplicate, and for every second flow a conflicting result."""

        async def post() -> None:
            await reporter.succeed(answer_of(_number(receipt)))
            again = [answer_of(_number(receipt)), {"answer": "something else"}]
            for outputs in again[: 1 + round_of(_number(receipt)) % 2]:
                await asyncio.sleep(0.05)
                verdict = await reporter.succeed(outputs)
                counter = self.taken_twice if verdict.outcome == "accepted" else self.refused
                counter[receipt.step_id] += 1

        self._later(0.1, post)

    async def _early(self, receipt: Receipt, reporter: Reporter) -> None:
        await reporter.succeed(answer_of(_number(receipt)))
        await asyncio.sleep(0.2)  # only now does the endpoint return its 200

    async def _silent(self, receipt: Receipt, reporter: Reporter) -> None:
        if receipt.attempt > 1:
            self._later(0.1, lambda: reporter.succeed(answer_of(_number(receipt))))


async def _steady(assignment: Assignment) -> dict[str, int]:
    await asyncio.sleep(random.uniform(0.1, 0.5))
    return answer_of(_number(assignment.receipt))


async def _slow(assignment: Assignment) -> dict[str, int]:
    parts = 8
    for part in range(1, parts + 1):
        await asyncio.sleep(SLOW_SECONDS / parts)
        await assignment.heartbeat(part / parts, f"part {part} of {parts}")
    return answer_of(_number(assignment.receipt))


async def _hopeless(_: Assignment) -> dict[str, int]:
    await asyncio.sleep(0.2)
    raise StepFailed("the card was declined")


async def _sync(assignment: Assignment) -> dict[str, int]:
    await asyncio.sleep(0.05)
    return answer_of(_number(assignment.receipt))


def _number(receipt: Receipt) -> int:
    return int(receipt.arguments["number"])

"""A programmable step endpoint: a real HTTP server that answers as told and records its requests.

    async with StepEndpoint() as endpoint:
        endpoint.answer("/transcribe", Answer(status=503), Answer())      # fails once, then takes the work
        ...                                                               # register endpoint.url("/transcribe")
        second = await endpoint.received("/transcribe", count=2)
        await session.post(second.webhook_url, json={"success": True})

A path without a programme answers 200 with an empty body, which acknowledges async work.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import orjson
from aiohttp import web

DEFAULT_WAIT_SECONDS = 10.0

Fault = Literal["cut", "cut_body", "silent"]
"""A fault in place of an answer: the connection is closed after the request was read, closed in the middle of the
response body, or kept open without an answer."""


@dataclass(frozen=True)
class Answer:
    """One answer. ``body`` may be text, bytes or any JSON value; ``until`` delays it until the event is set."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    until: asyncio.Event | None = None
    fault: Fault | None = None

    def content(self) -> bytes:
        """The bytes of the body."""
        if self.body is None:
            return b""
        if isinstance(self.body, bytes):
            return self.body
        return self.body.encode() if isinstance(self.body, str) else orjson.dumps(self.body)


@dataclass(frozen=True)
class Received:
    """One request as it arrived.

    ``at`` is ``time.monotonic()`` when its body had been read, ``peer`` the remote address of the connection.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes
    at: float
    peer: tuple[str, int] = ("", 0)

    @property
    def body(self) -> Any:
        return orjson.loads(self.content)

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self.body["arguments"]
        return arguments

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self.body["metadata"]
        return metadata

    @property
    def token(self) -> str:
        """The receipt token: a credential, so do not print it."""
        return str(self.metadata["receipt_token"])

    @property
    def webhook_url(self) -> str:
        return str(self.metadata["webhook_url"])

    def __repr__(self) -> str:
        return f"<Received {self.method} {self.path} {len(self.content)} bytes>"


Programme = Answer | Callable[[Received], Awaitable[Answer]]
"""What a path does: a fixed answer, or a coroutine function that creates one from the request."""


class StepEndpoint:
    """Serves on a free loopback port while its ``async with`` block runs, and records every request.

    Invariant: a request is recorded before it is answered, so a test that sees an effect of the answer also finds the
    request.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._programmes: dict[str, list[Programme]] = {}
        self._requests: dict[str, list[Received]] = defaultdict(list)
        self._arrived = asyncio.Condition()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0, backlog=1024).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def url(self, path: str) -> str:
        """The URL of a path of this endpoint."""
        return f"http://{self._host}:{self.port}{path}"

    def answer(self, path: str, *programme: Programme) -> None:
        """Set the answers of this path, one after the other; the last one is repeated."""
        if not programme:
            raise ValueError("give at least one answer")
        self._programmes[path] = list(programme)

    def requests(self, path: str) -> list[Received]:
        """The requests that this path has received so far."""
        return list(self._requests[path])

    def all_requests(self) -> list[Received]:
        """The requests that any path has received so far, in the order of arrival."""
        return sorted((each for requests in self._requests.values() for each in requests), key=lambda each: each.at)

    async def received(self, path: str, count: int = 1, within: float = DEFAULT_WAIT_SECONDS) -> Received:
        """Wait for the count-th request of a path and return it; raises TimeoutError if it does not arrive."""
        seen = self._requests[path]
        try:
            async with asyncio.timeout(within), self._arrived:
                await self._arrived.wait_for(lambda: len(seen) >= count)
        except TimeoutError:
            raise TimeoutError(f"{path} received {len(seen)} of {count} requests within {within} s") from None
        return seen[count - 1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        peer = request.transport.get_extra_info("peername") if request.transport is not None else ("", 0)
        received = Received(request.method, request.path, request.headers, content, time.monotonic(), peer[:2])
        programme = self._next_programme(request.path)
        async with self._arrived:
            self._requests[request.path].append(received)
            self._arrived.notify_all()
        answer = programme if isinstance(programme, Answer) else await programme(received)
        if answer.until is not None:
            await self._unless_closing(answer.until)
        if answer.fault is not None:
            return await self._misbehave(request, answer)
        return web.Response(status=answer.status, body=answer.content(), headers=_typed(answer))

    def _next_programme(self, path: str) -> Programme:
        programmes = self._programmes.get(path)
        if not programmes:
            return Answer()
        return programmes.pop(0) if len(programmes) > 1 else programmes[0]

    async def _misbehave(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_typed(answer))
        if answer.fault == "silent":
            await self._closing.wait()
        elif answer.fault == "cut_body":
            response.content_length = len(answer.content()) + 1
            await response.prepare(request)
            await response.write(answer.content())
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _unless_closing(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._closing.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def _typed(answer: Answer) -> dict[str, str]:
    headers = dict(answer.headers)
    if answer.body is not None and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    return headers

"""Reading a server-sent event stream as its specification says, byte by byte over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson


@dataclass(frozen=True)
class ServerSent:
    """One event of a stream."""

    id: str
    event: str
    data: Any


class EventStream:
    """An open stream; ``next`` waits for one event, with a bound."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.last_id = ""

    async def next(self, within: float = 8.0) -> ServerSent:
        async with asyncio.timeout(within):
            fields: dict[str, list[str]] = {}
            while True:
                raw = await self._response.content.readline()
                if not raw:
                    raise EOFError("the stream ended")
                line = raw.decode().rstrip("\r\n")
                if not line and "data" in fields:
                    self.last_id = fields.get("id", [self.last_id])[-1]
                    return ServerSent(
                        self.last_id, fields.get("event", ["message"])[-1], orjson.loads("\n".join(fields["data"]))
                    )
                if not line:
                    fields = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(":")
                    fields.setdefault(name, []).append(value.removeprefix(" "))

    async def until(self, kind: str, within: float = 8.0) -> list[ServerSent]:
        """Everything up to and including the first event of this type."""
        seen = [await self.next(within)]
        while seen[-1].event != kind:
            seen.append(await self.next(within))
        return seen


@contextlib.asynccontextmanager
async def event_stream(
    session: aiohttp.ClientSession, url: str, last_event_id: str | None = None
) -> AsyncIterator[EventStream]:
    """Open a stream, with Last-Event-ID if one is given."""
    headers = {"Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    timeout = aiohttp.ClientTimeout(total=None)
    async with session.get(url, headers=headers, timeout=timeout) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield EventStream(response)

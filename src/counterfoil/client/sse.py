"""Reading an engine's live stream: bytes into events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import cast

import aiohttp

from counterfoil.client.documents import Event
from counterfoil.domain.jsontext import parse_json


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    lines = SseLines()
    async for chunk in response.content.iter_any():
        for data in lines.feed(chunk):
            yield cast(Event, parse_json(data))


class SseLines:
    """Cuts a byte stream into the data of server-sent events; comments (keep-alives) fall away."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if b"\n" not in chunk:
            self._rest += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not field and not value and self._data:
                yield b"\n".join(self._data)
                self._data = []

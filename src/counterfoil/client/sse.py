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
        self._kind = ""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        return (data for _, data in self.feed_named(chunk))

    def feed_named(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """The same, each with the name of its event."""
        if b"\n" not in chunk:
            self._rest += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif field == b"event":
                self._kind = value.removeprefix(b" ").decode()
            elif not field and not value and self._data:
                yield self._kind, b"\n".join(self._data)
                self._data = []
                self._kind = ""

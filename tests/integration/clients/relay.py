"""A relay in front of an engine that counts connections, and may cut some of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Relay:
    """Passes everything on, in both directions; the first ``cut`` connections are closed at once."""

    def __init__(self, url: str, cut: int) -> None:
        self._target = urlsplit(url)
        self._cut = cut
        self.url = ""
        self.connections = 0

    def through(self, url: str) -> str:
        """The same URL by way of the relay."""
        return url.replace(f"{self._target.scheme}://{self._target.netloc}", self.url)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections <= self._cut:
            writer.close()
            return
        behind_reader, behind_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, behind_writer))
            both.create_task(_copy(behind_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def relay_to(url: str, cut: int = 0) -> AsyncIterator[Relay]:
    relay = Relay(url, cut)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    relay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield relay

"""HTTP byte by byte: for tests that care how a request is cut into pieces, and for those that send very many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson


@dataclass(frozen=True)
class RawAnswer:
    """An answer as it came over the wire; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return orjson.loads(self.content)


def post_bytes(url: str, content: bytes, headers: Mapping[str, str] | None = None) -> tuple[bytes, bytes]:
    """Head and body of a POST of JSON; other headers may be added or put in place of these."""
    parts = urlsplit(url)
    all_headers = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **(headers or {}),
    }
    lines = [f"POST {parts.path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n", content


class RawConnection:
    """One connection, on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, within: float = 30.0) -> RawAnswer:
        """Read one answer to its end."""
        async with asyncio.timeout(within):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")[:-2]
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            content = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return RawAnswer(int(first.split(" ", 2)[1]), headers, content)

    async def ended(self, within: float = 10.0) -> bool:
        """Whether the other side closes the connection without another byte."""
        return await asyncio.wait_for(self.reader.read(), within) == b""


@contextlib.asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    """Connect to the server of a URL."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

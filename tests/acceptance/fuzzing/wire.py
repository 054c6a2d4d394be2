"""HTTP/1.1 by hand: whatever bytes a request is made of, and every way in which it may not be answered."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]
SHOWN = 2_000


@dataclass(frozen=True)
class Request:
    """One request, byte by byte."""

    operation: str
    method: str
    target: bytes
    headers: Headers = field(default_factory=list)
    body: bytes | None = None
    chunked: bool = False
    patience: float = 20.0
    """How long the client stays; it leaves long polls and streams early, which is no fault."""
    leaves_early: bool = False

    def head(self, host: str) -> bytes:
        lines = [self.method.encode() + b" " + self.target + b" HTTP/1.1"]
        names = {name.lower() for name, _ in self.headers}
        if b"host" not in names:
            lines.append(b"Host: " + host.encode())
        lines += [name + b": " + value for name, value in self.headers]
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif self.body is not None:
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def content(self) -> bytes:
        if self.body is None:
            return b""
        if not self.chunked:
            return self.body
        middle = len(self.body) // 2
        pieces = [piece for piece in (self.body[:middle], self.body[middle:]) if piece]
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    def replay(self) -> str:
        """The request in a form that can be sent again by hand."""
        body = self.body or b""
        shown = {
            "operation": self.operation,
            "method": self.method,
            "target": self.target[:SHOWN].decode("latin-1"),
            "headers": [[name.decode("latin-1"), value[:200].decode("latin-1")] for name, value in self.headers],
            "chunked": self.chunked,
            "body_bytes": len(body),
            "body_base64": base64.b64encode(body[:SHOWN]).decode(),
            "body": body[:300].decode("utf-8", "replace"),
        }
        return json.dumps(shown)


@dataclass(frozen=True)
class Answer:
    """An answer; ``whole`` is False where the client left before its end."""

    status: int
    headers: dict[bytes, bytes]
    content: bytes
    raw_head: bytes
    whole: bool = True


class Unanswered(Exception):
    """The connection ended, or the time, without an answer."""


class Connection:
    """A connection that is kept, and opened again when the engine has closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = False

    @property
    def host(self) -> str:
        return f"{self._host}:{self._port}"

    async def send(self, request: Request) -> Answer | None:
        """The answer, None if the client left early as it meant to; raises Unanswered.

        An engine may close a kept connection at any time between two requests, so an end before the first byte counts
        only on a new one.
        """
        again = self._used and self._streams is not None
        try:
            return await self._send(request)
        except Unanswered:
            if not again:
                raise
            return await self._send(request)

    async def _send(self, request: Request) -> Answer | None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**20)
            self._used = False
        reader, writer = self._streams
        try:
            async with asyncio.timeout(request.patience):
                writing = asyncio.ensure_future(self._write(writer, request))
                try:
                    answer = await self._read(reader, request)
                finally:
                    writing.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                        await writing
        except TimeoutError:
            self.close()
            if request.leaves_early:
                return None
            raise Unanswered(f"no answer within {request.patience} s") from None
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, OSError) as error:
            self.close()
            raise Unanswered(f"no whole answer: {error!r}") from None
        self._used = True
        if not answer.whole or answer.headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return answer

    async def _write(self, writer: asyncio.StreamWriter, request: Request) -> None:
        writer.write(request.head(self.host) + request.content())
        with contextlib.suppress(ConnectionError):  # the engine may refuse a body before all of it was sent
            await writer.drain()

    async def _read(self, reader: asyncio.StreamReader, request: Request) -> Answer:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")[:-2]
            status = int(first.split(b" ", 2)[1])
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
            if status >= 200:
                break
        if request.method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"", head)
        if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            return Answer(status, headers, await self._some(reader), head, whole=False)
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return Answer(status, headers, await self._chunks(reader), head)
        if b"content-length" not in headers:
            return Answer(status, headers, await reader.read(), head, whole=False)
        return Answer(status, headers, await reader.readexactly(int(headers[b"content-length"])), head)

    async def _some(self, reader: asyncio.StreamReader) -> bytes:
        """What a stream sends at once."""
        try:
            return await asyncio.wait_for(reader.read(65_536), 0.05)
        except TimeoutError:
            return b""

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        pieces = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readline()
        return b"".join(pieces)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()  # also with a body under way that the server reads no more
            self._streams = None

    async def ended(self) -> None:
        """Close, and wait until nothing is left of it."""
        if self._streams is not None:
            writer = self._streams[1]
            self.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

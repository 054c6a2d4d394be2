"""Step endpoints, status URLs, cancel URLs and subscribers that answer with anything, the dispatch itself included."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from tests.acceptance.fuzzing.jsontexts import BODY_LIMIT, NOT_JSON, Hostile, Raw, render
from tests.acceptance.fuzzing.receipts import Wallet

Reply = bytes | None
"""All bytes of an answer; None: the connection is closed without one."""


USUAL = {"async": 0.85, "cancel": 0.5, "lost": 0.4}
"""How often an endpoint simply answers 200, by what it is for."""


class Endpoints:
    """One server for everything that the engine calls.

    ``leaks`` counts the messages to subscribers and the questions to status URLs that had a receipt in them.
    """

    def __init__(self, dice: random.Random, wallet: Wallet) -> None:
        self._dice = dice
        self._wallet = wallet
        self._hostile = Hostile(dice, lambda: wallet.text(dice))
        self.calls: Counter[str] = Counter()
        self.leaks = 0
        self.url = ""
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Endpoints]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=4 * BODY_LIMIT)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                reply = self._reply(first.split(" ")[1], head, body)
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()
                if not reply.startswith(b"HTTP/1.1 200 OK\r\n"):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _reply(self, path: str, head: bytes, body: bytes) -> Reply:
        kind = path.split("/")[1]
        self.calls[kind] += 1
        if kind == "hook":
            self.leaks += bool(self._wallet.found_in(body))
            return self._usual() if path.endswith("/good") else self._odd(body)
        if kind == "status":
            self.leaks += bool(self._wallet.found_in(head + body))
            return self._status()
        metadata = json.loads(body)["metadata"]
        self._wallet.take_in(metadata)
        if kind == "echo":
            return _answer(200, body=self._echo(body, metadata))
        if self._dice.random() < USUAL.get(kind, 0.15):
            return self._usual()
        if kind == "lost":
            return self._dice.choice((None, _answer(500), _answer(408), _answer(200)))
        return self._odd(body)

    def _status(self) -> Reply:
        """What has become of an attempt, in documented words mostly, with anything for a result."""
        hostile = self._hostile
        results = ({"success": True, "outputs": hostile.members()}, {"success": False, "error": hostile.text()})
        states = (
            *({"state": state} for state in ("running", "not_found", "unknown", "unknown", hostile.text())),
            {"state": "done", "result": self._dice.choice(results)},
            {"state": "done", "result": hostile.json()},
        )
        return self._odd(b"") if self._dice.random() < 0.3 else _answer(200, body=render(self._dice.choice(states)))

    def _usual(self) -> bytes:
        return _answer(200)

    def _echo(self, body: bytes, metadata: dict[str, Any]) -> bytes:
        """A result that repeats what was sent, as debugging endpoints do."""
        word = f"echo of {metadata.get('webhook_url') or metadata['receipt_token']}"
        results = (
            {"success": True, "outputs": {"echo": Raw(body), word: 1}},
            {"success": True, "outputs": {"text": body.decode()}},
            {"success": False, "error": body.decode()},
            {"success": False, "error": word, "retriable": True, "retry_after": 0},
        )
        return render(self._dice.choice(results))

    def _odd(self, body: bytes) -> Reply:
        dice = self._dice
        text = self._hostile.text()
        clean = "".join(character for character in text if " " < character < "\x7f")[:500]
        makers = (
            lambda: _answer(200, body=render({"success": True, "outputs": self._hostile.members()})),
            lambda: _answer(200, body=render({"success": False, "error": text})),
            lambda: _answer(200, body=render({"success": False, "error": text, "retriable": True, "retry_after": 0})),
            lambda: _answer(200, body=render({"success": True, "outputs": self._hostile.deep()})),
            lambda: _answer(200, body=render(self._hostile.anything())),
            lambda: _answer(200, body=dice.choice(NOT_JSON)),
            lambda: _answer(200, body=body),
            lambda: _answer(200, body=b'{"success":true,"outputs":{"y":"' + b"y" * BODY_LIMIT + b'"}}'),
            lambda: _answer(
                dice.choice((202, 204, 301, 308, 400, 401, 404, 409, 410, 418, 422)), body=text.encode(errors="replace")
            ),
            lambda: _answer(dice.choice((408, 425, 429, 500, 502, 503)), f"Retry-After: {dice.choice(RETRY_AFTER)}"),
            lambda: _answer(307, f"Location: {clean}"),
            lambda: _answer(500, reason=clean or "x"),
            lambda: _answer(200, "Content-Encoding: gzip", body=gzip.compress(b'{"success":true}')),
            lambda: _answer(200, "Content-Encoding: gzip", body=b"not gzip"),
            lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
            lambda: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            f"HTTP/9.9 999 {clean}\r\n\r\n".encode,
            f"{clean}\r\n\r\n".encode,
            lambda: b"HTTP/1.1 200 OK\r\nX: " + b"h" * 70_000 + b"\r\n\r\n",
            lambda: None,
        )
        return dice.choice(makers)()


RETRY_AFTER = ["0", "1", "-1", "1e9", "abc", "9" * 40, "Wed, 21 Oct 2015 07:28:00 GMT", "", "0.5", "٣"]


def _answer(status: int, *headers: str, body: bytes = b"", reason: str = "") -> bytes:
    words = reason or ("OK" if status == 200 and not headers else "Odd")
    lines = [f"HTTP/1.1 {status} {words}", "Content-Type: application/json", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

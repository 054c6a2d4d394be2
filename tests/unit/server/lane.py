"""The express lane without a socket: what is received is given to it piece by piece, as a connection does it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import Verdict
from counterfoil.engine.work.complete import Completion
from counterfoil.server.completions import Headers, Resolve
from counterfoil.server.fast_path.express import ExpressParser
from counterfoil.server.fast_path.framing import RequestParser

VALID_TOKEN = "good"
PATH = f"/webhook/flow/step/{VALID_TOKEN}"
RECORDED = Completion(Verdict.ACCEPTED, WorkStatus.SUCCEEDED, 0, 0)


@dataclass(frozen=True)
class Seen:
    """A request as it was understood, and whether the lane took it."""

    method: str
    path: str
    body: bytes
    express: bool = False


MALFORMED = Seen("", "", b"")


def framing() -> RequestParser:
    """aiohttp's parser, as a connection has it."""
    loop = asyncio.get_running_loop()
    parser = HttpRequestParser(
        BaseProtocol(loop),
        loop,
        2**16,
        max_headers=128,
        payload_exception=RequestPayloadError,
        auto_decompress=False,
        max_msg_queue_size=1,
    )
    return RequestParser(parser, lambda: 0)


def seen(message: Any, payload: Any) -> Seen:
    if not hasattr(message, "method"):
        return MALFORMED
    return Seen(message.method, message.path, b"".join(getattr(payload, "_buffer", ())))


class Lane:
    """An express lane between a connection and an intake, which both only note what they are told.

    Completions that are taken stay under way until ``answer``; what is passed on is handled until ``handle``.
    """

    max_body_bytes = 100_000

    def __init__(self) -> None:
        self.parser = ExpressParser(framing(), self, self)
        self.seen: list[Seen] = []
        self.answers: list[bytes] = []
        self.headers: list[Headers] = []
        self.takes = True
        self.bodies_begun = 0
        self._resolve: Resolve | None = None
        self._waiting: deque[tuple[Any, Any]] = deque()

    def receive(self, *pieces: bytes) -> None:
        for piece in filter(None, pieces):  # a socket brings no empty ones
            rest = self.parser.offer(piece)
            if rest is not None:
                self.pass_on(rest)

    def pass_on(self, data: bytes) -> None:
        self._waiting += self.parser.feed_data(data)[0]

    def give_up(self) -> None:
        """Wait no longer for the body that is awaited."""
        self.pass_on(self.parser.let_go())
        assert not self.parser.awaits_body

    def handle(self) -> bool:
        """Handle the next request that was passed on, if it is whole."""
        if not self._waiting or not self._waiting[0][1].is_eof():
            return False
        self.seen.append(seen(*self._waiting.popleft()))
        return True

    def answer(self) -> bool:
        """End the completion that is under way."""
        resolve, self._resolve = self._resolve, None
        if resolve is None:
            return False
        resolve(RECORDED)
        return True

    def finish(self) -> list[Seen]:
        """Handle and answer everything that is there."""
        while self.handle() or self.answer():
            pass
        return self.seen

    # The intake --------------------------------------------------------------------------------------------------

    def work_id_of(self, flow_id: bytes, step_id: bytes, token: bytes) -> str | None:
        return f"{flow_id.decode()}/{step_id.decode()}" if token == VALID_TOKEN.encode() else None

    def take(self, work_id: str, headers: Headers, body: bytes, resolve: Resolve) -> bool:
        if not self.takes or body.startswith(b"!"):
            return False
        assert not self._waiting, "a request that was received before has not been handled"
        assert self._resolve is None, "a completion is under way"
        self.headers.append(headers)
        self.seen.append(Seen("POST", f"/webhook/{work_id}/{VALID_TOKEN}", body, express=True))
        self._resolve = resolve
        return True

    notes_accepted = False

    def note(
        self, answer: Completion | CounterfoilError, work_id: str, headers: Headers, body: bytes, source: str | None
    ) -> None:
        raise AssertionError("every completion of these tests is accepted")

    # The connection ----------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        return not self._waiting

    def peer(self) -> str | None:
        return "127.0.0.1"

    def begin_body(self) -> None:
        self.bodies_begun += 1

    def begin_express(self) -> None: ...

    def pause_express(self) -> None: ...

    def end_express(self, answer: bytes) -> None:
        self.answers.append(answer)
        held = self.parser.held()
        if held:
            self.receive(held)


def request(body: bytes = b"{}", *fields: str, path: str = PATH, length: int | None = None) -> tuple[bytes, bytes]:
    """Head and body of a completion, with more header fields; fields that are given replace those of the same name."""
    announced = len(body) if length is None else length
    usual = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {announced}"]
    names = {field.partition(":")[0].lower() for field in fields}
    lines = [f"POST {path} HTTP/1.1", *(each for each in usual if each.partition(":")[0].lower() not in names), *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n", body

"""Relays: a worker that cannot be reached pulls its requests through a connection that it has opened itself.

An endpoint ``relay://<name>/<path>`` is handed to the relay of that name which is connected to this node. As for HTTP,
what matters afterwards is whether the worker may have seen the request. Before it is written to the relay's stream it
was not delivered; after that its outcome is unknown until the relay replies, whatever becomes of the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from counterfoil.domain.urls import RELAY_SCHEME, relay_address
from counterfoil.domain.work.replies import NOT_ALLOWED, Reply, SendOutcome

NOT_CONNECTED = "no relay of this name is connected to this node"
LOST_BEFORE = "the relay was disconnected before the request was handed over"
LOST_AFTER = "the relay was disconnected before it replied"


@dataclass(eq=False)
class RelayedRequest:
    """One request on its way through a relay."""

    request_id: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    ends_at: float
    """By the clock of the event loop."""
    may_send: Callable[[], bool]
    replied: asyncio.Future[Reply] = field(repr=False)
    handed_over: bool = False

    def hand_over(self, now: float) -> dict[str, Any] | None:
        """The request for the relay; from now on it counts as sent. None: it must not be sent any more."""
        if self.replied.done():
            return None
        if not self.may_send():
            self.answer(Reply(SendOutcome.NOT_DELIVERED, error=NOT_ALLOWED))
            return None
        self.handed_over = True
        return {
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body.decode(),
            "timeout_ms": max(int((self.ends_at - now) * 1000), 1),
        }

    def answer(self, reply: Reply) -> None:
        if not self.replied.done():
            self.replied.set_result(reply)

    def lose(self) -> None:
        """The relay is gone."""
        if self.handed_over:
            self.answer(Reply(SendOutcome.UNKNOWN, error=LOST_AFTER))
        else:
            self.answer(Reply(SendOutcome.NOT_DELIVERED, error=LOST_BEFORE))


class RelayConnection:
    """The stream of one connected relay: requests that are to be written, and those that wait for a reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.replaced = False
        """Whether another relay of the same name has connected."""
        self.closed = False
        self._waiting: deque[RelayedRequest] = deque()
        self._open: dict[str, RelayedRequest] = {}
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """Let the stream look what is to be done."""
        self._bell.set()

    def add(self, request: RelayedRequest) -> None:
        self._open[request.request_id] = request
        self._waiting.append(request)
        self.ring()

    def forget(self, request: RelayedRequest) -> None:
        self._open.pop(request.request_id, None)

    def open_request(self, request_id: str) -> RelayedRequest | None:
        request = self._open.get(request_id)
        return request if request is not None and request.handed_over else None

    async def next(self, seconds: float) -> RelayedRequest | None:
        """The next request; None: there is none yet, or the stream is to look at its own state."""
        if not self._waiting and not self.closed and not self._bell.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._bell.wait()
            except TimeoutError:
                return None
        self._bell.clear()
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        self.closed = True
        self.ring()
        for request in list(self._open.values()):
            request.lose()
        self._open.clear()
        self._waiting.clear()


class Relays:
    """The relays that are connected to this node, one for each name: the newest."""

    def __init__(self, new_id: Callable[[], str], max_response_bytes: int) -> None:
        self._new_id = new_id
        self.max_response_bytes = max_response_bytes
        self._connections: dict[str, RelayConnection] = {}
        self._ended = False

    def connect(self, name: str) -> RelayConnection:
        """A new stream; another one of the same name is told that it was replaced."""
        connection = RelayConnection(name)
        before = self._connections.get(name)
        self._connections[name] = connection
        if before is not None:
            before.replaced = True
            before.close()
        if self._ended:
            connection.close()
        return connection

    def disconnect(self, connection: RelayConnection) -> None:
        """The stream has ended: what it had not replied to is lost."""
        if self._connections.get(connection.name) is connection:
            del self._connections[connection.name]
        connection.close()

    def end(self) -> None:
        """The engine stops: streams end by themselves."""
        self._ended = True
        for connection in list(self._connections.values()):
            connection.close()

    def reply(self, name: str, request_id: str, reply: Reply) -> bool:
        """Take the reply to a request; False: no such request waits."""
        connection = self._connections.get(name)
        request = None if connection is None else connection.open_request(request_id)
        if request is None or request.replied.done():
            return False
        request.answer(reply)
        return True

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        body: bytes,
        headers: Mapping[str, str],
        timeout_ms: int,
        may_send: Callable[[], bool],
    ) -> Reply:
        """Hand a request to its relay and wait for the reply, both within the timeout."""
        address = relay_address(url)
        if address is None:
            error = "the endpoint must be relay://NAME/PATH"
            return Reply(SendOutcome.NOT_DELIVERED, error=error, permanent=True)
        connection = self._connections.get(address.name)
        if connection is None or connection.closed:
            return Reply(SendOutcome.NOT_DELIVERED, error=NOT_CONNECTED)
        loop = asyncio.get_running_loop()
        request = RelayedRequest(
            self._new_id(),
            method,
            address.path,
            headers,
            body,
            loop.time() + timeout_ms / 1000,
            may_send,
            loop.create_future(),
        )
        connection.add(request)
        try:
            async with asyncio.timeout_at(request.ends_at):
                return await request.replied
        except TimeoutError:
            if request.handed_over:
                error = f"no complete response within {timeout_ms} ms"
                return Reply(SendOutcome.UNKNOWN, error=error, timed_out=True)
            error = f"the relay did not take the request within {timeout_ms} ms"
            return Reply(SendOutcome.NOT_DELIVERED, error=error, timed_out=True)
        finally:
            request.replied.cancel()  # a relay must not be handed a request that is not waited for
            connection.forget(request)


class OutboundHttp(Protocol):
    """The transport for endpoints that can be reached."""

    async def post(
        self, url: str, *, body: bytes, headers: Mapping[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply: ...

    async def get(
        self, url: str, *, headers: Mapping[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply: ...


class RelayingTransport:
    """Sends each request by HTTP, or through a relay if its URL says so."""

    def __init__(self, http: OutboundHttp, relays: Relays) -> None:
        self._http = http
        self._relays = relays

    def post(
        self, url: str, *, body: bytes, headers: Mapping[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Coroutine[Any, Any, Reply]:
        if url.startswith(RELAY_SCHEME):
            return self._relays.exchange(
                "POST", url, body=body, headers=headers, timeout_ms=timeout_ms, may_send=may_send
            )
        return self._http.post(url, body=body, headers=headers, timeout_ms=timeout_ms, may_send=may_send)

    def get(
        self, url: str, *, headers: Mapping[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Coroutine[Any, Any, Reply]:
        if url.startswith(RELAY_SCHEME):
            return self._relays.exchange(
                "GET", url, body=b"", headers=headers, timeout_ms=timeout_ms, may_send=may_send
            )
        return self._http.get(url, headers=headers, timeout_ms=timeout_ms, may_send=may_send)

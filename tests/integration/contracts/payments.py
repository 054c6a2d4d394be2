"""A payment system behind HTTP that counts what it pays, honours keys for a window, and fails as told."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from counterfoil.testing import MovableClock

KEY = "Idempotency-Key"


@dataclass
class Requested:
    """A request as it arrived, with what came of it."""

    key: str | None
    body: dict[str, Any]
    headers: dict[str, str]
    paid: bool


@dataclass
class Payments:
    """``window``: seconds for which a key is honoured; None: for ever, 0: never.

    ``faults`` are taken one for each request: a status, ``"cut"`` (the connection breaks before anything is paid) or
    ``"cut-after"`` (it breaks after the payment), or None: as usual.
    """

    window: float | None = None
    clock: MovableClock = field(default_factory=MovableClock)
    faults: deque[int | str | None] = field(default_factory=deque)
    requests: list[Requested] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._known: dict[str, tuple[int, dict[str, Any]]] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/refunds", self._refund)
        app.router.add_get("/paid", self._count)
        app.router.add_put("/customers/{customer_id}", self._put_customer)
        self.customers: dict[str, Any] = {}
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def paid(self) -> int:
        """How many refunds were really made."""
        return sum(request.paid for request in self.requests)

    @property
    def keys(self) -> Counter[str | None]:
        return Counter(request.key for request in self.requests)

    async def _refund(self, request: web.Request) -> web.Response:
        body, key = await request.json(), request.headers.get(KEY)
        fault = self.faults.popleft() if self.faults else None
        if isinstance(fault, int) or fault == "cut":
            self.requests.append(Requested(key, body, dict(request.headers), paid=False))
            return web.json_response({"fault": fault}, status=fault) if isinstance(fault, int) else _cut(request)
        found = self._honoured(key)
        answer = found or {"refund_id": f"re_{self.paid() + 1}", "amount_minor": body["amount_minor"]}
        self.requests.append(Requested(key, body, dict(request.headers), paid=found is None))
        if key is not None and found is None:
            self._known[key] = (self.clock(), answer)
        return _cut(request) if fault == "cut-after" else web.json_response(answer)

    def _honoured(self, key: str | None) -> dict[str, Any] | None:
        if key not in self._known:
            return None
        at, answer = self._known[key]
        return answer if self.window is None or self.clock() - at < self.window * 1000 else None

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response(self.paid())

    async def _put_customer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.customers[request.match_info["customer_id"]] = body
        self.requests.append(Requested(request.headers.get(KEY), body, dict(request.headers), paid=False))
        return web.json_response({"customer_id": request.match_info["customer_id"]})


def _cut(request: web.Request) -> web.Response:
    """Break the connection: the client does not see an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()

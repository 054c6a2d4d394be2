"""An HTTP server that answers as it is told and remembers what it was asked: the wire without an engine."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class Asked:
    """One request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """One answer; ``cut`` drops the connection instead, after the body was sent."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def error(
    status: int, code: str, message: str = "no", /, headers: dict[str, str] | None = None, **details: Any
) -> Reply:
    return Reply(status, {"error": {"code": code, "message": message, "details": details}}, headers or {})


class CannedEngine:
    """Replies to ``METHOD path`` one after the other; the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._replies: dict[str, list[Reply]] = defaultdict(list)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self.server = TestServer(app)

    async def __aenter__(self) -> Self:
        await self.server.start_server(access_log=None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def reply(self, route: str, *replies: Reply) -> None:
        self._replies[route] = list(replies)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.asked.append(Asked(request.method, request.raw_path, dict(request.query), dict(request.headers), body))
        replies = self._replies[f"{request.method} {request.path}"]
        if not replies:
            return web.json_response(
                {"error": {"code": "NOT_FOUND", "message": "nothing here", "details": {}}}, status=404
            )
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if reply.cut:
            return await self._cut(request, reply)
        if isinstance(reply.body, bytes):
            return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        if reply.body is None:
            return web.Response(status=reply.status, headers=reply.headers)
        return web.json_response(reply.body, status=reply.status, headers=reply.headers)

    async def _cut(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        if isinstance(reply.body, bytes):
            response.content_length = len(reply.body) + 1_000
            await response.prepare(request)
            await response.write(reply.body)
        if request.transport is not None:
            request.transport.close()
        return response

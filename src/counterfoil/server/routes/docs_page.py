"""``/docs`` and its assets: three files of this package; nothing is loaded from elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files

from aiohttp import web

from counterfoil.server.answers import json_response, json_text
from counterfoil.server.openapi import openapi_document
from counterfoil.server.routes import Handler, Route, SuccessAnswer
from counterfoil.version import __version__
from counterfoil.wire.operations import Pointer

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Server": "counterfoil",
}
_FILES = (
    ("/docs", "docs.html", "text/html; charset=utf-8"),
    ("/docs/docs.js", "docs.js", "text/javascript; charset=utf-8"),
    ("/docs/docs.css", "docs.css", "text/css; charset=utf-8"),
)
_WELCOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Counterfoil</title>
<h1>Counterfoil</h1><p>The engine is running. <a href="docs">Its API</a> is documented here.</p></html>
"""


def docs_routes() -> list[Route]:
    """The page, its two assets, and ``/``, which points to it."""

    async def get_root(request: web.Request) -> web.Response:
        if "text/html" in request.headers.get("Accept", ""):
            headers = {**_PAGE_HEADERS, "Content-Type": "text/html; charset=utf-8", "Vary": "Accept"}
            return web.Response(body=_WELCOME.encode(), headers=headers)
        response = json_response(
            {"name": "counterfoil", "version": __version__, "docs": "/docs", "openapi": "/openapi.json"}
        )
        response.headers["Vary"] = "Accept"
        return response

    root = Route(
        method="GET",
        path="/",
        handler=get_root,
        tag="operations",
        summary="Where to go from here",
        description="Addresses of the documentation, as JSON, or as a page for browsers.",
        answers={200: SuccessAnswer(description="the documentation's address", model=Pointer)},
        roles=None,
    )
    return [root, *(_file_route(path, name, content_type) for path, name, content_type in _FILES)]


def openapi_route(document_of: list[Route], *, with_keys: bool) -> Route:
    """``/openapi.json`` over these routes; the text is made once, by the first request for it.

    Making it takes longer than the rest of an engine's start, so it is made in a thread and not before it is wanted.
    """
    made: Handler | None = None
    making = asyncio.Lock()

    def text() -> bytes:
        return json_text(openapi_document(document_of, with_keys=with_keys))

    async def get_document(request: web.Request) -> web.StreamResponse:
        nonlocal made
        async with making:
            if made is None:
                made = _file_handler(await asyncio.to_thread(text), "application/json")
        return await made(request)

    return Route(
        method="GET",
        path="/openapi.json",
        handler=get_document,
        tag="operations",
        summary="The OpenAPI document",
        description="Every operation, its requests, answers and errors, as OpenAPI 3.1.",
        answers={200: SuccessAnswer(description="OpenAPI 3.1", media_type="application/json")},
        roles=None,
    )


def _file_route(path: str, name: str, content_type: str) -> Route:
    content = files("counterfoil.server").joinpath("static", name).read_bytes()
    return Route(
        method="GET",
        path=path,
        handler=_file_handler(content, content_type),
        tag="operations",
        summary="The documentation for people",
        description="The OpenAPI document as a page, and the files of that page.",
        answers={200: SuccessAnswer(description="a file", media_type=content_type.partition(";")[0])},
        roles=None,
    )


def _file_handler(content: bytes, content_type: str) -> Handler:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_PAGE_HEADERS, "Content-Type": content_type, "ETag": etag}

    async def get_file(request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, headers=headers)

    return get_file

"""Writes documents of the engine as JSON answers. Their shapes are declared in ``counterfoil.wire``."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web
from multidict import CIMultiDict

_HEADERS = CIMultiDict(
    {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Server": "counterfoil",
    }
)


def json_response(document: Any, status: int = 200) -> web.Response:
    """A JSON answer; the document may hold ``orjson.Fragment`` values."""
    return json_answer(json_text(document), status)


def json_answer(text: bytes, status: int = 200) -> web.Response:
    """The same for JSON text that is ready."""
    return web.Response(body=text, status=status, headers=_HEADERS)


def empty_response(status: int = 204) -> web.Response:
    """An answer without a body; 204: done."""
    headers = _HEADERS.copy()
    del headers["Content-Type"]
    return web.Response(status=status, headers=headers)


def json_text(document: Any) -> bytes:
    """JSON text of a document. Integers of more than 64 bits keep every digit, as they do on the way in.

    The second try also takes keys that are members of an enumeration; it costs more, so it is not the first.
    """
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_long_integers(document), option=orjson.OPT_NON_STR_KEYS)


def _with_long_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return orjson.Fragment(str(int(value)))
    if isinstance(value, dict):
        return {name: _with_long_integers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long_integers(item) for item in value]
    return value

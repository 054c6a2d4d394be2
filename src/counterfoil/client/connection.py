"""Sends the requests of the API client to one engine; answers become documents or exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from counterfoil.client.errors import ClientError, ConnectionFailed
from counterfoil.client.refusals import api_error, parse_retry_after
from counterfoil.domain.jsontext import JsonError, dump_json, parse_json

STREAM_SILENCE_SECONDS = 60.0


class EngineAnswer(NamedTuple):
    """An answer of the engine that is no error."""

    status: int
    document: dict[str, Any]
    headers: Mapping[str, str]


class ApiConnection:
    """Talks to one engine; an async context manager that holds its connections."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout: float = 30.0, patience: float = 60.0) -> None:
        self.base_url = _checked_url(base_url)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = timeout
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        answer = await self._exchange(method, path, body=body, query=query, content=content, headers=headers)
        return answer.document

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        extra_seconds: float = 0.0,
    ) -> EngineAnswer:
        """``content``: the body as JSON text, in place of ``body``, which has no null."""
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        sent = content if body is None else dump_json(body)
        all_headers = {**({} if sent is None else {"Content-Type": "application/json"}), **(headers or {})}
        try:
            async with self._live_session().request(
                method,
                URL(self.base_url + path, encoded=True).update_query(params),
                data=sent,
                headers=all_headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout + extra_seconds),
                allow_redirects=False,
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._no_answer(error) from None
        document = _document(raw)
        if response.status >= 300 or (document is None and raw):
            raise api_error(response.status, document, retry_after=parse_retry_after(response.headers))
        return EngineAnswer(response.status, document or {}, response.headers)

    def _open_stream(self, path: str, seen: int | None) -> Stream:
        headers = {"Accept": "text/event-stream"}
        if seen is not None:
            headers["Last-Event-ID"] = str(seen)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=STREAM_SILENCE_SECONDS)
        url = URL(self.base_url + path, encoded=True)
        return Stream(self._live_session().get(url, headers=headers, timeout=timeout, allow_redirects=False))

    def _live_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise ClientError("the client is not open: use `async with Client(...) as client:`")
        return self._session

    def _no_answer(self, error: BaseException) -> ClientError:
        if isinstance(error, ClientError):
            return error
        if isinstance(error, aiohttp.ClientConnectorError):
            return ConnectionFailed(f"no engine answers at {self.base_url}: start one with `counterfoil serve`")
        if isinstance(error, TimeoutError):
            return ConnectionFailed(f"the engine at {self.base_url} did not answer within {self._timeout:g} s")
        return ConnectionFailed(f"the connection to {self.base_url} broke ({type(error).__name__}): try again")


class Stream:
    """An open SSE answer, or the engine's error as an exception."""

    def __init__(self, request: Any) -> None:
        self._request = request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self._request.__aenter__()
        if response.status == 200:
            return response
        raw = await response.read()
        response.release()
        raise api_error(response.status, _document(raw), retry_after=parse_retry_after(response.headers))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, trace)


def _document(raw: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(raw) if raw else None
    except JsonError:
        return None
    return value if isinstance(value, dict) else None


def part(name: object) -> str:
    """An id as a part of a path."""
    if not isinstance(name, str):
        raise TypeError(f"an id must be a text, not {type(name).__name__}")
    if not name:
        raise ValueError("an id must not be empty")
    return quote(name, safe="")


def _checked_url(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClientError(f"{base_url!r} is not an engine address; use one such as http://127.0.0.1:8080")
    return base_url.rstrip("/")

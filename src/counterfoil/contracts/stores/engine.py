"""The engine as dedup store, over ``/api/v1/effects``: for processes that share nothing but an engine.

The engine's clock decides about TTLs and windows, and its sweep forgets what is past its window. Its API key needs the
role of an operator.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from counterfoil.contracts.stores.per_loop import PerLoop
from counterfoil.contracts.stores.protocol import (
    PAGE,
    DedupStoreUnavailable,
    EffectsListed,
    ReserveAnswer,
    SettledAs,
    ShownEffect,
    StoredAudit,
)
from counterfoil.domain.durations import duration_text
from counterfoil.domain.effects.reservations import (
    CompleteVerdict,
    EffectOutcome,
    EffectState,
    ReserveRequest,
    ReserveVerdict,
    SettleVerdict,
)
from counterfoil.domain.jsontext import JsonError, dump_json, parse_json
from counterfoil.domain.time import parse_rfc3339

EFFECTS = "/api/v1/effects"
TIMEOUT_SECONDS = 5.0
TRIES = 2
"""Of a request that may be repeated: a connection that was kept open may have been closed by the engine."""

_RESERVE_REFUSED = {
    "RETRY_IN_FLIGHT": ReserveVerdict.IN_FLIGHT,
    "UNSAFE_ONCE_INCOMPLETE": ReserveVerdict.INCOMPLETE,
    "EFFECT_KEY_REUSED": ReserveVerdict.KEY_REUSED,
}
_COMPLETE_REFUSED = {
    "FENCED": CompleteVerdict.FENCED,
    "CONFLICTING_RESULT": CompleteVerdict.CONFLICTING,
    "UNKNOWN_EFFECT": CompleteVerdict.UNKNOWN,
}
_SETTLE_REFUSED = {
    "RETRY_IN_FLIGHT": SettleVerdict.IN_FLIGHT,
    "CONFLICTING_RESULT": SettleVerdict.CONFLICTING,
    "UNKNOWN_EFFECT": SettleVerdict.UNKNOWN,
}


class EngineDedupStore:
    """See stores/protocol.py. Connections are opened when they are needed."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.base_url = base_url.rstrip("/")
        self._sessions = PerLoop(lambda: _EngineSession(self.base_url, key, timeout))

    def __repr__(self) -> str:
        return f"EngineDedupStore({self.base_url!r})"

    async def reserve(self, request: ReserveRequest) -> ReserveAnswer:
        body = {
            "tool": request.tool,
            "key": request.key,
            "class": request.effect_class,
            "holder": request.holder,
            "ttl_seconds": request.ttl_ms / 1000,
            "window": "forever" if request.window_ms is None else duration_text(request.window_ms),
        }
        if request.arguments_digest is not None:
            body["arguments_digest"] = request.arguments_digest
        status, document = await self._sessions.get().call("POST", EFFECTS, body, tries=TRIES)
        if status in (200, 201):
            return _reserved(status, document)
        details = _error(status, document, _RESERVE_REFUSED).get("details") or {}
        verdict = _RESERVE_REFUSED[document["error"]["code"]]
        expires_at = _milliseconds(details.get("expires_at"))
        return ReserveAnswer(verdict, int(details.get("fence") or 0), str(details.get("holder") or ""), expires_at)

    async def complete(self, tool: str, key: str, fence: int, outcome: EffectOutcome) -> CompleteVerdict:
        body: dict[str, Any] = {"fence": fence, "success": outcome.success}
        body.update({"result": outcome.result} if outcome.success else {"error": outcome.error or {}})
        path = f"{_path(tool, key)}/complete"
        status, document = await self._sessions.get().call("POST", path, body, tries=TRIES)
        if status == 200:
            return CompleteVerdict.DUPLICATE if document.get("duplicate") else CompleteVerdict.RECORDED
        _error(status, document, _COMPLETE_REFUSED)
        return _COMPLETE_REFUSED[document["error"]["code"]]

    async def settle(
        self,
        tool: str,
        key: str,
        outcome: SettledAs,
        *,
        result: Any = None,
        error: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> SettleVerdict:
        given = {"outcome": outcome, "result": result, "error": error, "note": note}
        body = {name: value for name, value in given.items() if value is not None}
        status, document = await self._sessions.get().call("POST", f"{_path(tool, key)}/settle", body)
        if status == 200:
            return SettleVerdict.SETTLED
        _error(status, document, _SETTLE_REFUSED)
        return _SETTLE_REFUSED[document["error"]["code"]]

    async def show(self, tool: str, key: str) -> ShownEffect | None:
        status, document = await self._sessions.get().call("GET", _path(tool, key), tries=TRIES)
        if status == 200:
            return _shown(document)
        _error(status, document, {"UNKNOWN_EFFECT"})
        return None

    async def list_effects(
        self,
        tool: str | None = None,
        state: EffectState | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> EffectsListed:
        query = {"tool": tool, "state": None if state is None else str(state), "cursor": cursor, "limit": str(limit)}
        status, document = await self._sessions.get().call("GET", EFFECTS, query=query, tries=TRIES)
        if status != 200:
            _error(status, document, ())
        return EffectsListed(tuple(map(_shown, document["effects"])), document["next_cursor"])

    async def forget(self, limit: int = PAGE) -> int:
        """The engine forgets by itself: there is nothing left to do here."""
        return 0

    async def aclose(self) -> None:
        await self._sessions.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _EngineSession:
    """The connections of one event loop."""

    def __init__(self, base_url: str, key: str | None, timeout: float) -> None:
        self._base_url = base_url
        self._timeout = timeout
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str | None] | None = None,
        tries: int = 1,
    ) -> tuple[int, dict[str, Any]]:
        """The status and the document of an answer; raises DedupStoreUnavailable if there is none."""
        while True:
            try:
                return await self._once(method, path, body, query)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                tries -= 1
                if tries <= 0:
                    raise self._unanswered(error) from None
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._unanswered(error) from None

    async def _once(
        self, method: str, path: str, body: Any, query: dict[str, str | None] | None
    ) -> tuple[int, dict[str, Any]]:
        params = {name: value for name, value in (query or {}).items() if value is not None}
        async with self._session.request(
            method,
            URL(self._base_url + path, encoded=True).update_query(params),
            data=None if body is None else dump_json(body),
            headers={} if body is None else {"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            allow_redirects=False,
        ) as response:
            raw = await response.read()
        try:
            document = parse_json(raw)
        except JsonError:
            document = None
        if not isinstance(document, dict):
            raise DedupStoreUnavailable(f"{self._base_url} answered {response.status} without a document")
        return response.status, document

    def _unanswered(self, error: BaseException) -> DedupStoreUnavailable:
        return DedupStoreUnavailable(f"no answer of the engine at {self._base_url} ({type(error).__name__})")

    async def aclose(self) -> None:
        await self._session.close()

    def abandon(self) -> None:
        """The loop is closed, and its transports with it."""
        self._session.detach()


def _path(tool: str, key: str) -> str:
    return "/".join([EFFECTS, *(quote(text, safe="").replace(".", "%2E") for text in (tool, key))])


def _error(status: int, document: dict[str, Any], expected: Any) -> dict[str, Any]:
    """The error of an answer, if its code is expected; any other one means that the store cannot be used."""
    error = document.get("error")
    if not isinstance(error, dict) or error.get("code") not in expected:
        code = error.get("code") if isinstance(error, dict) else None
        raise DedupStoreUnavailable(f"the engine answered {status} {code or ''}".rstrip())
    return error


def _reserved(status: int, document: dict[str, Any]) -> ReserveAnswer:
    state = EffectState(document["state"])
    if state is EffectState.PENDING:
        verdict = ReserveVerdict.GRANTED if status == 201 else ReserveVerdict.RENEWED
        expires_at = _milliseconds(document.get("expires_at"))
        return ReserveAnswer(verdict, document["fence"], document["holder"], expires_at)
    outcome = EffectOutcome(state is EffectState.SUCCEEDED, document.get("result"), document.get("error"))
    recorded_at = _milliseconds(document.get("recorded_at"))
    return ReserveAnswer(
        ReserveVerdict.RECORDED, document["fence"], document["holder"], recorded_at, outcome, recorded_at
    )


def _shown(document: dict[str, Any]) -> ShownEffect:
    recorded_at = document.get("recorded_at")
    return ShownEffect(
        tool=document["tool"],
        key=document["key"],
        effect_class=document["class"],
        state=EffectState(document["state"]),
        fence=document["fence"],
        holder=document["holder"],
        expires_at=_milliseconds(document.get("expires_at")),
        result=document.get("result"),
        error=document.get("error"),
        recorded_at=None if recorded_at is None else parse_rfc3339(recorded_at),
        arguments_digest=document.get("arguments_digest"),
        audit=tuple(
            StoredAudit(parse_rfc3339(entry["at"]), entry["type"], entry["holder"], entry.get("note"))
            for entry in document.get("audit") or ()
        ),
    )


def _milliseconds(time: object) -> int:
    """0: the answer does not say."""
    return parse_rfc3339(time) if isinstance(time, str) else 0

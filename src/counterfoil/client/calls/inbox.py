"""Calls about callbacks and relays, and the completion of work by an operator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, NamedTuple, cast

import aiohttp

from counterfoil.client.arguments import Moment, mapping, time_text
from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import (
    Callback,
    CallbackDetail,
    CallbackPage,
    CallbackReplayed,
    DeliveredPayload,
    ReportTaken,
)
from counterfoil.client.sse import SseLines
from counterfoil.domain.jsontext import parse_json


class RelayEvent(NamedTuple):
    """An event of a relay's stream: ``hello``, ``request`` or ``replaced``, and its document."""

    kind: str
    document: dict[str, Any]


class InboxCalls(ApiConnection):
    """The callback inbox, completion without the receipt, and relays."""

    async def callbacks(
        self,
        *,
        flow: str | None = None,
        step: str | None = None,
        work: str | None = None,
        kind: Literal["completion", "heartbeat", "hook"] | None = None,
        verdict: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> CallbackPage:
        """One page of callbacks, newest first. A page may be empty though ``next_cursor`` goes on."""
        wanted: dict[str, str | int | None] = {
            "flow": flow,
            "step": step,
            "work": work,
            "kind": kind,
            "verdict": verdict,
            "cursor": cursor,
            "limit": limit,
        }
        for name, moment in (("since", since), ("until", until)):
            if moment is not None:
                wanted[name] = time_text(name, moment)
        return cast(CallbackPage, await self._call("GET", "/api/v1/callbacks", query=wanted))

    async def every_callback(self, **filters: Any) -> AsyncGenerator[Callback, None]:
        """All callbacks that match, newest first, page by page; ``filters`` as in ``callbacks``."""
        cursor = filters.pop("cursor", None)
        while True:
            page = await self.callbacks(**filters, cursor=cursor)
            for callback in page["callbacks"]:
                yield callback
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def callback(self, callback_id: str) -> CallbackDetail:
        """One callback, with its body if it is kept."""
        return cast(CallbackDetail, await self._call("GET", f"/api/v1/callbacks/{part(callback_id)}"))

    async def replay_callback(self, callback_id: str) -> CallbackReplayed:
        """Decide about a callback again; ``CallbackNotReplayable`` if its body is not kept."""
        return cast(CallbackReplayed, await self._call("POST", f"/api/v1/callbacks/{part(callback_id)}/replay"))

    async def complete_work(self, work_id: str, result: Mapping[str, Any]) -> ReportTaken:
        """Report the result of a work item as an operator, without its receipt."""
        path = f"/api/v1/work/{part(work_id)}/complete"
        return cast(ReportTaken, await self._call("POST", path, body=mapping("result", result)))

    async def deliver_to_work(self, work_id: str, payload: Any) -> DeliveredPayload:
        """Deliver a payload to the hook of a work item as an operator, without its token."""
        return cast(DeliveredPayload, await self._call("POST", f"/api/v1/work/{part(work_id)}/payload", body=payload))

    # -- relays --------------------------------------------------------------------------------

    async def relay_events(self, name: str) -> AsyncGenerator[RelayEvent, None]:
        """Be the relay of this name: its stream, until it ends or breaks (``ConnectionFailed``)."""
        lines = SseLines()
        try:
            async with self._open_stream(f"/api/v1/relays/{part(name)}", None) as response:
                async for chunk in response.content.iter_any():
                    for kind, data in lines.feed_named(chunk):
                        yield RelayEvent(kind, cast("dict[str, Any]", parse_json(data)))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._no_answer(error) from None

    async def relay_reply(self, name: str, request_id: str, reply: Mapping[str, Any]) -> None:
        """Reply to a request; ``UnknownRelayRequest`` if it does not wait any longer."""
        path = f"/api/v1/relays/{part(name)}/replies/{part(request_id)}"
        await self._call("POST", path, body=mapping("reply", reply))

"""Calls for hooks: payloads for flows that wait, and what they wait for."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import DeliveredPayload, Hook, HookPage
from counterfoil.domain.jsontext import dump_json


class HookCalls(ApiConnection):
    """Hooks by their tokens."""

    async def deliver(self, token: str, payload: Any, *, delivery_id: str | None = None) -> DeliveredPayload:
        """Deliver a payload, any JSON value; returns once it is durable. ``HookNotFound`` if no hook waits.

        ``delivery_id`` makes it idempotent: the same one again is answered as a duplicate, and recorded once.
        """
        headers = {} if delivery_id is None else {"webhook-id": delivery_id}
        answer = await self._call("POST", _hook(token), content=dump_json(payload), headers=headers)
        return cast(DeliveredPayload, answer)

    async def hook(self, token: str) -> Hook:
        """What the hook with this token waits for; ``HookNotFound`` if no hook takes a payload with it."""
        return cast(Hook, await self._call("GET", _hook(token)))

    async def hooks(self, *, step: str | None = None, cursor: str | None = None, limit: int | None = None) -> HookPage:
        """One page of the hooks that wait, the longest waiting first."""
        wanted = {"step": step, "cursor": cursor, "limit": limit}
        return cast(HookPage, await self._call("GET", "/api/v1/hooks", query=wanted))


def _hook(token: str) -> str:
    return f"/api/v1/hooks/{part(token)}"

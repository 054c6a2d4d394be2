"""Calls for tools that run an effect themselves: reserve it, run it, record its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from counterfoil.client.arguments import mapping
from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import CompletedEffect, Effect, EffectPage, ReservedEffect, SettledEffect

EFFECTS = "/api/v1/effects"


class EffectCalls(ApiConnection):
    """The effects API: the dedup store of the engine."""

    async def reserve_effect(
        self,
        tool: str,
        key: str,
        *,
        effect_class: Literal["write-idempotent", "write-non-idempotent", "irreversible"],
        holder: str,
        ttl_seconds: float | None = None,
        window: str | None = None,
        arguments_digest: str | None = None,
    ) -> ReservedEffect:
        """Reserve an effect. ``state`` of the answer: ``pending``: go ahead; otherwise its recorded outcome.

        ``EffectInFlight``: another holder has the reservation. ``EffectIncomplete``: an irreversible effect whose
        reservation has lapsed must be settled first. ``EffectKeyReused``: the key was used for another call.
        """
        given = {"ttl_seconds": ttl_seconds, "window": window, "arguments_digest": arguments_digest}
        body: dict[str, Any] = {"tool": tool, "key": key, "class": effect_class, "holder": holder}
        body.update({name: value for name, value in given.items() if value is not None})
        return cast(ReservedEffect, await self._call("POST", EFFECTS, body=body))

    async def complete_effect(self, tool: str, key: str, fence: int, result: Any = None) -> CompletedEffect:
        """Record that an effect succeeded; the same again is a ``duplicate``.

        ``EffectFenced``: another caller has reserved the key since. ``ConflictingResult``: another outcome is recorded.
        """
        body = {"fence": fence, "success": True, "result": result}
        return cast(CompletedEffect, await self._call("POST", f"{_effect(tool, key)}/complete", body=body))

    async def fail_effect(self, tool: str, key: str, fence: int, error: Mapping[str, Any]) -> CompletedEffect:
        """Record that an effect failed for good: later callers are given the error, and do not run it."""
        body = {"fence": fence, "success": False, "error": mapping("error", error)}
        return cast(CompletedEffect, await self._call("POST", f"{_effect(tool, key)}/complete", body=body))

    async def settle_effect(
        self,
        tool: str,
        key: str,
        outcome: Literal["applied", "not_applied", "failed"],
        *,
        result: Any = None,
        error: Mapping[str, Any] | None = None,
        note: str | None = None,
    ) -> SettledEffect:
        """Settle a reservation that has lapsed.

        ``applied``: it is complete, with ``result``. ``failed``: it is complete, with ``error``. ``not_applied``: the
        key may be reserved again.
        """
        why = None if error is None else mapping("error", error)
        given = {"result": result, "error": why, "note": note}
        body = {"outcome": outcome, **{name: value for name, value in given.items() if value is not None}}
        return cast(SettledEffect, await self._call("POST", f"{_effect(tool, key)}/settle", body=body))

    async def effect(self, tool: str, key: str) -> Effect:
        """One effect with its audit; ``UnknownEffect`` if none is recorded, or its window has passed."""
        return cast(Effect, await self._call("GET", _effect(tool, key)))

    async def effects(
        self,
        *,
        tool: str | None = None,
        state: Literal["pending", "complete-success", "complete-failed"] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> EffectPage:
        """One page of effects, by tool and key."""
        query = {"tool": tool, "state": state, "cursor": cursor, "limit": limit}
        return cast(EffectPage, await self._call("GET", EFFECTS, query=query))


def _effect(tool: str, key: str) -> str:
    """The path of an effect. Dots are encoded as well: a proxy must not take a key for a step up in the path."""
    return f"{EFFECTS}/{_segment(tool)}/{_segment(key)}"


def _segment(text: str) -> str:
    return part(text).replace(".", "%2E")

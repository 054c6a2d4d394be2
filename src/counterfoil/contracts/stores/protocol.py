"""What a dedup store is: reservations, outcomes and their audit trail, each change durable before it is answered.

Every store decides by the functions of ``domain/effects/reservations.py``, inside the transaction that writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from counterfoil.domain.effects.reservations import (
    CompleteVerdict,
    EffectClass,
    EffectEntry,
    EffectOutcome,
    EffectState,
    ReserveRequest,
    ReserveVerdict,
    SettleVerdict,
)

SettledAs = Literal["applied", "not_applied", "failed"]
PAGE = 100


class DedupStoreUnavailable(Exception):
    """The store did not answer. A reservation may be left pending; it lapses with its TTL."""


@dataclass(frozen=True, slots=True)
class ReserveAnswer:
    """``fence`` and ``holder`` are those of the entry: of another holder, if the verdict is ``in_flight``."""

    verdict: ReserveVerdict
    fence: int
    holder: str
    expires_at: int
    outcome: EffectOutcome | None = None
    recorded_at: int | None = None


@dataclass(frozen=True, slots=True)
class StoredAudit:
    at: int
    type: str
    holder: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ShownEffect:
    """An effect as ``show`` and ``list_effects`` return it; the list has no audit trails."""

    tool: str
    key: str
    effect_class: EffectClass
    state: EffectState
    fence: int
    holder: str
    expires_at: int
    result: Any = None
    error: dict[str, Any] | None = None
    recorded_at: int | None = None
    arguments_digest: str | None = None
    audit: tuple[StoredAudit, ...] = field(default=())

    @classmethod
    def of(cls, entry: EffectEntry, audit: tuple[StoredAudit, ...] = ()) -> ShownEffect:
        outcome = entry.outcome
        return cls(
            tool=entry.tool,
            key=entry.key,
            effect_class=entry.effect_class,
            state=entry.state,
            fence=entry.fence,
            holder=entry.holder,
            expires_at=entry.expires_at,
            result=outcome.result if outcome else None,
            error=outcome.error if outcome else None,
            recorded_at=entry.recorded_at,
            arguments_digest=entry.arguments_digest,
            audit=audit,
        )


@dataclass(frozen=True, slots=True)
class EffectsListed:
    effects: tuple[ShownEffect, ...]
    next_cursor: str | None = None


class DedupStore(Protocol):
    """Times are milliseconds by the clock of the store. Every method may raise DedupStoreUnavailable."""

    async def reserve(self, request: ReserveRequest) -> ReserveAnswer:
        """Look the key up and reserve it, as one atomic statement."""
        ...

    async def complete(self, tool: str, key: str, fence: int, outcome: EffectOutcome) -> CompleteVerdict:
        """Record the outcome of the holder with this fence; the same outcome again changes nothing."""
        ...

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
        """A person says how a pending effect ended, after its TTL. ``not_applied`` frees the key."""
        ...

    async def show(self, tool: str, key: str) -> ShownEffect | None:
        """An effect and its audit trail; None: unknown, free, or past its window."""
        ...

    async def list_effects(
        self,
        tool: str | None = None,
        state: EffectState | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> EffectsListed: ...

    async def forget(self, limit: int = PAGE) -> int:
        """Delete up to ``limit`` entries past their window; stores also do so by themselves, a few at a time."""
        ...

    async def aclose(self) -> None: ...


def outcome_of(settled: SettledAs, result: Any, error: dict[str, Any] | None) -> EffectOutcome | None:
    """What ``settle`` records; None: nothing, the key is freed."""
    if settled == "not_applied":
        return None
    if settled == "applied":
        return EffectOutcome(success=True, result=result)
    if settled == "failed":
        return EffectOutcome(success=False, error=error or {"code": "FAILED", "hint": "settled as failed"})
    raise ValueError("outcome must be applied, not_applied or failed")

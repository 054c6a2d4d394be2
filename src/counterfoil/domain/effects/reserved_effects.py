"""The engine's record of one key of one tool, and how a request of the effects API changes it.

``reservations`` decides; what is added here is what the engine keeps beside an entry: its audit, how often its outcome
was given to a caller, and the fence floor. Every function is pure: the record as it is, the request and the time give
the record as it will be, or an error.

The fences of a key never go back, also not after its record was forgotten: a caller that was away for longer than the
window cannot complete the reservation of another one. A record that is forgotten raises the *fence floor* of its
bucket, and the first reservation of a key without a record has the number after that floor
(docs/decisions/0047-fences.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from counterfoil.domain.canonical import digest
from counterfoil.domain.effects.effect_requests import DEFAULT_WINDOW, CompleteEffect, ReserveEffect, SettleEffect
from counterfoil.domain.effects.policies import window_ms
from counterfoil.domain.effects.reservations import (
    AuditType,
    CompleteVerdict,
    EffectClass,
    EffectEntry,
    EffectOutcome,
    EffectState,
    ReserveRequest,
    ReserveVerdict,
    SettleVerdict,
    complete,
    reserve,
    settle,
)
from counterfoil.domain.errors import (
    ConflictingEffect,
    EffectFenced,
    EffectIncomplete,
    EffectInFlight,
    EffectKeyReused,
    UnknownEffect,
)
from counterfoil.domain.time import optional_rfc3339, rfc3339

FIRST_ENTRIES = 8
LAST_ENTRIES = 24
"""Of a longer audit, so many entries are kept of its beginning and of its end."""
BUCKET_DIGITS = 4
"""Forgotten keys share a fence floor by the first digits of their ids: there are at most 65,536 floors."""
SETTLED_AS_FAILED: dict[str, Any] = {"code": "SETTLED_AS_FAILED", "message": "settled as failed by an operator"}
"""The error of a settlement that gives none."""


@dataclass(frozen=True, slots=True)
class ReservedEffect:
    """What the engine keeps of one key of one tool."""

    effect_id: str
    tool: str
    effect_key: str
    effect_class: EffectClass
    state: EffectState
    fence: int
    holder: str
    reserved_at: int
    window_ms: int | None
    """How long the outcome is kept; None: forever."""
    arguments_digest: str | None = None
    expires_at: int | None = None
    """While it is pending: when it lapses."""
    outcome: dict[str, Any] | None = None
    """When it is complete: ``result`` or ``error``."""
    recorded_at: int | None = None
    forget_at: int | None = None
    """When it is forgotten; None: not while it is pending, or never (``forever``)."""
    hits: int = 0
    """How often the outcome was given to a caller that asked for the same effect."""
    audited: int = 0
    """How many entries the audit has had."""
    audit: list[dict[str, Any]] | None = None
    """The entries that are kept, see ``FIRST_ENTRIES``."""

    def entry(self) -> EffectEntry:
        """What decisions look at."""
        return EffectEntry(
            tool=self.tool,
            key=self.effect_key,
            effect_class=self.effect_class,
            state=self.state,
            fence=self.fence,
            holder=self.holder,
            expires_at=self.expires_at or 0,
            window_ms=self.window_ms,
            arguments_digest=self.arguments_digest,
            outcome=_outcome(self.outcome),
            recorded_at=self.recorded_at,
            forget_at=self.forget_at,
        )

    def is_known(self, now: int) -> bool:
        """Whether readers see it: its key was not freed, and it is not past its window."""
        return self.state is not EffectState.FREE and not self.is_forgettable(now)

    def is_forgettable(self, now: int) -> bool:
        """Whether it is past its window. A pending record never is: it has none yet."""
        return self.forget_at is not None and self.forget_at <= now

    def has_lapsed(self, now: int) -> bool:
        """Whether it is pending, and its time to live is over."""
        return self.state is EffectState.PENDING and (self.expires_at or 0) <= now


def effect_id(tool: str, key: str) -> str:
    """The id of the record of a key: two tools never share a key."""
    return digest([tool, key])


def bucket_of(effect: str) -> str:
    """The fence floor that a key shares with others, by the id of its record."""
    return effect[:BUCKET_DIGITS]


def reserve_effect(
    found: ReservedEffect | None, floor: int, request: ReserveEffect, now: int
) -> tuple[ReservedEffect, ReserveVerdict]:
    """Reserve a key: granted, renewed or recorded. ``floor`` is the fence floor of its bucket."""
    entry = None if found is None else found.entry()
    decided = reserve(entry, _asked(request), now, 0 if found is not None else floor)
    verdict, holder = decided.verdict, request.holder
    if found is not None:
        _refuse(found, verdict)
    if verdict is ReserveVerdict.GRANTED:
        kept = found if found is not None and not found.is_forgettable(now) else None
        record = _with_entry(kept, decided.entry, reserved_at=now)
        return _audited(record, AuditType.RESERVED, holder, now), verdict
    assert found is not None, "only a grant needs no record"
    record = _with_entry(found, decided.entry)
    if verdict is ReserveVerdict.RECORDED:
        record = _audited(replace(record, hits=record.hits + 1), AuditType.DEDUP_HIT, holder, now)
    return record, verdict


def complete_effect(found: ReservedEffect | None, request: CompleteEffect, now: int) -> tuple[ReservedEffect, bool]:
    """Record the outcome of an effect; whether it was recorded already."""
    outcome = EffectOutcome(request.success, request.result, request.error)
    decided = complete(None if found is None else found.entry(), request.fence, outcome, now)
    if found is None or decided.verdict is CompleteVerdict.UNKNOWN or decided.entry is None:
        raise UnknownEffect(retriable=False)
    if decided.verdict is CompleteVerdict.FENCED:
        raise EffectFenced(retriable=False, fence=found.fence)
    if decided.verdict is CompleteVerdict.CONFLICTING:
        raise _conflicting(found)
    if decided.verdict is CompleteVerdict.DUPLICATE:
        return found, True
    return _audited(_with_entry(found, decided.entry), AuditType.COMPLETED, found.holder, now), False


def settle_effect(found: ReservedEffect | None, request: SettleEffect, by: str, now: int) -> ReservedEffect:
    """Settle a reservation that has lapsed: an operator has found out what became of the effect."""
    decided = settle(None if found is None else found.entry(), _settled(request), now)
    if found is None or decided.verdict is SettleVerdict.UNKNOWN or decided.entry is None:
        raise UnknownEffect(retriable=False)
    if decided.verdict is SettleVerdict.CONFLICTING:
        raise _conflicting(found)
    if decided.verdict is SettleVerdict.IN_FLIGHT:
        raise _in_flight(found, "the reservation has not lapsed: its holder may still complete it")
    record = replace(_with_entry(found, decided.entry), recorded_at=now)
    more = {"outcome": request.outcome, "by": by, "note": request.note}
    return _audited(record, AuditType.SETTLED, found.holder, now, **more)


def _asked(request: ReserveEffect) -> ReserveRequest:
    return ReserveRequest(
        tool=request.tool,
        key=request.key,
        effect_class=request.effect_class,
        holder=request.holder,
        ttl_ms=request.ttl_ms,
        window_ms=window_ms(request.window or DEFAULT_WINDOW[request.effect_class]),
        arguments_digest=request.arguments_digest,
    )


def _refuse(found: ReservedEffect, verdict: ReserveVerdict) -> None:
    """The errors of a reservation that is not granted."""
    if verdict is ReserveVerdict.KEY_REUSED:
        raise EffectKeyReused(retriable=False)
    if verdict is ReserveVerdict.IN_FLIGHT:
        raise _in_flight(found)
    if verdict is ReserveVerdict.INCOMPLETE:
        raise EffectIncomplete(
            retriable=False,
            holder=found.holder,
            fence=found.fence,
            reserved_at=rfc3339(found.reserved_at),
            expires_at=optional_rfc3339(found.expires_at),
        )


def _in_flight(found: ReservedEffect, message: str = "") -> EffectInFlight:
    expires_at = optional_rfc3339(found.expires_at)
    return EffectInFlight(message, retriable=True, expires_at=expires_at, holder=found.holder)


def _conflicting(found: ReservedEffect) -> ConflictingEffect:
    recorded_at = optional_rfc3339(found.recorded_at)
    return ConflictingEffect(retriable=False, state=found.state.value, recorded_at=recorded_at, fence=found.fence)


def _settled(request: SettleEffect) -> EffectOutcome | None:
    if request.outcome == "applied":
        return EffectOutcome(success=True, result=request.result)
    if request.outcome == "failed":
        return EffectOutcome(success=False, error=request.error or SETTLED_AS_FAILED)
    return None


def _outcome(stored: dict[str, Any] | None) -> EffectOutcome | None:
    if stored is None:
        return None
    return EffectOutcome("error" not in stored, stored.get("result"), stored.get("error"))


def _stored(outcome: EffectOutcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {"result": outcome.result} if outcome.success else {"error": outcome.error}


def _with_entry(record: ReservedEffect | None, entry: EffectEntry, reserved_at: int | None = None) -> ReservedEffect:
    """The record with what was decided; what the engine keeps beside it stays.

    The engine never forgets a pending record, of whichever class: an operator may still be looking for the outcome.
    """
    pending = entry.state is EffectState.PENDING
    return ReservedEffect(
        effect_id=effect_id(entry.tool, entry.key) if record is None else record.effect_id,
        tool=entry.tool,
        effect_key=entry.key,
        effect_class=entry.effect_class,
        state=entry.state,
        fence=entry.fence,
        holder=entry.holder,
        reserved_at=reserved_at if reserved_at is not None else 0 if record is None else record.reserved_at,
        window_ms=entry.window_ms,
        arguments_digest=entry.arguments_digest,
        expires_at=entry.expires_at if pending else None,
        outcome=_stored(entry.outcome),
        recorded_at=entry.recorded_at,
        forget_at=None if pending else entry.forget_at,
        hits=0 if record is None or pending else record.hits,
        audited=0 if record is None else record.audited,
        audit=None if record is None else record.audit,
    )


def _audited(record: ReservedEffect, kind: AuditType, holder: str, now: int, **more: Any) -> ReservedEffect:
    """With one more entry in the audit, of which the middle is left out when it is long."""
    audit = [*(record.audit or ()), {"at": now, "type": kind.value, "holder": holder, **more}]
    if len(audit) > FIRST_ENTRIES + LAST_ENTRIES:
        audit = [*audit[:FIRST_ENTRIES], *audit[-LAST_ENTRIES:]]
    return replace(record, audit=audit, audited=record.audited + 1)

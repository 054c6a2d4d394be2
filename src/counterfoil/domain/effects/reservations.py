"""Reservations of effects: absent, pending (TTL, fence), complete-success or complete-failed, then forgotten.

For tools that call a side effect themselves. A store loads the entry of a (tool, key), asks one of the three functions
here, and writes the entry that it returns in the same transaction: no store decides anything itself.

| entry | reserve |
| --- | --- |
| absent, free, or past its window | granted: pending, fence + 1 |
| complete | recorded: the outcome is replayed |
| pending, TTL runs, same holder | renewed: same fence, new TTL |
| pending, TTL runs, another holder | in flight |
| pending, TTL over | granted with fence + 1; of the class ``irreversible``: incomplete, until it is settled |
| pending or complete, with another digest or class | key reused |

A fence never goes back: an entry that was settled as not applied stays, as ``free``, with its fence; a store that
deletes entries after their window passes the highest fence that it has deleted as ``floor``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from counterfoil.domain.canonical import same_json

EffectClass = Literal["write-idempotent", "write-non-idempotent", "irreversible"]
IRREVERSIBLE: EffectClass = "irreversible"

LONGEST_KEY = 255
SHORTEST_TTL_MS = 1_000


class EffectState(StrEnum):
    FREE = "free"
    PENDING = "pending"
    SUCCEEDED = "complete-success"
    FAILED = "complete-failed"


COMPLETE = frozenset({EffectState.SUCCEEDED, EffectState.FAILED})


class AuditType(StrEnum):
    RESERVED = "effect_reserved"
    DEDUP_HIT = "dedup_hit"
    COMPLETED = "effect_completed"
    SETTLED = "effect_settled"


@dataclass(frozen=True, slots=True)
class ReserveRequest:
    """A holder asks for a key; ``window_ms`` None: forever; ``arguments_digest`` None: not compared."""

    tool: str
    key: str
    effect_class: EffectClass
    holder: str
    ttl_ms: int
    window_ms: int | None
    arguments_digest: str | None = None


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """How an effect ended: ``result`` of a success, ``error`` of a failure; both are JSON values."""

    success: bool
    result: Any = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EffectEntry:
    """What a store keeps of one (tool, key). ``forget_at``: from then on it counts as absent; None: never."""

    tool: str
    key: str
    effect_class: EffectClass
    state: EffectState
    fence: int
    holder: str
    expires_at: int
    window_ms: int | None
    arguments_digest: str | None = None
    outcome: EffectOutcome | None = None
    recorded_at: int | None = None
    forget_at: int | None = None

    def is_known(self, now: int) -> bool:
        """Whether readers see it: not free, and not past its window."""
        return self.state is not EffectState.FREE and (self.forget_at is None or now < self.forget_at)


class ReserveVerdict(StrEnum):
    GRANTED = "granted"
    RENEWED = "renewed"
    RECORDED = "recorded"
    IN_FLIGHT = "in_flight"
    INCOMPLETE = "incomplete"
    KEY_REUSED = "key_reused"


class CompleteVerdict(StrEnum):
    RECORDED = "recorded"
    DUPLICATE = "duplicate"
    CONFLICTING = "conflicting"
    FENCED = "fenced"
    UNKNOWN = "unknown"


class SettleVerdict(StrEnum):
    SETTLED = "settled"
    IN_FLIGHT = "in_flight"
    CONFLICTING = "conflicting"
    UNKNOWN = "unknown"


class ReserveDecision(NamedTuple):
    """``entry`` is what the store has afterwards; ``audit`` None: nothing is written."""

    verdict: ReserveVerdict
    entry: EffectEntry
    audit: AuditType | None


class CompleteDecision(NamedTuple):
    verdict: CompleteVerdict
    entry: EffectEntry | None
    audit: AuditType | None


class SettleDecision(NamedTuple):
    verdict: SettleVerdict
    entry: EffectEntry | None
    audit: AuditType | None


def reserve(entry: EffectEntry | None, request: ReserveRequest, now: int, floor: int = 0) -> ReserveDecision:
    """Decide a reservation; ``floor`` is a fence that no new entry may repeat."""
    if entry is None or not entry.is_known(now):
        return _granted(request, max(floor, entry.fence if entry else 0), now)
    if _is_reused(entry, request):
        return ReserveDecision(ReserveVerdict.KEY_REUSED, entry, None)
    if entry.state in COMPLETE:
        return ReserveDecision(ReserveVerdict.RECORDED, entry, AuditType.DEDUP_HIT)
    if now < entry.expires_at:
        if entry.holder != request.holder:
            return ReserveDecision(ReserveVerdict.IN_FLIGHT, entry, None)
        expires_at = now + request.ttl_ms
        renewed = replace(entry, expires_at=expires_at, forget_at=_pending_until(request, expires_at))
        return ReserveDecision(ReserveVerdict.RENEWED, renewed, None)
    if entry.effect_class == IRREVERSIBLE:
        return ReserveDecision(ReserveVerdict.INCOMPLETE, entry, None)
    return _granted(request, entry.fence, now)


def complete(entry: EffectEntry | None, fence: int, outcome: EffectOutcome, now: int) -> CompleteDecision:
    """Decide a completion. It is accepted after the TTL, as long as no later fence was given."""
    if entry is None or (entry.state is not EffectState.FREE and not entry.is_known(now)):
        return CompleteDecision(CompleteVerdict.UNKNOWN, None, None)
    if fence != entry.fence or entry.state is EffectState.FREE:
        return CompleteDecision(CompleteVerdict.FENCED, entry, None)
    if entry.state in COMPLETE:
        same = entry.outcome is not None and _is_same(entry.outcome, outcome)
        return CompleteDecision(CompleteVerdict.DUPLICATE if same else CompleteVerdict.CONFLICTING, entry, None)
    return CompleteDecision(CompleteVerdict.RECORDED, _completed(entry, outcome, now), AuditType.COMPLETED)


def settle(entry: EffectEntry | None, outcome: EffectOutcome | None, now: int) -> SettleDecision:
    """A person says how a pending effect ended, after its TTL; ``outcome`` None: not applied, which frees the key."""
    if entry is None or not entry.is_known(now):
        return SettleDecision(SettleVerdict.UNKNOWN, None, None)
    if entry.state in COMPLETE:
        return SettleDecision(SettleVerdict.CONFLICTING, entry, None)
    if now < entry.expires_at:
        return SettleDecision(SettleVerdict.IN_FLIGHT, entry, None)
    if outcome is None:
        settled = replace(entry, state=EffectState.FREE, forget_at=_window_end(entry.window_ms, now))
    else:
        settled = _completed(entry, outcome, now)
    return SettleDecision(SettleVerdict.SETTLED, settled, AuditType.SETTLED)


def _granted(request: ReserveRequest, last_fence: int, now: int) -> ReserveDecision:
    expires_at = now + request.ttl_ms
    entry = EffectEntry(
        tool=request.tool,
        key=request.key,
        effect_class=request.effect_class,
        state=EffectState.PENDING,
        fence=last_fence + 1,
        holder=request.holder,
        expires_at=expires_at,
        window_ms=request.window_ms,
        arguments_digest=request.arguments_digest,
        forget_at=_pending_until(request, expires_at),
    )
    return ReserveDecision(ReserveVerdict.GRANTED, entry, AuditType.RESERVED)


def _pending_until(request: ReserveRequest, expires_at: int) -> int | None:
    """An irreversible effect of unknown outcome is never forgotten: only a settlement ends it."""
    return None if request.effect_class == IRREVERSIBLE else _window_end(request.window_ms, expires_at)


def _window_end(window_ms: int | None, begin: int) -> int | None:
    return None if window_ms is None else begin + window_ms


def _completed(entry: EffectEntry, outcome: EffectOutcome, now: int) -> EffectEntry:
    return replace(
        entry,
        state=EffectState.SUCCEEDED if outcome.success else EffectState.FAILED,
        outcome=outcome,
        recorded_at=now,
        forget_at=_window_end(entry.window_ms, now),
    )


def _is_reused(entry: EffectEntry, request: ReserveRequest) -> bool:
    digests = (entry.arguments_digest, request.arguments_digest)
    return entry.effect_class != request.effect_class or (None not in digests and digests[0] != digests[1])


def _is_same(left: EffectOutcome, right: EffectOutcome) -> bool:
    if left.success != right.success:
        return False
    return same_json(left.result, right.result) if left.success else same_json(left.error, right.error)

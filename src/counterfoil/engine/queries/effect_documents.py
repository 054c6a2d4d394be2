"""Builds the documents of the effects API from records and rows."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.domain.effects.reservations import EffectState
from counterfoil.domain.effects.reserved_effects import ReservedEffect
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.wire.effects import (
    AuditEntry,
    EffectCompleted,
    EffectDetail,
    EffectReserved,
    EffectSettled,
    EffectSummary,
)


def reserved_effect(record: ReservedEffect) -> EffectReserved:
    """The answer to a caller that asked for a reservation: its reservation, or the recorded outcome."""
    answer: EffectReserved = {
        "tool": record.tool,
        "key": record.effect_key,
        "state": record.state.value,
        "fence": record.fence,
        "holder": record.holder,
    }
    if record.state is EffectState.PENDING:
        answer["expires_at"] = rfc3339(record.expires_at or 0)
    else:
        answer["recorded_at"] = rfc3339(record.recorded_at or 0)
        _add_outcome(answer, record.outcome)
    return answer


def completed_effect(record: ReservedEffect, *, duplicate: bool) -> EffectCompleted:
    return {
        "tool": record.tool,
        "key": record.effect_key,
        "state": record.state.value,
        "fence": record.fence,
        "recorded_at": rfc3339(record.recorded_at or 0),
        "duplicate": duplicate,
    }


def settled_effect(record: ReservedEffect) -> EffectSettled:
    return {
        "tool": record.tool,
        "key": record.effect_key,
        "state": record.state.value,
        "fence": record.fence,
        "recorded_at": rfc3339(record.recorded_at or 0),
    }


def effect_summary(record: ReservedEffect, now: int) -> EffectSummary:
    """A record as lists show it."""
    summary: dict[str, Any] = {
        "tool": record.tool,
        "key": record.effect_key,
        "class": record.effect_class,
        "state": record.state.value,
        "fence": record.fence,
        "holder": record.holder,
        "reserved_at": rfc3339(record.reserved_at),
        "expires_at": optional_rfc3339(record.expires_at),
        "lapsed": record.has_lapsed(now),
        "window_seconds": None if record.window_ms is None else record.window_ms // 1_000,
        "arguments_digest": record.arguments_digest,
        "recorded_at": optional_rfc3339(record.recorded_at),
        "forget_at": optional_rfc3339(record.forget_at),
        "hits": record.hits,
    }
    _add_outcome(summary, record.outcome)
    return cast(EffectSummary, summary)


def effect_document(record: ReservedEffect, now: int) -> EffectDetail:
    """A record by itself: with its audit."""
    entries = [_audit_entry(entry) for entry in record.audit or ()]
    shown = {**effect_summary(record, now), "audit": entries, "audit_omitted": record.audited - len(entries)}
    return cast(EffectDetail, shown)


def _audit_entry(entry: dict[str, Any]) -> AuditEntry:
    return cast(AuditEntry, {**entry, "at": rfc3339(entry["at"])})


def _add_outcome(document: Any, outcome: dict[str, Any] | None) -> None:
    """``result`` of a success, ``error`` of a failure; neither while it is pending."""
    document.update(outcome or {})

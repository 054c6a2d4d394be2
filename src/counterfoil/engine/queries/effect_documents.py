"""Builds the documents of the effects API from records and rows."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.domain.effects.reservations import EffectState
from counterfoil.domain.effects.reserved_effects import ReservedEffect
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.store.protocol import Row
from counterfoil.wire.effects import (
    AuditEntry,
    EffectCompleted,
    EffectDocument,
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


def effect_summary(row: Row, now: int) -> EffectSummary:
    """A record as lists show it, from a row of ``list_effects``."""
    (tool, key, effect_class, state, fence, holder, reserved_at, window_ms, arguments_digest, expires_at,
     outcome, recorded_at, forget_at, hits, _) = row  # fmt: skip
    summary: dict[str, Any] = {
        "tool": tool,
        "key": key,
        "class": effect_class,
        "state": state,
        "fence": fence,
        "holder": holder,
        "reserved_at": rfc3339(reserved_at),
        "expires_at": optional_rfc3339(expires_at),
        "lapsed": expires_at is not None and expires_at <= now,
        "window_seconds": None if window_ms is None else window_ms // 1_000,
        "arguments_digest": arguments_digest,
        "recorded_at": optional_rfc3339(recorded_at),
        "forget_at": optional_rfc3339(forget_at),
        "hits": hits,
    }
    _add_outcome(summary, None if outcome is None else parse_json(outcome))
    return cast(EffectSummary, summary)


def effect_document(row: Row, now: int) -> EffectDocument:
    """A record by itself, from the row of ``get_effect``: with its audit."""
    *listed, audit = row
    entries = [_audit_entry(entry) for entry in parse_json(audit)]
    shown = {**effect_summary(tuple(listed), now), "audit": entries, "audit_omitted": listed[-1] - len(entries)}
    return cast(EffectDocument, shown)


def _audit_entry(entry: dict[str, Any]) -> AuditEntry:
    return cast(AuditEntry, {**entry, "at": rfc3339(entry["at"])})


def _add_outcome(document: Any, outcome: dict[str, Any] | None) -> None:
    """``result`` of a success, ``error`` of a failure; neither while it is pending."""
    document.update(outcome or {})

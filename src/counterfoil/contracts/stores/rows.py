"""Entries as rows of the SQL stores: outcomes are JSON texts, in which integers keep every digit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.effects.reservations import COMPLETE, EffectEntry, EffectOutcome, EffectState
from counterfoil.domain.jsontext import dump_json, parse_json


def entry_columns(entry: EffectEntry) -> tuple[Any, ...]:
    """The columns of an entry behind its tool and key, in the order of the tables."""
    return (
        entry.effect_class,
        entry.state.value,
        entry.fence,
        entry.holder,
        entry.expires_at,
        entry.window_ms,
        entry.arguments_digest,
        *_outcome_columns(entry.outcome),
        entry.recorded_at,
        entry.forget_at,
    )


def _outcome_columns(outcome: EffectOutcome | None) -> tuple[str | None, str | None]:
    """``result`` and ``error``."""
    if outcome is None:
        return None, None
    if outcome.success:
        return dump_json(outcome.result).decode(), None
    return None, dump_json(outcome.error).decode()


def entry_of(row: Sequence[Any]) -> EffectEntry:
    """An entry from its columns, in the order of the tables."""
    tool, key, effect_class, state, fence, holder, expires_at, window_ms, digest, result, error, recorded, forget = row
    found = EffectState(state)
    outcome = None
    if found in COMPLETE:
        outcome = EffectOutcome(
            found is EffectState.SUCCEEDED,
            None if result is None else parse_json(result),
            None if error is None else parse_json(error),
        )
    return EffectEntry(
        tool, key, effect_class, found, fence, holder, expires_at, window_ms, digest, outcome, recorded, forget
    )

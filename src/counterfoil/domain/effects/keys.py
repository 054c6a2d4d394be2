"""Idempotency keys: computed before the first attempt of an item, and the same in every attempt and process."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.canonical import digest
from counterfoil.domain.effects.key_digests import kept_arguments, key_digest
from counterfoil.domain.steps.definitions import StepDefinition


def idempotency_key(
    flow_id: str,
    item: int,
    step_id: str,
    definition: StepDefinition,
    arguments: dict[str, Any],
    *,
    given: str | None = None,
    undone: int = 0,
) -> str:
    """SHA-256 over scope, step and the arguments that count, as canonical JSON; or the key that the caller gave.

    ``undone``: how often the same item was done and compensated before. It must be done anew then, though its endpoint
    may remember the key of the first time.
    """
    if given is not None:
        key = f"{given}:{item}" if definition.fans_out else given
        return f"{key}:{undone}" if undone else key
    rule = definition.effect.key
    kept = kept_arguments(arguments, rule.keep, rule.strip)
    scope: list[Any] = [] if definition.effect.scope == "global" else [flow_id, item]
    return key_digest([[*scope, undone] if undone else scope, step_id], kept)


def undoing_key(key: str) -> str:
    """The key of the compensation of a work item: as stable as that of the item, and different from it."""
    return digest(["undo", key])


def dedup_id(step_id: str, key: str) -> str:
    """What work items that share a result have in common: two steps never share a key."""
    return digest([step_id, key])

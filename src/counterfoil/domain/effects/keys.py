"""Idempotency keys: made at the step boundary before the first attempt, the same in every attempt and process."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.canonical import digest
from counterfoil.domain.steps.definitions import StepDefinition


def idempotency_key(
    flow_id: str, item: int, step_id: str, definition: StepDefinition, arguments: dict[str, Any], *, undone: int = 0
) -> str:
    """SHA-256 over scope, step and the arguments that count, as canonical JSON.

    ``undone``: how often the same was done and undone before. What was undone must be done anew, though whoever does it
    may remember the key of the first time.
    """
    rule = definition.effect.key
    if rule.keep is not None:
        kept = {name: arguments[name] for name in rule.keep if name in arguments}
    else:
        stripped = rule.strip or ()
        kept = {name: value for name, value in arguments.items() if name not in stripped}
    scope = [flow_id, item, undone] if undone else [flow_id, item]
    return digest([scope, step_id, kept])


def undoing_key(key: str) -> str:
    """The key of what undoes the work with this key: as stable as that, and another."""
    return digest(["undo", key])

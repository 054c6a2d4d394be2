"""Idempotency keys: computed before the first attempt of an item, and the same in every attempt and process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from counterfoil.domain.canonical import canonical_json, digest
from counterfoil.domain.steps.definitions import StepDefinition

_MAYBE_ROUNDED = re.compile(rb"[0-9]{16}|e\+")
"""Matches in every canonical text that has an integer which no double holds exactly."""


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

    Canonical JSON rounds integers to doubles, and two ids of 64 bits must not share a key: the digits of an integer
    that is rounded are added.

    ``undone``: how often the same item was done and compensated before. It must be done anew then, though its endpoint
    may remember the key of the first time.
    """
    if given is not None:
        key = f"{given}:{item}" if definition.fans_out else given
        return f"{key}:{undone}" if undone else key
    rule = definition.effect.key
    if rule.keep is not None:
        kept = {name: arguments[name] for name in rule.keep if name in arguments}
    else:
        stripped = rule.strip or ()
        kept = {name: value for name, value in arguments.items() if name not in stripped}
    scope: list[Any] = [] if definition.effect.scope == "global" else [flow_id, item]
    parts = [[*scope, undone] if undone else scope, step_id, kept]
    text = canonical_json(parts)
    if _MAYBE_ROUNDED.search(text) and (exact := list(_rounded_integers(kept))):
        text = canonical_json([*parts, exact])
    return hashlib.sha256(text).hexdigest()


def _rounded_integers(value: Any) -> Iterator[str]:
    """The digits of each integer that no double holds exactly, in the order of the names around it."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _rounded_integers(value[name])
    elif isinstance(value, list):
        for item in value:
            yield from _rounded_integers(item)
    elif isinstance(value, int) and int(float(value)) != value:
        yield str(value)


def undoing_key(key: str) -> str:
    """The key of the compensation of a work item: as stable as that of the item, and different from it."""
    return digest(["undo", key])


def dedup_id(step_id: str, key: str) -> str:
    """What work items that share a result have in common: two steps never share a key."""
    return digest([step_id, key])

"""The digest behind every derived idempotency key, of work items and of tool contracts. Loads no step definitions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from counterfoil.domain.canonical import canonical_json

_MAYBE_ROUNDED = re.compile(rb"[0-9]{16}|e\+")
"""Matches in every canonical text that has an integer which no double holds exactly."""


def kept_arguments(
    arguments: Mapping[str, Any], keep: Collection[str] | None, strip: Collection[str] | None
) -> dict[str, Any]:
    """The arguments that count for the key: those that ``keep`` names, or all but those that ``strip`` names."""
    if keep is not None:
        return {name: arguments[name] for name in keep if name in arguments}
    stripped = strip or ()
    return {name: value for name, value in arguments.items() if name not in stripped}


def key_digest(boundary: list[Any], kept: dict[str, Any]) -> str:
    """SHA-256 over the retry boundary (scope and step) and the arguments that count, as canonical JSON.

    Canonical JSON rounds integers to doubles, and two ids of 64 bits must not share a key: the digits of an integer
    that is rounded are added.
    """
    parts = [*boundary, kept]
    text = canonical_json(parts)
    # The arguments are last, and no brace stands between them and the first one.
    if _MAYBE_ROUNDED.search(text, text.find(b"{")) and (exact := list(_rounded_integers(kept))):
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

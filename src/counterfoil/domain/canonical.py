"""Canonical JSON (RFC 8785): one text for one value, whatever the key order or number form."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785


def canonical_json(value: Any) -> bytes:
    """The canonical text. Numbers are IEEE doubles, as the RFC has it, so a larger integer is rounded."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_as_doubles(value))


def same_json(left: Any, right: Any) -> bool:
    """Equal as canonical JSON: 1 and 1.0 are the same, 1 and true are not."""
    return canonical_json(left) == canonical_json(right)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _as_doubles(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return float(value) if abs(value) > 2**53 - 1 else value
    if isinstance(value, dict):
        return {key: _as_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_doubles(item) for item in value]
    return value

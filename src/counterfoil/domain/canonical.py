"""Canonical JSON (RFC 8785): one text for one value, whatever the key order or number form."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785


def canonical_json(value: Any) -> bytes:
    """The canonical text. Numbers are IEEE doubles, as the RFC has it, so a larger integer is rounded."""
    if _is_plain(value):
        return _encode_plain(value).encode()
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        return rfc8785.dumps(_as_doubles(value))


_LARGEST_EXACT = 2**53 - 1
_encode_plain = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def _is_plain(value: Any) -> bool:
    """Whether the standard library's encoder, which is many times faster, gives the canonical text too.

    It does without floats and inexact integers, and with keys of ASCII only: they sort alike by code point and by
    UTF-16 unit.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-_LARGEST_EXACT <= value <= _LARGEST_EXACT)
    if kind is dict:
        return all(type(key) is str and key.isascii() and _is_plain(item) for key, item in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    return False


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
        return float(value) if abs(value) > _LARGEST_EXACT else value
    if isinstance(value, dict):
        return {key: _as_doubles(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_doubles(item) for item in value]
    return value

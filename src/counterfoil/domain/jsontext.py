"""Reading and writing JSON: input is checked strictly, integers keep every digit, and stored text can always be read.

Amounts of money come as integers, so none is rounded. Input that the engine could not store or return is refused: what
JSON does not have (NaN, infinities, lone surrogates), numbers that no double can hold, and nesting beyond
``MAX_DEPTH``. Receipts in accepted input are blanked, so that none is ever stored.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from counterfoil.domain.redaction import may_hold_receipt, without_receipts

MAX_DEPTH = 100
"""How deep JSON from outside may be nested. The engine's own documents add a few levels around it, and the fast parser
and writer below accept 200 and 255."""

_MAYBE_OUT_OF_RANGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
"""Every number outside the range of a double matches this: with an exponent below 100 it needs more than 200 digits."""
_LONG = re.compile(rb"[0-9][0-9][0-9]")
"""Matches wherever ``_MAYBE_OUT_OF_RANGE`` does. The hot path tries it first, because it is much faster."""

TOO_DEEP = f"is nested too deeply: {MAX_DEPTH} levels are allowed"


class JsonError(ValueError):
    """The text is not JSON, or not JSON that the engine can keep."""


def accept_json(text: bytes | str) -> Any:
    """Parse the JSON of a request or a response; raises JsonError, with the place if the text is not JSON."""
    try:
        raw = text.encode() if isinstance(text, str) else text
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise JsonError(TOO_DEEP if "recursion limit" in str(error) else str(error)) from None
    if _may_be_deep(raw) and is_too_deep(value):
        raise JsonError(TOO_DEEP)
    if _MAYBE_OUT_OF_RANGE.search(raw):
        _check_range(value)
    return without_receipts(value) if may_hold_receipt(raw) else value


def is_ordinary(raw: bytes) -> bool:
    """Whether plain parsing gives the same result as ``accept_json``, if the text is JSON at all. For the hot path."""
    return not (
        (_LONG.search(raw) is not None and _MAYBE_OUT_OF_RANGE.search(raw) is not None)
        or b"NaN" in raw
        or b"Infinity" in raw
        or _may_be_deep(raw)
        or may_hold_receipt(raw)
    )


def parse_json(text: bytes | str) -> Any:
    """Parse JSON that was accepted before, however deep it is nested; raises JsonError if it is not JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        if "recursion limit" not in str(error):
            raise JsonError(str(error)) from None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def dump_json(value: Any) -> bytes:
    """Write a value as JSON text without any whitespace."""
    return to_json(value)


def is_too_deep(value: Any) -> bool:
    """Whether a value is nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            below
            for item in level
            for below in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
            if isinstance(below, dict | list)
        ]
        if not level:
            return False
    return True


def _may_be_deep(raw: bytes) -> bool:
    """Each level has an opening and a closing bracket."""
    return len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not a JSON number")


def _check_range(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise JsonError("a number is out of range")
    if isinstance(value, int) and value.bit_length() > 1023:
        raise JsonError("a number is out of range")
    if isinstance(value, dict):
        for item in value.values():
            _check_range(item)
    elif isinstance(value, list):
        for item in value:
            _check_range(item)

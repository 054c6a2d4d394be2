"""JSON in and out: strict when reading, exact when writing.

Integers keep every digit (amounts of money come in them). What JSON does not have (NaN, infinities,
lone surrogates) is refused at the door, so that nothing later on can choke on it.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pydantic_core import from_json, to_json

_MAYBE_OUT_OF_RANGE = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
"""No number leaves the range of a double without one of these: up to e99 it takes more than 200 digits as well."""


class JsonError(ValueError):
    """The text is not JSON that the engine can keep."""


def parse_json(text: bytes | str) -> Any:
    """Read JSON text; raises JsonError with the place of the fault."""
    try:
        raw = text.encode() if isinstance(text, str) else text
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise JsonError(str(error)) from None
    if _MAYBE_OUT_OF_RANGE.search(raw):
        _check_range(value)
    return value


def dump_json(value: Any) -> bytes:
    """Write a value as JSON text, as compactly as it goes."""
    return to_json(value)


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

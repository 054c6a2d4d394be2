"""Names the places of a request that a model refuses. No value that a client sent is ever part of a message."""

from __future__ import annotations

import re

from pydantic import ValidationError

MAX_ERRORS = 50
MAX_PLACE_CHARACTERS = 64

_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
}
_FIELD_FIRST = re.compile(r"([a-z_]+(?:\.[A-Za-z0-9_-]+)*): (.+)", re.DOTALL)
"""A rule over several fields names the one that breaks it: ``default: only an optional attribute has one``."""


def place_errors(error: ValidationError) -> list[dict[str, str]]:
    """Each invalid place with a message, for ``details.errors``; never the value."""
    found = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False)[:MAX_ERRORS]:
        place = [segment(part) for part in fault["loc"]]
        message = _MESSAGES.get(fault["type"], fault["msg"])
        if fault["type"] == "value_error":
            message = message.removeprefix("Value error, ")
            named = _FIELD_FIRST.fullmatch(message)
            if named is not None:
                place.append(named[1])
                message = named[2]
        found.append({"place": ".".join(place) or "body", "message": message})
    return found


def segment(part: int | str) -> str:
    """One part of a place, cut to a readable length: it may be a name that a client chose."""
    text = str(part)
    return text if len(text) <= MAX_PLACE_CHARACTERS else text[:MAX_PLACE_CHARACTERS] + "…"

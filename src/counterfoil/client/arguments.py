"""Checks of arguments that Python would accept and the engine could not make sense of.

They are made before anything is sent. A wrong type is a ``TypeError``, a wrong value a ``ValueError``; both name the
argument and say what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

Label = tuple[str, str] | str
"""A label as a pair (name, value), or as the text ``name:value``."""
Moment = datetime | str
"""A time: a datetime with a time zone, or an RFC 3339 text."""


def goal_list(goals: Any) -> list[Any]:
    """The goals of a flow. A text is refused: its letters would be taken for step ids."""
    if isinstance(goals, str):
        raise TypeError(f"goals must be a list of step ids, not a text: write [{goals!r}]")
    if not isinstance(goals, Iterable) or isinstance(goals, Mapping | bytes):
        raise TypeError(f"goals must be a list of step ids, not {_kind(goals)}")
    return list(goals)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A JSON object. ``dict`` alone would accept a list of texts of two letters, too."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {_kind(value)}")
    return dict(value)


def optional_mapping(name: str, value: Any) -> dict[str, Any]:
    """The same; None is an empty one."""
    return {} if value is None else mapping(name, value)


def label_text(label: Any) -> str:
    """A label as the engine reads it: ``name:value``, where the name has no colon."""
    if isinstance(label, str):
        name, colon, value = label.partition(":")
        if not name or not colon:
            raise ValueError(f"label {label!r} has no value: write 'name:value' or ('name', 'value')")
        return label
    name, value = pair("label", label, "('name', 'value')")
    if not name or ":" in name:
        raise ValueError(f"the name of a label must not be empty and has no colon; this one is {name!r}")
    return f"{name}:{value}"


def pair(argument: str, value: Any, form: str) -> tuple[str, str]:
    """Two texts; a text of two letters is none."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise TypeError(f"{argument} must be a pair of texts, {form}, not {_kind(value)}")
    return value[0], value[1]


def time_text(name: str, moment: Any) -> str:
    """A time as the engine reads it; a datetime without a time zone names no time."""
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(f"{name} has no time zone: write datetime.now(UTC), or add tzinfo")
        return moment.isoformat()
    if not isinstance(moment, str):
        raise TypeError(f"{name} must be a datetime with a time zone or an RFC 3339 text, not {_kind(moment)}")
    return moment


def async_function(what: str, function: Any) -> None:
    """Refuse a function that is not ``async def``: it would block the event loop, and its result cannot be awaited."""
    if not callable(function):
        raise TypeError(f"{what} must be an async function, not {_kind(function)}")
    if not _is_async(function):
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{what} must be an async function: define {name} with `async def`; "
            f"blocking work can run in a thread, by `await asyncio.to_thread(...)`"
        )


def _is_async(function: Any) -> bool:
    """Whether a call returns a coroutine. Decorators are looked through where they keep ``__wrapped__``."""
    while isinstance(function, partial):
        function = function.func
    found = inspect.unwrap(function, stop=inspect.iscoroutinefunction)
    return inspect.iscoroutinefunction(found) or inspect.iscoroutinefunction(getattr(found, "__call__", None))  # noqa: B004


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"

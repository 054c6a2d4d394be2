"""The named queries as PostgreSQL takes them: numbered parameters, and several writes in one statement."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import Any

from counterfoil.store.queries import load_queries
from counterfoil.store.writing import Write

PACKAGE = "counterfoil.store.postgres"
QUERIES = load_queries(PACKAGE)
COORDINATION = load_queries(PACKAGE, "coordination.sql")
"""Queries that only a store of several nodes needs."""

SEPARATOR = "\x1f"
ABSENT = "\x1e"
_ARRAY = re.compile(r"\$(\d+)::(\w+)\[\]")
_PACKED = r"string_to_array($\1, chr(31), chr(30))::\2[]"
_NAMED = re.compile(r"(?<![:\w]):([a-z_]+)")
_NUMBERED = re.compile(r"\$(\d+)")


@cache
def _numbered(query: str) -> tuple[str, tuple[str, ...]]:
    names = tuple(dict.fromkeys(_NAMED.findall(QUERIES[query])))
    return _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", QUERIES[query]), names


def with_parameters(query: str, parameters: dict[str, Any]) -> tuple[str, list[Any]]:
    """A query whose parameters have names, and their values in its order."""
    text, names = _numbered(query)
    return text, [parameters[name] for name in names]


@cache
def packed(text: str) -> str:
    """A statement that takes each of its arrays as one text. Handing over an array costs far more, value by value."""
    return _ARRAY.sub(_PACKED, text)


def pack(values: Collection[Any]) -> str:
    """An array as one text, its values separated by a character that hardly any text has."""
    absent = 0
    try:
        text = SEPARATOR.join(values)
    except TypeError:
        text = SEPARATOR.join([ABSENT if value is None else str(value) for value in values])
        absent = sum(1 for value in values if value is None)
    if not text or text.count(SEPARATOR) != len(values) - 1 or text.count(ABSENT) != absent:
        raise Unpackable
    return text


def pack_keys(keys: set[str]) -> str:
    """Keys as one text, in one order. What no id can hold cannot be the key of anything that there is."""
    text = SEPARATOR.join(sorted(keys))
    if "\0" in text or text.count(SEPARATOR) >= len(keys) > 0:
        return SEPARATOR.join(sorted(key for key in keys if "\0" not in key and SEPARATOR not in key))
    return text


class Unpackable(ValueError):
    """Some text has the separator in it, or there is nothing to separate: it must be handed over as an array."""


@cache
def _combined(queries: tuple[tuple[str, int], ...]) -> str:
    parts: list[str] = []
    shift = 0
    for query, width in queries:
        text = _NUMBERED.sub(lambda found, by=shift: f"${int(found[1]) + by}", QUERIES[query])  # type: ignore[misc]
        returned = "seq" if query == "append_journal" else "1"
        parts.append(f"{query} AS (\n{text}\nRETURNING {returned})")
        shift += width
    told = [f"(SELECT count(*) FROM {query})" for query, _ in queries]  # noqa: S608 (our own names)
    if any(query == "append_journal" for query, _ in queries):
        told.append("(SELECT min(seq) FROM append_journal)")
    return f"WITH {', '.join(parts)}\nSELECT {', '.join(told)}"


def combined(writes: list[Write]) -> tuple[str, list[Any]]:
    """All writes of a batch as one statement, which tells how many rows each wrote, and the first journal number.

    Few texts: which tables a batch touches, not how many rows, decides on them; so prepared ones are used again.
    """
    columns = [list(zip(*write.rows, strict=True)) for write in writes]
    shape = tuple((write.query, len(own)) for write, own in zip(writes, columns, strict=True))
    values = [column for own in columns for column in own]
    try:
        return _combined_packed(shape), [pack(column) for column in values]
    except Unpackable:
        return _combined(shape), values


@cache
def _combined_packed(queries: tuple[tuple[str, int], ...]) -> str:
    return packed(_combined(queries))

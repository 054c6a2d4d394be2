"""The named queries as PostgreSQL takes them: numbered parameters, and several writes in one statement."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Sequence
from functools import cache
from typing import Any

from counterfoil.store.kinds.kind import Write
from counterfoil.store.queries import load_queries

PACKAGE = "counterfoil.store.postgres"
QUERIES = load_queries(PACKAGE)
COORDINATION = load_queries(PACKAGE, "coordination")
"""Queries that only a store of several nodes needs."""
_WRITES = ChainMap(QUERIES, COORDINATION)

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
def first_of(text: str) -> str:
    """The first row of a query: it tells how many columns there are."""
    return f"SELECT * FROM ({text.rstrip().rstrip(';')}) AS page LIMIT 1"  # noqa: S608 (our own names)


@cache
def page_of(text: str, columns: int, *, seen: bool) -> str:
    """A query with one more parameter: it ends behind the row with which its texts have so many bytes.

    Its last column tells the bytes before each row. The length of a text is known without reading it, so a row that is
    not given costs next to nothing, however large it is. ``seen``: the row whose first column is another parameter does
    not count.
    """
    names = [f"c{number}" for number in range(columns)]
    bytes_of_row = " + ".join(f"coalesce(octet_length({name}::text), 0)" for name in names)
    last = max(map(int, re.findall(r"[$]([0-9]+)", text)), default=0)
    if seen:
        bytes_of_row = f"CASE WHEN c0 = ${last + 2}::bigint THEN 0 ELSE {bytes_of_row} END"
    before = f"sum({bytes_of_row}) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    page = f"({text.rstrip().rstrip(';')}) AS page ({', '.join(names)})"
    sized = f"SELECT page.*, coalesce({before}, 0)::bigint AS bytes_before FROM {page}"  # noqa: S608 (our own names)
    return f"SELECT * FROM ({sized}) AS sized WHERE bytes_before < ${last + 1}::bigint"  # noqa: S608


@cache
def packed(text: str) -> str:
    """A statement that takes each of its arrays as one text. Handing over an array costs far more, value by value."""
    return _ARRAY.sub(_PACKED, text)


def pack(values: Sequence[Any]) -> str:
    """An array as one text, its values separated by a character that hardly any text has."""
    first = values[0]
    if (first is None or type(first) is int) and values.count(first) == len(values):
        # times and counters are mostly the same for all rows, or absent from all
        text = ABSENT if first is None else str(first)
        return f"{text}{SEPARATOR}" * (len(values) - 1) + text
    absent = 0
    try:
        text = SEPARATOR.join(values)
    except TypeError:  # not all of them are texts
        absent = values.count(None)
        text = SEPARATOR.join([ABSENT if value is None else str(value) for value in values])
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


Shape = tuple[tuple[str, int, bool], ...]
"""Which queries a statement is made of, each with the number of its columns, and whether all its rows must count."""


def _with(shape: Shape) -> str:
    """Several writes as parts of one statement, run in the order in which what follows asks for their counts."""
    parts: list[str] = []
    shift = 0
    for query, width, _ in shape:
        text = _NUMBERED.sub(lambda found, by=shift: f"${int(found[1]) + by}", _WRITES[query])  # type: ignore[misc]
        counted = "" if "\nRETURNING " in text else "\nRETURNING 1"
        parts.append(f"{query} AS (\n{text}{counted})")
        shift += width
    return f"WITH {', '.join(parts)}"


def _count(query: str) -> str:
    return f"(SELECT count(*) FROM {query})"  # noqa: S608 (our own names)


_CONTROLS = "SELECT revision FROM controls"
"""Seen as it was before the statement, by which it may rise."""


@cache
def _combined(shape: Shape) -> str:
    told = [_count(query) for query, *_ in shape]
    if any(query == "append_journal" for query, *_ in shape):
        told.append("(SELECT min(seq) FROM append_journal)")
    told.append(f"({_CONTROLS}) AS controls_seen")
    return f"{_with(shape)}\nSELECT {', '.join(told)}"


@cache
def _proving(shape: Shape, *, claims: bool) -> tuple[str, str]:
    """The statement, and the same as one that takes packed arrays."""
    parameters = sum(width for _, width, _ in shape)
    exact = [query for query, _, exact in shape if exact]
    proof = [f"{_count(query)} = ${parameters + place}" for place, query in enumerate(exact, 1)]
    proof.append(f"({_CONTROLS}) = ${parameters + len(exact) + 1}")
    if claims:
        alive = COORDINATION["check_leases"].replace("$1", f"${parameters + len(exact) + 2}")
        proof.append(f"EXISTS ({alive})")
    text = f"{_with(shape)}\nSELECT 1 / CASE WHEN {' AND '.join(proof)} THEN 1 ELSE 0 END"
    return text, packed(text)


def combined(writes: list[Write]) -> tuple[str, list[Any]]:
    """All writes of a batch as one statement, which tells how many rows each wrote, and the first journal number.

    Few texts: which tables a batch touches, not how many rows, decides on them; so prepared ones are used again.
    """
    shape, values = _columns(writes)
    try:
        return packed(_combined(shape)), [pack(column) for column in values]
    except Unpackable:
        return _combined(shape), values


def proving(writes: list[Write], controls: int, node_id: str | None) -> tuple[str, list[Any]]:
    """The same as a statement that divides by zero, and so writes nothing, unless each write wrote all that it must.

    ``controls``: nor if policies and subscriptions are not at this revision. ``node_id``: nor if this node's lease has
    lapsed.
    """
    shape, values = _columns(writes)
    text, of_packed = _proving(shape, claims=node_id is not None)
    counts = [len(write.rows) for write in writes if write.exact]
    nodes = [] if node_id is None else [node_id]
    try:
        return of_packed, [*map(pack, values), *counts, controls, *nodes]
    except Unpackable:
        return text, [*values, *counts, controls, *([nodes] if nodes else [])]


def _columns(writes: list[Write]) -> tuple[Shape, list[Any]]:
    shape: list[tuple[str, int, bool]] = []
    values: list[Any] = []
    for query, rows, exact, _ in writes:
        shape.append((query, len(rows[0]), exact))
        values += zip(*rows, strict=True)
    return tuple(shape), values

"""Columns of a record: derived from the fields of its dataclass, with the conversion that each field's type asks for.

Rows are made and read by functions that are compiled once for each list of columns, as dataclasses compile
``__init__``: every completion writes several rows, and looking up fields by name takes three times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from counterfoil.domain.jsontext import dump_json, parse_json

R = TypeVar("R")
Row = tuple[Any, ...]


def text(value: Any) -> str | None:
    """A value as JSON text for a column; None stays null."""
    return None if value is None else written(value)


def written(value: Any) -> str:
    """A value as JSON text. orjson takes a third of the time, but no integer that is longer than 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return dump_json(value).decode()


def value(column: str | None) -> Any:
    """What JSON text in a column means; null is None."""
    return None if column is None else parse_json(column)


class Conversion(NamedTuple):
    """How a field is written to its column and read from it, as expressions in which ``{0}`` stands for the value."""

    write: str = "{0}"
    read: str = "{0}"
    names: Mapping[str, Any] = {}
    """What the expressions refer to."""


PLAIN = Conversion()
JSON = Conversion(
    "None if {0} is None else _written({0})",
    "None if {0} is None else _parsed({0})",
    {"_written": written, "_parsed": parse_json},
)
BOOLEAN = Conversion(read="bool({0})")


def _of_enum(enum: type[Enum]) -> Conversion:
    # Written as plain strings: SQLite's adapter looks up a conversion for every subclass.
    name = f"_{enum.__name__}"
    return Conversion("{0}._value_", f"{name}[{{0}}]", {name: {member.value: member for member in enum}})


def _of_type(hint: Any) -> Conversion:
    kinds = {
        get_origin(each) or each
        for each in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))
        if each is not NoneType
    }
    if len(kinds) == 1:
        (kind,) = kinds
        if isinstance(kind, type) and issubclass(kind, Enum):
            return _of_enum(kind)
        if kind in (dict, list):
            return JSON
        if kind is bool:
            return BOOLEAN
    return PLAIN


class RowWriter(Generic[R]):
    """Makes rows of some columns, in their order. ``names`` are the columns, which a test compares with the SQL."""

    __slots__ = ("names", "row")

    def __init__(self, names: tuple[str, ...], row: Callable[[R], Row]) -> None:
        self.names = names
        self.row = row


class Columns(Generic[R]):
    """The columns of a record. ``conversions``: of fields whose type does not say how they are stored."""

    def __init__(self, record: type[R], conversions: Mapping[str, Conversion] | None = None) -> None:
        self.record = record
        self.names = tuple(field.name for field in fields(record))  # type: ignore[arg-type]
        hints = get_type_hints(record)
        own = conversions or {}
        self._conversions = {name: own.get(name) or _of_type(hints[name]) for name in self.names}
        self.read: Callable[[Sequence[Any]], R] = self.reader(self.names)
        """The record of a row that has all columns and no other."""

    def without(self, *left_out: str) -> tuple[str, ...]:
        """All columns but these, in their order."""
        return tuple(name for name in self.names if name not in left_out)

    def reader(self, names: Sequence[str]) -> Callable[[Sequence[Any]], R]:
        """A function from rows of these columns to records. Fields without a column keep their default."""
        read = [self._conversions[name].read.format(name) for name in names]
        given = ", ".join(f"{name}={value}" for name, value in zip(names, read, strict=True))
        if tuple(names) == self.names[: len(names)]:  # by position: half of the time
            given = ", ".join(read)
        return self._compile(f"def _made(_row):\n    {', '.join(names)}, = _row\n    return _record({given})")

    def writer(self, *names: str) -> RowWriter[R]:
        """What makes rows of these columns; without names: of all."""
        chosen = names or self.names
        values = (self._conversions[name].write.format(f"_of.{name}") for name in chosen)
        return RowWriter(chosen, self._compile(f"def _made(_of):\n    return ({', '.join(values)},)"))

    def _compile(self, source: str) -> Callable[[Any], Any]:
        names: dict[str, Any] = {"_record": self.record}
        for conversion in self._conversions.values():
            names.update(conversion.names)
        exec(source, names)  # noqa: S102 (made of field names alone)
        made: Callable[[Any], Any] = names["_made"]
        return made

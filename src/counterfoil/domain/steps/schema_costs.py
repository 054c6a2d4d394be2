"""An upper bound for the cost of checking a value: the cost of the schema times the size of the value.

A unit is 100 ns on the slowest machine that was measured. The bound is too high rather than too low, often by far: it
only tells which checks are certain to be fast. Where it cannot be computed (numbers beyond machine size), it is
infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from counterfoil.domain.steps.schema_trees import DATA, NAMED, REFERENCES

MAX_DEPTH = 128
"""How deep a value may be nested that is to be checked."""
MAX_UNFOLDED = 100_000
"""The most subschemas after each reference is replaced by its target."""

_ELSEWHERE = frozenset({"$defs", "definitions"})  # evaluated only where a reference leads to them
_OF_ARRAYS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
_OF_OBJECTS = frozenset({"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"})
_DISJOINT = frozenset({"properties", "prefixItems"})  # each of their schemas applies to another part of the value
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_NUMERIC = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})

_COMPARED = 2.0  # with a constant
_FRACTION = 20.0  # the library computes exactly
_ODD_NUMBER = 400.0
_FORMAT = 5.0


class Cost(NamedTuple):
    """Units for each part of a value that a schema is applied to."""

    node: float = 0.0
    object: float = 0.0
    field: float = 0.0
    character: float = 0.0
    unique: float = 0.0
    """How often elements are compared with each other."""

    def plus(self, other: Cost) -> Cost:
        return Cost(
            self.node + other.node,
            self.object + other.object,
            self.field + other.field,
            self.character + other.character,
            self.unique + other.unique,
        )

    def at_least(self, other: Cost) -> Cost:
        return Cost(*map(max, self, other))

    def times(self, factor: float) -> Cost:
        return Cost(*(part * factor for part in self))


class _Extent(NamedTuple):
    """The cost of a schema with its references unfolded, and how many references are recursive."""

    size: int = 0
    total: Cost = Cost()
    here: Cost = Cost()
    """The cost for one part of a value that the schema is applied to."""
    below: Cost = Cost()
    """The cost for any one part inside it."""
    back_here: int = 0
    back_in_arrays: int = 0
    back_in_objects: int = 0

    @property
    def back(self) -> int:
        """The most recursive references that apply to one part of a value, which cannot be array and object at once."""
        return self.back_here + max(self.back_in_arrays, self.back_in_objects)

    @property
    def anywhere(self) -> Cost:
        return self.here.at_least(self.below)

    def plus(self, other: _Extent) -> _Extent:
        """The cost if both are applied to the same part of a value."""
        return _Extent(
            self.size + other.size,
            self.total.plus(other.total),
            self.here.plus(other.here),
            self.below.plus(other.below),
            self.back_here + other.back_here,
            self.back_in_arrays + other.back_in_arrays,
            self.back_in_objects + other.back_in_objects,
        )


@dataclass(frozen=True, slots=True)
class SchemaCost:
    """The cost of a schema for each part of a value; for a recursive schema, also for each level of nesting."""

    cost: Cost
    back: int
    """How many recursive references apply to one part of a value; 0: the schema is not recursive."""

    def bound(self, value: Any, enough: float) -> float:
        """An upper bound in units; above ``enough``, any larger number.

        A value that is nested too deep is refused for that, which costs nothing.
        """
        parts = _Parts(enough)
        level = [value]
        while level and parts.units <= enough and parts.depth <= MAX_DEPTH:
            level = parts.add(level)
            parts.measure(self.cost, self.back)
        return parts.units


class _Parts:
    """Counts the parts of a value, level by level. An array or object is counted before its elements."""

    def __init__(self, enough: float) -> None:
        self._enough = enough
        self._nodes = 1
        self._objects = 0
        self._fields = 0
        self._characters = 0
        self.depth = 0
        self.units = 0.0

    def measure(self, cost: Cost, back: int) -> None:
        if self.units == math.inf:
            return
        units = self._nodes * cost.node + self._objects * cost.object + self._fields * cost.field
        units += self._characters * cost.character
        units += cost.unique * self.depth * (50 * self._nodes + self._characters)
        if back > 1:
            units *= float(min(back**self.depth, 10**300))
        self.units = units

    def add(self, level: list[Any]) -> list[Any]:
        """Count a level; returns the parts on the next level."""
        self.depth += 1
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                self._characters += len(item)
            elif kind is dict:
                self._nodes += len(item)
                self._objects += 1
                self._fields += len(item)
            elif kind is list:
                self._nodes += len(item)
            elif kind in (int, float) and not is_ordinary(item):
                self.units = math.inf
            if self._nodes > self._enough:  # every part costs something
                self.units = math.inf
            if self.units == math.inf:
                return []
            if kind is dict:
                self._characters += sum(len(name) for name in item if type(name) is str)
                below.extend(item.values())
            elif kind is list:
                below.extend(item)
        return below


EXPLAINING = SchemaCost(Cost(node=20.0, character=0.1), 0)
"""The cost of explaining why a value does not match: the library copies the value."""


def is_ordinary(number: float) -> bool:
    """Whether the library's arithmetic is fast for a number of this size."""
    if type(number) is int:
        return -(2**53) <= number <= 2**53
    return number == 0 or 1e-9 <= abs(number) <= 1e15


def schema_cost(schema: Any, resolve: Callable[[str], Any], per_character: float) -> SchemaCost:
    """The cost of a schema; raises ValueError if its references multiply it without bound.

    ``per_character``: the cost of one of its patterns.
    """
    try:
        unfolding = _Unfolding(resolve, per_character)
        extent = unfolding.measure(schema)
    except RecursionError:
        raise ValueError("the chain of references is too long") from None
    if extent.size > MAX_UNFOLDED:
        raise ValueError("the references expand to too many subschemas: nest fewer references")
    # A recursive schema may be applied to a part through every level above it.
    return SchemaCost(extent.total.times(2) if extent.back else extent.anywhere, extent.back)


class _Unfolding:
    """Measures a schema with each reference replaced by its target, except recursive ones."""

    def __init__(self, resolve: Callable[[str], Any], per_character: float) -> None:
        self._resolve = resolve
        self._per_character = per_character
        self._known: dict[int, _Extent] = {}
        self._open: set[int] = set()

    def measure(self, schema: Any) -> _Extent:
        if not isinstance(schema, dict):
            return _leaf(Cost(node=1))
        key = id(schema)
        if key in self._open:
            return _leaf(Cost(node=1))._replace(back_here=1)
        if key not in self._known:
            self._open.add(key)
            own = self._own(schema)
            parts = reduce(_Extent.plus, self._parts(schema), _leaf(own))
            if not _UNEVALUATED.isdisjoint(schema):  # the library evaluates the schema again for this
                parts = parts._replace(total=parts.total.times(2), here=parts.here.times(2), below=parts.below.times(2))
            self._known[key] = parts
            self._open.discard(key)
        return self._known[key]

    def _own(self, schema: dict[str, Any]) -> Cost:
        """The cost of a schema's keywords without its subschemas."""
        cost = Cost(node=1)
        for keyword, said in schema.items():
            cost = cost.plus(_keyword_cost(keyword, said, self._per_character))
        return cost

    def _parts(self, schema: dict[str, Any]) -> Iterator[_Extent]:
        for keyword, below in schema.items():
            if keyword in REFERENCES:
                yield self.measure(self._resolve(below))
            elif keyword == "propertyNames":
                yield _of_names(self.measure(below))
            elif keyword not in DATA and keyword not in _ELSEWHERE and isinstance(below, dict | list):
                yield self._applied(keyword, below)

    def _applied(self, keyword: str, below: dict[str, Any] | list[Any]) -> _Extent:
        single = isinstance(below, dict) and keyword not in NAMED
        children = [below] if single else below.values() if isinstance(below, dict) else below
        extents = [self.measure(child) for child in children]
        if keyword not in _OF_ARRAYS and keyword not in _OF_OBJECTS:
            return reduce(_Extent.plus, extents, _Extent())
        disjoint = keyword in _DISJOINT
        costs = (extent.anywhere for extent in extents)
        back = [extent.back for extent in extents]
        count = max(back, default=0) if disjoint else sum(back)
        return _Extent(
            size=sum(extent.size for extent in extents),
            total=_sum(extent.total for extent in extents),
            below=reduce(Cost.at_least, costs, Cost()) if disjoint else _sum(costs),
            back_in_arrays=count if keyword in _OF_ARRAYS else 0,
            back_in_objects=count if keyword in _OF_OBJECTS else 0,
        )


def _leaf(own: Cost) -> _Extent:
    return _Extent(size=1, total=own, here=own)


def _sum(costs: Iterable[Cost]) -> Cost:
    return reduce(Cost.plus, costs, Cost())


def _of_names(extent: _Extent) -> _Extent:
    """A schema for names is applied once to each field, and to the characters of its name."""
    cost = Cost(field=extent.total.node, character=extent.total.character)
    return _Extent(size=extent.size, total=cost, here=cost, back_here=extent.back_here)


def _keyword_cost(keyword: str, said: Any, per_character: float) -> Cost:
    if keyword == "const":
        return Cost(node=_constant(said))
    if keyword == "enum" and isinstance(said, list):
        texts = all(type(item) is str for item in said)
        return Cost(node=_COMPARED + (len(said) / 10 if texts else sum(map(_constant, said))))
    if keyword in _NUMERIC:
        return Cost(node=_FRACTION if is_ordinary(said) else _ODD_NUMBER) if type(said) in (int, float) else Cost()
    if keyword == "pattern":
        return Cost(node=_COMPARED, character=per_character)
    if keyword == "patternProperties":
        return Cost(field=_COMPARED * _entries(said), character=per_character * _entries(said))
    if keyword in ("format", "contentMediaType", "contentEncoding"):
        return Cost(node=_FORMAT, character=0.5)
    if keyword in ("required", "properties", "dependentRequired", "dependencies", "dependentSchemas"):
        return Cost(object=1.0 + _entries(said), field=1.0)
    return Cost(node=1, field=1, unique=1) if keyword == "uniqueItems" else Cost(node=1, field=1)


def _entries(said: Any) -> int:
    """The number of names, plus the names that these require."""
    listed = [item for item in said.values() if isinstance(item, list)] if isinstance(said, dict) else []
    return len(said) + sum(map(len, listed)) if isinstance(said, dict | list) else 0


def _constant(constant: Any) -> float:
    if isinstance(constant, dict):
        return _COMPARED + sum(_COMPARED + _constant(item) for item in constant.values())
    if isinstance(constant, list):
        return _COMPARED + sum(map(_constant, constant))
    if type(constant) is float or type(constant) is int:
        ordinary = is_ordinary(constant)
        return (_FRACTION if type(constant) is float else _COMPARED) if ordinary else _ODD_NUMBER
    return _COMPARED

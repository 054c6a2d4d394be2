"""The bound of a check: what is surely short is short, whatever schema and value are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterfoil.domain.steps.checks import SHORT
from counterfoil.domain.steps.values import ValueSchema

ITSELF = {"$ref": "#"}
BROAD = 20
"""How much more of the processor than promised a check may take here: machines differ."""


def rows(count: int, width: int = 10) -> Any:
    return [{f"f{number}": number for number in range(width)} for _ in range(count)]


def nested(depth: int, leaf: Any = 5) -> Any:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


FAMILIES: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "constants": ({"contains": {"anyOf": [{"const": n} for n in range(500)]}}, lambda n: [-1] * n),
    "fractions": ({"items": {"enum": [n + 0.5 for n in range(500)]}}, lambda n: [499.5] * n),
    "tiny fractions": ({"items": {"enum": [1e-300 * n for n in range(1, 200)]}}, lambda n: [199e-300] * n),
    "objects": ({"items": {"enum": [{"a": n} for n in range(200)]}}, lambda n: [{"a": -1}] * n),
    "a large object": ({"items": {"const": {f"k{n}": n for n in range(500)}}}, lambda n: rows(n, 500)),
    "multiples": ({"items": {"allOf": [{"multipleOf": 0.01}] * 50}}, lambda n: [12.34] * n),
    "multiples of tiny ones": ({"items": {"allOf": [{"multipleOf": 1e-300}] * 50}}, lambda n: [5] * n),
    "pattern": ({"pattern": "(a|b)*a(a|b){500}c"}, lambda n: "ab" * n),
    "patterns of names": (
        {"patternProperties": {f"(a|b)*a(a|b){{{n}}}c": {} for n in range(20, 60)}},
        lambda n: {"ab" * n: 1},
    ),
    "unique numbers": ({"uniqueItems": True}, lambda n: [*range(n)]),
    "unique fractions": ({"uniqueItems": True}, lambda n: [number + 0.5 for number in range(n)]),
    "unique large numbers": ({"uniqueItems": True}, lambda n: [10**300 + number for number in range(n)]),
    "unique all the way down": ({"uniqueItems": True, "items": ITSELF}, lambda n: nested(50, [*range(n)])),
    "unique records": ({"uniqueItems": True}, lambda n: [{**row, "z": k} for k, row in enumerate(rows(n))]),
    "names": ({"propertyNames": {"allOf": [{"minLength": n} for n in range(1)] * 300}}, lambda n: rows(1, n)[0]),
    "fields": ({"properties": {f"k{n}": True for n in range(500)}, "items": ITSELF}, lambda n: [{}] * n),
    "required": ({"items": {"required": [f"k{n}" for n in range(500)]}}, lambda n: rows(n, 500)),
    "recursion in several ways": ({"anyOf": [{"items": ITSELF}, {"items": ITSELF}], "not": {"const": 5}}, nested),
    "recursion and breadth": ({"items": {"anyOf": [ITSELF, ITSELF]}, "not": {"const": 5}}, lambda n: [[5] * n] * n),
    "unevaluated": (
        {"allOf": [{"properties": {"f1": True}}] * 50, "unevaluatedProperties": {"type": "integer"}},
        lambda n: rows(1, n)[0],
    ),
    "conditions": (
        {"items": {"allOf": [{"if": {"minimum": n}, "then": {"maximum": n}, "else": True} for n in range(99)]}},
        lambda n: [-1] * n,
    ),
    "dependent": (
        {"items": {"dependentSchemas": {f"f{n}": {"required": [f"f{n}"]} for n in range(300)}}},
        lambda n: rows(n, 300),
    ),
    "formats": ({"items": {"allOf": [{"format": "idn-hostname"}] * 20}}, lambda n: ["é" * 60] * n),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_surely_short_is_short(name: str) -> None:
    """The longest value of a family that the bound still vouches for is checked in about the time that it says."""
    schema, make = FAMILIES[name]
    compiled = ValueSchema.compile(schema)
    size = 1
    while size < 2_000 and compiled.bound(make(size + 1 + size // 4), SHORT) <= SHORT:
        size += 1 + size // 4
    value = make(size)
    if compiled.bound(value, SHORT) > SHORT:
        return  # not even the smallest one
    begun = time.thread_time()
    compiled.fits(value)
    assert time.thread_time() - begun < SHORT * 1e-7 * BROAD


@pytest.mark.parametrize("name", FAMILIES)
def test_a_larger_value_never_costs_less(name: str) -> None:
    schema, make = FAMILIES[name]
    compiled = ValueSchema.compile(schema)
    bounds = [compiled.bound(make(size), math.inf) for size in (1, 3, 10, 30)]
    assert bounds == sorted(bounds)


def test_numbers_of_no_ordinary_size_have_no_known_cost() -> None:
    compiled = ValueSchema.compile({})
    for number in (2**64, -(2**64), 1e300, 1e-300, -1e-300):
        assert compiled.bound([number], SHORT) == math.inf
    for ordinary in (0, 0.0, -1.5, 2**53, 1e15, 1e-9, True, None, "text"):
        assert compiled.bound([ordinary], SHORT) < 100


def test_a_table_with_a_sensible_schema_is_short() -> None:
    fields = {f"f{number}": {"type": "integer", "minimum": 0} for number in range(10)}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    assert ValueSchema.compile({"items": schema}).bound(rows(20), SHORT) <= SHORT


def test_no_more_is_looked_at_than_is_needed() -> None:
    compiled = ValueSchema.compile({"items": {"type": "integer"}})
    circle: list[Any] = []
    circle += [circle] * 100
    begun = time.thread_time()
    assert compiled.bound([0] * 10_000_000, SHORT) > SHORT
    assert compiled.bound(circle, SHORT) > SHORT
    assert time.thread_time() - begun < 1


# ------------------------------------------------------------------------------------------------ any schema and value

names = st.sampled_from(["a", "b", "c"])
constants = st.sampled_from([None, True, 0, 1, 1.5, "a", "ab", [], [1], {}, {"a": 1}])
plain = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({}, optional={"type": st.sampled_from(["array", "object", "string", "number", "null"])}),
    st.builds(lambda constant: {"const": constant}, constants),
    st.builds(lambda items: {"enum": items}, st.lists(constants, min_size=1, max_size=3)),
    st.builds(lambda limit: {"minimum": limit, "minItems": 1, "minLength": 1}, st.integers(0, 2)),
    st.just({"pattern": "a+b?"}),
    st.just({"uniqueItems": True}),
    st.just(ITSELF),
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(names, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "anyOf": several,
            "oneOf": several,
            "allOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "properties": named,
            "patternProperties": named,
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependentSchemas": named,
            "unevaluatedItems": inner,
            "unevaluatedProperties": inner,
        },
    )


schemas = st.recursive(plain, combined, max_leaves=8)
values = st.recursive(
    constants,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None)
@given(schemas, values)
def test_of_any_schema_and_value(schema: Any, value: Any) -> None:
    """The words agree with the outcome, and what the bound vouches for is short; more of a value costs more."""
    compiled = ValueSchema.compile(schema)
    begun = time.thread_time()
    fits = compiled.fits(value)
    took = time.thread_time() - begun
    units = compiled.bound(value, math.inf)
    assert took < max(units, SHORT) * 1e-7 * BROAD
    assert (compiled.problem(value) is None) == fits
    assert compiled.bound([value, value], math.inf) >= units

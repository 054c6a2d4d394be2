from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.domain.steps.checks import SHORT
from counterfoil.domain.steps.schema_costs import MAX_DEPTH
from counterfoil.domain.steps.values import MAX_SCHEMA_BYTES, ValueSchema

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def chain(length: int, times: int, keyword: str = "allOf") -> dict[str, Any]:
    """Definitions that each refer to the next one, several times."""
    links: dict[str, Any] = {
        f"a{number}": {keyword: [{"$ref": f"#/$defs/a{number + 1}"}] * times} for number in range(length)
    }
    return {"$ref": "#/$defs/a0", "$defs": links | {f"a{length}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (True, {"any": "thing"}),
        ({}, None),
        ({"type": "string"}, "a"),
        ({"type": "integer"}, 1.0),
        ({"type": "integer"}, 2**70),
        ({"type": "string"}, "a\0b😀"),
        ({"format": "no such format"}, "a"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, "a"),
        ({"$ref": "#/%24defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, "a"),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "string"}}}, "a"),
        ({"$schema": DRAFT_4, "maximum": 3, "exclusiveMaximum": True}, 2),
        ({"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}, {"$ref": "http://example.com"}),
        ({"enum": [{"$ref": "http://example.com"}]}, {"$ref": "http://example.com"}),
        ({"items": {"$ref": "#"}}, nested(MAX_DEPTH - 1)),
        ({"$ref": "#"}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}, {"left": {"right": {}}}),
        (
            {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]},
            nested(MAX_DEPTH - 1),
        ),
        (chain(10, 2), "a"),
    ],
)
def test_fits(schema: Any, value: Any) -> None:
    assert ValueSchema.compile(schema).problem(value) is None


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (False, "secret", "the value: is not allowed here"),
        ({"type": "number"}, "secret", "the value: must be of type number"),
        ({"type": ["number", "null"]}, "secret", "the value: must be of type null or number"),
        ({"properties": {"a": {"items": {"type": "number"}}}}, {"a": [1, "secret"]}, "/a/1: must be of type number"),
        ({"additionalProperties": {"type": "null"}}, {"a/b~c": "secret"}, "/a~1b~0c: must be of type null"),
        ({"required": ["a"]}, {"secret": 1}, "the value: needs the field a"),
        ({"dependentRequired": {"secret": ["b"]}}, {"secret": 1}, "the value: needs the field b"),
        ({"additionalProperties": False}, {"secret": 1}, "the value: has a field that the schema does not allow"),
        ({"unevaluatedProperties": False}, {"secret": 1}, "the value: has a field that the schema does not allow"),
        ({"propertyNames": {"maxLength": 2}}, {"secret": 1}, "the value: has a field with a name that is not allowed"),
        ({"minProperties": 2}, {"secret": 1}, "the value: must have at least 2 fields"),
        ({"maxProperties": 0}, {"secret": 1}, "the value: may have at most 0 fields"),
        ({"minimum": 3}, 2, "the value: must be at least 3"),
        ({"maximum": 2**70}, 2**71, f"the value: must be at most {2**70}"),
        ({"exclusiveMinimum": 3}, 3, "the value: must be more than 3"),
        ({"exclusiveMaximum": 3}, 3, "the value: must be less than 3"),
        ({"multipleOf": 0.1}, 0.25, "the value: must be a multiple of 0.1"),
        ({"minLength": 9}, "secret", "the value: must have at least 9 characters"),
        ({"maxLength": 3}, "secret", "the value: may have at most 3 characters"),
        ({"pattern": "^a{2}$"}, "secret", "the value: does not match the pattern ^a{2}$"),
        ({"format": "date"}, "secret", "the value: is not in the format date"),
        ({"minItems": 2}, ["secret"], "the value: must have at least 2 elements"),
        ({"maxItems": 0}, ["secret"], "the value: may have at most 0 elements"),
        ({"uniqueItems": True}, ["secret", "secret"], "the value: has the same element twice"),
        ({"contains": {"const": 3}}, ["secret"], "the value: does not contain the required elements"),
        ({"prefixItems": [{}], "items": False}, [1, "secret"], None),
        ({"prefixItems": [{}], "unevaluatedItems": False}, [1, "secret"], None),
        ({"enum": ["a"]}, "secret", "the value: is not one of the allowed values"),
        ({"const": "a"}, "secret", "the value: is not the allowed value"),
        ({"not": {"type": "string"}}, "secret", "the value: matches a schema that it must not match (not)"),
        ({"anyOf": [{"type": "null"}, {"const": 5}]}, "secret", "the value: matches none of the alternatives (anyOf)"),
        ({"oneOf": [{"type": "null"}, {"const": 5}]}, "secret", "the value: matches none of the alternatives (oneOf)"),
        ({"oneOf": [{}, {}]}, "secret", "the value: matches more than one of the alternatives (oneOf)"),
        ({"if": {"type": "string"}, "then": {"const": 1}}, "secret", "the value: is not the allowed value"),
        ({"type": "string"}, "secret\ud800", "is not a JSON value"),
        ({"type": "string"}, object(), "is not a JSON value"),
        ({"type": "string"}, {1: "secret"}, "is not a JSON value"),
        ({"$schema": DRAFT_4, "maximum": 3, "exclusiveMaximum": True}, 3, None),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "secret", "the value: must be of type null"),
    ],
)
def test_says_what_and_where_without_the_value(schema: Any, value: Any, problem: str | None) -> None:
    said = ValueSchema.compile(schema).problem(value)
    assert said is not None
    assert "secret" not in said
    assert problem is None or said == problem


def test_a_long_place_is_cut() -> None:
    said = ValueSchema.compile({"additionalProperties": False, "patternProperties": {"x": False}}).problem(
        {"x" * 5000: 1}
    )
    assert said is not None
    assert len(said) < 300


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (5, "must be an object, true or false"),
        (None, "must be an object, true or false"),
        ("{}", "must be an object, true or false"),
        ([], "must be an object, true or false"),
        ({"type": "strin"}, '^/type: is not a valid JSON Schema: "strin"'),
        ({"properties": {"a": {"minimum": "x"}}}, "^/properties/a/minimum: is not a valid JSON Schema"),
        ({"$schema": DRAFT_4, "maximum": 3, "exclusiveMaximum": 3}, "^/exclusiveMaximum"),
        ({"pattern": "("}, "^/pattern: "),
        ({"pattern": "(?=a)b"}, "^/pattern: "),
        ({"pattern": r"(a)\1"}, "^/pattern: "),
        ({"pattern": "((a{1000}){1000}){1000}"}, "^/pattern: "),
        ({"allOf": [{"pattern": r"\pL{0,9}"}] * 2_000}, "at most 100 patterns"),
        ({"patternProperties": {f"a{number}": {} for number in range(101)}}, "at most 100 patterns"),
        ({"patternProperties": 5}, "^/patternProperties: is not a valid"),
        ({"$ref": "#/$defs/nope"}, "does not exist"),
        ({"$ref": "#nope"}, "does not exist"),
        ({"$ref": 5}, r"^/\$ref: "),
        ({"$schema": "http://example.com/own"}, "Unknown meta-schema"),
        ({"items": {"$id": "http://example.com/", "type": "string"}}, r"^/items: only the whole schema"),
        ({"title": "x" * MAX_SCHEMA_BYTES}, "at most 65536 bytes"),
        ({"title": "ü" * (MAX_SCHEMA_BYTES // 2)}, "at most 65536 bytes"),
        ({"const": nested(100_000)}, "nested at most 64 levels"),
        ({"minimum": float("nan")}, "must be JSON"),
        ({"title": "\ud800"}, "must be JSON"),
        ({"title": object()}, "must be JSON"),
        ({1: 2}, "not a valid JSON Schema"),
        (chain(40, 2), "the references expand"),
        (chain(40, 2, "anyOf"), "the references expand"),
        (chain(1_500, 1), "the chain of references is too long"),
    ],
)
def test_refuses_what_is_no_schema(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        ValueSchema.compile(schema)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef", "$schema"])
def test_nothing_is_fetched(keyword: str, listening: socket.socket, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "string"}))
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
    for target in (address, address + "#/a", file.as_uri(), str(file), "schema.json", "//127.0.0.1/schema.json"):
        for schema in ({keyword: target}, {"$id": address, "properties": {"a": {keyword: target}}}):
            with pytest.raises(ValueError, match="schema"):
                ValueSchema.compile(schema)
    with pytest.raises(BlockingIOError):
        listening.accept()


def test_an_id_is_no_reason_to_fetch(listening: socket.socket) -> None:
    address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
    schema = ValueSchema.compile({"$id": address, "$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}})
    assert schema.problem("a") is None
    with pytest.raises(BlockingIOError):
        listening.accept()


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(a*)*b", "^(a{1,50}){1,50}$"])
def test_a_pattern_cannot_hang(pattern: str) -> None:
    value = "a" * 100_000 + "!"
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: False}}):
        ValueSchema.compile(schema).problem(value)
        ValueSchema.compile(schema).problem({value: 1})


def test_depth_is_limited() -> None:
    schema = ValueSchema.compile({"items": {"$ref": "#"}})
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested(MAX_DEPTH), nested(100_000), circle):
        assert schema.problem(value) == "is nested too deeply: 128 levels are allowed"


ITSELF = {"$ref": "#"}


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"items": ITSELF, "type": "array"}, {"items": ITSELF, "minItems": 1}], "not": {"const": 5}},
        {"oneOf": [{"items": ITSELF, "type": "array"}, {"items": ITSELF, "minItems": 1}], "not": {"const": 5}},
        {"allOf": [{"items": ITSELF}, {"prefixItems": [ITSELF]}, {"contains": ITSELF}], "not": {"const": 5}},
        {"if": {"items": ITSELF}, "then": {"items": ITSELF}, "else": {"items": ITSELF}, "not": {"const": 5}},
        {"$dynamicAnchor": "n", "not": {"const": 5}, "allOf": [{"items": {"$dynamicRef": "#n"}}] * 2},
        {"allOf": [{"prefixItems": [ITSELF]}, {"contains": ITSELF}], "unevaluatedItems": ITSELF, "not": {"const": 5}},
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"allOf": [{"$ref": "#/$defs/b"}] * 2, "not": {"const": 5}},
                "b": {"items": {"$ref": "#/$defs/a"}},
            },
        },
    ],
)
def test_a_schema_that_refers_to_itself_in_several_places_takes_no_longer_for_it(schema: Any) -> None:
    """There are 2 to the 100 ways down: the library must remember what it has found out, or this never ends."""
    compiled = ValueSchema.compile(schema)
    value: Any = 5
    for _ in range(100):
        value = [value]
    assert compiled.problem(value) == "the value: does not match the schema"
    assert compiled.bound(value, SHORT) > SHORT, "and nothing relies on it"


def test_a_union_of_nodes_is_a_schema_like_others() -> None:
    kinds = [
        {"type": "object", "properties": {"kind": {"const": kind}, "left": ITSELF, "right": ITSELF}}
        for kind in ("plus", "minus", "times")
    ]
    schema = ValueSchema.compile({"oneOf": [*kinds, {"type": "number"}]})
    tree: Any = 1
    for kind in ("plus", "minus", "times") * 3:
        tree = {"kind": kind, "left": tree, "right": 2}
    assert schema.problem(tree) is None
    assert schema.problem({"kind": "plus", "left": {**tree, "kind": "over"}}) is not None


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (
            {"properties": {"a": {"anyOf": [{"type": "null"}, {"oneOf": [{}, {}]}]}}},
            {"a": 1},
            "/a: matches none of the alternatives (anyOf)",
        ),
        (
            {
                "$defs": {"a": {"oneOf": [{"type": "null"}, {"type": "number", "minimum": 3}]}},
                "items": {"$ref": "#/$defs/a"},
            },
            [None, 2, 4],
            "/1: matches none of the alternatives (oneOf)",
        ),
        (
            {"not": {"anyOf": [{"type": "string"}]}},
            "secret",
            "the value: matches a schema that it must not match (not)",
        ),
        ({"anyOf": [{"type": "null"}], "$ref": "#/anyOf/0"}, "secret", "the value: does not match the schema"),
        (
            {"anyOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
            {"a": 1, "secret": 1},
            "the value: does not match the schema",
        ),
    ],
)
def test_alternatives_are_told_in_a_word(schema: Any, value: Any, problem: str) -> None:
    assert ValueSchema.compile(schema).problem(value) == problem


def test_the_reason_takes_no_more_memory_than_the_value() -> None:
    """The library would say of each element, and each of its alternatives, what it was, and all that it might be."""
    schema = ValueSchema.compile({"anyOf": [{"items": {"enum": list(range(5_000))}}] * 2})
    begun = time.thread_time()
    assert schema.problem([-1] * 20_000) == "the value: matches none of the alternatives (anyOf)"
    assert time.thread_time() - begun < 5


def test_the_library_is_loaded_at_the_first_compile_only() -> None:
    program = (
        "import sys, counterfoil.domain.steps.values as v\n"
        "assert 'jsonschema_rs' not in sys.modules\n"
        "v.ValueSchema.compile({})\n"
        "assert 'jsonschema_rs' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)

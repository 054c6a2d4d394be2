"""JSON Schema for the values of attributes.

Nothing is ever fetched: a schema may refer to itself only. Compiling and checking end soon, whatever schema and value
are: patterns run in linear time, and references cannot multiply the work without bound. What is said about a value
names the place in it, and never holds the value.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    import jsonschema_rs

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_DEPTH = 128
MAX_UNFOLDED = 100_000
"""How many subschemas there may be once each reference is replaced by what it refers to."""
MAX_WORK = 10_000_000
"""How many subschemas may be asked about one branch of a value, if the schema refers to itself in several places."""

_MAX_PLACE = 200
_PATTERN_BYTES = 256 * 1024  # compiled; large ones take long to compile
_MAX_PATTERNS = 100
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired", "type"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})

_WHOLE_ONLY = frozenset({"$schema", "$id", "id"})  # they change what references in them mean
_ELSEWHERE = frozenset({"$defs", "definitions"})  # asked only where something refers to them
_OF_ARRAYS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
_OF_OBJECTS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
)
_DISJOINT = frozenset({"properties", "prefixItems"})  # each of their schemas is about another part of the value

_Path = tuple[str | int, ...]


class ValueSchema:
    """A compiled schema; immutable, and so safe to share between threads."""

    def __init__(self, validator: jsonschema_rs.Validator, extent: _Extent) -> None:
        self._validator = validator
        self._extent = extent

    @classmethod
    def compile(cls, schema: Any) -> Self:
        """Check and compile; ValueError says what is wrong with the schema, and where."""
        if not isinstance(schema, dict | bool):
            raise ValueError("a JSON Schema must be an object, true or false")  # noqa: TRY004 - it came over the wire
        _check_size(schema)
        extent = _check_references(schema)
        library = _library()
        try:
            validator = library.validator_for(
                schema,
                offline=True,
                validate_formats=True,
                pattern_options=library.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES),
            )
        except library.ValidationError as error:
            reason = f"is no valid JSON Schema: {_schema_reason(error)}"
            raise ValueError(f"{_pointer(error.instance_path)}: {reason}") from None
        except (library.ReferencingError, ValueError) as error:
            raise ValueError(f"is no valid JSON Schema: {error}") from None
        return cls(validator, extent)

    def problem(self, value: Any) -> str | None:
        """None if the value fits, else what is wrong and where, without the value."""
        depth = _depth(value)
        if depth > MAX_DEPTH:
            return f"is nested too deeply: {MAX_DEPTH} levels are allowed"
        if self._extent.returns > 1 and self._extent.size * self._extent.returns**depth > MAX_WORK:
            return "is nested too deeply for a schema that refers to itself in several places"
        library = _library()
        try:
            self._validator.validate(value)
        except library.ValidationError as error:
            return f"{_pointer(error.instance_path)}: {_reason(error)}"
        except (ValueError, TypeError, OverflowError):  # also text that is no Unicode
            return "is no JSON value"
        return None


@functools.cache
def _library() -> Any:
    import jsonschema_rs as library  # noqa: PLC0415 - 15 MB that most processes never need

    return library


def _check_size(schema: Any) -> None:
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise ValueError(f"a JSON Schema may be nested {MAX_SCHEMA_DEPTH} levels deep at most")
    try:
        size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
    except (ValueError, TypeError):
        raise ValueError("a JSON Schema must be JSON") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"a JSON Schema may have {MAX_SCHEMA_BYTES} bytes at most")


def _depth(value: Any) -> int:
    """How deep a value is nested; one more than MAX_DEPTH stands for anything deeper, circles included."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        level = below
        depth += 1
    return depth


def _check_references(schema: Any) -> _Extent:
    """Refuse references that lead outside or multiply the work, and more patterns than can be compiled quickly."""
    anchors: dict[str, Any] = {}
    patterns = 0
    for path, node in _subschemas(schema, ()):
        for keyword in _REFERENCES:
            target = node.get(keyword, "#")
            if not isinstance(target, str) or not target.startswith("#"):
                raise ValueError(f"{_pointer([*path, keyword])}: may refer to a place in the schema itself only (#...)")
        patterns += ("pattern" in node) + _count(node.get("patternProperties"))
        if patterns > _MAX_PATTERNS:
            raise ValueError(f"{_pointer(path)}: a JSON Schema may have {_MAX_PATTERNS} patterns at most")
        if path and not _WHOLE_ONLY.isdisjoint(node):
            raise ValueError(f"{_pointer(path)}: only the whole schema may have $schema, $id or id")
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                anchors[f"#{node[keyword]}"] = node
    try:
        extent = _Unfolding(lambda target: anchors.get(target, _resolve(schema, target))).measure(schema)
    except RecursionError:
        raise ValueError("too many references lead from one to the next") from None
    if extent.size > MAX_UNFOLDED:
        raise ValueError("the references multiply: refer to parts that refer to others less often")
    return extent


def _count(named: Any) -> int:
    return len(named) if isinstance(named, dict) else 0


def _subschemas(node: Any, path: _Path) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Every object that is (or may be) a schema, with its place; what stands for data is none."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _subschemas(item, (*path, index))
    if not isinstance(node, dict):
        return
    yield path, node
    for keyword, below in node.items():
        if keyword in _NAMED and isinstance(below, dict):
            for name, item in below.items():
                yield from _subschemas(item, (*path, keyword, name))
        elif keyword not in _DATA:
            yield from _subschemas(below, (*path, keyword))


def _resolve(schema: Any, target: str) -> Any:
    """What a pointer within the schema refers to; True, which asks nothing, for nothing: the library will complain."""
    node = schema
    for escaped in unquote(target).removeprefix("#").split("/")[1:]:
        name = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and name in node:
            node = node[name]
        elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        else:
            return True
    return node


class _Extent(NamedTuple):
    """How many subschemas there are, and how many references lead back: in place, by way of elements, of fields."""

    size: int = 0
    here: int = 0
    in_arrays: int = 0
    in_objects: int = 0

    @property
    def returns(self) -> int:
        """How many references may lead back from one part of a value, which cannot be array and object at once."""
        return self.here + max(self.in_arrays, self.in_objects)

    def plus(self, other: _Extent) -> _Extent:
        return _Extent(*map(operator.add, self, other))


class _Unfolding:
    """Measures a schema with each reference replaced by its target, but for those that lead back."""

    def __init__(self, resolve: Callable[[str], Any]) -> None:
        self._resolve = resolve
        self._known: dict[int, _Extent] = {}
        self._open: set[int] = set()

    def measure(self, schema: Any) -> _Extent:
        if not isinstance(schema, dict):
            return _Extent(size=1)
        key = id(schema)
        if key in self._open:
            return _Extent(size=1, here=1)
        if key not in self._known:
            self._open.add(key)
            self._known[key] = functools.reduce(_Extent.plus, self._parts(schema), _Extent(size=1))
            self._open.discard(key)
        return self._known[key]

    def _parts(self, schema: dict[str, Any]) -> Iterator[_Extent]:
        for keyword, below in schema.items():
            if keyword in _REFERENCES:
                yield self.measure(self._resolve(below))
            elif keyword not in _DATA and keyword not in _ELSEWHERE and isinstance(below, dict | list):
                yield self._applied(keyword, below)

    def _applied(self, keyword: str, below: dict[str, Any] | list[Any]) -> _Extent:
        named = isinstance(below, dict) and keyword not in _NAMED
        children = [below] if named else below.values() if isinstance(below, dict) else below
        extents = [self.measure(child) for child in children]
        if keyword not in _OF_ARRAYS and keyword not in _OF_OBJECTS:
            return functools.reduce(_Extent.plus, extents, _Extent())
        size = sum(extent.size for extent in extents)
        returns = [extent.returns for extent in extents]
        count = max(returns, default=0) if keyword in _DISJOINT else sum(returns)
        return _Extent(size, in_arrays=count) if keyword in _OF_ARRAYS else _Extent(size, in_objects=count)


def _pointer(path: Any) -> str:
    place = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    place = place if len(place) <= _MAX_PLACE else place[:_MAX_PLACE] + "..."
    return place or "the whole"


def _schema_reason(error: Any) -> str:
    """The schema itself is no secret, but may be long."""
    return str(error.message)[:300]


_REASONS: dict[str, str] = {
    "additionalItems": "has more elements than the schema allows",
    "additionalProperties": "has a field that the schema does not allow",
    "anyOf": "fits none of the alternatives (anyOf)",
    "const": "is not the one value that is allowed",
    "contains": "has not the elements that it must contain",
    "enum": "is none of the values that are allowed",
    "falseSchema": "is not allowed here",
    "not": "fits what it must not fit (not)",
    "propertyNames": "has a field with a name that is not allowed",
    "unevaluatedItems": "has an element that the schema does not allow",
    "unevaluatedProperties": "has a field that the schema does not allow",
    "uniqueItems": "has the same element twice",
}
# These texts are completed with what the schema says; nothing of the value is among it.
_LIMITS: dict[str, str] = {
    "exclusiveMaximum": "must be less than {limit}",
    "exclusiveMinimum": "must be more than {limit}",
    "format": "is not in the format {format}",
    "maxItems": "may have {limit} elements at most",
    "maxLength": "may have {limit} characters at most",
    "maxProperties": "may have {limit} fields at most",
    "maximum": "must be {limit} at most",
    "minItems": "must have {limit} elements at least",
    "minLength": "must have {limit} characters at least",
    "minProperties": "must have {limit} fields at least",
    "minimum": "must be {limit} at least",
    "multipleOf": "must be a multiple of {multiple_of}",
    "pattern": "does not match the pattern {pattern:.100}",
    "required": "needs the field {property:.100}",
}


def _reason(error: Any) -> str:
    kind = error.kind
    if kind.name == "falseSchema":  # which keyword says so is more telling, if there is one
        return _REASONS.get(str(error.schema_path[-1]) if error.schema_path else "", _REASONS["falseSchema"])
    if kind.name == "type":
        return f"must be of type {' or '.join(kind.types)}"
    if kind.name == "oneOf":
        several = type(kind).__name__.endswith("MultipleValid")
        return f"fits {'more than one' if several else 'none'} of the alternatives (oneOf)"
    if kind.name in _LIMITS:
        return _LIMITS[kind.name].format_map(kind.as_dict())
    return _REASONS.get(kind.name, f"does not fit the schema ({kind.name})")

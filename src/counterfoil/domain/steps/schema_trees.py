"""The structure of a JSON Schema: its subschemas, the targets of its references, and which keywords hold data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired", "type"})
"""Keywords whose value is data and contains no schema."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords whose value has a schema under each name."""

_WHOLE_ONLY = frozenset({"$schema", "$id", "id"})  # they change what references inside mean
_MAX_PATTERNS = 100
_MAX_PLACE = 200

Path = tuple[str | int, ...]


def subschemas(node: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object that is (or may be) a schema, with its place."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from subschemas(item, (*path, index))
    if not isinstance(node, dict):
        return
    yield path, node
    for keyword, below in node.items():
        if keyword in NAMED and isinstance(below, dict):
            for name, item in below.items():
                yield from subschemas(item, (*path, keyword, name))
        elif keyword not in DATA:
            yield from subschemas(below, (*path, keyword))


class References:
    """The references of a schema. Raises ValueError for a reference to another document, and for too many patterns."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._anchors: dict[str, Any] = {}
        self.patterns: list[str] = []
        for path, node in subschemas(schema):
            self._look_at(path, node)

    def _look_at(self, path: Path, node: dict[str, Any]) -> None:
        for keyword in REFERENCES:
            target = node.get(keyword, "#")
            if not isinstance(target, str) or not target.startswith("#"):
                raise ValueError(f"{pointer([*path, keyword])}: may only refer to a place in the same schema (#...)")
        named = node.get("patternProperties")
        patterns = [*([node["pattern"]] if "pattern" in node else ()), *(named if isinstance(named, dict) else ())]
        self.patterns += [pattern for pattern in patterns if isinstance(pattern, str)]
        if len(self.patterns) > _MAX_PATTERNS:
            raise ValueError(f"{pointer(path)}: a JSON Schema may have at most {_MAX_PATTERNS} patterns")
        if path and not _WHOLE_ONLY.isdisjoint(node):
            raise ValueError(f"{pointer(path)}: only the whole schema may have $schema, $id or id")
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self._anchors[f"#{node[keyword]}"] = node

    def target(self, reference: str) -> Any:
        """The target of a reference; True, which accepts any value, if it has none: the library will report that."""
        if reference in self._anchors:
            return self._anchors[reference]
        node = self._schema
        for escaped in unquote(reference).removeprefix("#").split("/")[1:]:
            name = escaped.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            else:
                return True
        return node


def pointer(path: Any) -> str:
    """A place as text, shortened if it is long."""
    place = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    place = place if len(place) <= _MAX_PLACE else place[:_MAX_PLACE] + "..."
    return place or "the value"

"""Compares answers with the published OpenAPI document, strictly: no undeclared route, status, code or field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import jsonschema_rs
import orjson

BODILESS = (204, 205)
"""Successes whose answers have no body, by HTTP, whatever is declared for other ones."""

_NAME = re.compile(r"\\\{\w+\\\}")


class Exercised(NamedTuple):
    """One way in which a route answered."""

    method: str
    path: str
    status: int


class Contract:
    """The published document, with every object that declares its members closed: a member more is an error."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        paths = sorted(document["paths"], key=lambda path: path.count("{"))  # a fixed path before one with a name
        self.operations: dict[str, dict[str, Any]] = document["paths"]
        self._patterns = [(re.compile(_NAME.sub("[^/]+", re.escape(path))), path) for path in paths]
        self._components = closed(document["components"])
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
        self._recorded: list[set[Exercised]] = []

    def check(self, method: str, path: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Fail unless the document declares the answer. A path or method that is not served is left out."""
        template = next((template for pattern, template in self._patterns if pattern.fullmatch(path)), None)
        operation = self.operations[template].get(method.lower()) if template is not None else None
        if template is None or operation is None:
            return
        found = Exercised(method, template, status)
        declared = operation["responses"].get(str(status), operation["responses"].get(f"{status // 100}XX"))
        assert declared is not None, f"{found}: this status is not declared: {content[:500]!r}"
        for recorded in self._recorded:
            recorded.add(found)
        media = declared.get("content", {})
        if not media or (status in BODILESS and not content):
            assert not content, f"{found}: no body is declared: {content[:500]!r}"
            return
        given = headers["Content-Type"].partition(";")[0]
        assert given in media, f"{found}: {given} is not declared"
        if given == "application/json":
            self._compare(found, media[given]["schema"], orjson.loads(content))
        elif given == "text/event-stream":
            for line in content.splitlines():
                if line.startswith(b"data: "):
                    event = {"$ref": "#/components/schemas/JournalEvent"}
                    self._compare(found, event, orjson.loads(line.removeprefix(b"data: ")))

    def _compare(self, found: Exercised, schema: dict[str, Any], body: Any) -> None:
        text = orjson.dumps(schema).decode()
        validator = self._validators.get(text)
        if validator is None:
            whole = {"components": self._components, **closed(schema)}
            validator = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
            self._validators[text] = validator
        faults = [f"{fault.instance_path}: {fault.message}" for fault in validator.iter_errors(body)]
        assert not faults, f"{found}: {'; '.join(faults)[:2000]}"

    @contextmanager
    def recorded(self) -> Iterator[set[Exercised]]:
        """Every answer that is checked meanwhile."""
        found: set[Exercised] = set()
        self._recorded.append(found)
        try:
            yield found
        finally:
            self._recorded.remove(found)


def closed(schema: Any) -> Any:
    """The schema without room for members that it does not declare."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(item) for name, item in schema.items()}
    if schema.get("type") == "object" and "properties" in schema and "additionalProperties" not in schema:
        inner["additionalProperties"] = False
    return inner


@cache
def published() -> Contract:
    """The contract as a server with API keys publishes it: without keys, only 401 is missing."""
    from counterfoil.server.answers import json_text
    from counterfoil.server.app import api_routes
    from counterfoil.server.openapi import openapi_document

    routes = api_routes(cast(Any, None))  # no handler is called, so no engine is needed
    document = openapi_document(routes, with_keys=True)
    return Contract(orjson.loads(json_text(document)))

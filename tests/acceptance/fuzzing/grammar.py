"""Requests by the engine's own OpenAPI document: every operation, plausible and then broken somewhere."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.acceptance.fuzzing.jsontexts import BODY_LIMIT, NOT_JSON, Hostile, Pairs, nested, render
from tests.acceptance.fuzzing.plausible import Known, plausible
from tests.acceptance.fuzzing.wire import Headers, Request

DEEPEST = 6
MOST_REPEATED = 4 * BODY_LIMIT
METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
SEGMENTS = [
    *("%2e%2e", "..%2f..", "%00", "a%2Fb", "%ff%fe", "%", "%zz", "a" * 129, "a" * 3000, "-", "~", "a.b:c~d-e_f"),
    *(
        "%C3%A9",
        "%F0%9F%98%80",
        "a%20b",
        "a+b",
        "*",
        "'",
        "%22",
        "a;b=c",
        "test",
        "redrive",
        "approvals",
        ".",
        "..",
        "",
    ),
]
HEADERS: list[tuple[str, list[str]]] = [
    ("Content-Type", ["text/plain", "application/json; charset=utf-16", "Application/JSON", "", "multipart/form-data"]),
    ("Idempotency-Key", ["k" * 300, "", "\u00e9", "a, b"]),
    ("Last-Event-ID", ["0", "-1", "1e9", "9" * 30, "abc", " 7 "]),
    ("Accept", ["text/event-stream", "*/*;q=0", "application/xml", "x" * 500]),
    ("Accept-Encoding", ["gzip", "br, gzip;q=0", "identity;q=0"]),
    ("Expect", ["100-continue", "200-ok"]),
    ("Content-Encoding", ["gzip", "deflate", "br", "identity", "x"]),
    ("Counterfoil-Receipt", ["", "x", "a" * 4000]),
    ("webhook-id", ["", "msg_1"]),
    ("webhook-timestamp", ["0", "abc", "9" * 400]),
    ("webhook-signature", ["v1,AAAA", "v2,x v1,y", ""]),
    ("traceparent", ["00-0-0-00", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "z" * 600]),
    ("Cookie", ["a=b; c", "=" * 300]),
    ("Range", ["bytes=0-1", "bytes=-"]),
    ("If-None-Match", ["*"]),
    ("Connection", ["close", "keep-alive, close", "Upgrade"]),
    ("Origin", ["null", "http://evil.example"]),
    ("X-Forwarded-For", ["127.0.0.1"]),
    ("X-Odd", ["\xff\xfe", "a" * 9000, "tab\there"]),
]


@dataclass(frozen=True)
class Operation:
    """One method on one path, as the document has it."""

    name: str
    method: str
    path: str
    query: tuple[str, ...]
    body: dict[str, Any] | None
    example: Any
    is_stream: bool


def operations_of(document: dict[str, Any]) -> list[Operation]:
    found = []
    for path, methods in document["paths"].items():
        for method, spec in methods.items():
            if method not in METHODS:
                continue
            content = spec.get("requestBody", {}).get("content", {}).get("application/json", {})
            query = tuple(each["name"] for each in spec.get("parameters", ()) if each["in"] == "query")
            found.append(
                Operation(
                    spec["operationId"],
                    method.upper(),
                    path,
                    query,
                    content.get("schema"),
                    content.get("example"),
                    "text/event-stream" in spec["responses"].get("200", {}).get("content", {}),
                )
            )
    return found


def repeated(value: Any, times: int) -> list[Any]:
    """A list of copies, no longer than ``MOST_REPEATED`` as text: a list is repeated more than once, and what is in it
    may be half a megabyte long. Copies, because a change of one element must not be one of all."""
    most = MOST_REPEATED // max(len(render(value)), 1)
    return [copy.deepcopy(value) for _ in range(max(min(times, most), 1))]


class Grammar:
    """Makes requests. ``known`` names what exists, so that they hit something."""

    def __init__(self, document: dict[str, Any], dice: random.Random, known: Known, hostile: Hostile) -> None:
        self.operations = operations_of(document)
        self._by_name = {operation.name: operation for operation in self.operations}
        self._schemas = document["components"]["schemas"]
        self._dice = dice
        self._known = known
        self._hostile = hostile

    def any(self) -> Request:
        """Any operation, mostly with ids of what exists and a body that is broken in one place or two."""
        operation = self._dice.choice(self.operations)
        body = None
        if operation.body is not None or self._dice.random() < 0.05:
            body = self.broken(self.plausible_body(operation))
        return self.request(operation, body, odd_ids=self._dice.random() < 0.25, odd_headers=self._dice.random() < 0.3)

    def call(self, name: str, ids: dict[str, str], body: Any = None, **options: Any) -> Request:
        """One operation, on these ids."""
        return self.request(self._by_name[name], None if body is None else render(body), ids=ids, **options)

    def request(
        self,
        operation: Operation,
        body: bytes | None,
        *,
        ids: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        odd_ids: bool = False,
        odd_headers: bool = False,
        headers: Headers | None = None,
    ) -> Request:
        dice = self._dice
        target = self._path(operation, ids if ids is not None else self._known.ids(dice, operation.path), odd=odd_ids)
        asked = query if query is not None else {} if ids is not None else self._query(operation)
        if asked:
            target += "?" + "&".join(f"{quote(name)}={text}" for name, text in asked.items())
        all_headers: Headers = [(b"Authorization", b"Bearer " + self._known.key(dice, admin=ids is not None))]
        if body is not None:
            all_headers.append((b"Content-Type", b"application/json"))
        all_headers += headers or []
        method = operation.method
        if odd_headers:
            all_headers = self._odd_headers(all_headers)
            if dice.random() < 0.1:
                method = dice.choice(("HEAD", "OPTIONS", "PATCH", "DELETE", "FOO", "get"))
        early = operation.is_stream or operation.name == "get_flow_result"
        return Request(
            operation.name,
            method,
            target.encode("latin-1", "replace"),
            all_headers,
            body,
            chunked=body is not None and dice.random() < 0.05,
            patience=0.3 if early else 20.0,
            leaves_early=early,
        )

    # -- bodies ------------------------------------------------------------------------------------

    def plausible_body(self, operation: Operation) -> Any:
        """A body that the engine may well accept."""
        given = plausible(operation.name, self._dice, self._known, self._hostile)
        if given is not None and self._dice.random() < 0.7:
            return given
        if operation.example is not None and self._dice.random() < 0.5:
            return copy.deepcopy(operation.example)
        return {} if operation.body is None else self._sample(operation.body, "", 0)

    def broken(self, body: Any) -> bytes:
        """The same with a hostile value in some places, or text that is no document at all."""
        dice = self._dice
        chance = dice.random()
        if chance < 0.04:
            return dice.choice(NOT_JSON)
        if chance < 0.06:
            return render(self._hostile.anything())
        holder = [copy.deepcopy(body)]
        for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
            self._break_somewhere(holder)
        text = render(holder[0])
        if chance > 0.99:
            return text + b" " * dice.choice((1, BODY_LIMIT - len(text), BODY_LIMIT - len(text) + 1, BODY_LIMIT))
        return text

    def _break_somewhere(self, holder: list[Any]) -> None:
        """Walk down to a place, and change what stands there."""
        parent: Any = holder
        key: Any = 0
        while True:
            value = parent[key]
            if isinstance(value, dict | list) and value and self._dice.random() < 0.8:
                parent = value
                key = self._dice.choice(list(value) if isinstance(value, dict) else range(len(value)))
            else:
                break
        self._change(parent, key)

    def _change(self, parent: Any, key: Any) -> None:
        dice, value = self._dice, parent[key]
        changes: list[Callable[[], Any]] = [
            self._hostile.anything,
            self._hostile.anything,
            self._hostile.text,
            lambda: [value],
            lambda: {"in": value},
            lambda: repeated(value, dice.choice((2, 65, 300))),
            lambda: nested(dice.choice((98, 99, 100, 101, 197, 198, 199, 200)), "arrays"),
        ]
        if isinstance(value, dict):
            changes += [
                lambda: {**value, self._hostile.text(): self._hostile.json()},
                lambda: Pairs([*value.items(), *list(value.items())[:1], ("again", 1), ("again", 2)]),
            ]
        if isinstance(parent, dict) and dice.random() < 0.25:
            del parent[key]
            return
        parent[key] = dice.choice(changes)()

    def _sample(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        """A value that the schema allows, with an odd one where it allows anything."""
        if "$ref" in schema:
            return self._sample(self._schemas[schema["$ref"].rsplit("/", 1)[1]], name, depth)
        if depth > DEEPEST:
            return None
        choices = next((schema[word] for word in ("anyOf", "oneOf", "allOf") if word in schema), None)
        if choices is not None:
            return self._sample(self._dice.choice(choices), name, depth + 1)
        if "const" in schema or "enum" in schema:
            return self._dice.choice(schema.get("enum") or [schema.get("const")])
        given = self._known.value(name, self._dice)
        if given is not None and self._dice.random() < 0.8:
            return given
        return self._of_type(schema, name, depth)

    def _of_type(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        dice, low = self._dice, schema.get("minimum", 0)
        makers: dict[str | None, Callable[[], Any]] = {
            "object": lambda: self._object(schema, depth),
            "array": lambda: [
                self._sample(schema.get("items", {}), name, depth + 1) for _ in range(dice.choice((1, 1, 2, 3)))
            ],
            "string": lambda: self._hostile.text()[: schema.get("maxLength", 5000)],
            "integer": lambda: dice.choice((low, low + 1, schema.get("maximum", 10), 1, 2, 1000)),
            "number": lambda: dice.choice((low, low + 1, schema.get("maximum", 10), 0.5)),
            "boolean": lambda: dice.random() < 0.5,
            "null": lambda: None,
        }
        return makers.get(schema.get("type"), self._hostile.json)()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made = {
            name: self._sample(each, name, depth + 1)
            for name, each in schema.get("properties", {}).items()
            if name in required or self._dice.random() < 0.35
        }
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            made |= {
                self._hostile.text()[:120]: self._sample(more, "", depth + 1)
                for _ in range(self._dice.choice((0, 1, 2)))
            }
        elif more is True:
            made |= self._hostile.members()
        return made

    # -- everything else ---------------------------------------------------------------------------

    def _path(self, operation: Operation, ids: dict[str, str], *, odd: bool) -> str:
        parts = operation.path.split("/")
        names = [number for number, part in enumerate(parts) if part.startswith("{")]
        broken = self._dice.choice(names) if odd and names else None
        for number in names:
            text = ids.get(parts[number][1:-1], "unknown")
            if number == broken:
                text = self._odd_segment(text)
            parts[number] = text
        return "/".join(parts)

    def _odd_segment(self, text: str) -> str:
        dice = self._dice
        odd = (
            lambda: dice.choice(SEGMENTS),
            lambda: quote(self._hostile.text()[:1000], safe="", errors="replace"),
            lambda: text[:-1] + ("A" if text[-1:] != "A" else "B"),
            lambda: text[:-1],
            lambda: text + "/",
            lambda: "".join(f"%{ord(character):02x}" for character in text if ord(character) < 128),
        )
        return dice.choice(odd)()

    def _query(self, operation: Operation) -> dict[str, str]:
        dice = self._dice
        asked = {}
        for name in operation.query:
            if dice.random() < 0.35:
                value = self._known.parameter(name, dice)
                asked[name] = quote(value if dice.random() < 0.6 else self._hostile.text()[:2000], errors="replace")
        if dice.random() < 0.05:
            asked[self._hostile.text()[:50].encode(errors="replace").decode()] = "1"
        if asked and dice.random() < 0.05:
            asked[next(iter(asked))] += "&" + next(iter(asked)).encode("ascii", "replace").decode() + "=x"
        return asked

    def _odd_headers(self, headers: Headers) -> Headers:
        dice = self._dice
        changed = list(headers)
        for _ in range(dice.choice((1, 1, 2, 4))):
            name, values = dice.choice(HEADERS)
            value = dice.choice(values)
            if dice.random() < 0.15 and (receipt := self._known.token(dice)) is not None:
                value = receipt
            if name in ("Content-Type", "Content-Encoding") and dice.random() < 0.8:
                changed = [pair for pair in changed if pair[0] != name.encode()]
            changed.append((name.encode(), value.encode("latin-1", "replace")))
        if dice.random() < 0.05:
            changed = [pair for pair in changed if pair[0] != b"Authorization"]
        return changed

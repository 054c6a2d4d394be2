"""What a test has a client send, and what came back: the same for every client."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Call:
    """One request. ``json``: a value that the client writes as its users would have it do; else ``body``, as it is."""

    method: str
    url: str
    json: Any = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    chunked: bool = False
    """Send the body in chunks, as something whose length is not known."""
    expect: bool = False
    """Ask to continue before the body is sent (``Expect: 100-continue``), as far as the client can."""

    @property
    def content(self) -> bytes | None:
        """The body, for clients that write no JSON themselves."""
        return self.body if self.json is None else json.dumps(self.json).encode()

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers, for clients that write no JSON themselves."""
        return dict(self.headers) if self.json is None else {**JSON, **self.headers}


@dataclass(frozen=True)
class Answer:
    """An answer; names of headers in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"])

    def ok(self, status: int = 200) -> Any:
        """The JSON document, if this is the status."""
        assert self.status == status, (self.status, self.content[:500])
        return self.body if self.content else None

    def refused(self, status: int, code: str) -> Any:
        """The error, if this is the refusal."""
        assert (self.status, self.code) == (status, code), (self.status, self.content[:500])
        assert set(self.body["error"]) == {"code", "message", "details"}
        return self.body["error"]


def answer(status: int, headers: Mapping[str, str], content: bytes) -> Answer:
    return Answer(status, {name.lower(): value for name, value in headers.items()}, content)


def as_document(calls: Sequence[Call]) -> bytes:
    """The calls for a program in another language: a list on its standard input."""
    return json.dumps(
        [
            {
                "method": call.method,
                "url": call.url,
                "headers": call.all_headers,
                "body": None if call.content is None else base64.b64encode(call.content).decode(),
                "chunked": call.chunked,
                "expect": call.expect,
            }
            for call in calls
        ]
    ).encode()


def from_document(text: bytes) -> list[Answer]:
    """The answers that such a program printed."""
    return [answer(each["status"], each["headers"], base64.b64decode(each["body"] or "")) for each in json.loads(text)]

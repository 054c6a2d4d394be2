"""The comparison of answers with OpenAPI finds what it must find."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.contract import published

JSON = {"Content-Type": "application/json; charset=utf-8"}
UNKNOWN = {"error": {"code": "UNKNOWN_FLOW", "message": "no", "details": {}}}
EVENT = {
    "seq": 1,
    "type": "flow_started",
    "at": "2026-11-16T14:26:10.123Z",
    "flow_id": "f",
    "step_id": None,
    "work_id": None,
    "attempt": None,
    "data": {"anything": 1},
}


def check(path: str, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    published().check("GET", path, status, headers or JSON, content)


def test_a_declared_answer_passes() -> None:
    check("/healthz", {"status": "ok"})
    check("/api/v1/flows/f/events", {"events": [EVENT], "next_cursor": None})
    check("/api/v1/flows/f", UNKNOWN, 404)


def test_a_fixed_path_comes_before_one_with_a_name() -> None:
    page = {"pending_approvals": [], "count": 0, "total": 0, "limit": 20, "offset": 0, "has_more": False}
    check("/api/v1/workflows/approvals/pending", page)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/healthz", {"status": "ok", "more": 1}, 200),
        ("/healthz", {}, 200),
        ("/healthz", {"status": 1}, 200),
        ("/healthz", {"status": "ok"}, 201),
        ("/api/v1/flows/f/events", {"events": [{**EVENT, "more": 1}], "next_cursor": None}, 200),
        ("/api/v1/flows/f/events", {"events": [{**EVENT, "type": "unheard_of"}], "next_cursor": None}, 200),
        ("/api/v1/flows/f/events", {"events": [{**EVENT, "at": "noon"}], "next_cursor": None}, 200),
        ("/api/v1/flows/f", {"error": {**UNKNOWN["error"], "code": "UNKNOWN_WORK"}}, 404),
        ("/api/v1/flows/f", {"error": {**UNKNOWN["error"], "more": 1}}, 404),
        ("/api/v1/flows/f", {**UNKNOWN, "more": 1}, 404),
    ],
)
def test_anything_else_is_found(path: str, body: Any, status: int) -> None:
    with pytest.raises(AssertionError):
        check(path, body, status)


def test_events_of_a_stream_are_compared_too() -> None:
    headers = {"Content-Type": "text/event-stream"}
    check("/api/v1/stream", b"retry: 3000\n\nid: 1\ndata: " + orjson.dumps(EVENT) + b"\n\n", headers=headers)
    with pytest.raises(AssertionError):
        check("/api/v1/stream", b"data: " + orjson.dumps({**EVENT, "more": 1}) + b"\n\n", headers=headers)


def test_what_is_exercised_is_recorded() -> None:
    with published().recorded() as seen:
        check("/healthz", {"status": "ok"})
    assert {tuple(found) for found in seen} == {("GET", "/healthz", 200)}

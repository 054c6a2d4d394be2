from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import jsonschema_rs
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from counterfoil.domain.errors import error_types
from counterfoil.engine import Engine
from counterfoil.server.answers import json_text
from counterfoil.server.app import api_routes
from counterfoil.server.openapi import openapi_document
from counterfoil.server.problems import status_of
from counterfoil.server.routes import Route
from counterfoil.server.routes.docs_page import docs_routes

ROUTES: list[Route] = api_routes(cast(Engine, None))
"""The table alone: no handler is called here, so no engine is needed."""


@pytest.fixture(scope="module", params=[True, False], ids=["keys", "no keys"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The document as a client reads it."""
    read: dict[str, Any] = orjson.loads(json_text(openapi_document(ROUTES, with_keys=request.param)))
    return read


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def schemas_within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("schema"), dict):
            yield value["schema"]
        for item in value.values():
            yield from schemas_within(item)
    elif isinstance(value, list):
        for item in value:
            yield from schemas_within(item)


def test_every_route_is_shown_once(document: dict[str, Any]) -> None:
    shown = {(method.upper(), path) for path, method, _ in operations(document)}
    assert shown == {(route.method, route.path) for route in ROUTES}
    assert len(shown) == len(ROUTES)


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)


def test_every_operation_has_a_summary_and_one_to_three_sentences(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        summary, description = operation["summary"], operation.get("description", "")
        assert summary, (method, path)
        assert not summary.endswith("."), (method, path)
        assert description.endswith("."), f"{method} {path}: {description!r}"
        assert description.rstrip(".") != summary, (method, path)
        sentences = re.findall(r"\.(?=\s|$)", description)
        assert 1 <= len(sentences) <= 3, f"{method} {path}: {description!r}"


def test_every_schema_is_json_schema_and_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    components = {"components": document["components"]}
    for schema in [*schemas_within(document["paths"]), *document["components"]["schemas"].values()]:
        jsonschema_rs.validator_for({**components, **schema}).is_valid(None)


def test_path_parameters_are_those_of_the_path(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        declared = [each["name"] for each in operation.get("parameters", []) if each["in"] == "path"]
        assert declared == re.findall(r"\{(\w+)\}", path)


def test_every_operation_says_how_it_ends(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        statuses = set(operation["responses"])
        assert any(status.startswith("2") for status in statuses), (method, path)
        assert {"400", "503"} <= statuses
        if "requestBody" in operation:
            assert {"413", "415", "422"} <= statuses, (method, path)


def test_errors_stand_under_their_status(document: dict[str, Any]) -> None:
    known = {(error.code, str(status_of(error))) for error in error_types()}
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            schema = response.get("content", {}).get("application/json", {}).get("schema", {})
            for code in (
                schema.get("properties", {}).get("error", {}).get("properties", {}).get("code", {}).get("enum", ())
            ):
                assert (code, status) in known


def test_every_error_code_is_listed(document: dict[str, Any]) -> None:
    listed = {entry["code"]: entry["status"] for entry in document["x-error-codes"]}
    assert listed == {error.code: status_of(error) for error in error_types()}


def test_every_route_that_refuses_a_report_lists_the_codes_of_the_contract(document: dict[str, Any]) -> None:
    path = next(path for path in document["paths"] if path.startswith("/webhook/") and path.count("{") == 3)
    refusals = document["paths"][path]["post"]["responses"]["400"]["description"]
    for code in ("ALREADY_SUCCEEDED", "ALREADY_FAILED", "CONFLICTING_RESULT", "WORK_CANCELLED", "WORK_NOT_ACTIVE"):
        assert code in refusals


def test_examples_are_valid() -> None:
    for route in ROUTES:
        if route.example is not None:
            assert route.request is not None
            route.request.model_validate(route.example)


def test_query_parameters_are_plain_values(document: dict[str, Any]) -> None:
    parameters = {
        each["name"]: each for each in document["paths"]["/api/v1/flows"]["get"]["parameters"] if each["in"] == "query"
    }
    assert set(parameters) == {"status", "label", "goal", "since", "key", "cursor", "limit"}
    assert parameters["status"]["schema"]["enum"] == ["active", "compensating", "completed", "failed", "cancelled"]
    assert parameters["since"]["schema"] == {"type": "string", "format": "date-time"}
    assert parameters["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert not any(each["required"] for each in parameters.values())


def test_keys_are_asked_for_only_when_there_are_some() -> None:
    without = openapi_document(ROUTES, with_keys=False)
    assert "security" not in without
    refusals = [operation["responses"].get("401", {}) for path, _, operation in operations(without) if "/api/" in path]
    assert not any("UNAUTHENTICATED" in str(refusal) for refusal in refusals)
    with_keys = openapi_document(ROUTES, with_keys=True)
    assert with_keys["security"] == [{"bearer": []}, {"basic": []}]
    for path, method, operation in operations(with_keys):
        if path.startswith("/webhook"):
            assert operation["security"] == [], (method, path)
        else:
            assert "401" in operation["responses"], (method, path)
            assert operation["x-roles"], (method, path)


@pytest.mark.parametrize(
    ("method", "path", "roles"),
    [
        ("PUT", "/api/v1/steps/{step_id}", ["admin"]),
        ("DELETE", "/api/v1/steps/{step_id}", ["admin"]),
        ("GET", "/api/v1/steps/{step_id}", ["admin", "operator", "reviewer", "viewer"]),
        ("POST", "/api/v1/flows", ["admin", "operator"]),
        ("POST", "/api/v1/flows/{flow_id}/cancel", ["admin", "operator"]),
        ("GET", "/api/v1/work", ["admin", "operator", "reviewer", "viewer"]),
        ("GET", "/metrics", ["admin", "operator", "reviewer", "viewer"]),
    ],
)
def test_roles_are_those_of_the_contract(method: str, path: str, roles: list[str]) -> None:
    route = next(route for route in ROUTES if (route.method, route.path) == (method, path))
    assert sorted(route.roles or ()) == roles


def test_only_the_webhook_is_bare() -> None:
    assert {route.path.split("/")[1] for route in ROUTES if route.bare} == {"webhook"}


async def test_the_page_takes_nothing_from_elsewhere() -> None:
    for route in docs_routes():
        response = await route.handler(make_mocked_request("GET", route.path, headers={"Accept": "text/html"}))
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert isinstance(response, web.Response)
        assert isinstance(response.body, bytes)
        assert not re.search(rb"(https?:)?//[a-z]|<script>|style=|onclick=", response.body), route.path


async def test_a_page_that_is_known_is_not_sent_again() -> None:
    route = next(route for route in docs_routes() if route.path == "/docs")
    etag = (await route.handler(make_mocked_request("GET", "/docs"))).headers["ETag"]
    again = await route.handler(make_mocked_request("GET", "/docs", headers={"If-None-Match": etag}))
    assert again.status == 304


async def test_the_root_leads_to_the_page() -> None:
    root = next(route for route in docs_routes() if route.path == "/")
    response = await root.handler(make_mocked_request("GET", "/"))
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    assert orjson.loads(response.body)["docs"] == "/docs"

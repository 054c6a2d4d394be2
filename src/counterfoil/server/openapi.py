"""The OpenAPI 3.1 document, made from the route table, the request models and the shapes of ``counterfoil.wire``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Literal

from pydantic import TypeAdapter

from counterfoil.domain.errors import (
    BadRequest,
    CounterfoilError,
    Forbidden,
    Unauthenticated,
    Unavailable,
    UnknownRoute,
    error_types,
)
from counterfoil.domain.flows.requests import FLOW_ID_PATTERN
from counterfoil.domain.schedules import SCHEDULE_ID_PATTERN
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN
from counterfoil.server.problems import status_of
from counterfoil.server.requests import Query
from counterfoil.server.routes import Route, SuccessAnswer
from counterfoil.version import __version__
from counterfoil.wire.errors import ErrorAnswer

_Mode = Literal["validation", "serialization"]
_References = Mapping[tuple[Any, _Mode], dict[str, Any]]

_PATH_NAMES = re.compile(r"\{(\w+)\}")
_REFERENCE = "#/components/schemas/{model}"

PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "flow_id": {"schema": {"type": "string", "pattern": FLOW_ID_PATTERN}},
    "step_id": {"schema": {"type": "string", "pattern": STEP_ID_PATTERN}},
    "schedule_id": {"schema": {"type": "string", "pattern": SCHEDULE_ID_PATTERN}},
    "work_id": {"schema": {"type": "string", "minLength": 1}},
    "token": {
        "schema": {"type": "string", "minLength": 1},
        "description": "the token of the hook, percent-encoded",
    },
    "receipt_token": {
        "schema": {"type": "string", "minLength": 1},
        "description": "the receipt token of the work item",
    },
}

TAGS = {
    "steps": "What can be run: each step has an endpoint that is called with a receipt.",
    "flows": "One run towards its goals.",
    "webhook": "Where workers report. The receipt is the credential: no API key is needed.",
    "work": "The units of work that were sent out, each with one receipt and one outcome.",
    "callbacks": "Every request to a webhook, heartbeat or hook URL, accepted or refused.",
    "relays": "Workers that the engine cannot reach pull their requests.",
    "reconciliations": "Work items whose outcome is unknown, and that are never repeated without being settled.",
    "hooks": "Steps that wait for a payload from outside, each under a token.",
    "effects": "Effects of tools that run outside of flows: each is reserved by one caller and recorded once.",
    "journal": "Every change is an event; read them page by page, or follow them live.",
    "schedules": "Flows that start by the calendar, or at an interval.",
    "workflows": "Runs of agents: an agent calls the gate before each step, and reports its outcome.",
    "approvals": "Steps that wait for a human decision, of agents and of flows that the engine drives.",
    "policies": "Rules that are evaluated before each step of an agent, and before each attempt of the engine.",
    "subscriptions": "URLs that are notified of events by signed webhook.",
    "operations": "Health, readiness and metrics.",
}

SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The secret of an API key."},
    "basic": {"type": "http", "scheme": "basic", "description": "The name and the secret of an API key."},
}
SECURITY: list[dict[str, list[str]]] = [{name: []} for name in SECURITY_SCHEMES]

INTRODUCTION = """\
Counterfoil sends work to endpoints, each with a receipt, and records exactly one outcome for each receipt.

All bodies are JSON, all times are RFC 3339 in UTC. Every error has the same form:
`{"error": {"code": "UPPER_SNAKE", "message": "for people", "details": {}}}`.
"""


def openapi_document(routes: Iterable[Route], *, with_keys: bool) -> dict[str, Any]:
    """The OpenAPI document; ``with_keys``: API keys are configured, so requests need one."""
    shown = list(routes)
    references, schemas = _schemas(shown)
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for route in shown:
        paths[route.path][route.method.lower()] = _operation(route, references, with_keys=with_keys)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Counterfoil",
            "version": __version__,
            "summary": "Async steps completed by webhook: one receipt, one outcome",
            "description": INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": _tags(shown),
        "paths": dict(paths),
        "components": {"schemas": schemas},
        "x-error-codes": error_codes(),
    }
    if with_keys:
        document["components"]["securitySchemes"] = SECURITY_SCHEMES
        document["security"] = SECURITY
    return document


def error_codes() -> list[dict[str, Any]]:
    """The closed set of codes, each with its status and what it means."""
    found = {error.code: (status_of(error), error.default_message) for error in error_types()}
    return [{"code": code, "status": status, "message": message} for code, (status, message) in sorted(found.items())]


def _schemas(routes: list[Route]) -> tuple[_References, dict[str, Any]]:
    """The schema of each request and answer, as a reference, and the schemas that the references lead to."""
    wanted: dict[tuple[type[Any], _Mode], None] = {(ErrorAnswer, "serialization"): None}
    for route in routes:
        if route.request is not None:
            wanted[route.request, "validation"] = None
        for answer in route.answers.values():
            if answer.model is not None:
                wanted[answer.model, "serialization"] = None
    adapters: list[tuple[Any, _Mode, TypeAdapter[Any]]] = [(shape, mode, TypeAdapter(shape)) for shape, mode in wanted]
    references, definitions = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
    return references, definitions.get("$defs", {})


def _operation(route: Route, references: _References, *, with_keys: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [route.tag],
        "summary": route.summary,
        "description": route.description,
        "responses": _responses(route, references, with_keys=with_keys),
    }
    parameters = [*_path_parameters(route.path), *_query_parameters(route.query), *_header_parameters(route)]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        content: dict[str, Any] = {"schema": references[route.request, "validation"]}
        if route.example is not None:
            content["example"] = route.example
        operation["requestBody"] = {
            "required": not route.request_optional,
            "content": {"application/json": content},
        }
    if with_keys:
        operation |= _security(route)
    return operation


def _security(route: Route) -> dict[str, Any]:
    """The security of a route that differs from the rule that every request needs a key."""
    if route.bare or route.roles is None:
        return {"security": []}
    if route.open_on_loopback or route.own_credential is not None:
        return {"security": [{}, *SECURITY], "x-roles": sorted(route.roles)}
    return {"x-roles": sorted(route.roles)}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, **PATH_PARAMETERS.get(name, {"schema": {"type": "string"}})}
        for name in _PATH_NAMES.findall(path)
    ]


def _query_parameters(model: type[Query] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    schema = model.model_json_schema()
    return [
        _query_parameter(name, _inlined(field, schema.get("$defs", {}))) for name, field in schema["properties"].items()
    ]


def _query_parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    description = schema.pop("description", None)
    schema.pop("title", None)
    if schema.get("default", 0) is None:
        del schema["default"]
    parameter = {"name": name, "in": "query", "required": False, "allowEmptyValue": True, "schema": schema}
    return parameter if description is None else {**parameter, "description": description}


def _inlined(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A parameter is absent or a text: references are resolved, and null falls away."""
    flat = dict(schema)
    for choice in flat.pop("anyOf", []):
        if choice != {"type": "null"}:
            flat.update(choice)
    if "$ref" in flat:
        found = definitions[flat.pop("$ref").rsplit("/", 1)[1]]
        flat.update({name: value for name, value in found.items() if name not in ("title", "description")})
    return flat


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": header.name,
            "in": "header",
            "required": header.required,
            "description": header.description,
            "schema": dict(header.schema),
        }
        for header in route.headers
    ]


def _responses(route: Route, references: _References, *, with_keys: bool) -> dict[str, Any]:
    responses = {str(status): _answer(answer, references) for status, answer in route.answers.items()}
    if route.other_success is not None:
        responses["2XX"] = _answer(route.other_success, references)
    by_status: dict[int, list[type[CounterfoilError]]] = defaultdict(list)
    for error in sorted({*route.errors, *_common_errors(route, with_keys=with_keys)}, key=lambda found: found.code):
        by_status[status_of(error)].append(error)
    for status, errors in by_status.items():
        if str(status) in responses:
            raise ValueError(f"{route.name}: {status} is an answer and an error")
        responses[str(status)] = _refusal(status, errors, references)
    return dict(sorted(responses.items()))


def _common_errors(route: Route, *, with_keys: bool) -> set[type[CounterfoilError]]:
    errors: set[type[CounterfoilError]] = {BadRequest, Unavailable}
    if "{" in route.path:
        errors.add(UnknownRoute)
    if not route.bare:
        errors.add(Forbidden)
        if with_keys and route.roles is not None:
            errors.add(Unauthenticated)
    return errors


def _answer(answer: SuccessAnswer, references: _References) -> dict[str, Any]:
    if answer.model is not None:
        schema = references[answer.model, "serialization"]
        return {"description": answer.description, "content": {"application/json": {"schema": schema}}}
    if answer.media_type is not None:
        return {"description": answer.description, "content": {answer.media_type: {"schema": {"type": "string"}}}}
    return {"description": answer.description}


def _refusal(status: int, errors: list[type[CounterfoilError]], references: _References) -> dict[str, Any]:
    codes = [error.code for error in errors]
    lines = [f"`{error.code}`: {error.default_message}" for error in errors]
    schema = {
        "allOf": [references[ErrorAnswer, "serialization"]],
        "properties": {"error": {"properties": {"code": {"enum": codes}}}},
    }
    response: dict[str, Any] = {
        "description": "\n\n".join([HTTPStatus(status).phrase, *lines]),
        "content": {"application/json": {"schema": schema}},
    }
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response["headers"] = {
            "Retry-After": {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 0}}
        }
    return response


def _tags(routes: list[Route]) -> list[dict[str, str]]:
    used = dict.fromkeys(route.tag for route in routes)
    return [{"name": name, "description": TAGS.get(name, "")} for name in sorted(used, key=_tag_order)]


def _tag_order(name: str) -> int:
    names = list(TAGS)
    return names.index(name) if name in names else len(names)

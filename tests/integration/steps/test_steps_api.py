"""Section 3: registering steps, and where a bad definition is wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH
from tests.wire import JSON, Api, Reply

FULL: dict[str, Any] = {
    "kind": "async",
    "name": "Transcribe",
    "endpoint": "http://worker:9000/transcribe",
    "attributes": {
        "audio_url": {"role": "required", "type": "string"},
        "language": {"role": "optional", "type": "string", "default": "en"},
        "mode": {"role": "const", "value": "fast"},
        "text": {"role": "output", "type": "string"},
    },
    "work": {
        "max_retries": 5,
        "backoff_type": "exponential",
        "init_backoff_ms": 1000,
        "max_backoff_ms": 60000,
        "jitter": True,
        "ack_timeout_ms": 30000,
        "deadline_ms": 3600000,
        "heartbeat_timeout_ms": None,
        "parallelism": None,
        "rate_limit": {"count": 10, "per_ms": 1000},
    },
    "effect": {
        "policy": "dedupe",
        "key": {"keep": None, "strip": ["reason"]},
        "scope": "global",
        "window": "24h",
        "downstream_window": "7d",
    },
    "control": {"approval": None},
    "predicate": None,
    "compensate": None,
    "status_url": "http://worker/status",
    "cancel_url": None,
    "duplicate_status": 400,
    "require_signature": False,
    "labels": {},
}


async def put(api: Api, step_id: str, definition: Any) -> Reply:
    return await api.request("PUT", f"/api/v1/steps/{step_id}", json=definition)


async def test_new_same_and_changed(api: Api) -> None:
    """201 for a new step, 200 for the same or a changed one."""
    body = (await put(api, "transcribe", FULL)).ok(201)
    assert body["step_id"] == "transcribe"
    (await put(api, "transcribe", FULL)).ok(200)
    (await put(api, "transcribe", {**FULL, "name": "Other"})).ok(200)
    shown = (await api.get("/api/v1/steps/transcribe")).ok()
    assert shown["name"] == "Other"


@pytest.mark.parametrize("policy", ["pure", "idempotent", "dedupe", "reconcile", "unsafe_once"])
async def test_every_effect_policy_is_shown_as_published(api: Api, policy: str) -> None:
    effect = {"policy": policy, "scope": "global", "window": "7d", "downstream_window": "30d"}
    fields = {"effect": effect, "control": {"approval": {}}, "status_url": "http://worker:9000/status"}
    body = (await put(api, "refund", {**FULL, **fields})).ok(201)
    assert {name: body["effect"][name] for name in effect} == effect
    assert body["status_url"] == fields["status_url"]


async def test_the_whole_example_of_the_contract_comes_back(api: Api) -> None:
    (await put(api, "transcribe", FULL)).ok(201)
    shown = (await api.get("/api/v1/steps/transcribe")).ok()
    for name, value in FULL.items():
        if name == "attributes":
            for attribute, rules in value.items():
                assert shown[name][attribute].items() >= rules.items()
        else:
            assert shown[name] == value, name


async def test_a_minimal_step(api: Api) -> None:
    (await put(api, "job", {"endpoint": "http://worker/job"})).ok(201)
    shown = (await api.get("/api/v1/steps/job")).ok()
    assert (shown["step_id"], shown["kind"], shown["endpoint"]) == ("job", "async", "http://worker/job")
    assert (shown["duplicate_status"], shown["require_signature"]) == (400, False)


async def test_list_and_delete(api: Api) -> None:
    for step_id in ("b", "a", "c"):
        await api.put_step(step_id, "http://worker/")
    listed = (await api.get("/api/v1/steps")).ok()["steps"]
    assert sorted(step["step_id"] for step in listed) == ["a", "b", "c"]
    assert (await api.request("DELETE", "/api/v1/steps/b")).status in (200, 204)
    (await api.get("/api/v1/steps/b")).refused(404, "UNKNOWN_STEP")
    (await api.request("DELETE", "/api/v1/steps/b")).refused(404, "UNKNOWN_STEP")
    assert sorted(step["step_id"] for step in (await api.get("/api/v1/steps")).ok()["steps"]) == ["a", "c"]
    (await api.post("/api/v1/flows", {"goals": ["b"]})).refused(404, "UNKNOWN_STEP")
    (await put(api, "b", {"endpoint": "http://worker/"})).ok(201)


async def test_a_changed_step_serves_new_flows_only(api: Api, endpoint: StepEndpoint) -> None:
    """A flow that runs keeps the definition that it was started with."""
    await api.put_step("job", endpoint.url("/old"), work={"init_backoff_ms": 300})
    await api.start("job")
    first = await endpoint.received("/old")
    await api.put_step("job", endpoint.url("/new"))
    (await api.complete(first, {"success": False, "retriable": True})).ok()
    assert (await endpoint.received("/old", 2)).metadata["attempt"] == 2
    await api.start("job")
    await endpoint.received("/new")
    assert len(endpoint.requests("/new")) == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": None}, "endpoint"),
    ({"endpoint": "worker:9000"}, "endpoint"),
    ({"endpoint": "ftp://worker/"}, "endpoint"),
    ({"endpoint": "/relative"}, "endpoint"),
    ({"endpoint": "http://"}, "endpoint"),
    ({"endpoint": "http://worker:99999/"}, "endpoint"),
    ({"endpoint": "http://worker/ space"}, "endpoint"),
    ({"kind": "magic"}, "kind"),
    ({"kind": None}, "kind"),
    ({"name": 5}, "name"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"work": []}, "work"),
    ({"work": {"max_retries": -2}}, "max_retries"),
    ({"work": {"max_retries": 1.5}}, "max_retries"),
    ({"work": {"max_retries": "5"}}, "max_retries"),
    ({"work": {"max_retries": True}}, "max_retries"),
    ({"work": {"backoff_type": "random"}}, "backoff_type"),
    ({"work": {"init_backoff_ms": -1}}, "init_backoff_ms"),
    ({"work": {"max_backoff_ms": -1}}, "max_backoff_ms"),
    ({"work": {"jitter": "yes"}}, "jitter"),
    ({"work": {"ack_timeout_ms": 0}}, "ack_timeout_ms"),
    ({"work": {"deadline_ms": 0}}, "deadline_ms"),
    ({"work": {"deadline_ms": 10**18}}, "deadline_ms"),
    ({"work": {"heartbeat_timeout_ms": 0}}, "heartbeat_timeout_ms"),
    ({"work": {"parallelism": 0}}, "parallelism"),
    ({"work": {"parallelism": -1}}, "parallelism"),
    ({"work": {"rate_limit": {"count": 0, "per_ms": 1}}}, "rate_limit.count"),
    ({"work": {"rate_limit": 10}}, "rate_limit"),
    ({"work": {"retries": 1}}, "retries"),
    ({"attributes": []}, "attributes"),
    ({"attributes": {"a": "string"}}, "attributes"),
    ({"attributes": {"a": {}}}, "role"),
    ({"attributes": {"a": {"role": "input"}}}, "role"),
    ({"attributes": {"a": {"role": "required", "type": "integer"}}}, "type"),
    ({"attributes": {"a": {"role": "required", "default": 1}}}, "default"),
    ({"attributes": {"a": {"role": "required", "value": 1}}}, "value"),
    ({"attributes": {"a": {"role": "const"}}}, "value"),
    ({"attributes": {"a": {"role": "const", "type": "string", "value": 1}}}, "value"),
    ({"attributes": {"a": {"role": "optional", "type": "string", "default": 1}}}, "default"),
    ({"attributes": {"": {"role": "required"}}}, "attributes"),
    ({"effect": {"policy": "hope"}}, "policy"),
    ({"effect": {"window": "a while"}}, "window"),
    ({"effect": {"key": {"keep": ["b"]}}, "attributes": {"a": {"role": "required"}}}, "keep"),
    ({"cancel_url": "nowhere"}, "cancel_url"),
    ({"duplicate_status": 201}, "duplicate_status"),
    ({"duplicate_status": "200"}, "duplicate_status"),
    ({"require_signature": "yes"}, "require_signature"),
    ({"labels": {"a": 1}}, "labels"),
    ({"labels": []}, "labels"),
]


@pytest.mark.either_store
@pytest.mark.parametrize(("change", "place"), BAD)
async def test_a_bad_definition_says_where(api: Api, change: dict[str, Any], place: str) -> None:
    definition = {"endpoint": "http://worker/", **change}
    details = (await put(api, "job", definition)).refused(422, "INVALID_STEP")
    assert details["errors"]
    assert place in orjson.dumps(details["errors"]).decode()
    (await api.get("/api/v1/steps/job")).refused(404, "UNKNOWN_STEP")


async def test_every_error_has_its_place(api: Api) -> None:
    definition = {"endpoint": "x", "kind": "magic", "work": {"max_retries": -2}}
    errors = (await put(api, "job", definition)).refused(422, "INVALID_STEP")["errors"]
    text = orjson.dumps(errors).decode()
    assert len(errors) >= 3
    assert all(place in text for place in ("endpoint", "kind", "work.max_retries"))


async def test_a_bad_change_leaves_the_step_as_it_was(api: Api) -> None:
    await api.put_step("job", "http://worker/", name="good")
    (await put(api, "job", {"endpoint": "bad"})).refused(422, "INVALID_STEP")
    assert (await api.get("/api/v1/steps/job")).ok()["name"] == "good"


@pytest.mark.either_store
@pytest.mark.parametrize("step_id", ["-a", "a%20b", "a%2Fb", "%C3%A9", "a" * 129, ".hidden"])
async def test_a_bad_step_id_is_refused(api: Api, step_id: str) -> None:
    reply = await put(api, step_id, {"endpoint": "http://worker/"})
    assert reply.status in (404, 422)
    assert reply.code


@pytest.mark.either_store
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff"])
async def test_no_json_object(api: Api, content: bytes) -> None:
    reply = await api.request("PUT", "/api/v1/steps/job", data=content, headers=JSON)
    assert reply.status == 422
    assert reply.code == "INVALID_STEP"


async def test_media_type_and_size(api: Api) -> None:
    content = orjson.dumps({"endpoint": "http://worker/"})
    reply = await api.request("PUT", "/api/v1/steps/job", data=content, headers={"Content-Type": "text/plain"})
    reply.refused(415, "UNSUPPORTED_MEDIA_TYPE")
    reply = await api.request("PUT", "/api/v1/steps/job", data=b" " * 2**21, headers=JSON)
    reply.refused(413, "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/v1/steps"), ("PATCH", "/api/v1/steps/a"), ("DELETE", "/api/v1/flows/x")]
)
async def test_another_method(api: Api, method: str, path: str) -> None:
    reply = await api.request(method, path, json={})
    reply.refused(405, "METHOD_NOT_ALLOWED")
    assert reply.headers["Allow"]


async def test_an_unknown_path_is_an_error_of_the_same_form(api: Api) -> None:
    reply = await api.get("/api/v1/nothing-here")
    assert reply.status == 404
    assert reply.code


async def test_definition_survives_a_flow(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("job", endpoint.url(PATH), labels={"team": "audio"})
    before = (await api.get("/api/v1/steps/job")).ok()
    await api.start("job")
    await endpoint.received(PATH)
    assert (await api.get("/api/v1/steps/job")).ok() == before

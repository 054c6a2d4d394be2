"""Section 3: starting flows, and what each step is given of what the flow was started with."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.wire import JSON, Api, moment

ATTRIBUTES = {
    "audio_url": {"role": "required", "type": "string"},
    "language": {"role": "optional", "type": "string", "default": "en"},
    "hint": {"role": "optional"},
    "mode": {"role": "const", "value": "fast"},
    "text": {"role": "output", "type": "string"},
}


async def test_started(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await api.post("/api/v1/flows", {"goals": [STEP], "init": {"a": 1}})).ok(201)
    assert set(body) >= {"flow_id", "status", "goals", "plan", "created_at"}
    assert (body["status"], body["goals"]) == ("active", [STEP])
    assert body["plan"]["steps"] == [STEP]
    assert body["plan"]["excluded"] == {}
    moment(body["created_at"])
    assert (await api.flow(body["flow_id"]))["created_at"] == body["created_at"]


async def test_ids_are_made_when_none_is_given(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    assert len({await api.start(STEP) for _ in range(20)}) == 20


async def test_the_callers_id_is_taken_once(api: Api, endpoint: StepEndpoint) -> None:
    """409 for an id that exists, also once its flow has ended, and nothing is sent twice."""
    await api.put_step(STEP, endpoint.url(PATH))
    assert await api.start(STEP, flow_id="mine-1") == "mine-1"
    (await api.post("/api/v1/flows", {"goals": [STEP], "flow_id": "mine-1"})).refused(409, "FLOW_EXISTS")
    await api.succeed(await endpoint.received(PATH))
    await api.final("mine-1")
    (await api.post("/api/v1/flows", {"goals": [STEP], "flow_id": "mine-1"})).refused(409, "FLOW_EXISTS")
    assert len(endpoint.requests(PATH)) == 1


async def test_an_unknown_step(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    reply = await api.post("/api/v1/flows", {"goals": [STEP, "nobody"]})
    assert [error["place"] for error in reply.refused(404, "UNKNOWN_STEP")["errors"]] == ["goals.1"]
    assert b"nobody" not in reply.content
    assert (await api.get("/api/v1/flows")).ok()["flows"] == []


async def test_missing_inputs(api: Api, endpoint: StepEndpoint) -> None:
    """422 says which step needs which attribute."""
    await api.put_step(STEP, endpoint.url(PATH), attributes=ATTRIBUTES)
    await api.put_step("other", endpoint.url(PATH), attributes={"b": {"role": "required"}, "c": {"role": "required"}})
    body = {"goals": [STEP, "other"], "init": {"language": "de", "b": 1}}
    details = (await api.post("/api/v1/flows", body)).refused(422, "UNREACHABLE_GOAL")
    missing = sorted((item["step_id"], item["attribute"]) for item in details["missing"])
    assert missing == [(STEP, "audio_url"), ("other", "c")]
    assert all(isinstance(item["could_be_provided_by"], list) for item in details["missing"])
    assert endpoint.all_requests() == []


TYPES: list[tuple[str, list[Any], list[Any]]] = [
    ("string", ["", "é"], [1, True, None, [], {}]),
    ("number", [0, -1, 1.5, 10**15], ["1", True, None, [], {}]),
    ("boolean", [True, False], [0, 1, "true", None]),
    ("object", [{}, {"a": [1]}], [[], "x", None, 1]),
    ("array", [[], [1, "a", None]], [{}, "x", None, 1]),
    ("any", [1, "x", None, [], {}, True], []),
]


@pytest.mark.either_store
@pytest.mark.parametrize(("declared", "right", "wrong"), TYPES)
@pytest.mark.parametrize("role", ["required", "optional"])
async def test_types_of_inputs(
    api: Api, endpoint: StepEndpoint, role: str, declared: str, right: list[Any], wrong: list[Any]
) -> None:
    await api.put_step(STEP, endpoint.url(PATH), attributes={"value": {"role": role, "type": declared}})
    for number, value in enumerate(right, start=1):
        await api.start(STEP, init={"value": value})
        assert (await endpoint.received(PATH, number)).arguments["value"] == value
    for value in wrong:
        reply = await api.post("/api/v1/flows", {"goals": [STEP], "init": {"value": value}})
        details = reply.refused(422, "INVALID_INPUT")
        assert "value" in orjson.dumps(details).decode()
    assert len(endpoint.requests(PATH)) == len(right)


async def test_attribute_roles(api: Api, endpoint: StepEndpoint) -> None:
    """Required from init, optional with its default, const as it is; what the step does not name is not sent."""
    await api.put_step(STEP, endpoint.url(PATH), attributes=ATTRIBUTES)
    await api.start(STEP, init={"audio_url": "s3://a", "mode": "slow", "text": "x", "extra": 1})
    arguments = (await endpoint.received(PATH)).arguments
    assert arguments.pop("hint", None) is None
    assert arguments == {"audio_url": "s3://a", "language": "en", "mode": "fast"}
    await api.start(STEP, init={"audio_url": "s3://b", "language": "de", "hint": {"a": 1}})
    arguments = (await endpoint.received(PATH, 2)).arguments
    assert arguments == {"audio_url": "s3://b", "language": "de", "mode": "fast", "hint": {"a": 1}}


async def test_only_declared_outputs_become_outputs_of_the_flow(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH), attributes=ATTRIBUTES)
    flow_id = await api.start(STEP, init={"audio_url": "s3://a"})
    await api.succeed(await endpoint.received(PATH), text="hello", debug="noise")
    assert (await api.final(flow_id))["outputs"] == {"text": "hello"}


async def test_without_attributes_everything_goes_in_and_comes_out(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    flow_id = await api.start(STEP, init={"a": 1, "b": {"c": []}})
    received = await endpoint.received(PATH)
    assert received.arguments == {"a": 1, "b": {"c": []}}
    await api.succeed(received, x=1, y=[2])
    assert (await api.final(flow_id))["outputs"] == {"x": 1, "y": [2]}


BAD: list[tuple[Any, str]] = [
    ({}, "goals"),
    ({"goals": []}, "goals"),
    ({"goals": STEP}, "goals"),
    ({"goals": [5]}, "goals"),
    ({"goals": [STEP], "init": []}, "init"),
    ({"goals": [STEP], "metadata": "x"}, "metadata"),
    ({"goals": [STEP], "labels": {"a": 1}}, "labels"),
    ({"goals": [STEP], "labels": ["a"]}, "labels"),
    ({"goals": [STEP], "flow_id": ""}, "flow_id"),
    ({"goals": [STEP], "flow_id": "a/b"}, "flow_id"),
    ({"goals": [STEP], "flow_id": "a b"}, "flow_id"),
    ({"goals": [STEP], "flow_id": 5}, "flow_id"),
    ({"goals": [STEP], "flow_id": "x" * 5000}, "flow_id"),
    ({"goals": [STEP], "unheard_of": 1}, "unheard_of"),
    ([], ""),
    ("text", ""),
]


@pytest.mark.either_store
@pytest.mark.parametrize(("body", "place"), BAD)
async def test_a_bad_start_says_where(api: Api, endpoint: StepEndpoint, body: Any, place: str) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    details = (await api.post("/api/v1/flows", body)).refused(422, "INVALID_INPUT")
    assert place in orjson.dumps(details["errors"]).decode()
    assert (await api.get("/api/v1/flows")).ok()["flows"] == []


@pytest.mark.either_store
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"goals": ["job"], "init": {"a": NaN}}'])
async def test_a_start_that_is_no_json(api: Api, endpoint: StepEndpoint, content: bytes) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    reply = await api.request("POST", "/api/v1/flows", data=content, headers=JSON)
    reply.refused(422, "INVALID_INPUT")


async def test_a_start_of_another_media_type_or_too_large(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    content = orjson.dumps({"goals": [STEP]})
    reply = await api.request("POST", "/api/v1/flows", data=content, headers={"Content-Type": "text/plain"})
    reply.refused(415, "UNSUPPORTED_MEDIA_TYPE")
    large = orjson.dumps({"goals": [STEP], "init": {"a": "x" * 2**20}})
    (await api.request("POST", "/api/v1/flows", data=large, headers=JSON)).refused(413, "PAYLOAD_TOO_LARGE")
    assert (await api.get("/api/v1/flows")).ok()["flows"] == []


async def test_a_goal_named_twice_is_one_goal(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    reply = await api.post("/api/v1/flows", {"goals": [STEP, STEP]})
    if reply.status == 422:
        assert reply.code == "INVALID_INPUT"
        return
    flow_id = reply.ok(201)["flow_id"]
    await api.succeed(await endpoint.received(PATH))
    assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 1


async def test_integers_keep_every_digit_on_the_way_to_the_endpoint(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    content = b'{"goals": ["job"], "init": {"cents": 123456789012345678, "tiny": 1e-7, "text": "\\u00e9\\u0001"}}'
    (await api.request("POST", "/api/v1/flows", data=content, headers=JSON)).ok(201)
    received = await endpoint.received(PATH)
    assert b"123456789012345678" in received.content
    assert received.arguments == {"cents": 123456789012345678, "tiny": 1e-7, "text": "é\x01"}

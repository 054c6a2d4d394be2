"""Whatever is sent to the gate's routes is answered with what is wrong with it, and nothing of it is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse
from tests.wire import JSON, Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOT_JSON = [
    b"{",
    b"\xff\xfe",
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": 1e999}',
    b'{"a": ' + b"9" * 400 + b"}",
    b'{"a": "\\ud800"}',
    b'{"a": "\xed\xa0\x80"}',
    b"[" * 5000 + b"]" * 5000,
    b'{"step_input": ' + b'{"a":' * 3000 + b"1" + b"}" * 3000 + b"}",
    b"\x00",
]
NO_OBJECT: list[Any] = [[], [{}], "text", 7, True, 1.5]
"""JSON, but no body of any of these routes."""
TEXTS: list[Any] = [7, True, [], {}, "\x00", "x" * 5000]
NUMBERS: list[Any] = ["1", True, -1, 10**30, 1e300, [], {}]
OBJECTS: list[Any] = [7, "text", [], [1], True]
CHOICES: list[Any] = ["maybe", "", 7, None, []]

GATE_FIELDS: dict[str, list[Any]] = {
    "step_name": TEXTS,
    "step_type": TEXTS,
    "step_input": [*OBJECTS, {str(number): number for number in range(1025)}],
    "tool_context": [*OBJECTS, {}, {"tool_name": ""}, {"tool_name": "t", "tool_input": []}],
    "model": TEXTS,
    "provider": TEXTS,
    "tokens_in": [*NUMBERS, 1.5],
    "tokens_out": [*NUMBERS, 1.5],
    "cost_usd": NUMBERS,
    "retry_policy": CHOICES,
    "idempotency_key": [7, [], {}, True, "\x00"],
    "idempotency_scope": ["maybe", "", 7, []],
    "idempotency_window": ["", "soon", -1, [], {}, True, None, 1.5, 10**30],
    "on_duplicate": CHOICES,
    "claim": [*OBJECTS, {"lease_seconds": 0}, {"lease_seconds": "long"}, {"lease_seconds": 1e9}, {"holder": ""}],
}
REPORT_FIELDS: dict[str, list[Any]] = {
    "success": ["yes", 1, None, []],
    "output": OBJECTS,
    "metadata": [*OBJECTS, {str(number): number for number in range(1025)}],
    "error": TEXTS,
    "retriable": ["yes", 1, []],
    "tokens_in": [*NUMBERS, 1.5],
    "tokens_out": NUMBERS,
    "cost_usd": NUMBERS,
    "idempotency_key": [7, [], "\x00"],
}
CREATE_FIELDS: dict[str, list[Any]] = {
    "workflow_name": [*TEXTS, "", None],
    "source": [*TEXTS, "", None],
    "metadata": [*OBJECTS, {str(number): number for number in range(129)}],
    "labels": [*OBJECTS, {"a": 1}, {"": "x"}, {"a": "\x00"}],
    "trace_id": [*TEXTS, ""],
    "total_steps": [*NUMBERS, 1.5],
    "idempotency_key": [7, [], "\x00"],
    "idempotency_scope": CHOICES,
    "idempotency_window": ["soon", -1, [], True, None],
}
REASON_FIELDS: dict[str, list[Any]] = {"reason": TEXTS}
COMMENT_FIELDS: dict[str, list[Any]] = {"comment": TEXTS}


async def raw(house: Gatehouse, path: str, content: bytes) -> Reply:
    return await house.api.request("POST", path, data=content, headers=JSON)


async def refused(house: Gatehouse, path: str, fields: dict[str, list[Any]], **wanted: Any) -> None:
    """Everything that is wrong is refused, with a place."""
    for content in NOT_JSON:
        reply = await raw(house, path, content)
        assert (reply.status, reply.code) == (422, "INVALID_INPUT"), (path, content[:60], reply.content[:300])
    for body in [*NO_OBJECT, *({**wanted, name: value} for name, values in fields.items() for value in values)]:
        reply = await raw(house, path, json.dumps(body).encode())  # whose integers have as many digits as they like
        assert reply.status in (400, 422), (path, body, reply.status, reply.content[:300])
        assert reply.code in ("INVALID_INPUT", "BAD_REQUEST")
        assert reply.details["errors"], reply.content
    large = await raw(house, path, b'{"a": "' + b"x" * 5_000_000 + b'"}')
    large.refused(413, "PAYLOAD_TOO_LARGE")
    other = await house.api.request("POST", path, data=b"{}", headers={"Content-Type": "text/plain"})
    other.refused(415, "UNSUPPORTED_MEDIA_TYPE")


async def test_bodies_of_workflows(house: Gatehouse) -> None:
    before = (await house.api.get("/api/v1/workflows", limit="1000")).ok()
    await refused(house, "/api/v1/workflows", CREATE_FIELDS, workflow_name="a")
    (await raw(house, "/api/v1/workflows", b"")).refused(422, "INVALID_INPUT")
    assert (await house.api.get("/api/v1/workflows", limit="1000")).ok() == before


async def test_bodies_of_the_gate(house: Gatehouse) -> None:
    agent = await house.agent()
    await refused(house, f"{agent.path}/steps/pay/gate", GATE_FIELDS)
    assert (await agent.workflow())["steps"] == []
    assert await house.api.event_types(agent.workflow_id) == ["flow_started"]


async def test_bodies_of_reports(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("pay")
    before = await agent.step("pay")
    await refused(house, f"{agent.path}/steps/pay/complete", REPORT_FIELDS)
    assert await agent.step("pay") == before


@pytest.mark.parametrize("verb", ["complete", "fail", "abort", "resume"])
async def test_bodies_of_endings(house: Gatehouse, verb: str) -> None:
    agent = await house.agent()
    await refused(house, f"{agent.path}/{verb}", REASON_FIELDS)
    assert (await agent.workflow())["status"] == "in_progress"


@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_bodies_of_reviews(house: Gatehouse, verb: str) -> None:
    agent = await house.agent()
    await agent.rule("require_approval")
    held = await agent.gate("pay")
    fields = COMMENT_FIELDS if verb == "approve" else REASON_FIELDS
    await refused(house, f"{agent.path}/steps/pay/{verb}", fields)
    await refused(house, f"/api/v1/approvals/{held['approval_id']}/{verb}", {**fields, "surprise": [1]})
    assert (await agent.step("pay"))["approval_status"] == "pending"


# ------------------------------------------------------------------------------------------------ ids in paths

ODD = ["%00", "%ED%A0%80", "a%2Fb", "x" * 200, "%F0%9F%92%B8", "'--", "a%20b", "-", "%25"]


@pytest.mark.parametrize("odd", ODD)
async def test_odd_ids(house: Gatehouse, odd: str) -> None:
    """A workflow that cannot be is not there, and a step that cannot be is said to be wrong; neither is found."""
    agent = await house.agent()
    absent = Agent(house.api, odd, "")
    replies = [
        await house.api.get(absent.path),
        await house.api.get(f"{absent.path}/steps/pay"),
        await absent.ask("pay"),
        await absent.report("pay"),
        await absent.say("complete"),
        await absent.review("pay", "approve"),
        await agent.ask(odd),
        await agent.report(odd),
        await agent.review(odd, "reject"),
        await house.api.get(f"{agent.path}/steps/{odd}"),
        await house.api.post(f"/api/v1/approvals/{odd}/approve"),
        await house.api.get(f"/api/v1/approvals/{odd}"),
    ]
    for reply in replies:
        assert reply.status in (400, 404, 405, 422), reply.content
        assert reply.code
    assert (await house.api.get(f"{agent.path}/steps/{odd}")).status in (400, 404), "as the document says"
    assert (await agent.workflow())["steps"] == []


@pytest.mark.parametrize("odd", ["%00", "%ED%A0%80", "x" * 300, "%F0%9F%92%B8", "'--"])
async def test_odd_filters(house: Gatehouse, odd: str) -> None:
    for query in (
        f"source={odd}",
        f"trace_id={odd}",
        f"label=a:{odd}",
        f"label={odd}:a",
        f"cursor={odd}",
        f"status={odd}",
    ):
        reply = await house.api.get(f"/api/v1/workflows?{query}")
        assert reply.status in (200, 422), reply.content
        assert reply.status == 422 or reply.body["workflows"] == []
    for query in (f"flow_id={odd}", f"status={odd}", f"cursor={odd}"):
        reply = await house.api.get(f"/api/v1/approvals?{query}")
        assert reply.status in (200, 422), reply.content


# ------------------------------------------------------------------------------------------------ odd, but good

GOOD: list[dict[str, Any]] = [
    {"": "", "a b": "\x00\x1f\x7f", "ü": "\U0001f4b8", "__proto__": None},
    {"n": 12345678901234567890, "f": 1e-300, "z": -0.0, "deep": [[[[[[[[[[1]]]]]]]]]]},
    {str(number): number for number in range(1024)},
    {"deep": json.loads("[" * 90 + "]" * 90)},
]


@pytest.mark.parametrize("values", GOOD)
async def test_odd_values_come_back_as_they_were(house: Gatehouse, values: dict[str, Any]) -> None:
    agent = await house.agent()
    await agent.rule("require_approval")
    held = await agent.gate("pay", step_input=values)
    assert (await agent.gate("pay", step_input=values))["cached"] is True
    approval = (await house.api.get(f"/api/v1/approvals/{held['approval_id']}")).ok()
    assert approval["arguments"] == values
    (await agent.review("pay", "approve", comment="ü \U0001f4b8")).ok()
    await agent.complete("pay", output=values)
    await agent.complete("pay", output=values, replayed=True)
    prior = await agent.context("pay", {"include_prior_output": "true"}, step_input=values)
    assert prior["prior_output"] == values

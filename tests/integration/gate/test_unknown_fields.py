"""The routes of workflows ignore fields and parameters that they do not know; definitions and flow starts refuse them.

Clients that were written for another system send more than this one knows. A definition is different: a misspelt field
in it would change what is run, and be noticed too late.
"""

from __future__ import annotations

from typing import Any, cast

import pytest

from counterfoil.server.app import api_routes
from counterfoil.server.openapi import openapi_document
from tests.integration.agents import Gatehouse
from tests.wire import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

MORE: dict[str, Any] = {"surprise": 1, "tenant": {"id": [None]}, "": ""}
QUERY = {"colour": "red", "tenant": "7"}


async def ask(api: Api, method: str, path: str, body: Any = None, query: Any = None, status: int = 200) -> Any:
    reply = await api.request(method, path, json=body, params=QUERY if query is None else query)
    assert reply.status == status, (method, path, reply.content)
    return reply.body if reply.content else None


async def test_a_whole_run_with_more_than_is_known(house: Gatehouse) -> None:
    """Every body and every query; what is known counts as if nothing else were there."""
    begin = {"workflow_name": "w", "idempotency_key": "unknown-1", **MORE}
    workflow_id = (await ask(house.api, "POST", "/api/v1/workflows", begin, status=201))["workflow_id"]
    again = {**begin, "surprise": 2}
    assert (await ask(house.api, "POST", "/api/v1/workflows", again))["workflow_id"] == workflow_id
    path = f"/api/v1/workflows/{workflow_id}"
    tool = {"tool_name": "t", "tool_input": {"kept": 1}, **MORE}
    call = {"step_input": {"n": 1}, "tool_context": tool, "claim": {"holder": "me", **MORE}, **MORE}
    first = await ask(house.api, "POST", f"{path}/steps/pay/gate", call)
    assert (first["decision"], first["claim"]["holder"]) == ("allow", "me")
    assert "surprise" not in first
    fewer = {
        "step_input": {"n": 1},
        "tool_context": {"tool_name": "t", "tool_input": {"kept": 1}},
        "claim": {"holder": "me"},
    }
    assert (await ask(house.api, "POST", f"{path}/steps/pay/gate", fewer))["cached"], "the same input"
    await ask(house.api, "POST", f"{path}/steps/pay/heartbeat", {"holder": "me", **MORE})
    await ask(house.api, "POST", f"{path}/steps/pay/complete", {"output": {"a": 1}, **MORE}, status=204)
    await ask(house.api, "POST", f"{path}/resume", MORE)
    await ask(house.api, "POST", f"{path}/checkpoints/resume", MORE)
    for read in (path, f"{path}/steps/pay", f"{path}/checkpoints", "/api/v1/workflows"):
        await ask(house.api, "GET", read)
    await ask(house.api, "GET", "/api/v1/workflows/approvals/pending")
    await ask(house.api, "POST", f"{path}/complete", MORE)
    for verb in ("fail", "abort"):
        agent = await house.agent()
        await ask(house.api, "POST", f"{agent.path}/{verb}", {"reason": "why", **MORE})
        assert (await agent.workflow())["error"]["message"] == "why"


async def test_reviews_with_more_than_is_known(house: Gatehouse) -> None:
    for verb, field in (("approve", "comment"), ("reject", "reason")):
        agent = await house.agent()
        await agent.rule("require_approval")
        held = await agent.gate("pay")
        strict = await house.api.post(f"/api/v1/approvals/{held['approval_id']}/{verb}", {field: "why", **MORE})
        strict.refused(422, "INVALID_INPUT")
        reviewed = await ask(house.api, "POST", f"{agent.path}/steps/pay/{verb}", {field: "why", **MORE})
        assert "why" in reviewed["reason"]


async def test_an_unknown_parameter_counts_however_often_it_is_given(house: Gatehouse) -> None:
    for query in ("colour=red&colour=blue", "colour", "limit=1&colour=x&colour=y"):
        (await house.api.get(f"/api/v1/workflows?{query}")).ok()
    (await house.api.get("/api/v1/workflows?limit=1&limit=2")).refused(422, "INVALID_INPUT")


async def test_a_step_name_may_be_null(house: Gatehouse) -> None:
    agent = await house.agent()
    assert (await agent.gate("pay", step_name=None, model=None, provider=None))["decision"] == "allow"
    assert (await agent.step("pay"))["step_name"] == ""


STRICT: list[tuple[str, str, dict[str, Any], str]] = [
    ("PUT", "/api/v1/steps/s", {"endpoint": "http://127.0.0.1:9/x"}, "INVALID_STEP"),
    ("PUT", "/api/v1/policies/p", {"name": "p", "action": {"type": "allow"}}, "INVALID_POLICY"),
    ("PUT", "/api/v1/schedules/s", {"every_ms": 60_000, "flow": {"goals": ["s"]}}, "INVALID_SCHEDULE"),
    ("PUT", "/api/v1/subscriptions/s", {"url": "http://127.0.0.1:9/x", "events": ["flow.*"]}, "INVALID_SUBSCRIPTION"),
    ("POST", "/api/v1/flows", {"goals": ["s"]}, "INVALID_INPUT"),
    ("POST", "/api/v1/plan", {"goals": ["s"]}, "INVALID_INPUT"),
    ("POST", "/api/v1/policies/test", {"call": {"step_id": "s"}}, "INVALID_POLICY"),
]


@pytest.mark.parametrize(("method", "path", "body", "code"), STRICT)
async def test_definitions_and_flow_starts_stay_strict(
    house: Gatehouse, method: str, path: str, body: dict[str, Any], code: str
) -> None:
    reply = await house.api.request(method, path, json={**body, "surprise": 1})
    places = [error["place"] for error in reply.refused(422, code)["errors"]]
    assert places == ["surprise"], "and nothing else is wrong with it"


async def test_the_tool_of_a_trial_stays_strict(house: Gatehouse) -> None:
    call = {"step_id": "s", "tool_context": {"tool_name": "t", "surprise": 1}}
    reply = await house.api.post("/api/v1/policies/test", {"call": call})
    (error,) = reply.refused(422, "INVALID_POLICY")["errors"]
    assert error["place"] == "call.tool_context.surprise"


async def test_other_lists_refuse_unknown_parameters(house: Gatehouse) -> None:
    for path in ("/api/v1/flows", "/api/v1/work", "/api/v1/approvals", "/api/v1/policies"):
        (await house.api.get(path, colour="red")).refused(422, "INVALID_INPUT")


async def test_the_openapi_document_says_which_bodies_are_open() -> None:
    routes = api_routes(cast(Any, None))
    schemas = openapi_document(routes, with_keys=False)["components"]["schemas"]
    for route in routes:
        if route.request is not None and route.path != "/webhook" and not route.bare:
            schema = schemas[route.request.__name__]
            told = schema.get("additionalProperties", True)
            if route.path in ("/api/v1/hooks/{token}", "/api/v1/work/{work_id}/payload"):
                assert "properties" not in schema, "a payload is any JSON value"
                continue
            as_a_worker = route.path == "/api/v1/work/{work_id}/complete"  # the same body as at the webhook
            assert told is (route.path.startswith("/api/v1/workflows") or as_a_worker), (route.path, told)

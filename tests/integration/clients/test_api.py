"""The API and the gate by clients of any kind: definitions, flows, results, agents, and what is refused."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.clients.calls import Call
from tests.integration.clients.senders import Send, by_clients
from tests.running import StartNode
from tests.wire import Api

pytestmark = pytest.mark.both_paths

KEY = "a secret of sixteen characters"


@by_clients("steps, flows, results")
async def test_a_flow_is_defined_run_and_removed(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    endpoint.answer("/sum", Answer(body={"success": True, "outputs": {"sum": 3}}))
    base = f"{api.url}/api/v1"
    definition = {"kind": "sync", "endpoint": endpoint.url("/sum")}
    answers = await send(
        [
            Call("PUT", f"{base}/steps/sum", json=definition),
            Call("PUT", f"{base}/steps/sum", json={**definition, "nonsense": 1}),
            Call("POST", f"{base}/flows", json={"flow_id": "one", "goals": ["sum"], "init": {"a": 1, "b": 2}}),
            Call("GET", f"{base}/flows/one/result?wait=10"),
            Call("GET", f"{base}/flows?limit=1"),
            Call("GET", f"{base}/flows/none"),
            Call("DELETE", f"{base}/steps/sum"),
            Call("GET", f"{base}/steps/sum"),
        ]
    )
    assert answers[0].ok(201)["step_id"] == "sum"
    answers[1].refused(422, "INVALID_STEP")
    assert answers[2].ok(201)["flow_id"] == "one"
    assert answers[3].ok()["outputs"] == {"sum": 3}
    assert [flow["flow_id"] for flow in answers[4].ok()["flows"]] == ["one"]
    answers[5].refused(404, "UNKNOWN_FLOW")
    assert (answers[6].status, answers[6].content) == (204, b"")
    answers[7].refused(404, "UNKNOWN_STEP")


@by_clients("gate: workflow, gate call, completion")
async def test_an_agent_asks_the_gate(api: Api, send: Send) -> None:
    workflows = f"{api.url}/api/v1/workflows"
    [created] = await send([Call("POST", workflows, json={"workflow_name": "agent"})])
    workflow = f"{workflows}/{created.ok(201)['workflow_id']}"
    answers = await send(
        [
            Call("POST", f"{workflow}/steps/pay/gate", json={"step_type": "tool_call", "idempotency_key": "k"}),
            Call("POST", f"{workflow}/steps/pay/gate", json={"step_type": "tool_call", "idempotency_key": "other"}),
            Call("POST", f"{workflow}/steps/pay/complete", json={"output": {"paid": 5}, "idempotency_key": "k"}),
            Call("POST", f"{workflow}/complete", body=b""),
            Call("GET", workflow),
        ]
    )
    assert answers[0].ok()["decision"] == "allow"
    answers[1].refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    assert (answers[2].status, answers[2].content) == (204, b"")
    answers[3].ok()
    assert answers[4].ok()["status"] == "completed"


@pytest.mark.sqlite_only
@by_clients("keys: missing, unknown, of another role")
async def test_keys_are_asked_for(start_node: StartNode, send: Send) -> None:
    """An unknown key is what a key is that was removed from the settings."""
    node = await start_node(api_keys=f"ops:viewer:{KEY}")
    url = f"{node.url}/api/v1/flows"
    answers = await send(
        [
            Call("GET", url),
            Call("GET", url, headers={"Authorization": "Bearer a key that was removed"}),
            Call("GET", url, headers={"Authorization": f"Bearer {KEY}"}),
            Call("POST", url, json={"goals": ["a"]}, headers={"Authorization": f"Bearer {KEY}"}),
            Call("OPTIONS", url),
        ]
    )
    for refused in answers[:2]:
        refused.refused(401, "UNAUTHENTICATED")
        assert "Bearer" in refused.headers["www-authenticate"] or "Basic" in refused.headers["www-authenticate"]
    assert answers[2].ok()["flows"] == []
    assert answers[3].refused(403, "FORBIDDEN")["details"]["needs"] == ["admin", "operator"]
    assert (answers[4].status, answers[4].headers["allow"]) == (204, "GET, HEAD, OPTIONS, POST")


@pytest.mark.sqlite_only
@by_clients("HEAD, OPTIONS, other methods, unknown paths, trailing slashes")
async def test_what_no_route_takes_is_said(api: Api, send: Send) -> None:
    base = f"{api.url}/api/v1"
    answers = await send(
        [
            Call("HEAD", f"{base}/flows"),
            Call("HEAD", f"{base}/flows/none"),
            Call("OPTIONS", f"{base}/flows"),
            Call("PATCH", f"{base}/flows", json={}),
            Call("GET", f"{base}/plan"),
            Call("GET", f"{base}/nothing"),
            Call("GET", f"{base}/flows/"),
            Call("POST", f"{api.url}/webhook/a/b/c/", json={"success": True}),
        ]
    )
    assert [(each.status, each.content) for each in answers[:3]] == [(200, b""), (404, b""), (204, b"")]
    assert answers[2].headers["allow"] == "GET, HEAD, OPTIONS, POST"
    answers[3].refused(405, "METHOD_NOT_ALLOWED")
    assert answers[3].headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert answers[4].refused(405, "METHOD_NOT_ALLOWED")["details"]["allowed"] == ["OPTIONS", "POST"]
    assert "slash" not in answers[5].refused(404, "NOT_FOUND")["message"]
    for refused in answers[6:]:
        assert "slash" in refused.refused(404, "NOT_FOUND")["message"]

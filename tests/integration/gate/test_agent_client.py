"""The client's calls for agents and reviewers, against a real engine, and the errors that they raise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from counterfoil.client import (
    ApprovalExpiredError,
    ApprovalHoldError,
    Client,
    CompletionConflictError,
    IdempotencyKeyMismatchError,
    IdempotencyKeyReusedError,
    NotPendingError,
    StepInFlightError,
    StepInputMismatchError,
    StepNotAllowedError,
    WorkflowTerminalError,
)
from counterfoil.client.errors import (
    ApprovalPendingError,
    InvalidPolicy,
    InvalidSubscription,
    NoApprovalNeededError,
    SameReviewerError,
    SelfApprovalError,
    StepRejectedError,
    SubscriptionDisabled,
    UnknownApproval,
    UnknownDelivery,
    UnknownPolicy,
    UnknownSubscription,
    UnknownWorkflow,
)
from counterfoil.testing import MovableClock

if TYPE_CHECKING:
    from tests.running import Node, StartNode

once = pytest.mark.sqlite_only  # a client cannot tell which store the engine has

OPS, ANN, BOB = (f"secret-of-{name}-0123456789" for name in ("ops", "ann", "bob"))
ASK = {"name": "ask", "match": {"step_id": "wire*"}, "action": {"type": "require_approval", "reason": "it is money"}}
BLOCK = {"name": "no", "match": {"step_id": "drop*"}, "action": {"type": "block", "reason": "never"}}


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url) as opened:
        yield opened


@pytest.fixture
async def workflow(client: Client) -> str:
    return (await client.create_workflow("refund"))["workflow_id"]


async def test_the_life_of_a_workflow(client: Client) -> None:
    made = await client.create_workflow(
        "refund", source="langgraph", metadata={"customer": 7}, labels={"team": "a"}, trace_id="t-1", key="order-7"
    )
    workflow = made["workflow_id"]
    again = await client.create_workflow(
        "refund", source="langgraph", metadata={"customer": 7}, labels={"team": "a"}, trace_id="t-1", key="order-7"
    )
    assert again["workflow_id"] == workflow
    with pytest.raises(IdempotencyKeyReusedError) as reused:
        await client.create_workflow("another", key="order-7")
    assert reused.value.workflow_id == workflow

    answer = await client.gate(workflow, "charge", key="invoice-1", input={"amount": 5}, claim=60, model="large")
    assert (answer["decision"], answer["retry_context"]["gate_count"]) == ("allow", 1)
    assert answer["claim"] is not None
    assert await client.complete_step(workflow, "charge", {"charge": 1}, key="invoice-1", cost_usd=0.5) is False
    assert await client.complete_step(workflow, "charge", {"charge": 1}, key="invoice-1") is True
    answer = await client.gate(workflow, "charge", key="invoice-1", input={"amount": 5}, include_prior_output=True)
    assert answer["retry_context"]["prior_output"] == {"charge": 1}
    assert (await client.workflow_step(workflow, "charge"))["completion_count"] == 1

    assert (await client.resume_workflow(workflow))["status"] == "in_progress"
    assert (await client.complete_workflow(workflow))["status"] == "completed"
    page = await client.list_workflows(status="completed", source="langgraph", trace_id="t-1", label=("team", "a"))
    assert [item["workflow_id"] for item in page["workflows"]] == [workflow]
    for end in (client.fail_workflow, client.abort_workflow):
        other = (await client.create_workflow("other"))["workflow_id"]
        await end(other, "no more")
        assert (await client.get_workflow(other))["status"] in ("failed", "aborted")


@once
async def test_what_is_refused_has_a_type_that_says_what_is_wrong(client: Client, workflow: str) -> None:
    await client.gate(workflow, "charge", key="one", input={"amount": 5}, claim=60, holder="me")
    with pytest.raises(IdempotencyKeyMismatchError) as mismatch:
        await client.gate(workflow, "charge", key="two", input={"amount": 5})
    error = mismatch.value
    assert (error.workflow_id, error.step_id) == (workflow, "charge")
    assert (error.expected_idempotency_key, error.received_idempotency_key) == ("one", "two")
    with pytest.raises(StepInFlightError) as in_flight:
        await client.gate(workflow, "charge", key="one", input={"amount": 5})
    assert in_flight.value.lease_expires_at > (await client.get_workflow(workflow))["created_at"]
    with pytest.raises(StepInputMismatchError):
        await client.gate(workflow, "charge", key="one", input={"amount": 6}, claim=60, holder="me")
    await client.complete_step(workflow, "charge", {"charge": 1}, key="one")
    with pytest.raises(CompletionConflictError):
        await client.complete_step(workflow, "charge", {"charge": 2}, key="one")
    await client.put_policy("no", BLOCK)
    assert (await client.gate(workflow, "drop-table"))["decision"] == "block"
    with pytest.raises(StepNotAllowedError) as not_allowed:
        await client.complete_step(workflow, "drop-table", {})
    assert not_allowed.value.decision == "block"
    await client.complete_workflow(workflow)
    with pytest.raises(WorkflowTerminalError) as terminal:
        await client.gate(workflow, "charge", key="one", input={"amount": 5}, include_prior_output=True)
    assert terminal.value.retry_context is not None
    assert terminal.value.retry_context["prior_output"] == {"charge": 1}
    with pytest.raises(UnknownWorkflow):
        await client.gate("wf_nobody", "charge")
    with pytest.raises(TypeError, match="unknown option 'kye'"):
        await client.gate(workflow, "charge", kye="one")  # type: ignore[call-arg]


async def test_approvals_are_listed_and_decided(client: Client, workflow: str) -> None:
    await client.put_policy("ask", ASK)
    asked = {
        step: (await client.gate(workflow, step, input={"to": step}))["approval_id"] for step in ("wire-1", "wire-2")
    }
    assert [approval["step_id"] for approval in await client.pending_approvals()] == ["wire-1", "wire-2"]
    page = await client.approvals(status="pending", flow_id=workflow, limit=1)
    assert page["next_cursor"] is not None
    (first,) = page["approvals"]
    assert (first["reason"], first["arguments"]) == ("it is money", {"to": "wire-1"})
    with pytest.raises(ApprovalPendingError) as pending:
        await client.complete_workflow(workflow)
    assert pending.value.steps == ["wire-1", "wire-2"]

    assert (await client.approve(first["approval_id"], "checked"))["status"] == "approved"
    with pytest.raises(NotPendingError) as decided:
        await client.reject(first["approval_id"])
    assert decided.value.approval_status == "approved"
    with pytest.raises(ApprovalHoldError) as hold:
        await client.gate(workflow, "wire-2", input={"to": "wire-2"}, retry_policy="reevaluate")
    assert (hold.value.approval_id, hold.value.approval_status) == (asked["wire-2"], "pending")
    assert (await client.reject_step(workflow, "wire-2", "wrong account"))["decision"] == "block"
    with pytest.raises(StepRejectedError) as rejected:
        await client.resume_workflow(workflow)
    assert rejected.value.steps == ["wire-2"]
    await client.gate(workflow, "other")
    with pytest.raises(NoApprovalNeededError):
        await client.approve_step(workflow, "other")
    with pytest.raises(UnknownApproval):
        await client.approval("apr_nothing")


@once
async def test_reviewers_are_told_apart_by_their_keys(start_node: StartNode) -> None:
    clock = MovableClock()
    node = await start_node(clock=clock, api_keys=f"ops:admin:{OPS},ann:reviewer:{ANN},bob:reviewer:{BOB}")
    async with Client(node.url, OPS) as agent, Client(node.url, ANN) as ann, Client(node.url, BOB) as bob:
        terms = {"type": "require_approval", "approvals": 2, "separate_requester": True, "expires_in": "1h"}
        await agent.put_policy("ask", {"name": "two of them", "action": terms})
        workflow = (await agent.create_workflow("pay"))["workflow_id"]
        await agent.gate(workflow, "wire")
        with pytest.raises(SelfApprovalError):
            await agent.approve_step(workflow, "wire")
        assert (await ann.approve_step(workflow, "wire", "fine"))["decision"] == "require_approval"
        with pytest.raises(SameReviewerError):
            await ann.approve_step(workflow, "wire")
        assert (await bob.approve_step(workflow, "wire"))["decision"] == "allow"
        late = (await agent.gate(workflow, "late"))["approval_id"]
        clock.advance(hours=2)
        with pytest.raises(ApprovalExpiredError):
            await bob.approve(str(late))


@once
async def test_policies_are_kept_with_their_versions_and_tried_out(client: Client, workflow: str) -> None:
    assert (await client.put_policy("no", BLOCK))["version"] == 1
    assert (await client.put_policy("no", {**BLOCK, "enabled": False}))["version"] == 2
    assert (await client.get_policy("no"))["enabled"] is False
    assert [policy["policy_id"] for policy in (await client.list_policies())["policies"]] == ["no"]
    tested = await client.test_policy(BLOCK, call={"step_id": "drop-table"})
    assert (tested["decision"], tested["matched"], tested["reason"]) == ("block", True, "never")
    await client.gate(workflow, "drop-table")
    tested = await client.test_policy(recorded=(workflow, "drop-table"))
    assert (tested["decision"], tested["subject"]["attempt"]["gate_count"]) == ("allow", 2)
    await client.delete_policy("no")
    assert [version["version"] for version in await client.policy_versions("no")] == [3, 2, 1]
    with pytest.raises(UnknownPolicy):
        await client.get_policy("no")
    with pytest.raises(InvalidPolicy):
        await client.put_policy("bad", {**BLOCK, "expression": "step.gate_count > 'a'"})


@once
async def test_subscriptions_and_what_could_not_be_delivered(client: Client, unused_tcp_port: int) -> None:
    definition = {"url": f"http://127.0.0.1:{unused_tcp_port}/nobody", "events": ["approval.*"]}
    assert (await client.put_subscription("ops", definition))["signing_secret"].startswith("whsec_")
    assert (await client.get_subscription("ops"))["events"] == ["approval.*"]
    assert [item["subscription_id"] for item in (await client.list_subscriptions(limit=5))["subscriptions"]] == ["ops"]
    test = await client.test_subscription("ops")
    (delivery,) = (await client.deliveries("ops"))["deliveries"]
    assert (delivery["delivery_id"], delivery["status"]) == (test["delivery_id"], "pending")
    assert (await client.redeliver("ops", test["delivery_id"]))["type"] == "test"
    with pytest.raises(UnknownDelivery):
        await client.redeliver("ops", "nothing")
    await client.put_subscription("ops", {**definition, "enabled": False})
    with pytest.raises(SubscriptionDisabled):
        await client.test_subscription("ops")
    with pytest.raises(InvalidSubscription):
        await client.put_subscription("ops", {**definition, "events": ["nothing"]})
    await client.delete_subscription("ops")
    with pytest.raises(UnknownSubscription):
        await client.get_subscription("ops")

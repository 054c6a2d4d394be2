"""The public Python client ``axonflow``, unchanged, against a real engine: every method that touches a workflow.

A test that needs a step to wait for an approval, or to be blocked, gives it an id of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import aiohttp
import pytest

from tests.clients import require_client

require_client("axonflow")

from axonflow import AxonFlow, SyncAxonFlow
from axonflow.exceptions import AxonFlowError, IdempotencyKeyMismatchError
from axonflow.workflow import (
    ApprovalStatus,
    CreateWorkflowRequest,
    GateDecision,
    ListWorkflowsOptions,
    MarkStepCompletedRequest,
    PriorCompletionStatus,
    RetryPolicy,
    StepGateRequest,
    StepType,
    ToolContext,
    WorkflowSource,
    WorkflowStatus,
)

from tests.integration.agents import Gatehouse
from tests.integration.compat.axonflow_runs import Noted, workflow_methods
from tests.integration.compat.conftest import PutPolicy
from tests.integration.people import API_KEYS
from tests.running import StartNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVERY_FIELD = StepGateRequest(
    step_name="Wire transfer",
    step_type=StepType.TOOL_CALL,
    step_input={"amount": 100, "to": {"iban": "DE00"}},
    model="m-1",
    provider="p-1",
    tool_context=ToolContext(tool_name="wire", tool_type="function", tool_input={"amount": 100}),
    retry_policy=RetryPolicy.IDEMPOTENT,
    idempotency_key="invoice-7721",
    tokens_in=10,
    tokens_out=20,
    cost_usd=0.25,
)
PLAIN = StepGateRequest(step_type=StepType.LLM_CALL)


async def begin(client: AxonFlow, name: str = "refund", **fields: Any) -> str:
    created = await client.create_workflow(CreateWorkflowRequest(workflow_name=name, **fields))
    return created.workflow_id


async def run(client: AxonFlow, workflow_id: str, *steps: str) -> None:
    for step_id in steps:
        assert (await client.step_gate(workflow_id, step_id, PLAIN)).is_allowed()
        await client.mark_step_completed(workflow_id, step_id, MarkStepCompletedRequest(output={"of": step_id}))


# ------------------------------------------------------------------------------------------------ every method


class Life:
    """A run with every method that a client has, by the names that it gives them."""

    def __init__(self, client: Noted, held: str) -> None:
        self.client = client
        self.held = held
        """Steps whose id begins so wait for an approval."""

    async def live(self, *, checkpoints: bool) -> None:
        client = self.client
        created = await client.create_workflow(
            CreateWorkflowRequest(
                workflow_name="whole life",
                source=WorkflowSource.CREWAI,
                metadata={"customer": "acme"},
                trace_id=f"trace-{self.held}",
            )
        )
        workflow_id = created.workflow_id
        assert (created.status, created.source) == (WorkflowStatus.IN_PROGRESS, WorkflowSource.CREWAI)
        gate = await client.step_gate(workflow_id, "pay", EVERY_FIELD)
        assert gate.is_allowed()
        done = MarkStepCompletedRequest(output={"txn": 1}, metadata={"m": 1}, idempotency_key="invoice-7721")
        await client.mark_step_completed(workflow_id, "pay", done)
        await self.reviews(workflow_id)
        if checkpoints:
            await self.checkpoints(workflow_id)
        await client.resume_workflow(workflow_id)
        await client.complete_workflow(workflow_id)
        assert (await client.get_workflow(workflow_id)).status is WorkflowStatus.COMPLETED
        listed = await client.list_workflows(ListWorkflowsOptions(trace_id=f"trace-{self.held}"))
        assert [each.workflow_id for each in listed.workflows] == [workflow_id]
        for verb, status in (("fail_workflow", WorkflowStatus.FAILED), ("abort_workflow", WorkflowStatus.ABORTED)):
            other = (await client.create_workflow(CreateWorkflowRequest(workflow_name=verb))).workflow_id
            await getattr(client, verb)(other, "because")
            assert (await client.get_workflow(other)).status is status

    async def reviews(self, workflow_id: str) -> None:
        """One step is approved, the other one, of another workflow, is rejected."""
        client = self.client
        other = (await client.create_workflow(CreateWorkflowRequest(workflow_name="rejected"))).workflow_id
        for owner in (workflow_id, other):
            assert (await client.step_gate(owner, self.held, PLAIN)).requires_approval()
        pending = await client.get_pending_approvals(limit=100)
        mine = {each.workflow_name for each in pending.pending_approvals if each.step_id == self.held}
        assert mine == {"whole life", "rejected"}
        assert (await client.approve_step(workflow_id, self.held, "checked by hand")).status == "approved"
        assert (await client.reject_step(other, self.held, "wrong account")).status == "rejected"
        assert (await client.step_gate(workflow_id, self.held, PLAIN)).is_allowed()
        await client.mark_step_completed(workflow_id, self.held)

    async def checkpoints(self, workflow_id: str) -> None:
        client = self.client
        found = (await client.get_checkpoints(workflow_id)).checkpoints
        assert [(each.step_id, each.is_resumable) for each in found] == [("pay", True), (self.held, True)]
        assert (await client.resume_from_last_checkpoint(workflow_id)).resumed_from_checkpoint == self.held
        assert (await client.resume_from_checkpoint(workflow_id, found[0].id)).resumed_from_checkpoint == "pay"


@pytest.mark.client("axonflow", "every method of AxonFlow that touches a workflow")
async def test_every_workflow_method_of_the_client(client: AxonFlow, put_policy: PutPolicy) -> None:
    """It fails when a release of the client has a method that is not called here."""
    held = f"held-{uuid.uuid4().hex}"
    await put_policy("require_approval", held)
    noted = Noted(client)
    await Life(noted, held).live(checkpoints=True)
    wanted = workflow_methods(AxonFlow)
    assert {"create_workflow", "step_gate", "get_checkpoints", "list_workflows"} <= wanted, "introspection works"
    assert noted.called == wanted


@pytest.mark.client("axonflow", "every method of SyncAxonFlow that touches a workflow")
async def test_every_workflow_method_of_the_sync_client(house: Gatehouse, put_policy: PutPolicy) -> None:
    held = f"held-{uuid.uuid4().hex}"
    await put_policy("require_approval", held)
    wanted = workflow_methods(AxonFlow) & {*dir(SyncAxonFlow)}
    made = await asyncio.to_thread(AxonFlow.sync, endpoint=house.api.url, client_id="agent", client_secret="none")
    try:
        noted = Noted(made)
        await Life(noted, held).live(checkpoints="get_checkpoints" in wanted)
    finally:
        await asyncio.to_thread(made.close)
    assert noted.called == wanted


# ------------------------------------------------------------------------------------------------ create and get


@pytest.mark.client("axonflow", "create_workflow, get_workflow")
async def test_create_and_get(client: AxonFlow) -> None:
    request = CreateWorkflowRequest(
        workflow_name="refund", source=WorkflowSource.LANGGRAPH, metadata={"a": {"b": 1}}, trace_id="t-create"
    )
    created = await client.create_workflow(request)
    assert created.workflow_id.startswith("wf_")
    assert (created.workflow_name, created.trace_id, created.status.value) == ("refund", "t-create", "in_progress")
    shown = await client.get_workflow(created.workflow_id)
    assert (shown.source, shown.metadata, shown.steps) == (WorkflowSource.LANGGRAPH, {"a": {"b": 1}}, [])
    assert (shown.started_at, shown.completed_at, shown.is_terminal()) == (created.started_at, None, False)
    with pytest.raises(AxonFlowError, match="UNKNOWN_WORKFLOW"):
        await client.get_workflow("wf_nothing")


async def test_what_the_client_cannot_read(client: AxonFlow, house: Gatehouse) -> None:
    """Limits of its enumerations that the documentation names: sources and types of steps of other programs."""
    foreign = await house.agent(source="somewhere else", trace_id="foreign-1")
    with pytest.raises(ValueError, match="is not a valid WorkflowSource"):
        await client.get_workflow(foreign.workflow_id)
    with pytest.raises(ValueError, match="is not a valid WorkflowSource"):
        await client.list_workflows(ListWorkflowsOptions(trace_id="foreign-1"))
    workflow_id = await begin(client)
    (await house.api.post(f"/api/v1/workflows/{workflow_id}/steps/s/gate", {"step_type": "other"})).ok()
    with pytest.raises(ValueError, match="is not a valid StepType"):
        await client.get_workflow(workflow_id)


async def test_other_routes_of_the_client_are_not_there(client: AxonFlow) -> None:
    with pytest.raises(AxonFlowError, match="NOT_FOUND"):
        await client.get_pending_plan_approvals()


# ------------------------------------------------------------------------------------------------ the gate


@pytest.mark.client("axonflow", "step_gate with every field of its request")
async def test_a_gate_call_with_every_field(client: AxonFlow, house: Gatehouse) -> None:
    assert EVERY_FIELD.model_fields_set == set(StepGateRequest.model_fields), "a new field is to be tried as well"
    workflow_id = await begin(client)
    first = await client.step_gate(workflow_id, "pay", EVERY_FIELD)
    assert (first.decision, first.step_id, first.cached) == (GateDecision.ALLOW, "pay", False)
    assert first.retry_context is not None
    assert (first.retry_context.gate_count, first.retry_context.idempotency_key) == (1, "invoice-7721")
    again = await client.step_gate(workflow_id, "pay", EVERY_FIELD)
    assert (again.cached, again.decision_id, again.decision_source) == (True, first.decision_id, "cached")
    events = await house.api.events(workflow_id)
    facts = next(event for event in events if event["type"] == "gate_decided")["data"]["facts"]
    assert (facts["step_name"], facts["step_type"]) == ("Wire transfer", "tool_call")
    usage = {"model": "m-1", "provider": "p-1", "tokens_in": 10, "tokens_out": 20, "cost_usd": 0.25}
    assert facts["usage"] == usage
    (item,) = [event["data"]["arguments"] for event in events if event["type"] == "work_created"]
    tool = {"tool_name": "wire", "tool_type": "function", "tool_input": {"amount": 100}}
    assert item == {"amount": 100, "to": {"iban": "DE00"}, "tool_context": tool}


@pytest.mark.parametrize("kind", list(StepType))
@pytest.mark.client("axonflow", "step_gate for every type of step")
async def test_every_type_of_step_without_a_name(client: AxonFlow, kind: StepType) -> None:
    """The client sends null for what was not given."""
    workflow_id = await begin(client)
    assert (await client.step_gate(workflow_id, "pay", StepGateRequest(step_type=kind))).is_allowed()
    (step,) = (await client.get_workflow(workflow_id)).steps
    assert (step.step_type, step.step_index, step.decision) == (kind, 0, GateDecision.ALLOW)


@pytest.mark.client("axonflow", "retry_context and include_prior_output")
async def test_a_retried_run_gets_the_prior_output(client: AxonFlow) -> None:
    workflow_id = await begin(client)
    await run(client, workflow_id, "pay")
    silent = await client.step_gate(workflow_id, "pay", PLAIN)
    told = await client.step_gate(workflow_id, "pay", PLAIN, include_prior_output=True)
    assert silent.retry_context is not None
    assert told.retry_context is not None
    assert (silent.retry_context.prior_output_available, silent.retry_context.prior_output) == (True, None)
    assert told.retry_context.prior_completion_status is PriorCompletionStatus.COMPLETED
    assert (told.retry_context.prior_output, told.retry_context.gate_count) == ({"of": "pay"}, 3)


@pytest.mark.client("axonflow", "step_gate: blocked, and evaluated again")
async def test_a_blocked_step(client: AxonFlow, put_policy: PutPolicy) -> None:
    workflow_id = await begin(client)
    blocked = f"blocked-{uuid.uuid4().hex}"
    policy_id = await put_policy("block", blocked, reason="not today")
    gate = await client.step_gate(workflow_id, blocked, PLAIN)
    assert (gate.is_blocked(), gate.reason, gate.policy_ids) == (True, "not today", [policy_id])
    assert gate.policies_matched is not None
    assert [(match.policy_id, match.action) for match in gate.policies_matched] == [(policy_id, "block")]
    again = StepGateRequest(step_type=StepType.LLM_CALL, retry_policy=RetryPolicy.REEVALUATE)
    assert (await client.step_gate(workflow_id, blocked, again)).decision_source == "fresh"
    (step,) = (await client.get_workflow(workflow_id)).steps
    assert (step.decision, step.decision_reason) == (GateDecision.BLOCK, "not today")
    with pytest.raises(AxonFlowError, match="STEP_NOT_ALLOWED"):
        await client.mark_step_completed(workflow_id, blocked)


@pytest.mark.parametrize(("first", "later"), [("key-1", "key-2"), ("key-1", None), (None, "key-2")])
@pytest.mark.client("axonflow", "IdempotencyKeyMismatchError of step_gate and mark_step_completed")
async def test_another_key_is_a_typed_error(client: AxonFlow, first: str | None, later: str | None) -> None:
    workflow_id = await begin(client)
    await client.step_gate(workflow_id, "pay", StepGateRequest(step_type=StepType.TOOL_CALL, idempotency_key=first))
    call = StepGateRequest(step_type=StepType.TOOL_CALL, idempotency_key=later)
    report = MarkStepCompletedRequest(output={"a": 1}, idempotency_key=later)
    for refused in (
        client.step_gate(workflow_id, "pay", call),
        client.mark_step_completed(workflow_id, "pay", report),
    ):
        with pytest.raises(IdempotencyKeyMismatchError) as raised:
            await refused
        assert (raised.value.workflow_id, raised.value.step_id) == (workflow_id, "pay")
        assert raised.value.expected_idempotency_key == (first or "")
        assert raised.value.received_idempotency_key == (later or "")


# ------------------------------------------------------------------------------------------------ completion


@pytest.mark.client("axonflow", "mark_step_completed with and without a request")
async def test_completion_with_and_without_a_request(client: AxonFlow, house: Gatehouse) -> None:
    workflow_id = await begin(client)
    request = MarkStepCompletedRequest(
        output={"txn": "txn-1"},
        metadata={"latency_ms": 12},
        tokens_in=1,
        tokens_out=2,
        cost_usd=0.5,
        idempotency_key="k",
    )
    assert request.model_fields_set == set(MarkStepCompletedRequest.model_fields)
    keyed = StepGateRequest(step_type=StepType.TOOL_CALL, idempotency_key="k")
    await client.step_gate(workflow_id, "pay", keyed)
    await client.mark_step_completed(workflow_id, "pay", request)
    await client.mark_step_completed(workflow_id, "pay", request.model_copy(update={"metadata": {"latency_ms": 99}}))
    for step_id, given in (("bare", None), ("empty", MarkStepCompletedRequest())):
        await client.step_gate(workflow_id, step_id, PLAIN)
        await client.mark_step_completed(workflow_id, step_id, given)
    with pytest.raises(AxonFlowError, match="COMPLETION_CONFLICT"):
        await client.mark_step_completed(workflow_id, "pay", request.model_copy(update={"output": {"txn": "other"}}))
    steps = (await house.api.get(f"/api/v1/workflows/{workflow_id}")).ok()["steps"]
    assert {step["step_id"]: (step["metadata"], step["completion_count"]) for step in steps} == {
        "pay": ({"latency_ms": 12}, 1),
        "bare": (None, 1),
        "empty": (None, 1),
    }
    assert all(step.completed_at for step in (await client.get_workflow(workflow_id)).steps)
    events = await house.api.events(workflow_id)
    reported = next(event["data"] for event in events if event["type"] == "work_succeeded")
    assert reported["usage"] == {"tokens_in": 1, "tokens_out": 2, "cost_usd": 0.5}
    with pytest.raises(AxonFlowError, match="UNKNOWN_STEP"):
        await client.mark_step_completed(workflow_id, "never-gated")


# ------------------------------------------------------------------------------------------------ approvals


@pytest.mark.client("axonflow", "approve_step, reject_step, get_pending_approvals, resume_workflow")
async def test_reviews(client: AxonFlow, put_policy: PutPolicy) -> None:
    held = f"held-{uuid.uuid4().hex}"
    await put_policy("require_approval", held, reason="money leaves")
    workflow_id = await begin(client, "refund of 7")
    named = StepGateRequest(step_name="Pay", step_type=StepType.TOOL_CALL, step_input={"amount": 7})
    assert (await client.step_gate(workflow_id, held, named)).requires_approval()
    found = await client.get_pending_approvals(limit=100)
    (pending,) = [each for each in found.pending_approvals if each.workflow_id == workflow_id]
    assert (pending.workflow_name, pending.step_id, pending.step_index) == ("refund of 7", held, 0)
    assert (pending.step_name, pending.step_type, pending.step_input) == ("Pay", "tool_call", {"amount": 7})
    assert (pending.decision, pending.decision_reason) == ("require_approval", "money leaves")
    assert (pending.approval_status, len(pending.policies_matched or [])) == ("pending", 1)
    assert len((await client.get_pending_approvals(limit=1)).pending_approvals) == 1
    with pytest.raises(AxonFlowError, match="APPROVAL_PENDING"):
        await client.resume_workflow(workflow_id)
    assert (await client.approve_step(workflow_id, held, "checked by hand")).status == "approved"
    (step,) = (await client.get_workflow(workflow_id)).steps
    assert (step.approval_status, step.approved_by) == (ApprovalStatus.APPROVED, "local")
    assert step.decision_reason == "Approved by local: checked by hand"
    await client.resume_workflow(workflow_id)
    with pytest.raises(AxonFlowError, match="NOT_PENDING"):
        await client.reject_step(workflow_id, held)
    other = await begin(client)
    await client.step_gate(other, held, named)
    assert (await client.reject_step(other, held)).status == "rejected"
    assert (await client.step_gate(other, held, named)).is_blocked()
    with pytest.raises(AxonFlowError, match="STEP_REJECTED"):
        await client.resume_workflow(other)


@pytest.mark.client("axonflow", "get_workflow after an approval expired or became void")
async def test_a_workflow_with_a_pending_approval_can_be_read(
    client: AxonFlow, house: Gatehouse, put_policy: PutPolicy
) -> None:
    """The client knows three states of an approval, and refuses to read any other."""
    held = f"held-{uuid.uuid4().hex}"
    await put_policy("require_approval", held, expires_in="1h")
    void, expired = await begin(client), await begin(client)
    for workflow_id in (void, expired):
        await client.step_gate(workflow_id, held, PLAIN)
    await client.abort_workflow(void)
    (step,) = (await client.get_workflow(void)).steps
    assert (step.approval_status, step.decision) == (None, GateDecision.REQUIRE_APPROVAL)
    house.clock.advance(hours=2)
    await house.api.until_event(expired, "approval_expired")
    (step,) = (await client.get_workflow(expired)).steps
    assert (step.approval_status, step.decision) == (None, GateDecision.BLOCK)
    assert step.decision_reason is not None
    assert step.decision_reason.startswith("Expired")


# ------------------------------------------------------------------------------------------------ lists


@pytest.mark.client("axonflow", "list_workflows with every filter, limit and offset")
async def test_lists(client: AxonFlow) -> None:
    trace = uuid.uuid4().hex
    made = [await begin(client, source=WorkflowSource.CREWAI, trace_id=trace) for _ in range(5)]
    other = await begin(client, source=WorkflowSource.LANGCHAIN, trace_id=trace)
    await client.complete_workflow(made[0])
    await client.fail_workflow(made[1])
    newest = [other, *reversed(made)]

    async def listed(**options: Any) -> tuple[list[str], int]:
        found = await client.list_workflows(ListWorkflowsOptions(trace_id=trace, **options))
        assert (found.limit, found.offset) == (options.get("limit", 50), options.get("offset", 0))
        return [each.workflow_id for each in found.workflows], found.total

    assert await listed() == (newest, 6)
    assert await listed(limit=2) == (newest[:2], 6)
    assert await listed(limit=2, offset=2) == (newest[2:4], 6)
    assert await listed(limit=4, offset=4) == (newest[4:], 6)
    assert await listed(offset=6) == ([], 6)
    assert await listed(source=WorkflowSource.LANGCHAIN) == ([other], 1)
    assert await listed(status=WorkflowStatus.COMPLETED) == ([made[0]], 1)
    assert await listed(status=WorkflowStatus.FAILED, source=WorkflowSource.CREWAI) == ([made[1]], 1)
    assert await listed(status=WorkflowStatus.ABORTED) == ([], 0)
    everything = ListWorkflowsOptions(source=WorkflowSource.CREWAI)
    assert (await client.list_workflows(everything)).total >= 5
    assert (await client.list_workflows(ListWorkflowsOptions(limit=1))).total >= 6
    assert set(ListWorkflowsOptions.model_fields) == {"status", "source", "trace_id", "limit", "offset"}


# ------------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.client("axonflow", "get_checkpoints, resume_from_last_checkpoint, resume_from_checkpoint")
async def test_checkpoints(client: AxonFlow) -> None:
    workflow_id = await begin(client)
    assert (await client.get_checkpoints(workflow_id)).checkpoints == []
    with pytest.raises(AxonFlowError, match="NOT_RESUMABLE"):
        await client.resume_from_last_checkpoint(workflow_id)
    await run(client, workflow_id, "look", "think")
    await client.step_gate(workflow_id, "act", PLAIN)
    await client.abort_workflow(workflow_id, "the agent crashed")
    found = await client.get_checkpoints(workflow_id)
    assert (found.workflow_id, [each.step_id for each in found.checkpoints]) == (workflow_id, ["look", "think", "act"])
    assert [each.is_resumable for each in found.checkpoints] == [True, True, False]
    assert {each.checkpoint_type for each in found.checkpoints} == {"step_gate"}
    resumed = await client.resume_from_last_checkpoint(workflow_id)
    assert (resumed.resumed_from_checkpoint, resumed.resumed_from_index) == ("think", 1)
    assert (resumed.new_decision, resumed.resume_count) == ("allow", 1)
    assert (await client.get_workflow(workflow_id)).status is WorkflowStatus.IN_PROGRESS
    earlier = await client.resume_from_checkpoint(workflow_id, found.checkpoints[0].id)
    assert (earlier.resumed_from_checkpoint, earlier.resumed_from_index) == ("look", 0)
    with pytest.raises(AxonFlowError, match="NOT_RESUMABLE"):
        await client.resume_from_checkpoint(workflow_id, found.checkpoints[2].id)
    with pytest.raises(AxonFlowError, match="UNKNOWN_CHECKPOINT"):
        await client.resume_from_checkpoint(workflow_id, 10**15)
    prior = await client.step_gate(workflow_id, "think", PLAIN, include_prior_output=True)
    assert prior.retry_context is not None
    assert prior.retry_context.prior_output == {"of": "think"}
    await run(client, workflow_id, "act")
    await client.complete_workflow(workflow_id)
    with pytest.raises(AxonFlowError, match="NOT_RESUMABLE"):
        await client.resume_from_last_checkpoint(workflow_id)


# ------------------------------------------------------------------------------------------------ endings


@pytest.mark.client("axonflow", "complete_workflow, fail_workflow, abort_workflow")
async def test_endings(client: AxonFlow, house: Gatehouse) -> None:
    for verb, status in (("complete", "completed"), ("fail", "failed"), ("abort", "aborted")):
        workflow_id = await begin(client)
        await client.resume_workflow(workflow_id)
        await getattr(client, f"{verb}_workflow")(workflow_id)
        shown = await client.get_workflow(workflow_id)
        assert (shown.status.value, shown.is_terminal(), shown.completed_at is None) == (status, True, False)
        for call in (client.resume_workflow(workflow_id), client.step_gate(workflow_id, "pay", PLAIN)):
            with pytest.raises(AxonFlowError, match="WORKFLOW_TERMINAL"):
                await call
    for verb in ("fail", "abort"):
        workflow_id = await begin(client)
        await getattr(client, f"{verb}_workflow")(workflow_id, "because")
        document = (await house.api.get(f"/api/v1/workflows/{workflow_id}")).ok()
        assert document["error"]["message"] == "because"


# ------------------------------------------------------------------------------------------------ keys


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.client("axonflow", "API keys as client_id and client_secret")
async def test_api_keys(start_node: StartNode, session: aiohttp.ClientSession) -> None:
    """``client_id`` is the name of a key, ``client_secret`` its secret; the reviewer is the key."""
    node = await start_node(api_keys=API_KEYS)
    policy = {"name": "ask", "match": {"step_id": "pay"}, "action": {"type": "require_approval"}}
    headers = {"Authorization": "Bearer ada-secret-0123456789"}
    async with session.put(f"{node.url}/api/v1/policies/ask", json=policy, headers=headers) as put:
        assert put.status == 201

    def keyed(name: str) -> AxonFlow:
        return AxonFlow(endpoint=node.url, client_id=name, client_secret=f"{name}-secret-0123456789")

    async with keyed("olga") as agent, keyed("rita") as reviewer, keyed("nobody") as stranger:
        workflow_id = await begin(agent)
        assert (await agent.step_gate(workflow_id, "pay", PLAIN)).requires_approval()
        with pytest.raises(AxonFlowError, match="FORBIDDEN"):
            await agent.approve_step(workflow_id, "pay")
        with pytest.raises(AxonFlowError, match="UNAUTHENTICATED"):
            await stranger.get_workflow(workflow_id)
        assert (await reviewer.approve_step(workflow_id, "pay")).status == "approved"
        (step,) = (await agent.get_workflow(workflow_id)).steps
        assert step.approved_by == "rita"

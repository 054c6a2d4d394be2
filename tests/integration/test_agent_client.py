"""An agent's client against a real engine: calls, typed refusals, and the guard around a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.client import (
    ApprovalExpiredError,
    ApprovalHoldError,
    ApprovalRequired,
    Client,
    CompletionConflictError,
    IdempotencyKeyInUseError,
    IdempotencyKeyMismatchError,
    IdempotencyKeyReusedError,
    NotPendingError,
    StepBlocked,
    StepFailed,
    StepInFlightError,
    StepInputMismatchError,
    StepNotAllowedError,
    StepUnwanted,
    WorkflowTerminalError,
)
from counterfoil.client.gate_errors import (
    ApprovalPendingError,
    InvalidPolicy,
    NoApprovalNeededError,
    SameReviewerError,
    SelfApprovalError,
    StepRejectedError,
    UnknownApproval,
    UnknownPolicy,
    UnknownWorkflow,
)
from counterfoil.testing import MovableClock
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.running import Node, StartNode

once = pytest.mark.sqlite_only  # a client cannot tell which store the engine has

ASK = {"name": "ask", "match": {"step_id": "wire*"}, "action": {"type": "require_approval", "reason": "it is money"}}
BLOCK = {"name": "no", "match": {"step_id": "drop*"}, "action": {"type": "block", "reason": "never"}}


class Till:
    """Something that must not happen twice: it counts."""

    def __init__(self, *errors: BaseException) -> None:
        self.charges: list[dict[str, Any]] = []
        self._errors = list(errors)

    async def charge(self, **arguments: Any) -> dict[str, Any]:
        self.charges.append(arguments)
        if self._errors:
            raise self._errors.pop(0)
        return {"charge": len(self.charges)}


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url) as opened:
        yield opened


@pytest.fixture
async def workflow(client: Client) -> str:
    return (await client.create_workflow("refund"))["workflow_id"]


# -- calls -------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(TypeError, match="no option 'kye'"):
        await client.gate(workflow, "charge", kye="one")  # type: ignore[call-arg]


@once
async def test_a_key_across_workflows_has_one_owner(client: Client) -> None:
    first, second = [
        (await client.create_workflow(name, key_scope="global", key_window="7d"))["workflow_id"] for name in ("a", "b")
    ]
    till = Till()
    await client.run_step(first, "charge", till.charge, key="invoice-1", input={"amount": 5})
    with pytest.raises(IdempotencyKeyInUseError) as in_use:
        await client.run_step(second, "charge", till.charge, key="invoice-1", input={"amount": 5})
    assert in_use.value.owner == {"workflow_id": first, "step_id": "charge"}
    assert in_use.value.completed
    output = await client.run_step(
        second, "charge", till.charge, key="invoice-1", input={"amount": 5}, on_duplicate="replay"
    )
    assert (output, len(till.charges)) == ({"charge": 1}, 1)


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
    node = await start_node(clock=clock, api_keys="ops:admin:one,ann:reviewer:two,bob:reviewer:three")
    async with Client(node.url, "one") as agent, Client(node.url, "two") as ann, Client(node.url, "three") as bob:
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


# -- the guard ---------------------------------------------------------------------------------------------------------


async def test_a_guarded_step_is_done_once(client: Client, workflow: str) -> None:
    till = Till()
    for attempt in (1, 2):
        async with client.step(workflow, "charge", key="invoice-1", input={"amount": 5}, claim=60) as step:
            if not step.done:
                step.output = await till.charge(amount=5)
        assert (step.output, step.done) == ({"charge": 1}, attempt == 2)
        assert step.retry_context["gate_count"] == attempt
    assert await client.run_step(workflow, "charge", till.charge, key="invoice-1", input={"amount": 5}) == {"charge": 1}
    assert till.charges == [{"amount": 5}]


@once
async def test_a_body_without_output_completes_with_nothing(client: Client, workflow: str) -> None:
    async with client.step(workflow, "notify"):
        pass
    async with client.step(workflow, "notify") as step:
        assert (step.done, step.output) == (True, {})


@once
async def test_a_forgotten_look_whether_it_is_done_does_not_pass(client: Client, workflow: str) -> None:
    till = Till()
    async with client.step(workflow, "charge") as step:
        step.output = await till.charge()
    with pytest.raises(CompletionConflictError):
        async with client.step(workflow, "charge") as step:
            step.output = await till.charge()


@once
@pytest.mark.parametrize(("error", "retriable"), [(ValueError("no\0 card"), True), (StepFailed("no account"), False)])
async def test_an_error_in_the_body_is_reported_and_goes_on(
    client: Client, workflow: str, error: Exception, retriable: bool
) -> None:
    till = Till(error)
    with pytest.raises(type(error)):
        await client.run_step(workflow, "charge", till.charge, key="k", claim=60)
    step = await client.workflow_step(workflow, "charge")
    assert (step["work_status"], step["claim"]) == ("not_completed", None)
    assert step["error"] is not None
    assert type(error).__name__ in step["error"]["message"]
    assert step["error"]["retriable"] is retriable
    assert await client.run_step(workflow, "charge", till.charge, key="k", claim=60) == {"charge": 2}


@once
async def test_what_was_reported_in_the_body_is_no_failure_when_the_body_fails(client: Client, workflow: str) -> None:
    async def charge() -> None:
        async with client.step(workflow, "charge") as step:
            await step.complete({"charge": 1}, tokens_in=3)
            raise ValueError("afterwards")

    with pytest.raises(ValueError, match="afterwards"):
        await charge()
    assert (await client.workflow_step(workflow, "charge"))["work_status"] == "succeeded"


@once
async def test_a_cancelled_agent_says_so(client: Client, workflow: str) -> None:
    running = asyncio.Event()

    async def charge() -> None:
        running.set()
        await asyncio.Event().wait()

    agent = asyncio.create_task(client.run_step(workflow, "charge", charge, claim=60))
    await asyncio.wait_for(running.wait(), 10)
    agent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await agent
    step = await client.workflow_step(workflow, "charge")
    assert step["error"] is not None
    assert (step["work_status"], step["error"]["message"]) == (
        "not_completed",
        "the agent was stopped while it ran the step",
    )


@once
async def test_a_claim_lives_as_long_as_the_body(client: Client, workflow: str) -> None:
    async with client.step(workflow, "charge", claim=0.3) as step:
        assert step.gate["claim"] is not None
        first = step.gate["claim"]["lease_expires_at"]

        async def is_prolonged() -> bool:
            claim = (await client.get_workflow(workflow))["steps"][0]["claim"]
            assert claim is not None
            return claim["lease_expires_at"] > first

        await eventually(is_prolonged)
        await step.heartbeat(0.5, "half of it")
        with pytest.raises(StepInFlightError):
            await client.gate(workflow, "charge", claim=60)
    after = await client.workflow_step(workflow, "charge")
    assert (after["work_status"], after["gate_count"]) == ("succeeded", 1)


@once
async def test_a_lapsed_claim_is_taken_up_again_unless_another_has_it(start_node: StartNode) -> None:
    clock = MovableClock()
    node = await start_node(clock=clock)
    async with Client(node.url) as client:
        workflow = (await client.create_workflow("refund"))["workflow_id"]
        async with client.step(workflow, "charge", claim=60) as step:
            clock.advance(minutes=2)
            await step.heartbeat()
            with pytest.raises(StepInFlightError):
                await client.gate(workflow, "charge", claim=60)
            clock.advance(minutes=2)
            await client.gate(workflow, "charge", claim=60)
            with pytest.raises(StepInFlightError):
                await step.heartbeat()


@once
async def test_a_lost_claim_ends_the_body(client: Client, workflow: str) -> None:
    async def charge() -> None:
        await client.abort_workflow(workflow, "enough")
        await asyncio.wait_for(asyncio.Event().wait(), 10)

    with pytest.raises(StepUnwanted):
        await client.run_step(workflow, "charge", charge, claim=0.3)


@once
async def test_blocked_and_waiting_steps_run_nothing(client: Client, workflow: str) -> None:
    till = Till()
    await client.put_policy("no", BLOCK)
    await client.put_policy("ask", ASK)
    with pytest.raises(StepBlocked) as blocked:
        await client.run_step(workflow, "drop-table", till.charge)
    assert (blocked.value.reason, [policy["policy_id"] for policy in blocked.value.policies]) == ("never", ["no"])
    with pytest.raises(ApprovalRequired) as required:
        await client.run_step(workflow, "wire", till.charge)
    with pytest.raises(ApprovalRequired):
        await client.run_step(workflow, "wire", till.charge, wait_for_approval=0.01)
    assert till.charges == []
    await client.approve(required.value.approval_id)
    assert await client.run_step(workflow, "wire", till.charge) == {"charge": 1}


@once
async def test_the_guard_waits_for_people(client: Client, workflow: str) -> None:
    till = Till()
    await client.put_policy("ask", ASK)

    async def pending() -> Any:
        return await client.pending_approvals()

    for step, decide in (("wire-1", client.approve), ("wire-2", client.reject)):
        options: Any = {"wait_for_approval": 30, "retry_policy": "reevaluate", "claim": 60}
        agent = asyncio.create_task(client.run_step(workflow, step, till.charge, **options))
        (approval,) = await eventually(pending)
        await decide(approval["approval_id"], "I have looked")
        if step == "wire-1":
            assert await agent == {"charge": 1}
        else:
            with pytest.raises(StepBlocked, match="Rejected by local: I have looked") as blocked:
                await agent
            assert blocked.value.approval_status == "rejected"
    assert len(till.charges) == 1


@once
async def test_what_is_done_is_not_evaluated_again(client: Client, workflow: str) -> None:
    """A guard that asks the policies at each attempt does so for attempts, and not for what is done or decided."""
    till = Till(ValueError("the first time"))
    options: Any = {"retry_policy": "reevaluate", "input": {"amount": 5}}
    with pytest.raises(ValueError, match="the first time"):
        await client.run_step(workflow, "wire", till.charge, **options)
    await client.put_policy("ask", ASK)
    for _ in range(2):  # the second agent asks while people are asked already
        with pytest.raises(ApprovalRequired) as required:
            await client.run_step(workflow, "wire", till.charge, **options)
    await client.approve(required.value.approval_id)
    assert await client.run_step(workflow, "wire", till.charge, **options) == {"charge": 2}
    assert await client.run_step(workflow, "wire", till.charge, **options) == {"charge": 2}
    assert len(till.charges) == 2
    with pytest.raises(ApprovalRequired):  # another input is another question
        await client.run_step(workflow, "wire", till.charge, retry_policy="reevaluate", input={"amount": 6})

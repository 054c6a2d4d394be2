"""The guard around a step of an agent, against a real engine: done once, always reported, never without leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.client import (
    ApprovalRequired,
    Backoff,
    Client,
    CompletionConflictError,
    IdempotencyKeyInUseError,
    StepBlocked,
    StepFailed,
    StepInFlightError,
    StepUnwanted,
    WorkflowTerminalError,
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


async def test_of_many_agents_with_a_claim_one_runs_the_step(client: Client, workflow: str) -> None:
    till = Till()
    agents = [
        client.run_step(workflow, "charge", till.charge, key="invoice-1", claim=60, wait_for_claim=30)
        for _ in range(12)
    ]
    assert await asyncio.gather(*agents) == [{"charge": 1}] * 12
    assert len(till.charges) == 1


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
        assert step.gate is not None
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
async def test_an_agent_that_lost_its_claim_does_not_end_that_of_the_next_one(start_node: StartNode) -> None:
    clock = MovableClock()
    node = await start_node(clock=clock)
    async with Client(node.url) as client:
        workflow = (await client.create_workflow("refund"))["workflow_id"]

        async def stall() -> None:
            clock.advance(minutes=2)
            await client.gate(workflow, "charge", claim=60, holder="the next one")
            raise ValueError("too late")

        with pytest.raises(ValueError, match="too late"):
            await client.run_step(workflow, "charge", stall, claim=60)
        claim = (await client.workflow_step(workflow, "charge"))["claim"]
        assert claim is not None
        assert claim["holder"] == "the next one"


async def test_a_guard_outlasts_a_restart_of_the_engine(start_node: StartNode, unused_tcp_port: int) -> None:
    first = await start_node(port=unused_tcp_port)
    quick = Backoff(tries=200, first=0.02, limit=0.05)
    async with Client(first.url) as client:
        workflow = (await client.create_workflow("refund"))["workflow_id"]
        restarting: list[asyncio.Future[Node]] = []

        async def charge() -> dict[str, int]:
            await first.stop()
            restarting.append(asyncio.ensure_future(start_node(port=unused_tcp_port)))
            return {"charge": 1}

        await client.run_step(workflow, "charge", charge, key="k", claim=60, backoff=quick)
        await restarting[0]
        step = await client.workflow_step(workflow, "charge")
        assert (step["work_status"], step["completion_count"], step["gate_count"]) == ("succeeded", 1, 1)


@once
async def test_the_claim_of_an_agent_that_died_is_waited_for(client: Client, workflow: str) -> None:
    till = Till()
    await client.gate(workflow, "charge", claim=0.3)
    with pytest.raises(StepInFlightError):
        await client.run_step(workflow, "charge", till.charge, claim=60)
    assert await client.run_step(workflow, "charge", till.charge, claim=60, wait_for_claim=10) == {"charge": 1}


@once
async def test_a_run_is_repeated_after_its_end_with_what_it_gave(client: Client, workflow: str) -> None:
    till = Till()
    await client.run_step(workflow, "charge", till.charge, key="invoice-1")
    await client.gate(workflow, "mail")
    await client.complete_workflow(workflow)
    assert await client.run_step(workflow, "charge", till.charge, key="invoice-1") == {"charge": 1}
    for step, key in (("charge", "another"), ("mail", None), ("never", None)):
        with pytest.raises(WorkflowTerminalError):
            await client.run_step(workflow, step, till.charge, key=key)
    with pytest.raises(WorkflowTerminalError):
        await client.run_step(workflow, "charge", till.charge, key="invoice-1", input={"amount": 5})
    assert len(till.charges) == 1


@once
async def test_an_output_is_that_of_the_same_input(client: Client, workflow: str) -> None:
    """What was done with another input is no reason not to do it with this one."""
    till = Till()
    await client.run_step(workflow, "charge", till.charge, input={"amount": 5})
    await client.gate(workflow, "charge", input={"amount": 6}, retry_policy="reevaluate")  # and its agent dies
    assert await client.run_step(workflow, "charge", till.charge, input={"amount": 6}) == {"charge": 2}
    assert till.charges == [{"amount": 5}, {"amount": 6}]


@once
async def test_an_output_that_is_no_object_is_refused_by_name(client: Client, workflow: str) -> None:
    async def charge() -> Any:
        return "payment 1"

    with pytest.raises(TypeError, match="output of step charge must be a mapping, not str"):
        await client.run_step(workflow, "charge", charge)


@once
async def test_a_cancellation_from_outside_is_none_by_a_lost_claim(client: Client, workflow: str) -> None:
    async def charge() -> None:
        await client.abort_workflow(workflow, "enough")
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 10)
        except asyncio.CancelledError:
            agent.cancel()
            raise

    agent = asyncio.create_task(client.run_step(workflow, "charge", charge, claim=0.3))
    with pytest.raises(asyncio.CancelledError):
        await agent


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

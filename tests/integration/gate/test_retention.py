"""Retention of workflows: keys outlive them for their window, and pruned workflows cause no errors."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import MovableClock
from tests.eventually import eventually
from tests.integration.agents import Agent, begin
from tests.running import Connect, StartNode

HOUR = 3_600_000
GLOBAL: dict[str, Any] = {"idempotency_scope": "global", "idempotency_window": "forever"}
REPLAY: dict[str, Any] = {"on_duplicate": "replay"}
PRIOR = {"include_prior_output": "true"}


async def is_gone(agent: Agent) -> bool:
    return (await agent.api.get(agent.path)).status == 404


async def test_a_workflow_that_is_gone(start_node: StartNode, connect: Connect) -> None:
    """Its own key is free again, that of its step stays taken for ever, as it was asked to."""
    clock = MovableClock()
    api = connect(await start_node(clock, retention_ms=HOUR))
    body = {"labels": {"case": "x"}, "idempotency_key": "run-1", **GLOBAL}
    owner = await begin(api, **body)
    await owner.gate("pay", idempotency_key="invoice-1")
    await owner.complete("pay", idempotency_key="invoice-1", output={"n": 1})
    (await owner.say("complete")).ok()
    clock.advance(hours=2)
    await eventually(lambda: is_gone(owner), what="a workflow that is gone")
    for reply in (
        await owner.ask("pay", idempotency_key="invoice-1"),
        await owner.report("pay", idempotency_key="invoice-1"),
        await owner.say("abort"),
        await owner.review("pay", "approve"),
    ):
        reply.refused(404, "UNKNOWN_WORKFLOW")
    again = await begin(api, **body)
    assert again.workflow_id != owner.workflow_id
    for how in ({}, REPLAY):
        details = (await again.ask("pay", idempotency_key="invoice-1", **how)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
        assert details == {"workflow_id": owner.workflow_id, "step_id": "pay", "completed": False}


async def test_a_workflow_whose_payloads_are_gone(start_node: StartNode, connect: Connect) -> None:
    """That a step was completed is still known, with what is not: no caller is told that it was nothing."""
    clock = MovableClock()
    api = connect(await start_node(clock, payload_retention_ms=HOUR, retention_ms=24 * HOUR))
    owner = await begin(api, **GLOBAL)
    key: dict[str, Any] = {"idempotency_key": "invoice-1"}
    await owner.gate("pay", **key, step_input={"secret": "s"})
    await owner.complete("pay", **key, output={"secret": "s"})
    (await owner.say("complete")).ok()
    clock.advance(hours=2)

    async def pruned() -> bool:
        return (await api.flow(owner.workflow_id))["pruned_at"] is not None

    await eventually(pruned, what="payloads that are gone")
    details = (await owner.ask("pay", PRIOR, **key)).refused(409, "WORKFLOW_TERMINAL")
    context = details["retry_context"]
    assert (context["completion_count"], context["prior_completion_status"]) == (1, "completed")
    assert context["prior_output"] is None
    second = await begin(api, **GLOBAL)
    details = (await second.ask("pay", **key, **REPLAY)).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert details["completed"] is True
    for output in ({}, {"secret": "s"}):
        (await owner.report("pay", **key, output=output)).refused(409, "COMPLETION_CONFLICT")
    assert b"secret" not in (await api.get(f"{owner.path}/steps/pay")).content


async def test_metadata_of_completions_goes_with_the_payloads(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock, payload_retention_ms=HOUR, retention_ms=24 * HOUR))
    agent = await begin(api)
    await agent.gate("pay")
    await agent.complete("pay", output={"a": 1}, metadata={"secret": "s-3-c-r-3-t"})
    (await agent.say("abort")).ok()
    clock.advance(hours=2)

    async def pruned() -> bool:
        return (await api.flow(agent.workflow_id))["pruned_at"] is not None

    await eventually(pruned, what="a workflow without payloads")
    document = await api.get(f"{agent.path}/steps/pay")
    assert b"s-3-c-r-3-t" not in document.content
    assert document.ok()["metadata"] is None
    (checkpoint,) = (await api.get(f"{agent.path}/checkpoints")).ok()["checkpoints"]
    assert not checkpoint["is_resumable"]
    details = (await api.post(f"{agent.path}/checkpoints/resume")).refused(409, "NOT_RESUMABLE")
    assert details == {"workflow_id": agent.workflow_id, "step_id": "pay", "status": "aborted"}

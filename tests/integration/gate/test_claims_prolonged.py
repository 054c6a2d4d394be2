"""Prolonging a claim: a sign of life of its holder, which is no call of the gate."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import MovableClock
from tests.running import Connect, StartNode
from tests.wire import Api, Reply


class Claimed:
    """A step that was claimed for a minute."""

    def __init__(self, api: Api, workflow_id: str, answer: dict[str, Any]) -> None:
        self.api = api
        self.workflow = f"/api/v1/workflows/{workflow_id}"
        self.holder: str = answer["claim"]["holder"]

    async def beat(self, holder: str | None = None, **fields: Any) -> Reply:
        body = {"holder": holder or self.holder, **fields}
        return await self.api.request("POST", f"{self.workflow}/steps/charge/heartbeat", json=body)

    async def gate(self, **fields: Any) -> Reply:
        return await self.api.request("POST", f"{self.workflow}/steps/charge/gate", json=fields)


async def claimed(api: Api) -> Claimed:
    workflow_id = (await api.request("POST", "/api/v1/workflows", json={"workflow_name": "pay"})).ok(201)["workflow_id"]
    gate = f"/api/v1/workflows/{workflow_id}/steps/charge/gate"
    return Claimed(api, workflow_id, (await api.request("POST", gate, json={"claim": {"lease_seconds": 60}})).ok())


async def test_a_holder_keeps_its_claim_and_nothing_is_counted(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    step = await claimed(api := connect(await start_node(clock)))
    for _ in range(3):
        clock.advance(seconds=50)
        assert (await step.beat(lease_seconds=60, progress=0.5)).ok()["cancel_requested"] is False
    (await step.gate()).refused(409, "STEP_IN_FLIGHT")
    shown = (await api.get(f"{step.workflow}/steps/charge")).ok()
    assert (shown["gate_count"], shown["attempt"], shown["claim"]["holder"]) == (1, 1, step.holder)


async def test_only_the_holder_of_a_live_claim_can(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    step = await claimed(connect(await start_node(clock)))
    (await step.beat("another")).refused(409, "CLAIM_LOST")
    clock.advance(seconds=61)
    (await step.beat()).refused(409, "CLAIM_LOST")
    again = (await step.gate(claim={"lease_seconds": 60})).ok()
    assert again["attempt"] == 2, "a claim that lapsed is an attempt that is over, whether or not the sweep came by"
    (await step.beat()).refused(409, "CLAIM_LOST")
    (await step.beat(again["claim"]["holder"])).ok()


async def test_a_heartbeat_for_a_workflow_that_has_ended_is_refused(api: Api) -> None:
    step = await claimed(api)
    (await api.request("POST", f"{step.workflow}/abort", json={})).ok()
    assert (await step.beat()).ok() == {"lease_expires_at": None, "cancel_requested": True}


async def test_steps_without_a_gate_call(api: Api) -> None:
    step = await claimed(api)
    other = await api.request("POST", f"{step.workflow}/steps/other/heartbeat", json={"holder": "x"})
    other.refused(404, "UNKNOWN_STEP")
    (await step.beat(lease_seconds=True)).refused(422, "INVALID_INPUT")


async def test_a_late_failure_does_not_end_what_another_has_claimed(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    first = await claimed(api := connect(await start_node(clock)))
    complete = f"{first.workflow}/steps/charge/complete"
    failure = {"success": False, "error": "no answer"}
    clock.advance(seconds=61)
    second = (await first.gate(claim={"lease_seconds": 60})).ok()["claim"]["holder"]
    (await api.post(complete, {**failure, "holder": first.holder})).refused(409, "CLAIM_LOST")
    assert (await first.beat(second)).ok()["cancel_requested"] is False
    assert (await api.post(complete, {**failure, "holder": second})).status == 204
    assert (await api.get(f"{first.workflow}/steps/charge")).ok()["work_status"] == "not_completed"
    assert (await api.post(complete, {"output": {}, "holder": first.holder})).status == 204, "what happened happened"


async def test_a_failure_after_a_lapse_counts_while_no_other_agent_has_the_step(
    start_node: StartNode, connect: Connect
) -> None:
    clock = MovableClock()
    step = await claimed(api := connect(await start_node(clock)))
    clock.advance(seconds=61)
    report = {"success": False, "error": "no answer", "holder": step.holder}
    assert (await api.post(f"{step.workflow}/steps/charge/complete", report)).status == 204

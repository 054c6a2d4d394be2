"""Each effect policy after each cause of uncertainty: what is sent again, what is held, and how it is settled."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import (
    InvalidInput,
    NotWaitingForReconciliation,
    UnsafeOnceRequiresControl,
    WorkCancelled,
)
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, connection_refused, timed_out
from tests.store.records import ENDPOINT, definition

RETRIED = ("pure", "idempotent", "dedupe")
HELD = ("reconcile", "unsafe_once")
HOUR = 3_600_000


async def start(simulator: Simulator, policy: str, flow_id: str = "f", **fields: Any) -> str:
    """A flow whose only item is on the wire, approved where it must be; the id of the item."""
    control: dict[str, Any] = {"approval": {}} if policy == "unsafe_once" else {}
    effect = {"policy": policy, **fields.pop("effect", {})}
    await simulator.engine.steps.put("charge", definition(effect=effect, control=control, **fields))
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=["charge"], init={"amount": 7}))
    if policy == "unsafe_once":
        await approve(simulator)
    return await item_of(simulator, flow_id)


async def item_of(simulator: Simulator, flow_id: str = "f") -> str:
    return (await simulator.engine.queries.flow(flow_id))["steps"]["charge"]["work"][-1]["work_id"]


async def approve(simulator: Simulator) -> None:
    [waiting] = (
        await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    )["approvals"]
    await simulator.engine.approvals.review(waiting["approval_id"], "ann", "approve", None)
    await simulator.sweep(SweepName.REQUEUE)


async def look(simulator: Simulator, work_id: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(orjson.dumps(await simulator.engine.queries.work_item(work_id)))
    return document


def sent(simulator: Simulator) -> int:
    return len([call for call in simulator.network.calls if call.url == ENDPOINT])


async def queue(simulator: Simulator) -> list[dict[str, Any]]:
    return [{**each} for each in (await simulator.engine.effect_queries.reconciliations())["reconciliations"]]


async def much_later(simulator: Simulator) -> None:
    """Whatever may happen by itself within an hour, has happened."""
    simulator.clock.advance(HOUR)
    for name in (SweepName.ORPHANS, SweepName.DEADLINES, SweepName.REQUEUE, SweepName.DEDUP, SweepName.PROBES):
        await simulator.sweep(name)


async def time_out(simulator: Simulator) -> None:
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], timed_out())


async def server_error(simulator: Simulator) -> None:
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered(500))


async def pass_the_deadline(simulator: Simulator) -> None:
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered())
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.DEADLINES)


async def crash(simulator: Simulator) -> None:
    await simulator.crash()
    await simulator.start()
    await simulator.sweep(SweepName.ORPHANS)


UNKNOWN = {
    "ack_timeout": time_out,
    "server_error": server_error,
    "deadline_passed": pass_the_deadline,
    "node_lost": crash,
}


@pytest.mark.either_store
@pytest.mark.parametrize("cause", UNKNOWN)
@pytest.mark.parametrize("policy", RETRIED)
async def test_an_unknown_outcome_is_repeated_with_the_same_key(simulator: Simulator, policy: str, cause: str) -> None:
    work_id = await start(simulator, policy)
    await UNKNOWN[cause](simulator)
    assert (await look(simulator, work_id))["status"] == "not_completed"
    assert await queue(simulator) == []
    await much_later(simulator)
    assert sent(simulator) == 2
    keys = {call.headers["Idempotency-Key"] for call in simulator.network.calls}
    assert len(keys) == 1


@pytest.mark.either_store
@pytest.mark.parametrize("cause", UNKNOWN)
@pytest.mark.parametrize("policy", HELD)
async def test_an_unknown_outcome_is_held(simulator: Simulator, policy: str, cause: str) -> None:
    work_id = await start(simulator, policy)
    await UNKNOWN[cause](simulator)
    await much_later(simulator)
    work = await look(simulator, work_id)
    assert (work["status"], work["hold"], work["next_attempt_at"]) == ("not_completed", policy, None)
    error = work["error"]
    assert error["code"] == ("OUTCOME_UNKNOWN" if policy == "reconcile" else "UNSAFE_ONCE_INCOMPLETE")
    assert error["details"] == {"cause": cause, "attempt": 1, "idempotency_key": work["idempotency_key"]}
    [entry] = await queue(simulator)
    assert (entry["work_id"], entry["hold"], entry["cause"], entry["attempt"]) == (work_id, policy, cause, 1)
    assert entry["arguments"] == {"amount": 7}
    assert sent(simulator) == 1


@pytest.mark.either_store
@pytest.mark.parametrize("reply", [connection_refused(), answered(503), answered(429), answered(425)])
@pytest.mark.parametrize("policy", [*RETRIED, *HELD])
async def test_what_was_surely_not_taken_is_repeated(simulator: Simulator, policy: str, reply: Any) -> None:
    work_id = await start(simulator, policy)
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], reply)
    assert await queue(simulator) == []
    await much_later(simulator)
    assert sent(simulator) == 2
    assert (await look(simulator, work_id))["attempt"] == 2


@pytest.mark.parametrize("policy", HELD)
async def test_a_late_report_settles_it(simulator: Simulator, policy: str) -> None:
    work_id = await start(simulator, policy)
    await time_out(simulator)
    await simulator.engine.reports.complete(work_id, StepResult(success=True, outputs={"id": 1}))
    assert (await simulator.engine.queries.flow("f"))["status"] == "completed"
    assert await queue(simulator) == []
    with pytest.raises(NotWaitingForReconciliation) as refused:
        await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="applied"), "ann")
    assert refused.value.details["status"] == "succeeded"


@pytest.mark.parametrize("policy", HELD)
async def test_an_explicit_not_completed_makes_it_go_on(simulator: Simulator, policy: str) -> None:
    work_id = await start(simulator, policy)
    await time_out(simulator)
    await simulator.engine.reports.complete(work_id, StepResult(success=False, retriable=True))
    assert await queue(simulator) == []
    await much_later(simulator)
    assert sent(simulator) == 2


@pytest.mark.parametrize("policy", [*RETRIED, *HELD])
async def test_a_heartbeat_proves_delivery(simulator: Simulator, policy: str) -> None:
    work_id = await start(simulator, policy)
    await time_out(simulator)
    answer = await simulator.engine.reports.heartbeat(work_id, Heartbeat(progress=0.5))
    work = await look(simulator, work_id)
    assert (work["status"], work["hold"], work["error"]) == ("active", None, None)
    assert answer.deadline_at == simulator.clock() + 60_000
    assert await queue(simulator) == []
    assert await simulator.sweep(SweepName.REQUEUE) == 0


async def test_a_heartbeat_before_the_acknowledgement_is_one(simulator: Simulator) -> None:
    work_id = await start(simulator, "idempotent")
    await simulator.engine.reports.heartbeat(work_id, Heartbeat())
    await crash(simulator)
    assert (await look(simulator, work_id))["status"] == "active"
    assert sent(simulator) == 1


async def test_applied(simulator: Simulator) -> None:
    work_id = await start(simulator, "reconcile")
    await time_out(simulator)
    told = await simulator.engine.reconciliations.settle(
        work_id, Settlement(outcome="applied", outputs={"id": 1}, note="in the ledger"), "ann"
    )
    assert told == {"work_id": work_id, "status": "succeeded"}
    flow = await simulator.engine.queries.flow("f")
    assert (flow["status"], flow["outputs"]) == ("completed", {"id": 1})
    events = orjson.loads(orjson.dumps(await simulator.engine.queries.events("f")))["events"]
    [settled] = [event["data"] for event in events if event["type"] == "work_reconciled"]
    assert (settled["by"], settled["note"], settled["outcome"]) == ("ann", "in the ledger", "applied")


async def test_applied_with_outputs_that_the_step_does_not_have(simulator: Simulator) -> None:
    attributes = {"id": {"role": "output", "type": "string"}}
    work_id = await start(simulator, "reconcile", attributes=attributes)
    await time_out(simulator)
    with pytest.raises(InvalidInput) as refused:
        await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="applied", outputs={"id": 1}), "ann")
    assert refused.value.details["errors"][0]["place"] == "outputs.id"
    assert len(await queue(simulator)) == 1


async def test_failed(simulator: Simulator) -> None:
    work_id = await start(simulator, "unsafe_once")
    await time_out(simulator)
    await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="failed", error="declined"), "ann")
    work = await look(simulator, work_id)
    assert (work["status"], work["error"]["message"]) == ("failed", "declined")


async def test_not_applied_is_sent_at_once_though_no_retry_is_left(simulator: Simulator) -> None:
    work_id = await start(simulator, "reconcile", work={"max_retries": 0})
    await time_out(simulator)
    told = await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="not_applied"), "ann")
    assert told == {"work_id": work_id, "status": "not_completed"}
    await simulator.sweep(SweepName.REQUEUE)
    assert sent(simulator) == 2
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered(503))
    assert (await look(simulator, work_id))["error"]["code"] == "RETRIES_EXHAUSTED"


async def test_unsafe_once_is_sent_again_only_with_an_approval_of_its_own(simulator: Simulator) -> None:
    work_id = await start(simulator, "unsafe_once", work={"max_retries": 0})
    await time_out(simulator)
    told = await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="not_applied"), "ann")
    assert told["status"] == "held"
    await much_later(simulator)
    assert sent(simulator) == 1
    await approve(simulator)
    assert sent(simulator) == 2
    await time_out(simulator)
    await much_later(simulator)
    assert sent(simulator) == 2
    assert (await look(simulator, work_id))["hold"] == "unsafe_once"


async def test_unsafe_once_wants_a_control(simulator: Simulator) -> None:
    with pytest.raises(UnsafeOnceRequiresControl):
        await simulator.engine.steps.put("charge", definition(effect={"policy": "unsafe_once"}))


async def test_a_cancelled_item_stays_in_the_queue(simulator: Simulator) -> None:
    work_id = await start(simulator, "reconcile")
    await time_out(simulator)
    await simulator.engine.flows.cancel("f")
    with pytest.raises(WorkCancelled):
        await simulator.engine.reports.complete(work_id, StepResult(success=True))
    [entry] = await queue(simulator)
    assert entry["status"] == "cancelled"
    told = await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="not_applied"), "ann")
    assert told == {"work_id": work_id, "status": "cancelled"}
    assert await queue(simulator) == []

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
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, connection_refused
from tests.store.records import ENDPOINT, definition
from tests.unit.effects.charges import (
    HELD,
    RETRIED,
    UNKNOWN,
    approve,
    crash,
    look,
    much_later,
    queue,
    sent,
    start,
    time_out,
)


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
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert attempt["delivery"] == "delivered", "a report proves it"
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

"""A charge under each effect policy, on a simulated engine: what befalls its attempt, and what it shows."""

from __future__ import annotations

from typing import Any

import orjson

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, timed_out
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

"""Hooks on a simulated engine: the ways of a payload as decision tables, and crashes at every commit."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.errors import CounterfoilError, HookNotFound, PayloadTooLarge
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.hooks.definitions import HookDefinition, Until
from counterfoil.domain.hooks.delivering import Delivered, Incoming, deliver_to_flow, payload_problems
from counterfoil.domain.hooks.ownership import MOST_QUEUED
from counterfoil.domain.hooks.tokens import given
from counterfoil.domain.steps.checks import NO_FINDINGS
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.flows.start import Start
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import CrashPoint, Simulator, answered
from tests.store.records import definition as step_definition

ORDER = {"order": {"role": "required"}}


def hook_step(late: bool = False, **hook: Any) -> StepDefinition:
    attributes = {**ORDER, **({"checked": {"role": "required"}} if late else {})}
    return StepDefinition.model_validate(
        {
            "kind": "hook",
            "hook": {"token": "{order}", **hook},
            "attributes": attributes,
            "work": {"deadline_ms": 60_000},
        }
    )


async def begin(simulator: Simulator, flow_id: str, order: Any = "a", *, expects: bool = False) -> None:
    engine = simulator.engine
    request = StartFlow(flow_id=flow_id, goals=["hook"], init={"order": order})
    await engine.commit.submit(Start(request, engine.context, expects=expects))


async def send(simulator: Simulator, payload: Any, delivery_id: str | None = None, token: str = "a") -> Any:
    try:
        hooks = simulator.engine.hooks
        return await hooks.deliver(given(token), Incoming(payload, delivery_id))
    except CounterfoilError as refusal:
        return refusal.code


async def item(simulator: Simulator, flow_id: str) -> dict[str, Any]:
    flow: dict[str, Any] = orjson.loads(orjson.dumps(await simulator.engine.queries.flow(flow_id)))
    work: dict[str, Any] = flow["steps"]["hook"]["work"][-1]
    return work


class DeliverToFlow:
    """The signal of a start whose run key another flow owns."""

    def __init__(self, flow_id: str, token: str, incoming: Incoming) -> None:
        self._flow_id, self._token, self._incoming = flow_id, given(token), incoming

    def needs(self, needs: ReadSet) -> None:
        needs.hook_tokens.add(self._token.token_id)

    def decide(self, unit: UnitOfWork, now: int) -> Delivered:
        return deliver_to_flow(unit, self._flow_id, self._token, self._incoming, now)


@pytest.mark.parametrize(
    ("outputs", "payload", "places"),
    [
        ({}, {}, []),
        ({}, {"a": 1}, []),
        ({}, [], ["payload"]),
        ({}, None, ["payload"]),
        ({"n": {"role": "output", "type": "number"}}, {"n": 1, "more": 2}, []),
        ({"n": {"role": "output", "type": "number"}}, {"n": "1"}, ["payload.n"]),
        ({"n": {"role": "output", "type": "number"}, "m": {"role": "output"}}, {}, ["payload.n", "payload.m"]),
    ],
)
def test_a_single_payload_is_checked_like_outputs(outputs: Any, payload: Any, places: list[str]) -> None:
    definition = StepDefinition.model_validate({"kind": "hook", "hook": {}, "attributes": outputs})
    assert [error["place"] for error in payload_problems(definition, payload, NO_FINDINGS)] == places


@pytest.mark.parametrize("payload", [{}, [], None, 1, "x", True])
def test_one_of_several_payloads_may_be_anything(payload: Any) -> None:
    definition = StepDefinition.model_validate({"kind": "hook", "hook": {"collect": 2}})
    assert payload_problems(definition, payload, NO_FINDINGS) == []
    narrow = StepDefinition.model_validate({"kind": "hook", "hook": {"collect": 2, "schema": {"type": "number"}}})
    assert bool(payload_problems(narrow, payload, NO_FINDINGS)) is not isinstance(payload, int) or payload is True


@pytest.mark.parametrize(
    ("text", "payload", "payloads", "holds"),
    [
        ("payload.done", {"done": True}, [], True),
        ("payload.done", {"done": False}, [], False),
        ("payload.done", {"done": 1}, [], False),
        ("payload.done", {}, [], False),
        ("payload.done", None, [], False),
        ("payloads.size() > 1", 1, [1], False),
        ("payloads.size() > 1", 1, [1, 1], True),
        ("payload == payloads[0]", 2, [1, 2], False),
        ("payload / 0 == 1", 2, [2], False),
        ("payload.n > 1", {"n": 2**70}, [], False),
    ],
)
def test_until_is_true_or_else_false(text: str, payload: Any, payloads: list[Any], holds: bool) -> None:
    assert Until(text).holds(payload, payloads) is holds


def test_a_hook_has_defaults() -> None:
    hook = HookDefinition()
    assert (hook.token, hook.collect, hook.until, hook.json_schema) == (None, 1, None, None)
    assert (hook.on_conflict, hook.on_timeout, hook.template, hook.condition) == ("fail", "fail", None, None)


async def test_the_payloads_of_one_hook_have_a_limit_together(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterfoil.domain.hooks.delivering.MOST_BYTES", 20)
    await simulator.engine.steps.put("hook", hook_step(collect=3))
    await begin(simulator, "flow")
    assert (await send(simulator, "x" * 10))["delivered"]
    assert await send(simulator, "x" * 10) == PayloadTooLarge.code
    assert (await send(simulator, "x"))["delivered"]
    assert (await item(simulator, "flow"))["hook"]["received"] == 2


async def test_a_queue_has_an_end(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_QUEUED == 1_000
    monkeypatch.setattr("counterfoil.domain.hooks.ownership.MOST_QUEUED", 1)
    await simulator.engine.steps.put("hook", hook_step(on_conflict="wait"))
    for name in ("owner", "queued", "refused"):
        await begin(simulator, name)
    assert (await item(simulator, "queued"))["hook"]["status"] == "queued"
    assert (await item(simulator, "refused"))["error"]["message"] == "another hook owns the token, and too many wait"


@pytest.mark.parametrize("point", list(CrashPoint))
async def test_a_payload_whose_answer_is_lost_is_recorded_once(simulator: Simulator, point: CrashPoint) -> None:
    await simulator.engine.steps.put("hook", hook_step(collect=2))
    await begin(simulator, "flow")
    sent = simulator.engine.hooks.deliver(given("a"), Incoming(1, "d1"))
    assert await simulator.crash_during(sent, point)
    await simulator.start()
    again = await send(simulator, 1, "d1")
    assert again["duplicate"] is (point is CrashPoint.AFTER_COMMIT)
    assert (await send(simulator, 2))["duplicate"] is False
    assert (await item(simulator, "flow"))["outputs"] == {"payloads": [1, 2]}


@pytest.mark.parametrize("point", list(CrashPoint))
async def test_a_hook_that_waits_is_registered_after_a_crash(simulator: Simulator, point: CrashPoint) -> None:
    await simulator.engine.steps.put("hook", hook_step(on_conflict="wait"))
    await begin(simulator, "owner")
    await begin(simulator, "next")
    await simulator.crash_during(simulator.engine.flows.cancel("owner"), point)
    await simulator.start()
    if point is CrashPoint.BEFORE_COMMIT:
        await simulator.engine.flows.cancel("owner")
    assert await simulator.next_due(SweepName.HOOKS) is not None
    assert await simulator.sweep(SweepName.HOOKS) == 1
    assert await simulator.sweep(SweepName.HOOKS) == 0
    assert await simulator.next_due(SweepName.HOOKS) is None
    assert (await item(simulator, "next"))["hook"]["status"] == "waiting"
    assert simulator.examine() == []


async def test_the_sweep_is_woken_when_an_owner_ends(simulator: Simulator) -> None:
    await simulator.engine.steps.put("hook", hook_step(on_conflict="wait"))
    await begin(simulator, "owner")
    await begin(simulator, "next")
    simulator.wakeups.clear()
    await send(simulator, {})
    assert (SweepName.HOOKS, simulator.clock.now) in simulator.wakeups


async def test_a_signal_reaches_the_hook_of_one_flow_only(simulator: Simulator) -> None:
    engine = simulator.engine
    simulator.network.always("http://worker/check", answered(202))
    attributes = {**ORDER, "checked": {"role": "output"}}
    await engine.steps.put("check", step_definition(endpoint="http://worker/check", attributes=attributes))
    await engine.steps.put("hook", hook_step(late=True, collect=2))
    await begin(simulator, "mine", expects=True)
    await begin(simulator, "other")

    async def signal(flow_id: str, token: str, delivery_id: str | None = None) -> Delivered:
        return await engine.commit.submit(DeliverToFlow(flow_id, token, Incoming({"n": 1}, delivery_id)))

    assert await signal("mine", "a", "d1") == Delivered("mine", "hook", buffered=True)
    assert await signal("mine", "a", "d1") == Delivered("mine", "hook", duplicate=True, buffered=True)
    for flow_id, token in (("other", "a"), ("mine", "b")):
        with pytest.raises(HookNotFound):
            await signal(flow_id, token)
    check = (await engine.queries.flow("mine"))["steps"]["check"]["work"][0]["work_id"]
    await engine.reports.complete(check, StepResult(success=True, outputs={"checked": 1}))
    with pytest.raises(HookNotFound):
        await signal("other", "a", "d1")
    assert await signal("mine", "a", "d2") == Delivered("mine", "hook")
    assert await signal("mine", "a", "d2") == Delivered("mine", "hook", duplicate=True)
    assert (await item(simulator, "mine"))["status"] == "succeeded"


async def test_a_hook_uses_no_dispatches(simulator: Simulator) -> None:
    await simulator.engine.steps.put("hook", hook_step())
    for number in range(300):
        await begin(simulator, f"flow-{number}", number)
    assert simulator.network.calls == []
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    assert await simulator.engine.hook_queries.waiting() == 300

"""Runs of random flows on the simulator: whatever happens to them, and what must hold of every call that they make."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import strategies as st

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Call, Simulator, answered, connection_refused, timed_out
from tests.by_hand import Place

DEFAULTS = WorkDefaults(init_backoff_ms=1_000, jitter=False, ack_timeout_ms=10_000, deadline_ms=60_000, max_retries=1)
INIT: dict[str, Any] = {"a": 1, "list": ["x", "y", "z"]}
DEFAULT = "default"
FINAL = ("completed", "failed", "cancelled")
FINAL_WORK = ("succeeded", "failed", "cancelled")
SWEEPS = (SweepName.ORPHANS, SweepName.DEADLINES, SweepName.FLOW_CLOCKS, SweepName.REQUEUE, SweepName.CANCEL_CALLS)
ROUNDS_TO_THE_END = 60


@st.composite
def steps(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Steps of which each may take what those before it give; some give the same value, or a list."""
    found: dict[str, dict[str, Any]] = {}
    names = ["a"]
    for number in range(draw(st.integers(1, 6))):
        step_id = f"s{number}"
        attributes: dict[str, Any] = {}
        for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=3)):
            role = draw(st.sampled_from(["required", "required", "optional"]))
            attributes[name] = {"role": role}
            if role == "optional":
                attributes[name] |= {"default": DEFAULT, "timeout_ms": draw(st.sampled_from([None, 5_000]))}
        definition: dict[str, Any] = {"kind": draw(st.sampled_from(["sync", "async"])), "attributes": attributes}
        if draw(st.integers(0, 3)) == 0:
            attributes["list"] = {"role": "required", "for_each": True}
            on_failure = draw(st.sampled_from(["collect", "fail_fast"]))
            definition["fan_out"] = {"parallelism": draw(st.sampled_from([None, 1, 2])), "on_failure": on_failure}
        given = [f"v{number}", *(["shared"] if "shared" not in attributes and draw(st.booleans()) else [])]
        attributes |= {name: {"role": "output", "type": draw(st.sampled_from(["any", "string"]))} for name in given}
        if "fan_out" in definition:
            attributes |= {name: {"role": "output"} for name in given}
        if found and draw(st.integers(0, 4)) == 0:
            others = draw(st.lists(st.sampled_from(sorted(found)), unique=True, min_size=1, max_size=3))
            definition["wait_for"] = {"any": draw(st.integers(1, len(others))), "of": others}
        if draw(st.integers(0, 5)) == 0:
            definition["predicate"] = "false"
        if draw(st.integers(0, 2)) == 0:
            kind = draw(st.sampled_from(["sync", "async"]))
            definition["compensate"] = {"endpoint": f"http://worker/undo-{step_id}", "kind": kind}
        found[step_id] = {"endpoint": f"http://worker/{step_id}", **definition}
        names += [name for name in given if name not in names]
    if draw(st.integers(0, 3)) == 0:
        flow = {"goals": [f"s{len(found) - 1}"], "inputs": {"a": "a", "list": "list"}}
        attributes = {"a": {"role": "required"}, "list": {"role": "required"}}
        found["outer"] = {"kind": "flow", "flow": flow, "attributes": attributes}
    return found


ACTIONS = st.sampled_from(
    [
        *["succeed"] * 8,
        *["fail", "unavailable", "refused", "timeout", "invalid", "again"],
        *["time", "time", "late", "crash", "cancel", "cancel_and_undo", "redrive"],
    ]
)
ANSWERS = {"unavailable": answered(503), "refused": connection_refused(), "timeout": timed_out()}
NOT_COMPLETED = {"success": False, "error": "busy", "retriable": True}
BROKEN = {"success": False, "error": "broken"}


@dataclass
class Run:
    """One flow, and all that was seen of it."""

    place: Place
    definitions: dict[str, dict[str, Any]]
    goals: list[str]
    simulator: Simulator = field(init=False)
    given: dict[str, list[Any]] = field(default_factory=dict)
    """By name: all values that a worker ever gave."""
    ended: set[str] = field(default_factory=set)
    """Work items whose outcome is recorded."""
    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By flow and name: the value that the flow has."""
    looked_at: int = 0
    acknowledged: list[Call] = field(default_factory=list)
    redriven: bool = False

    async def start(self) -> bool:
        """False: the goals cannot be reached."""
        self.simulator = Simulator(self.place, defaults=DEFAULTS)
        await self.simulator.start()
        for step_id, definition in self.definitions.items():
            await self.simulator.engine.steps.put(step_id, StepDefinition.model_validate(definition))
        try:
            await self.simulator.engine.flows.start(StartFlow(flow_id="flow", goals=self.goals, init=INIT))
        except CounterfoilError:
            return False
        return True

    async def flow(self, flow_id: str = "flow") -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(orjson.dumps(await self.simulator.engine.queries.flow(flow_id)))
        return document

    # What happens ------------------------------------------------------------------------------------------------

    async def act(self, action: str, which: int) -> None:
        if action == "time":
            await self.time_passes(2_000)
        elif action == "late":
            await self.time_passes(100_000)
        elif action == "crash":
            await self.simulator.crash()
            await self.simulator.start()
        elif action in ("cancel", "cancel_and_undo"):
            if which == 0:
                compensate = action == "cancel_and_undo"
                await self.tolerated(self.simulator.engine.flows.cancel("flow", compensate=compensate))
        elif action == "redrive":
            self.redriven |= await self.tolerated(self.simulator.engine.flows.redrive("flow"))
        else:
            await self.respond(action, which)
        await self.check()

    async def time_passes(self, milliseconds: int) -> None:
        self.simulator.clock.advance(milliseconds)
        for name in SWEEPS:
            await self.simulator.sweep(name)

    async def tolerated(self, action: Awaitable[Any]) -> bool:
        """Refusals are answers too."""
        try:
            await action
        except CounterfoilError:
            return False
        return True

    async def respond(self, action: str, which: int) -> None:
        """A worker does something: the one that was called, or one that has taken its work before."""
        waiting = self.simulator.network.waiting()
        if not waiting or (self.acknowledged and which % 2):
            if self.acknowledged:
                await self.report(self.acknowledged.pop(which % len(self.acknowledged)), action)
            return
        call = waiting[which % len(waiting)]
        if "webhook_url" in call.metadata and action not in ANSWERS:
            await self.simulator.network.answer(call, answered())
            self.acknowledged.append(call)
            return
        reply = ANSWERS[action] if action in ANSWERS else answered(200, self.result(call, action))
        await self.simulator.network.answer(call, reply)

    async def report(self, call: Call, action: str) -> None:
        engine = self.simulator.engine
        metadata = call.metadata
        work_id = engine.reports.work_of(metadata["flow_id"], metadata["step_id"], call.token)
        await self.tolerated(engine.reports.complete(work_id, StepResult.model_validate(self.result(call, action))))

    def result(self, call: Call, action: str) -> dict[str, Any]:
        if action in ("again", *ANSWERS):
            return NOT_COMPLETED
        if action == "fail":
            return BROKEN
        if call.metadata.get("compensating"):
            return {"success": True}
        attributes = self.definitions[call.metadata["step_id"]]["attributes"]
        names = [name for name, attribute in attributes.items() if attribute["role"] == "output"]
        if action == "invalid":
            return {"success": True, "outputs": dict.fromkeys(names[1:], 1)}
        outputs = {name: f"{name} of {call.metadata['work_id']}" for name in names}
        for name, value in outputs.items():
            self.given.setdefault(name, []).append(value)
        return {"success": True, "outputs": outputs}

    async def come_to_the_end(self) -> None:
        """Workers do their work from now on, and time passes: the flow and all flows inside it must end."""
        for _ in range(ROUNDS_TO_THE_END):
            while self.simulator.network.waiting() or self.acknowledged:
                await self.respond("succeed", 0)
                await self.check()
            if all(flow["status"] in FINAL for flow in await self.flows()):
                return
            await self.time_passes(10_000)
        raise AssertionError(f"the flow does not end: {await self.flows()}")

    async def flows(self) -> list[dict[str, Any]]:
        listed = orjson.loads(orjson.dumps(await self.simulator.engine.queries.flows(limit=100)))["flows"]
        return [await self.flow(flow["flow_id"]) for flow in listed]

    # What must hold ----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Every call since the last look was for work without an outcome, with the values that there are."""
        calls = self.simulator.network.calls
        for call in calls[self.looked_at :]:
            assert call.metadata["work_id"] not in self.ended, f"{call} was sent again"
            if not call.metadata.get("compensating"):
                await self.check_arguments(call)
        self.looked_at = len(calls)
        for flow in await self.flows():
            work = [item for step in flow["steps"].values() for item in step["work"]]
            self.ended |= {item["work_id"] for item in work if item["status"] in FINAL_WORK}
            for name, value in flow["outputs"].items():
                first = self.values.setdefault((flow["flow_id"], name), value)
                assert self.redriven or value == first, f"{name} had a value already"

    async def check_arguments(self, call: Call) -> None:
        definition = self.definitions[call.metadata["step_id"]]
        outputs = (await self.flow(call.metadata["flow_id"]))["outputs"]
        fans_out = [name for name, attribute in definition["attributes"].items() if attribute.get("for_each")]
        for name, value in call.body["arguments"].items():
            if name in INIT:
                assert value == INIT[name] or (name in fans_out and value in INIT[name])
            elif value != DEFAULT or definition["attributes"][name]["role"] == "required":
                self.check_value(name, value)
                assert self.redriven or outputs[name] == value, (call, name)

    def check_value(self, name: str, value: Any) -> None:
        """A step or ``init`` gave it: as it is, or each part of a list."""
        for part in value if isinstance(value, list) else [value]:
            assert part is None or part in self.given.get(name, []), f"no step gave {part} for {name}"

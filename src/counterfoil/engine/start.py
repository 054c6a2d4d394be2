"""Starting a flow: one transaction makes the flow, its steps and its work, and claims what can be sent at once."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.errors import FlowExists, UnknownStep
from counterfoil.domain.events import Event, EventType
from counterfoil.domain.flows import StartFlow, arguments_for, check_inputs
from counterfoil.domain.keys import idempotency_key
from counterfoil.domain.model import FlowInputs, StepVersion
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work import dispatch
from counterfoil.engine.context import EngineContext
from counterfoil.store.needs import Needs
from counterfoil.store.world import World


class Start:
    """``POST /api/v1/flows``. Ids are made before the decision, so that deciding again gives the same flow."""

    def __init__(self, request: StartFlow, context: EngineContext) -> None:
        self._request = request
        self._flow_id = request.flow_id or context.new_id()
        self._goals = list(dict.fromkeys(request.goals))
        self._work_ids = [context.new_id() for _ in self._goals]

    def needs(self, needs: Needs) -> None:
        needs.steps.update(self._goals)
        if self._request.flow_id is not None:
            needs.flows.add(self._flow_id)

    def decide(self, world: World, now: int) -> dict[str, Any]:
        request, flow_id = self._request, self._flow_id
        if request.flow_id is not None and world.find_flow(flow_id) is not None:
            raise FlowExists(flow_id=flow_id)
        versions = {goal: self._version(world, goal) for goal in self._goals}
        check_inputs({goal: version.definition for goal, version in versions.items()}, request.init)
        data = {
            "goals": self._goals,
            "steps": {goal: version.version for goal, version in versions.items()},
            "init": request.init,
            "metadata": request.metadata,
            "labels": request.labels,
        }
        world.record(Event(EventType.FLOW_STARTED, now, flow_id, data=data))
        world.start_with(FlowInputs(flow_id, self._goals, request.init, request.metadata, request.labels))
        for work_id, version in zip(self._work_ids, versions.values(), strict=True):
            self._start_step(world, version, work_id, now)
        return {
            "flow_id": flow_id,
            "status": "active",
            "goals": self._goals,
            "plan": plan_document(self._goals, request.init),
            "created_at": rfc3339(now),
        }

    def _version(self, world: World, step_id: str) -> StepVersion:
        version = world.current_version(step_id)
        if version is None:
            raise UnknownStep(f"no step is registered as {step_id}", step_id=step_id)
        return version

    def _start_step(self, world: World, version: StepVersion, work_id: str, now: int) -> None:
        flow_id, step_id = self._flow_id, version.step_id
        data: dict[str, Any] = {"version": version.version, "goal": True, "items": 1}
        world.record(Event(EventType.STEP_STARTED, now, flow_id, step_id, data=data))
        arguments = arguments_for(version.definition, self._request.init)
        data = {
            "item": 0,
            "version": version.version,
            "lane": version.lane,
            "idempotency_key": idempotency_key(flow_id, 0, step_id, version.definition, arguments),
        }
        world.record(Event(EventType.WORK_CREATED, now, flow_id, step_id, work_id, 0, data))
        # A step with a limit over all flows is claimed by the sweep, which counts what is out.
        if version.work.parallelism is None and world.capacity.take_at_once(version.lane):
            world.record(dispatch(world.work(work_id), version, world.node_id, now))


def plan_document(goals: list[str], init: dict[str, Any]) -> dict[str, Any]:
    """Which steps run, and why: the goals themselves, fed by what the flow was started with."""
    return {
        "goals": goals,
        "steps": goals,
        "inputs": dict.fromkeys(init, "init"),
        "included": dict.fromkeys(goals, "it is a goal"),
        "excluded": {},
    }

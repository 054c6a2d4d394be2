"""Starting a flow: one transaction plans it, makes its steps and first work, and claims what can be sent at once."""

from __future__ import annotations

from typing import cast

from counterfoil.domain.errors import FlowExists
from counterfoil.domain.flows.launch import Launch, launch, plan_launch
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.flows.settle import begin
from counterfoil.domain.hooks.expecting import expect_hooks
from counterfoil.domain.time import rfc3339
from counterfoil.engine.context import EngineContext
from counterfoil.store.group_commit.batch import ReadOnlyCommand
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.flows import FlowStarted, PlanDocument


class Start:
    """``POST /api/v1/flows``. The id is made before the decision, so that deciding again gives the same flow."""

    def __init__(
        self, request: StartFlow, context: EngineContext, started_by: str | None = None, *, expects: bool = False
    ) -> None:
        self._request = request
        self._expects = expects
        """Whether payloads for its hooks are kept that come before their steps start."""
        self._started_by = started_by
        """The API key that started it: an approval with ``separate_requester`` must come from another key."""
        self._flow_id = request.flow_id or context.new_id()
        self._known = context.known

    def needs(self, needs: ReadSet) -> None:
        needs.registers.add(str(self._known.register.revision))
        if self._request.flow_id is not None:
            needs.flows.add(self._flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> FlowStarted:
        request, flow_id = self._request, self._flow_id
        if request.flow_id is not None and unit.find_flow(flow_id) is not None:
            raise FlowExists(flow_id=flow_id)
        options = request.options()
        if self._started_by is not None:
            options["started_by"] = self._started_by
        wanted = Launch(flow_id, request.goals, request.init, request.metadata, request.labels, options)
        plan = launch(unit, wanted, now)
        begin(unit, flow_id, now)
        if self._expects:
            expect_hooks(unit, flow_id, now)
        return {
            "flow_id": flow_id,
            "status": unit.flow(flow_id).status,
            "goals": plan.goals,
            "plan": cast(PlanDocument, plan.document()),
            "created_at": rfc3339(now),
        }


class Preview(ReadOnlyCommand):
    """``POST /api/v1/plan``: the plan of a start, without starting anything."""

    def __init__(self, request: StartFlow, context: EngineContext) -> None:
        self._request = request
        self._known = context.known

    def needs(self, needs: ReadSet) -> None:
        needs.registers.add(str(self._known.register.revision))

    def decide(self, unit: UnitOfWork, now: int) -> PlanDocument:
        return cast(PlanDocument, plan_launch(unit, self._request.goals, self._request.init).document())

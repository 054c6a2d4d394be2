"""Ends of flows after a commit: polls that wait for them are answered from what was committed, other nodes are told."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.journal.events import ENDS_FLOW
from counterfoil.domain.records import Flow, StepRun
from counterfoil.domain.states import FINAL_FLOWS, StepStatus
from counterfoil.engine.cluster.peers import Peers
from counterfoil.engine.queries.results import Results, committed_result
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.kinds.flows import FLOWS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.unit import UnitOfWork


class FlowEnds:
    """Looks at each flow that begins or ends in a commit. Other commits wake no poll."""

    def __init__(self, results: Results, peers: Peers) -> None:
        self._results = results
        self._peers = peers

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        flows = unit.changes.peek(FLOWS)
        if flows.new:
            self._results.recent.start(flows.new)
        if ENDS_FLOW.isdisjoint(unit.changes.kinds()):
            return
        ended = {flow_id: flow for flow_id, flow in flows.items() if flow is not None and flow.status in FINAL_FLOWS}
        self._results.recent.end(ended)
        self._answer(unit, [ended[flow_id] for flow_id in self._results.awaited(ended)])
        self._peers.tell(ended=ended)

    def _answer(self, unit: UnitOfWork, awaited: list[Flow]) -> None:
        not_seen = []
        for flow in awaited:
            outputs = committed_outputs(unit, flow)
            if outputs is None:
                not_seen.append(flow.flow_id)
            else:
                self._results.tell(flow.flow_id, committed_result(flow, outputs))
        if not_seen:
            self._results.read_ended(not_seen)


def committed_outputs(unit: UnitOfWork, flow: Flow) -> dict[str, Any] | None:
    """What the steps of a flow gave, by the records of the batch; None: the batch has not seen all of them.

    It has seen all steps of a flow with one step. Of a longer flow, most ended in earlier batches.
    """
    outputs: dict[str, Any] = {}
    try:
        steps = _all_steps(unit, flow)
        for step in sorted(steps, key=lambda step: (step.finished_at or 0, step.step_id)):
            if step.status is StepStatus.COMPLETED:  # only then it has any
                for name, value in _outputs_of(unit, step).items():
                    outputs.setdefault(name, value)
    except NotLoaded:
        return None
    return outputs


def _all_steps(unit: UnitOfWork, flow: Flow) -> list[StepRun]:
    """The steps of a flow; NotLoaded: the batch has not seen all of them, or the plan does not name them."""
    planned = unit.plan_of(flow).steps  # none where an agent adds them, and in flows of a release without plans
    if not planned:
        raise NotLoaded("whole_flows", flow.flow_id)
    return [unit.step_run(flow.flow_id, step_id) for step_id in planned]


def _outputs_of(unit: UnitOfWork, step: StepRun) -> dict[str, Any]:
    key = (step.flow_id, step.step_id)
    if key in unit.changes.peek(STEPS) and step.finished_at == unit.changes.at:
        return step.outputs or {}  # it completed in this batch
    return unit.outputs(*key)

"""Settling: when steps and flows end, and what happens to what is still open."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.flows.ending import end_early
from counterfoil.domain.flows.planning import make_plan
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.journal.events import Event
from counterfoil.domain.states import FlowStatus, WorkStatus
from counterfoil.domain.steps.checks import NO_FINDINGS
from counterfoil.domain.steps.register import Register
from counterfoil.domain.work.decisions import acknowledge, fail, report
from counterfoil.domain.work.results import StepResult
from counterfoil.store.kinds.definitions import PLANS
from counterfoil.store.kinds.flows import FLOWS, INPUTS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.records import NOW, RETRY, flow_inputs, flow_record, step_run, step_version, work_item

LATER = NOW + 500


class Story:
    """A flow with some steps of one item each, all of them sent. If they are goals, it was planned for them."""

    def __init__(self, *step_ids: str, goals: bool = True, knows_what_is_open: bool = True, **fields: Any) -> None:
        self.versions = {step_id: step_version(step_id, **fields) for step_id in step_ids}
        self.unit = UnitOfWork({version.version: version for version in self.versions.values()})
        plan = make_plan(Register(1, self.versions.values()), step_ids, {})
        self.unit.add(PLANS, plan)
        self.unit.records(FLOWS).add(
            "flow", flow_record(open_steps=len(step_ids), plan=plan.plan_id if goals else None)
        )
        self.unit.add(INPUTS, flow_inputs())
        for step_id, version in self.versions.items():
            self.unit.add(STEPS, step_run(step_id=step_id, version=version.version, goal=goals))
            work_id = f"work-of-{step_id}"
            self.unit.add_work(work_item(work_id=work_id, step_id=step_id, version=version.version))
        if knows_what_is_open:
            self.unit.complete.open_flows.update(["flow"])

    def report(self, step_id: str, result: StepResult) -> None:
        work = self.unit.work(f"work-of-{step_id}")
        _, events = report(work, result, self.versions[step_id], RETRY, LATER, NO_FINDINGS)
        self.then(*events)

    def then(self, *events: Event) -> None:
        """Record events and settle, as every command does."""
        for event in events:
            self.unit.record(event)
        settle(self.unit, "flow", LATER)
        self.unit.keep()

    def states(self) -> dict[str, str]:
        """Flow, steps and work, by name."""
        changes = self.unit.changes
        shown = {"flow": str(self.unit.flow("flow").status)}
        shown |= {step_id: str(step.status) for (_, step_id), step in changes.steps.items()}
        return shown | {work_id: str(work.status) for work_id, work in changes.work.items()}

    def outputs(self) -> dict[str, Any]:
        """What each step gave that has completed."""
        steps = self.unit.changes.steps
        return {step_id: step.outputs for (_, step_id), step in steps.items() if step.status == "completed"}

    def told(self) -> list[str]:
        return [str(event.type) for event in self.unit.changes.events]


def success(**outputs: Any) -> StepResult:
    return StepResult(success=True, outputs=outputs)


def test_a_flow_completes_with_its_only_step() -> None:
    story = Story("a")
    story.report("a", success(x=1))
    assert story.told() == ["work_succeeded", "step_completed", "flow_completed"]
    assert story.states() == {"flow": "completed", "a": "completed", "work-of-a": "succeeded"}
    assert [event.data for event in story.unit.changes.events[1:]] == [{"outputs": {"x": 1}}, {}]
    assert story.outputs() == {"a": {"x": 1}}


def test_a_flow_completes_with_its_last_step_and_the_first_outcome_of_a_value_stays() -> None:
    story = Story("a", "b")
    story.report("a", success(x=1))
    assert story.states() == {"flow": "active", "a": "completed", "work-of-a": "succeeded"}
    story.report("b", success(x=2, y=2))
    assert story.states()["flow"] == "completed"
    assert story.outputs() == {"a": {"x": 1}, "b": {"y": 2}}


def test_a_flow_is_given_what_its_step_declares() -> None:
    story = Story("a", attributes={"text": {"role": "output", "type": "string"}})
    story.report("a", success(text="t", secret="s"))
    assert story.outputs() == {"a": {"text": "t"}}


def test_an_attempt_given_back_ends_nothing() -> None:
    story = Story("a")
    story.report("a", StepResult(success=False, retriable=True))
    assert story.states() == {"flow": "active", "work-of-a": "not_completed"}


def test_a_flow_fails_with_its_first_goal_and_cancels_the_others() -> None:
    story = Story("a", "b", "c")
    story.report("b", success())
    story.report("a", StepResult(success=False, error="broken"))
    assert story.states() == {
        "flow": "failed",
        "a": "failed",
        "b": "completed",
        "c": "cancelled",
        "work-of-a": "failed",
        "work-of-b": "succeeded",
        "work-of-c": "cancelled",
    }
    assert story.told()[2:] == ["work_failed", "step_failed", "work_cancelled", "step_cancelled", "flow_failed"]
    flow = story.unit.flow("flow")
    assert flow.error == {"code": "STEP_FAILED", "message": "broken", "step_id": "a", "work_id": "work-of-a"}
    assert flow.open_steps == 0


def test_a_step_that_is_no_goal_may_fail() -> None:
    story = Story("a", "b", goals=False)
    story.then(fail(story.unit.work("work-of-a"), LATER, "X", "m", "response"))
    assert story.states() == {"flow": "active", "a": "failed", "work-of-a": "failed"}
    story.report("b", success())
    assert story.states()["flow"] == "completed"


def test_a_flow_that_has_ended_stays_as_it_is() -> None:
    story = Story("a")
    story.report("a", success())
    told = story.told()
    story.then()
    assert story.told() == told


def test_a_step_that_has_ended_is_not_ended_again() -> None:
    story = Story("a", "b", goals=False)
    unit = story.unit
    unit.add_work(work_item(work_id="second", step_id="a", version=story.versions["a"].version))
    story.then(fail(unit.work("work-of-a"), LATER, "X", "m", "response"))
    story.then(acknowledge(unit.work("second"), LATER, 200, None))
    assert story.told() == ["work_failed", "step_failed", "work_acknowledged"]


def test_settling_looks_at_what_was_touched_and_not_at_the_rest() -> None:
    story = Story("a", "b", "c", knows_what_is_open=False)
    story.report("a", success())
    with pytest.raises(NotLoaded, match="open_flows flow"):  # only ending the flow early needs all that is open
        story.report("b", StepResult(success=False))


@pytest.mark.parametrize(("attempt", "calls"), [(0, 0), (1, 1)])
def test_a_worker_is_told_of_the_cancellation_of_what_it_was_sent(attempt: int, calls: int) -> None:
    version = step_version(cancel_url="http://worker.test/cancel")
    unit = UnitOfWork({version.version: version})
    unit.records(FLOWS).add("flow", flow_record())
    unit.add(STEPS, step_run(step_id="a", version=version.version))
    status = WorkStatus.ACTIVE if attempt else WorkStatus.PENDING
    unit.add_work(work_item(status, work_id="work-a", step_id="a", version=version.version))
    unit.complete.open_flows.update(["flow"])
    end_early(unit, "flow", LATER, "cancelled", "the flow was cancelled", compensate=False)
    unit.keep()
    assert len(unit.changes.calls) == calls
    for call in unit.changes.calls.values():
        assert call is not None
        assert (call.url, call.due_at, call.attempt) == ("http://worker.test/cancel", LATER, 0)
        assert call.body["metadata"] == {
            "flow_id": "flow",
            "step_id": "a",
            "work_id": "work-a",
            "attempt": 1,
            "idempotency_key": "key",
        }
        assert call.body["reason"] == "the flow was cancelled"


def test_without_a_cancel_url_there_is_no_cancel_call() -> None:
    story = Story("a")
    end_early(story.unit, "flow", LATER, "cancelled", "the flow was cancelled", compensate=False)
    story.unit.keep()
    assert story.unit.changes.calls == {}
    assert story.states() == {"flow": "cancelled", "a": "cancelled", "work-of-a": "cancelled"}


def test_ending_a_flow_without_open_steps_looks_at_nothing() -> None:
    unit = UnitOfWork({})
    unit.records(FLOWS).add("flow", flow_record(open_steps=0))
    end_early(unit, "flow", LATER, "cancelled", "the flow was cancelled", compensate=False)
    assert unit.flow("flow").status is FlowStatus.CANCELLED

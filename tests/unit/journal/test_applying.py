"""Applying an event changes every record that it concerns, and no other."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from counterfoil.domain.journal.event_types import ENDS_WORK, Event, EventType
from counterfoil.domain.journal.events import apply
from counterfoil.domain.records import GATED, Approval, Flow, Gate, Hook, StepRun, Work
from counterfoil.domain.states import (
    ApprovalStatus,
    Decision,
    FlowStatus,
    HookStatus,
    IllegalMove,
    StepStatus,
    WorkStatus,
)
from tests.store.records import NOW, approval_record, flow_record, gate_record, step_run, work_item

LATER = NOW + 500


def event(kind: EventType, attempt: int | None = 1, **data: Any) -> Event:
    return Event(kind, LATER, "flow", "step", "work", attempt, data)


class Notes:
    """Records that any event may change."""

    def __init__(self) -> None:
        self.work, self.step, self.flow = work_item(), step_run(), flow_record()
        self.gate, self.approval = gate_record(), approval_record()
        self.hook = Hook("flow\nstep\n0\n0", "flow", "step", 0, HookStatus.EXPECTED, "text:1", "t", 1, NOW)
        self.made: list[object] = []

    def draft_work(self, work_id: str) -> Work:
        return self.work

    def draft_step(self, flow_id: str, step_id: str) -> StepRun:
        return self.step

    def draft_flow(self, flow_id: str) -> Flow:
        return self.flow

    def create_work(self, work: Work) -> None:
        self.made.append(work)

    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None:
        self.made += [flow, *steps]

    def create_step(self, step: StepRun) -> None:
        self.made.append(step)

    def draft_gate(self, flow_id: str, step_id: str) -> Gate:
        return self.gate

    def create_gate(self, gate: Gate) -> None:
        self.made.append(gate)

    def draft_approval(self, approval_id: str) -> Approval:
        return self.approval

    def create_approval(self, approval: Approval) -> None:
        self.made.append(approval)

    def open_reconciliation(self, event: Event) -> None:
        self.made.append(("opened", event))

    def close_reconciliation(self, event: Event) -> None:
        self.made.append(("closed", event))

    def release_key(self, work: Work, event: Event) -> None:
        pass

    def find_hook(self, hook_id: str) -> Hook | None:
        return self.hook

    def draft_hook(self, hook_id: str) -> Hook:
        return self.hook

    def create_hook(self, hook: Hook) -> None:
        self.made.append(hook)


def compensating() -> Flow:
    steps = [{"step_id": "step", "status": "active", "open": 0, "failed": 0}]
    return flow_record(FlowStatus.COMPENSATING, compensation={"ending": "failed", "steps": steps})


@pytest.mark.parametrize("kind", sorted(ENDS_WORK))
def test_the_end_of_an_item_counts_in_its_step_and_that_of_one_that_undoes_in_the_flow(kind: EventType) -> None:
    notes, undoing = Notes(), Notes()
    apply(event(kind), notes)
    assert (notes.step.open_items, notes.flow) == (0, flow_record())
    undoing.work.undoes, undoing.flow = "another", compensating()
    apply(event(kind), undoing)
    assert undoing.step == step_run()
    assert undoing.flow.compensation is not None
    assert undoing.flow.compensation["steps"][0]["open"] == -1


@pytest.mark.parametrize(
    "kind",
    [
        EventType.WORK_ACKNOWLEDGED,
        EventType.CANCEL_DELIVERED,
        EventType.CANCEL_UNDELIVERED,
        EventType.GATE_REPLAYED,
    ],
)
def test_other_events_do_not_concern_steps_and_flows(kind: EventType) -> None:
    notes = Notes()
    apply(event(kind), notes)
    assert (notes.step, notes.flow, notes.made) == (step_run(), flow_record(), [])
    assert (notes.gate, notes.approval) == (gate_record(), approval_record())


def test_a_step_that_an_agent_asks_for_is_one_more_of_its_flow() -> None:
    notes = Notes()
    apply(event(EventType.STEP_ADDED), notes)
    assert notes.made == [StepRun("flow", "step", GATED, StepStatus.PENDING, goal=False)]
    assert notes.flow == flow_record(open_steps=2)


def test_an_item_that_an_agent_may_run_has_a_clock_and_no_sender() -> None:
    notes = Notes()
    notes.work = work_item(WorkStatus.PENDING, due_at=None, hold="approval")
    apply(event(EventType.WORK_GRANTED, 1, deadline_at=LATER + 9), notes)
    work = notes.work
    assert (work.status, work.attempt, work.owner, work.hold) == (WorkStatus.ACTIVE, 1, None, None)
    assert (work.sent_at, work.first_sent_at, work.deadline_at, work.due_at) == (LATER, LATER, LATER + 9, LATER + 9)


def test_a_held_item_has_no_clock_and_goes_on_when_it_is_cleared() -> None:
    notes = Notes()
    notes.work = work_item(WorkStatus.PENDING)
    apply(event(EventType.WORK_HELD, 0, approval_id="approval"), notes)
    assert (notes.work.status, notes.work.due_at, notes.work.hold) == (WorkStatus.HELD, None, "approval")
    apply(event(EventType.WORK_CLEARED, 0, approval_id="approval", due_at=LATER), notes)
    assert (notes.work.status, notes.work.due_at) == (WorkStatus.PENDING, LATER)
    assert notes.work.hold == "approval", "it names the approval that the next attempt is sent by"


def decided(decision: Decision, *, first: bool = False, cached: bool = False) -> Event:
    known: dict[str, Any] = {"decision_id": "dec_2", "input_digest": "other", "facts": {"reason": "r"}}
    return event(EventType.GATE_DECIDED, 1, first=first, cached=cached, decision=decision, **known, idempotency_key="k")


def test_the_first_call_of_the_gate_makes_its_record() -> None:
    notes = Notes()
    apply(decided(Decision.BLOCK, first=True), notes)
    (gate,) = notes.made
    assert isinstance(gate, Gate)
    assert (gate.gate_count, gate.completion_count, gate.first_at, gate.last_at) == (1, 0, LATER, LATER)
    assert (gate.decision, gate.standing, gate.decision_id) == (Decision.BLOCK, Decision.BLOCK, "dec_2")
    assert (gate.idempotency_key, gate.input_digest, gate.facts) == ("k", "other", {"reason": "r"})


def test_a_repeated_decision_counts_and_changes_nothing_else() -> None:
    notes = Notes()
    apply(decided(Decision.ALLOW, cached=True), notes)
    assert notes.gate == gate_record(gate_count=2, last_at=LATER)


def test_a_new_decision_takes_the_place_of_the_one_before() -> None:
    notes = Notes()
    notes.gate.approval_id = notes.gate.holder = "gone"
    apply(decided(Decision.BLOCK), notes)
    assert notes.gate == gate_record(
        gate_count=2,
        last_at=LATER,
        decision=Decision.BLOCK,
        standing=Decision.BLOCK,
        decision_id="dec_2",
        input_digest="other",
        facts={"reason": "r"},
    )


def test_a_completion_counts_at_the_gate_of_a_step_that_an_agent_runs_and_nowhere_else() -> None:
    driven, gated = Notes(), Notes()
    gated.work.version = GATED
    for notes in (driven, gated):
        apply(event(EventType.WORK_SUCCEEDED, result={"success": True}), notes)
    assert driven.gate == gate_record()
    assert gated.gate == gate_record(completion_count=1, completed_at=LATER, completed_work_id="work")


ASKED: dict[str, Any] = {
    "approval_id": "approval",
    "digest": "digest",
    "expires_at": LATER + 9,
    "approvals": 2,
    "separate_requester": True,
    "severity": "high",
    "requester": "ada",
    "reason": "r",
    "policies": [{"policy_id": "p"}],
    "arguments": {"x": 1},
}


def test_people_are_asked_about_one_attempt_of_one_item() -> None:
    notes = Notes()
    apply(event(EventType.APPROVAL_REQUESTED, 3, **ASKED), notes)
    assert notes.made == [
        Approval(
            flow_id="flow",
            step_id="step",
            work_id="work",
            attempt=3,
            status=ApprovalStatus.PENDING,
            requested_at=LATER,
            **ASKED,
        )
    ]


REVIEW = {"by": "ada", "verdict": "approved", "comment": None, "at": "then"}


def test_one_of_several_people_is_heard_and_the_question_stays_open() -> None:
    notes = Notes()
    told: dict[str, Any] = {"approval_id": "approval", "gated": True, "review": REVIEW}
    apply(event(EventType.APPROVAL_REVIEWED, **told), notes)
    assert notes.approval == approval_record(reviews=[REVIEW])
    assert notes.gate == gate_record(), "nothing has been decided"


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(
    ("kind", "status", "standing"),
    [
        (EventType.APPROVAL_APPROVED, ApprovalStatus.APPROVED, Decision.ALLOW),
        (EventType.APPROVAL_REJECTED, ApprovalStatus.REJECTED, Decision.BLOCK),
        (EventType.APPROVAL_EXPIRED, ApprovalStatus.EXPIRED, Decision.BLOCK),
    ],
)
def test_what_people_decide_is_final_and_stands_at_the_gate_that_asked_them(
    kind: EventType, status: ApprovalStatus, standing: Decision, gated: bool
) -> None:
    notes = Notes()
    notes.gate.standing = Decision.REQUIRE_APPROVAL
    told: dict[str, Any] = {"approval_id": "approval", "gated": gated}
    heard = [] if kind is EventType.APPROVAL_EXPIRED else [REVIEW]
    if heard:
        told["review"] = REVIEW
    apply(event(kind, **told), notes)
    assert notes.approval == approval_record(status, decided_at=LATER, reviews=heard)
    assert notes.gate.standing is (standing if gated else Decision.REQUIRE_APPROVAL)
    with pytest.raises(IllegalMove):
        apply(event(EventType.APPROVAL_APPROVED, **told), notes)


@pytest.mark.parametrize("kind", sorted(ENDS_WORK))
def test_what_ends_an_item_ends_the_question_about_it_and_touches_no_answer(kind: EventType) -> None:
    asked, answered = Notes(), Notes()
    asked.work = work_item(WorkStatus.HELD, hold="approval")
    answered.work = work_item(WorkStatus.PENDING, hold="approval")
    answered.approval = approval_record(ApprovalStatus.APPROVED, decided_at=NOW)
    for notes in (asked, answered):
        apply(event(kind), notes)
        assert notes.work.hold is None
    assert asked.approval == approval_record(ApprovalStatus.VOID, decided_at=LATER)
    assert answered.approval == approval_record(ApprovalStatus.APPROVED, decided_at=NOW)


def test_every_event_can_be_applied() -> None:
    known: dict[str, Any] = {
        "item": 0,
        "version": "v",
        "lane": "l",
        "idempotency_key": "k",
        "items": 1,
        "goals": [],
        "steps": {},
        "owner": "n",
        "deadline_at": 1,
        "due_at": 1,
        "progress": 1,
        "message": "",
        "next_attempt_at": 1,
        "error": None,
        "ready_at": 1,
        "until": 2,
        "ending": "failed",
        "first": False,
        "cached": True,
        "decision": "allow",
        "gated": True,
        "approval_id": "approval",
        "child_flow_id": "inner",
        "token_id": "text:1",
        "collect": 1,
        "received": 1,
        "size": 1,
        "enough": True,
        "hold": "reconcile",
        "cause": "ack_timeout",
        "outcome": "applied",
    }
    for kind in EventType:
        data = ASKED if kind is EventType.APPROVAL_REQUESTED else known
        with contextlib.suppress(IllegalMove):
            apply(event(kind, **data), Notes())

"""The doctor and what guards: gates, approvals and what they hold are what the journal tells, and fit each other."""

from __future__ import annotations

import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, GateRequest
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.testing.simulator import Simulator
from tests.by_hand import Place, break_it, by_hand
from tests.journal import Breakage, lost_event
from tests.store.records import DEFAULTS, definition
from tests.unit.store.test_doctor import examine

HELD = PolicyDefinition.model_validate(
    {"name": "p", "match": {"step_id": "asked*"}, "action": {"type": "require_approval", "reason": "r"}}
)


@pytest.fixture
async def guarded(place: Place) -> Place:
    """One workflow with a step in each state that people and agents bring about, and a driven flow that waits."""
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        workflows = simulator.engine.workflows
        await simulator.engine.policies.put("p", HELD, "ada")
        workflow = (await workflows.create(CreateWorkflow(workflow_name="w"), "ada"))[0]["workflow_id"]

        async def gate(step_id: str, **fields: object) -> str | None:
            call = GateCall(workflow, step_id, GateRequest.model_validate(fields), "ada")
            approval_id: str | None = (await workflows.gate(call))["approval_id"]
            return approval_id

        for step_id in ("run", "done", "done"):
            await gate(step_id, claim={"holder": "agent"})
        await workflows.complete_step(workflow, "done", CompleteStep(output={"n": 1}))
        for verdict in ("approve", "reject", None):
            approval_id = await gate(f"asked-{verdict}")
            assert approval_id is not None
            if verdict is not None:
                await simulator.engine.approvals.review(approval_id, "bob", verdict, "because")
        await simulator.engine.steps.put("driven", definition(control={"approval": {"approvals": 2}}))
        await simulator.engine.flows.start(StartFlow(flow_id="driven", goals=["driven"]))
        assert simulator.examine() == []
    return place


def found(place: Place) -> dict[str, set[str]]:
    """Which promises are broken, each with the steps that they are broken for."""
    step_of = {
        **dict(by_hand(place, "SELECT work_id, step_id FROM work")),
        **dict(by_hand(place, "SELECT approval_id, step_id FROM approvals")),
        **dict(by_hand(place, "SELECT hold, step_id FROM work WHERE hold IS NOT NULL")),
    }
    seen: dict[str, set[str]] = {}
    findings = (finding for finding in examine(place, DEFAULTS) if finding.invariant != "open")
    for finding in findings:
        step_id = step_of.get(finding.subject, finding.subject.rpartition("/")[2])
        seen.setdefault(finding.invariant, set()).add(step_id)
    return seen


def test_what_the_engine_left_is_clean(guarded: Place) -> None:
    assert examine(guarded) == []
    assert by_hand(guarded, "SELECT count(*) FROM gates") == [(5,)]
    statuses = by_hand(guarded, "SELECT status FROM approvals ORDER BY status")
    assert statuses == [("approved",), ("pending",), ("pending",), ("rejected",)]


ASKED = "step_id = 'asked-None'"
BREAKAGES: dict[str, tuple[dict[str, set[str]], str | Breakage]] = {
    "a call that was not counted": (
        {"journal": {"done"}},
        "UPDATE gates SET gate_count = 1 WHERE step_id = 'done'",
    ),
    "a completion that was not counted": (
        {"journal": {"done"}},
        "UPDATE gates SET completion_count = 0 WHERE step_id = 'done'",
    ),
    "a block that became an allow": (
        {"journal": {"asked-reject"}},
        "UPDATE gates SET standing = 'allow' WHERE step_id = 'asked-reject'",
    ),
    "another key": ({"journal": {"run"}}, "UPDATE gates SET idempotency_key = 'k' WHERE step_id = 'run'"),
    "another holder": ({"journal": {"run"}}, "UPDATE gates SET holder = 'thief' WHERE step_id = 'run'"),
    "a gate that is gone": ({"journal": {"run"}}, "DELETE FROM gates WHERE step_id = 'run'"),
    "facts that are no JSON": (
        {"file": {"run"}, "journal": {"run"}},
        "UPDATE gates SET facts = '{' WHERE step_id = 'run'",
    ),
    "a completion of what the journal does not know as asked for": ({"journal": {"done"}}, lost_event("gate_decided")),
    "an approval without a verdict": (
        {"journal": {"asked-reject"}},
        "UPDATE approvals SET status = 'approved' WHERE step_id = 'asked-reject'",
    ),
    "another reviewer": (
        {"journal": {"asked-approve"}},
        "UPDATE approvals SET reviews = '[]' WHERE step_id = 'asked-approve'",
    ),
    "fewer who must agree": ({"journal": {"driven"}}, "UPDATE approvals SET approvals = 1 WHERE step_id = 'driven'"),
    "other arguments": ({"journal": {"driven"}}, "UPDATE approvals SET digest = 'd' WHERE step_id = 'driven'"),
    "a question that is gone": (
        {"journal": {"asked-None"}, "held": {"asked-None"}},
        f"DELETE FROM approvals WHERE {ASKED}",
    ),
    "a question that was answered though its item waits": (
        {"journal": {"asked-None"}, "held": {"asked-None"}},
        f"UPDATE approvals SET status = 'void' WHERE {ASKED}",
    ),
    "an item that waits for no approval": (
        {"journal": {"driven"}, "held": {"driven"}},
        "UPDATE work SET hold = NULL WHERE step_id = 'driven'",
    ),
    "a question about what is not held": (
        {"journal": {"driven"}, "held": {"driven"}},
        "UPDATE work SET hold = NULL, status = 'pending', due_at = 1 WHERE step_id = 'driven'",
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_is_broken_by_hand_is_found_and_named(guarded: Place, name: str) -> None:
    expected, change = BREAKAGES[name]
    break_it(guarded, change)
    assert found(guarded) == expected

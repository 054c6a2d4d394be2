"""Random lives of a workflow on a real store, several calls to a batch: a plain model of the contract says the same."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, GateRequest
from counterfoil.domain.gate.workflows import Ending
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.engine.approvals.commands import Verdict
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator
from tests.databases import NewDatabase
from tests.property.gate_model import EXPIRES_MS, LEASE_MS, PATIENCE_MS, Gatekeeper, Refusal

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

EXAMPLES = {"sqlite": "12", "postgresql": "3"}
ITEMS = {
    "active": "active",
    "held": "held",
    "cleared": "pending",
    "not_completed": "not_completed",
    "blocked": "failed",
    "succeeded": "succeeded",
    "cancelled": "cancelled",
}
"""By the model's word: the state of the work item."""
ENDINGS: dict[str, Ending] = {"completed": "completed", "failed": "failed", "aborted": "cancelled"}

STEPS = st.sampled_from(["pay", "pay", "pay", "tell"])
KEYS = st.sampled_from(["", *[""] * 14, "k"])
GATES = st.tuples(
    st.just("gate"),
    STEPS,
    KEYS,
    st.sampled_from([1, 1, 1, 2]),
    st.booleans(),
    st.sampled_from([None, None, "a", "b"]),
)
CALLS = st.one_of(
    GATES,
    GATES,
    st.tuples(st.just("complete"), STEPS, KEYS, st.sampled_from([1, 1, 2])),
    st.tuples(st.just("fail"), STEPS, KEYS, st.sampled_from(["no funds", "no funds", "no time"])),
    st.tuples(st.just("review"), STEPS, st.sampled_from([True, True, False])),
)
AT_ONCE = st.lists(CALLS, min_size=1, max_size=3)
MOMENTS = st.one_of(
    AT_ONCE,
    AT_ONCE,
    AT_ONCE,
    st.sampled_from(["allow", "block", "require_approval", "require_approval"]),
    st.tuples(st.sampled_from([1_000, LEASE_MS, EXPIRES_MS, PATIENCE_MS]), st.booleans()),
    st.sampled_from(["allow", "require_approval", "restart"]),
)
"""Calls that are made at once, other policies, time that passes with or without a sweep, or another process."""
LIVES = st.tuples(
    st.lists(MOMENTS, min_size=25, max_size=35), st.sampled_from([*ENDINGS, None]), st.lists(CALLS, max_size=3)
)
"""What happens, how it ends, and what comes too late."""


class Life:
    """One workflow, and the model of it."""

    def __init__(self, simulator: Simulator, workflow_id: str) -> None:
        self.simulator = simulator
        self.workflow_id = workflow_id
        self.models = [Gatekeeper()]
        """Of calls that are made at once several orders may explain the answers; what the store shows then tells."""

    @property
    def now(self) -> int:
        return self.simulator.clock()

    async def happens(self, moment: Any) -> None:
        if isinstance(moment, list):
            await self.called(moment)
        elif moment == "restart":
            await self.simulator.crash()
            await self.simulator.start()
        elif isinstance(moment, str):
            for model in self.models:
                model.verdict = moment
            await self.rules(moment)
        else:
            self.simulator.clock.advance(moment[0])
            if moment[1]:
                await self.swept()

    async def rules(self, verdict: str) -> None:
        action = {"type": verdict, "expires_in": EXPIRES_MS}
        definition = PolicyDefinition.model_validate({"name": "all", "action": action})
        await self.simulator.engine.policies.put("all", definition, "admin")

    async def swept(self) -> None:
        for name in (SweepName.DEADLINES, SweepName.APPROVALS, SweepName.REQUEUE):
            await self.simulator.sweep(name)
        for model in self.models:
            model.sweep(self.now)

    async def called(self, calls: list[Any]) -> None:
        """All at once, in one batch: there is an order in which the model gives the same answers."""
        answers = await asyncio.gather(*(outcome(self.call(*call)) for call in calls))
        before, self.models = self.models, []
        for model, order in itertools.product(before, itertools.permutations(range(len(calls)))):
            after = copy.deepcopy(model)
            fits = all(expected(self.expecting(after, *calls[index])) == answers[index] for index in order)
            if fits and after not in self.models:
                self.models.append(after)
        assert self.models, (calls, answers, before)

    def call(self, kind: str, step_id: str, *rest: Any) -> Coroutine[Any, Any, Any]:
        if kind == "gate":
            return self.gate(step_id, *rest)
        if kind == "review":
            return self.review(step_id, *rest)
        key, what = rest
        body = {"output": {"n": what}} if kind == "complete" else {"success": False, "error": what}
        report = CompleteStep.model_validate({"idempotency_key": key, **body})
        return self.simulator.engine.workflows.complete_step(self.workflow_id, step_id, report)

    def expecting(self, model: Gatekeeper, kind: str, *rest: Any) -> Callable[[], Any]:
        now = [self.now] if kind in ("gate", "review") else []
        return functools.partial(getattr(model, kind), *rest, *now)

    async def gate(self, step_id: str, key: str, about: int, reevaluate: bool, claim: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"idempotency_key": key, "step_input": {"n": about}}
        if reevaluate:
            body["retry_policy"] = "reevaluate"
        if claim is not None:
            body["claim"] = {"holder": claim, "lease_seconds": LEASE_MS // 1000}
        call = GateCall(self.workflow_id, step_id, GateRequest.model_validate(body), "agent", include_prior_output=True)
        answer = await self.simulator.engine.workflows.gate(call)
        context = answer["retry_context"]
        told = ("decision", "cached", "attempt")
        counted = (
            "gate_count",
            "completion_count",
            "prior_completion_status",
            "prior_output",
            "last_decision",
            "idempotency_key",
        )
        return {
            **{name: value for name, value in answer.items() if name in told},
            "holder": None if answer["claim"] is None else answer["claim"]["holder"],
            **{name: value for name, value in context.items() if name in counted},
        }

    async def review(self, step_id: str, agrees: bool) -> str:
        verdict: Verdict = "approve" if agrees else "reject"
        document = await self.simulator.engine.approvals.review_step(self.workflow_id, step_id, "boss", verdict, None)
        return str(document["approval_status"])

    async def ends(self, status: str) -> None:
        async def end() -> str:
            document = await self.simulator.engine.workflows.end(self.workflow_id, ENDINGS[status])
            return str(document["status"])

        answer = await outcome(end())
        self.models = [model for model in self.models if expected(functools.partial(model.end, status)) == answer]
        assert self.models, answer

    async def compare(self) -> None:
        document = await self.simulator.engine.control_queries.workflow(self.workflow_id)
        shown = {
            step["step_id"]: (
                step["gate_count"],
                step["completion_count"],
                step["decision"],
                step["last_decision"],
                step["work_status"],
                step["approval_status"],
            )
            for step in document["steps"]
        }
        self.models = [model for model in self.models if (document["status"], shown) == (model.status, states(model))]
        assert self.models, shown


def shown_status(approval_status: str) -> str | None:
    """A step shows the state of an approval only while it is pending, or as reviewers decided it."""
    return approval_status if approval_status in ("pending", "approved", "rejected") else None


def states(model: Gatekeeper) -> dict[str, tuple[Any, ...]]:
    """The steps, as the store shows them."""
    return {
        name: (
            step.calls,
            step.completions,
            step.standing,
            step.decision,
            ITEMS[step.item],
            None if step.question is None else shown_status(step.question.status),
        )
        for name, step in model.steps.items()
    }


async def outcome(action: Coroutine[Any, Any, Any]) -> Any:
    """What it answers, or the code with which it is refused."""
    try:
        return await action
    except CounterfoilError as error:
        return error.code


def expected(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Refusal as refusal:
        return refusal.code


def test_gate_and_model_agree_whatever_happens(store_name: str, tmp_path: Path, new_database: NewDatabase) -> None:
    place = new_database() if store_name == "postgresql" else tmp_path / "counterfoil.db"
    numbers = itertools.count(1)
    with asyncio.Runner() as runner:
        simulator = Simulator(place)
        runner.run(simulator.start())

        async def live(moments: list[Any], ending: str | None, late: list[Any]) -> None:
            request = CreateWorkflow(workflow_name=f"life {next(numbers)}")
            document, _ = await simulator.engine.workflows.create(request, "agent")
            life = Life(simulator, document["workflow_id"])
            await life.rules("allow")
            await life.called([("gate", "pay", "", 1, False, None)])
            for moment in moments:
                await life.happens(moment)
                await life.compare()
            if ending is not None:
                await life.ends(ending)
                if late:
                    await life.called(late)
                await life.compare()
            assert simulator.examine() == []

        @settings(
            max_examples=int(os.environ.get("PROPERTY_EXAMPLES", EXAMPLES[store_name])),
            suppress_health_check=list(HealthCheck),
        )
        @given(LIVES)
        def lives(life: tuple[list[Any], str | None, list[Any]]) -> None:
            runner.run(live(*life))

        try:
            lives()
        finally:
            runner.run(simulator.crash())

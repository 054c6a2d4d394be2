"""Random starts, ends and redrives of flows with run keys, several in a batch: a plain model gives the same answers."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered
from tests.databases import NewDatabase
from tests.store.records import ENDPOINT

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(600)]

EXAMPLES = {"sqlite": "12", "postgresql": "3"}
OPEN = ("active",)
STARTS = st.tuples(
    st.just("start"),
    st.sampled_from(["one", "one", "two"]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from(["reject", "adopt", "supersede"]),
    st.sampled_from([0, 0, 5_000, 60_000]),
    st.booleans(),
)
"""Key, init, strategy, and how long the key is retained, after a failure, too."""
OTHERS = st.tuples(st.sampled_from(["cancel", "redrive", "redrive"]), st.integers(0, 30))
CALLS = st.one_of(STARTS, STARTS, STARTS, OTHERS)
MOMENTS = st.one_of(
    st.lists(CALLS, min_size=1, max_size=3),
    st.lists(CALLS, min_size=1, max_size=3),
    st.tuples(st.sampled_from(["complete", "complete", "fail"]), st.integers(0, 30)),
    st.sampled_from([1_000, 4_999, 5_000, 60_000]),
    st.just("restart"),
)
"""Calls that are made at once, an answer of a worker, time that passes, or another process."""


@dataclass
class Kept:
    """A flow in the model."""

    key: str
    init: int
    retain_ms: int
    retain_failed: bool
    status: Literal["active", "completed", "failed", "cancelled"] = "active"
    ended_at: int = 0


@dataclass
class Model:
    """The contract in plain terms: each key has a flow that took it last, which may still own it."""

    flows: dict[str, Kept] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)

    def owner(self, key: str, now: int) -> str | None:
        flow_id = self.last.get(key)
        if flow_id is None:
            return None
        flow = self.flows[flow_id]
        if flow.status == "active":
            return flow_id
        kept = flow.status == "completed" or flow.retain_failed
        return flow_id if kept and now < flow.ended_at + flow.retain_ms else None

    def start(self, now: int, flow_id: str, key: str, init: int, on_conflict: str, retain_ms: int, failed: bool) -> Any:
        owner = self.owner(key, now)
        superseded = None
        if owner is not None:
            found = self.flows[owner]
            if on_conflict == "supersede":
                if found.status == "active":
                    superseded = owner
                    self.end(owner, "cancelled", now)
            elif found.init != init:
                return "RUN_KEY_REUSED", owner
            elif found.status == "active" and on_conflict == "reject":
                return "RUN_KEY_CONFLICT", owner
            else:
                return "reused", owner
        self.flows[flow_id] = Kept(key, init, retain_ms, failed)
        self.last[key] = flow_id
        return "started", superseded

    def end(self, flow_id: str, status: Any, now: int) -> None:
        self.flows[flow_id].status, self.flows[flow_id].ended_at = status, now

    def cancel(self, now: int, flow_id: str) -> Any:
        if self.flows[flow_id].status == "active":
            self.end(flow_id, "cancelled", now)
        return "done" if self.flows[flow_id].status == "cancelled" else ("FLOW_FINAL", flow_id)

    def redrive(self, now: int, flow_id: str) -> Any:
        flow = self.flows[flow_id]
        if flow.status != "failed":
            return "FLOW_NOT_FAILED", flow_id
        owner = self.owner(flow.key, now)
        if owner not in (None, flow_id):
            return "RUN_KEY_CONFLICT", owner
        flow.status = "active"
        self.last[flow.key] = flow_id
        return "done"


class Story:
    """Flows in an engine, and the models that explain all answers so far."""

    def __init__(self, simulator: Simulator, name: str) -> None:
        self.simulator = simulator
        self.name = name
        """Sets the keys and flows of one example apart from those of all others."""
        self.models = [Model()]
        self.numbers = itertools.count(1)

    async def happens(self, moment: Any) -> None:
        if isinstance(moment, list):
            await self.called(moment)
        elif moment == "restart":
            await self.simulator.crash()
            await self.simulator.start()
            for name in (SweepName.ORPHANS, SweepName.DEADLINES, SweepName.REQUEUE):
                await self.simulator.sweep(name)
        elif isinstance(moment, tuple):
            await self.reported(*moment)
        else:
            self.simulator.clock.advance(moment)
            await self.simulator.sweep(SweepName.REQUEUE)

    async def called(self, calls: list[Any]) -> None:
        """All at once, in one batch: there is an order in which a model gives the same answers."""
        known = sorted(self.models[0].flows)
        bound = []
        for call in calls:
            if call[0] == "start":
                flow_id = f"{self.name}-{next(self.numbers):03}"
                bound.append(("start", flow_id, f"{self.name}:{call[1]}", *call[2:]))
            elif known:
                bound.append((call[0], known[call[1] % len(known)]))
        answers = await asyncio.gather(*(self.asked(*call) for call in bound))
        before, self.models = self.models, []
        for model, order in itertools.product(before, itertools.permutations(range(len(bound)))):
            after = copy.deepcopy(model)
            kind = [getattr(after, bound[index][0])(self.simulator.clock(), *bound[index][1:]) for index in order]
            if [answers[index] for index in order] == kind and after not in self.models:
                self.models.append(after)
        assert self.models, (bound, answers, before)

    async def asked(self, kind: str, flow_id: str, *rest: Any) -> Any:
        flows = self.simulator.engine.flows
        if kind == "start":
            key, init, on_conflict, retain_ms, retain_failed = rest
            request = StartFlow(
                flow_id=flow_id,
                goals=["job"],
                init={"n": init},
                idempotency_key=key,
                on_conflict=on_conflict,
                retain_key_for=retain_ms,
                retain_failed=retain_failed,
            )
            answer = await _told(flows.start(request))
            if isinstance(answer, tuple):
                return answer
            return ("reused", answer["flow_id"]) if answer["reused"] else ("started", answer.get("superseded"))
        answer = await _told(flows.cancel(flow_id) if kind == "cancel" else flows.redrive(flow_id))
        return answer if isinstance(answer, tuple) else "done"

    async def reported(self, kind: str, which: int) -> None:
        """A worker answers, if one was called."""
        waiting = [
            call for call in self.simulator.network.waiting() if call.metadata["flow_id"].startswith(f"{self.name}-")
        ]
        active = [call for call in waiting if self.models[0].flows[call.metadata["flow_id"]].status == "active"]
        if not active:
            return
        call = active[which % len(active)]
        await self.simulator.network.answer(call, answered(200, {"success": kind == "complete"}))
        for model in self.models:
            model.end(call.metadata["flow_id"], "completed" if kind == "complete" else "failed", self.simulator.clock())

    async def compare(self) -> None:
        """Of the models that are left, those count that have the flows as the store shows them; there is one."""
        shown: dict[str, tuple[str, str]] = {}
        for key in ("one", "two"):
            listed = (await self.simulator.engine.queries.flows(run_key=f"{self.name}:{key}", limit=1000))["flows"]
            active = [flow["flow_id"] for flow in listed if flow["status"] == "active"]
            assert len(active) <= 1, active
            shown |= {flow["flow_id"]: (str(flow["status"]), str(flow["idempotency_key"])) for flow in listed}
        self.models = [
            model
            for model in self.models
            if {name: (flow.status, flow.key) for name, flow in model.flows.items()} == shown
        ]
        assert self.models, shown


async def _told(action: Awaitable[Any]) -> Any:
    """An answer; or the code of a refusal, and the flow that it names."""
    try:
        return await action
    except CounterfoilError as refusal:
        return refusal.code, refusal.details["flow_id"]


def test_run_keys_and_model_agree_whatever_happens(store_name: str, tmp_path: Path, new_database: NewDatabase) -> None:
    place = new_database() if store_name == "postgresql" else tmp_path / "counterfoil.db"
    names = itertools.count(1)
    with asyncio.Runner() as runner:
        simulator = Simulator(place)

        async def begin() -> None:
            await simulator.start()
            definition = {"endpoint": ENDPOINT, "kind": "sync", "work": {"ack_timeout_ms": 86_400_000}}
            await simulator.engine.steps.put("job", StepDefinition.model_validate(definition))

        async def tell(moments: list[Any]) -> None:
            story = Story(simulator, f"example{next(names)}")
            for moment in moments:
                await story.happens(moment)
                await story.compare()
            assert simulator.examine() == []

        runner.run(begin())

        @settings(
            max_examples=int(os.environ.get("PROPERTY_EXAMPLES", EXAMPLES[store_name])),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(MOMENTS, min_size=20, max_size=35))
        def stories(moments: list[Any]) -> None:
            runner.run(tell(moments))

        try:
            stories()
        finally:
            runner.run(simulator.crash())

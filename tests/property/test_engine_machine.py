"""One flow under everything that can happen to it, in any order, compared with a plain model after every step.

The database is a real SQLite file. The network, the clock and the crashes are simulated, which is what lets Hypothesis
choose them: answers that come late or never, reports before, during and after, repeats, sweeps that run late, and a
process that dies around a commit.
"""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from counterfoil.domain.errors import CounterfoilError, FlowFinal
from counterfoil.domain.flows import StartFlow
from counterfoil.domain.replies import Reply
from counterfoil.domain.results import Heartbeat, StepResult
from counterfoil.domain.steps import StepDefinition, WorkDefaults
from counterfoil.domain.time import optional_rfc3339
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Call, CrashPoint, Simulator, answered, connection_refused, timed_out
from tests.property.model import (
    ACK_TIMEOUT_MS,
    DEADLINE_MS,
    INIT_BACKOFF_MS,
    LONGEST_RETRY_AFTER_MS,
    MAX_BACKOFF_MS,
    FlowModel,
    Item,
    Report,
    Rules,
)

FLOW_ID = "the-flow"
CANCEL_URL = "http://worker/cancel"
DEFAULTS = WorkDefaults(
    init_backoff_ms=INIT_BACKOFF_MS,
    max_backoff_ms=MAX_BACKOFF_MS,
    jitter=False,
    ack_timeout_ms=ACK_TIMEOUT_MS,
    deadline_ms=DEADLINE_MS,
)

RULES = st.builds(
    Rules,
    kind=st.sampled_from(["async", "async", "async", "sync"]),
    max_retries=st.sampled_from([0, 1, 1, 2, 2, -1]),
    backoff_type=st.sampled_from(["fixed", "linear", "exponential"]),
    heartbeat_timeout_ms=st.sampled_from([None, None, 10_000, 90_000]),
    tolerates_repeats=st.booleans(),
    queued=st.sampled_from([False, False, True]),
    typed=st.booleans(),
    cancel_url=st.booleans(),
)
ITEM = st.integers(0, 1)
REPORTS = st.one_of(
    st.sampled_from(
        [
            Report(True, {"value": "a"}),
            Report(True, {"value": "b", "more": [1, 2.5]}),
            Report(True, {"value": "a"}, error="ignored, but said"),
            Report(True),
            Report(False, error="broken"),
            Report(False, error="broken", outputs={"value": "half"}),
            Report(False),
        ]
    ),
    st.builds(
        Report,
        success=st.just(False),
        error=st.sampled_from([None, "not now"]),
        retriable=st.just(True),
        retry_after=st.sampled_from([None, 0, 2.5, 30, 100_000]),
        attempt=st.sampled_from([None, 1, 2, 3]),
    ),
)
ANSWERS = st.sampled_from(
    ["ack", "ack", "ack", "ack_success", "odd", "failed", "retriable", "old_retriable", "503", "429", "400", "302"]
    + ["refused", "timeout"]
)
MOVES = st.sampled_from([0, 1, INIT_BACKOFF_MS, 2_000, 7_000, 10_000, DEADLINE_MS, 100_000])
PROGRESS = st.one_of(st.none(), st.sampled_from([0, 1, 0.1 + 0.2]), st.floats(0, 1))
SWEEPS = st.permutations(list(SweepName))

REPLIES: dict[str, Reply] = {
    "ack": answered(),
    "ack_success": answered(202, {"success": True, "outputs": {"value": "answered"}}),
    "odd": answered(200, b"thank you"),
    "failed": answered(200, {"success": False, "error": "no"}),
    "retriable": answered(200, {"success": False, "error": "busy", "retriable": True, "retry_after": 3}),
    "old_retriable": answered(200, {"success": False, "retriable": True, "attempt": 1}),
    "503": answered(503),
    "429": answered(429, retry_after_ms=4_000),
    "400": answered(400),
    "302": answered(302),
    "refused": connection_refused(),
    "timeout": timed_out(),
}
SAID: dict[str, Report] = {
    "ack_success": Report(True, {"value": "answered"}),
    "failed": Report(False, error="no"),
    "retriable": Report(False, error="busy", retriable=True, retry_after=3),
    "old_retriable": Report(False, retriable=True),
}
GIVEN_BACK = {
    "503": ("ENDPOINT_UNAVAILABLE", 0),
    "429": ("ENDPOINT_UNAVAILABLE", 4_000),
    "refused": ("NOT_DELIVERED", 0),
    "timeout": ("UNKNOWN_OUTCOME", 0),
}
REJECTED = {"400": "ENDPOINT_REJECTED", "302": "ENDPOINT_REDIRECT"}


def definition_of(rules: Rules, step_id: str) -> StepDefinition:
    work: dict[str, Any] = {"max_retries": rules.max_retries, "backoff_type": rules.backoff_type}
    if rules.heartbeat_timeout_ms is not None:
        work["heartbeat_timeout_ms"] = rules.heartbeat_timeout_ms
    if rules.queued:
        work["parallelism"] = 1
    return StepDefinition.model_validate(
        {
            "kind": rules.kind,
            "endpoint": f"http://worker/{step_id}",
            "attributes": {"value": {"role": "output", "type": "string"}} if rules.typed else {},
            "work": work,
            "duplicate_status": 200 if rules.tolerates_repeats else 400,
            "cancel_url": CANCEL_URL if rules.cancel_url else None,
        }
    )


class EngineMachine(RuleBasedStateMachine):
    """Rules are the things that happen; the invariants compare the engine with the model after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "counterfoil.db"
        self.simulator = Simulator(path, defaults=DEFAULTS, retry_after_limit_ms=LONGEST_RETRY_AFTER_MS)
        self.outcomes: dict[str, tuple[Any, ...]] = {}
        self.work_ids: dict[str, str] = {}
        self.runner.run(self.simulator.start())

    def teardown(self) -> None:
        try:
            if self.work_ids:
                self.come_to_rest()
        finally:
            self.runner.run(self.simulator.crash())
            self.runner.close()
            self.directory.cleanup()

    @property
    def now(self) -> int:
        return self.simulator.clock()

    def run(self, action: Coroutine[Any, Any, Any]) -> Any:
        """The answer of an action, or the code with which it was refused."""
        try:
            return self.runner.run(action)
        except CounterfoilError as error:
            return error.code

    def item(self, number: int) -> Item:
        return list(self.flow.items.values())[number % len(self.flow.items)]

    # What happens ------------------------------------------------------------------------------------------------

    @initialize(steps=st.lists(RULES, min_size=1, max_size=2))
    def start_flow(self, steps: list[Rules]) -> None:
        self.flow = FlowModel(
            {f"step-{number}": Item(f"step-{number}", rules, self.now) for number, rules in enumerate(steps)}
        )
        engine = self.simulator.engine
        for step_id, item in self.flow.items.items():
            self.runner.run(engine.put_step(step_id, definition_of(item.rules, step_id)))
        self.simulator.network.always(CANCEL_URL, answered(503))
        self.runner.run(engine.start_flow(StartFlow(flow_id=FLOW_ID, goals=list(self.flow.items))))
        for item in self.flow.items.values():
            if not item.rules.queued:
                item.claim(self.now)
        self.work_ids = {step_id: step["work"][0]["work_id"] for step_id, step in self.shown()["steps"].items()}

    @rule(number=ITEM, report=REPORTS)
    def report(self, number: int, report: Report) -> None:
        item = self.item(number)
        answer = self.run(self.reporting(item, report))
        expected = item.report(report, self.now)
        self.flow.settle(self.now)
        if isinstance(answer, str):
            assert answer == expected
        else:
            assert (answer.verdict, answer.status) == (expected, item.status)

    @rule(number=ITEM, progress=PROGRESS, message=st.sampled_from([None, "a", "rendering \x00 \u2028"]))
    def heartbeat(self, number: int, progress: float | None, message: str | None) -> None:
        item = self.item(number)
        beating = self.simulator.engine.heartbeat(
            self.token_holder(item), Heartbeat(progress=progress, message=message)
        )
        answer = self.run(beating)
        expected = item.beat(progress, message, self.now)
        if isinstance(answer, str):
            assert answer == expected
        else:
            assert (answer.deadline_at, answer.cancel_requested) == (item.deadline_at, item.status == "cancelled")

    @rule(which=st.integers(0, 3), kind=ANSWERS)
    def endpoint_answers(self, which: int, kind: str) -> None:
        call = self.waiting_call(which)
        if call is not None:
            self.runner.run(self.simulator.network.answer(call, REPLIES[kind]))
            self.apply_answer(self.flow, call, kind)

    @rule()
    def cancel(self) -> None:
        answer = self.run(self.simulator.engine.cancel_flow(FLOW_ID))
        if self.flow.status in ("completed", "failed"):
            assert answer == FlowFinal.code
        elif self.flow.status == "active":
            self.flow.finish("cancelled", self.now)

    @rule(milliseconds=MOVES, sweeps=SWEEPS)
    def time_passes(self, milliseconds: int, sweeps: list[SweepName]) -> None:
        self.simulator.clock.advance(milliseconds)
        for name in sweeps:
            self.runner.run(self.simulator.sweep(name))
            self.apply_sweep(self.flow, name)

    @rule(milliseconds=MOVES)
    def time_passes_unnoticed(self, milliseconds: int) -> None:
        self.simulator.clock.advance(milliseconds)

    @rule(graceful=st.booleans())
    def restart(self, graceful: bool) -> None:
        self.runner.run(self.simulator.stop() if graceful else self.simulator.crash())
        self.runner.run(self.simulator.start())

    @rule(number=ITEM, report=REPORTS, point=st.sampled_from(CrashPoint))
    def crash_during_report(self, number: int, report: Report, point: CrashPoint) -> None:
        after = copy.deepcopy(self.flow)
        item = after.items[self.item(number).step_id]
        item.report(report, self.now)
        after.settle(self.now)
        self.crash_during(self.reporting(item, report), point, after)

    @rule(which=st.integers(0, 3), kind=ANSWERS, point=st.sampled_from(CrashPoint))
    def crash_during_answer(self, which: int, kind: str, point: CrashPoint) -> None:
        call = self.waiting_call(which)
        if call is not None:
            after = copy.deepcopy(self.flow)
            self.apply_answer(after, call, kind)
            self.crash_during(self.simulator.network.answer(call, REPLIES[kind]), point, after)

    @rule(milliseconds=MOVES, name=st.sampled_from(SweepName), point=st.sampled_from(CrashPoint))
    def crash_during_sweep(self, milliseconds: int, name: SweepName, point: CrashPoint) -> None:
        self.simulator.clock.advance(milliseconds)
        after = copy.deepcopy(self.flow)
        self.apply_sweep(after, name)
        self.crash_during(self.simulator.sweep(name), point, after)

    @rule(point=st.sampled_from(CrashPoint))
    def crash_during_cancel(self, point: CrashPoint) -> None:
        after = copy.deepcopy(self.flow)
        if after.status == "active":
            after.finish("cancelled", self.now)
        self.crash_during(self.simulator.engine.cancel_flow(FLOW_ID), point, after)

    # What it means -----------------------------------------------------------------------------------------------

    def reporting(self, item: Item, report: Report) -> Coroutine[Any, Any, Any]:
        return self.simulator.engine.complete(self.token_holder(item), StepResult.model_validate(report.body()))

    def token_holder(self, item: Item) -> str:
        """The work item, by the receipt that the worker was sent, whichever process issued it."""
        engine, work_id = self.simulator.engine, self.work_ids[item.step_id]
        sent = [call.token for call in self.simulator.network.calls if call.metadata.get("receipt_token")]
        own = [token for token in sent if token.startswith(work_id)]
        token = own[0] if own else engine.context.receipts.issue(FLOW_ID, item.step_id, work_id)
        return engine.work_of(FLOW_ID, item.step_id, token)

    def waiting_call(self, which: int) -> Call | None:
        calls = self.simulator.network.waiting()
        return calls[which % len(calls)] if calls else None

    def apply_answer(self, flow: FlowModel, call: Call, kind: str) -> None:
        item = flow.items[call.metadata["step_id"]]
        if item.status != "active" or item.sending != call.attempt:
            return  # too late: something else has decided the attempt
        if kind in GIVEN_BACK:
            item.give_back(GIVEN_BACK[kind][0], self.now, GIVEN_BACK[kind][1])
        elif kind in REJECTED:
            item.end("failed", self.now, REJECTED[kind])
        elif kind in ("retriable", "old_retriable"):
            item.give_back_by(SAID[kind], self.now)
        elif kind == "failed":
            item.conclude(SAID[kind], self.now)
        elif item.rules.kind == "async":
            item.acknowledge()
        elif kind == "odd":
            item.end("failed", self.now, "INVALID_RESPONSE")
        else:
            item.conclude(SAID.get(kind, Report(True)), self.now)
        flow.settle(self.now)

    def apply_sweep(self, flow: FlowModel, name: SweepName) -> None:
        waiting = {(call.metadata["step_id"], call.attempt) for call in self.simulator.network.waiting()}
        for item in flow.items.values():
            if name is SweepName.REQUEUE:
                item.claim(self.now)
            elif item.status == "active":
                orphaned = item.sending is not None and (item.step_id, item.sending) not in waiting
                if name is SweepName.DEADLINES and item.due_at <= self.now:
                    item.give_back("DEADLINE_EXCEEDED", self.now)
                elif name is SweepName.ORPHANS and orphaned:
                    item.give_back("INTERRUPTED", self.now)
            flow.settle(self.now)

    def crash_during(self, action: Coroutine[Any, Any, Any], point: CrashPoint, after: FlowModel) -> None:
        """What was committed has happened, though nobody was told; what was not has not."""
        committed = self.runner.run(self.simulator.crash_during(action, point)) and point is CrashPoint.AFTER_COMMIT
        if committed:
            self.flow = after
        self.runner.run(self.simulator.start())

    def come_to_rest(self) -> None:
        """No flow is ever stuck: left alone, it ends by itself, unless it may try for ever."""
        for _ in range(8):
            for milliseconds in (0, LONGEST_RETRY_AFTER_MS):
                self.time_passes(milliseconds, [SweepName.ORPHANS, SweepName.DEADLINES, SweepName.REQUEUE])
        if self.flow.status == "active":
            assert any(item.rules.max_retries == -1 for item in self.flow.items.values())
            self.cancel()
        self.compare()
        self.nothing_is_broken()

    # What must always hold ---------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        document = self.runner.run(self.simulator.engine.queries.flow(FLOW_ID))
        shown: dict[str, Any] = orjson.loads(orjson.dumps(document))
        return shown

    @invariant()
    def compare(self) -> None:
        shown = self.shown()
        error = shown["error"] and shown["error"]["code"]
        assert (shown["status"], shown["outputs"], error) == (self.flow.status, self.flow.outputs, self.flow.error)
        for step_id, item in self.flow.items.items():
            [work] = shown["steps"][step_id]["work"]
            waits = item.status in ("pending", "not_completed")
            assert {
                "status": work["status"],
                "attempt": work["attempt"],
                "next_attempt_at": work["next_attempt_at"],
                "deadline_at": work["deadline_at"],
                "outputs": work["outputs"],
                "error": work["error"] and work["error"]["code"],
                "message": work["message"],
                "recorded_at": work["recorded_at"],
            } == {
                "status": item.status,
                "attempt": item.attempt,
                "next_attempt_at": optional_rfc3339(item.due_at) if waits else None,
                "deadline_at": optional_rfc3339(item.deadline_at),
                "outputs": item.outputs,
                "error": item.error,
                "message": item.message,
                "recorded_at": optional_rfc3339(item.recorded_at),
            }
            assert (work["progress"] is None) == (item.progress is None)
            assert abs((work["progress"] or 0) - (item.progress or 0)) < 1e-9

    @invariant()
    def the_first_outcome_never_changes(self) -> None:
        for work_id in self.work_ids.values():
            work = orjson.loads(orjson.dumps(self.runner.run(self.simulator.engine.queries.work_item(work_id))))
            if work["status"] in ("succeeded", "failed", "cancelled"):
                seen = (work["status"], work["outputs"], work["error"], work["recorded_at"])
                assert self.outcomes.setdefault(work_id, seen) == seen

    @invariant()
    def attempts_are_bounded_and_each_is_sent_once(self) -> None:
        sent = [(call.metadata["work_id"], call.attempt) for call in self.dispatches()]
        assert len(set(sent)) == len(sent)
        for item in self.flow.items.values():
            if item.rules.max_retries >= 0:
                assert item.attempt <= item.rules.max_retries + 1

    @invariant()
    def workers_are_told_of_cancellations(self) -> None:
        rows = self.runner.run(self.simulator.store.read("due_calls", now=self.now + 10**9, limit=10))
        told = self.runner.run(self.simulator.store.read("journal_of_flow", flow_id=FLOW_ID, after=0, limit=10_000))
        ended = sum(1 for row in told if row[1] in ("cancel_delivered", "cancel_undelivered"))
        assert len(rows) + ended == sum(item.cancel_calls for item in self.flow.items.values())

    @invariant()
    def nothing_is_broken(self) -> None:
        assert self.simulator.examine() == []

    def dispatches(self) -> list[Call]:
        return [call for call in self.simulator.network.calls if call.url != CANCEL_URL]


EngineMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("PROPERTY_EXAMPLES", "60")),
    stateful_step_count=25,
    deadline=None,
    derandomize="PROPERTY_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestEngine = EngineMachine.TestCase

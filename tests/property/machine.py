"""The machine that makes things happen to one flow, in any order, and compares it with a plain model after every step.

The database is a real one, of either store. The network, the clock and the crashes are simulated, which is what lets
Hypothesis choose them: answers that come late or never, reports before, during and after, repeats, sweeps that run
late, a process that dies around a commit, and people who settle unknown outcomes and review.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Coroutine
from typing import Any

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import CounterfoilError, FlowFinal
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Call, CrashPoint, Simulator, answered
from tests.by_hand import Place
from tests.property.choices import (
    ANSWERS,
    CANCEL_URL,
    DEFAULTS,
    ITEM,
    MOVES,
    PROBED,
    PROBES,
    PROGRESS,
    REPLIES,
    REPORTS,
    RULES,
    SETTLEMENTS,
    STATUS_URL,
    SWEEPS,
    definition_of,
)
from tests.property.meaning import shown_of, take_reply, take_sweep
from tests.property.model import HELD, LONGEST_RETRY_AFTER_MS, FlowModel, Item, Report, Rules

SHOWN = ("status", "attempt", "next_attempt_at", "deadline_at", "outputs", "progress", "message", "recorded_at")


class EngineMachine(RuleBasedStateMachine):
    """Rules are the things that happen; the invariants compare the engine with the model after each of them."""

    def __init__(self, place: Place, doctor_every: int) -> None:
        super().__init__()
        self.doctor_due = itertools.cycle(number == 0 for number in range(doctor_every))
        self.runner = asyncio.Runner()
        self.simulator = Simulator(place, defaults=DEFAULTS, retry_after_limit_ms=LONGEST_RETRY_AFTER_MS)
        self.simulator.network.always(CANCEL_URL, answered(503))
        self.outcomes: dict[str, tuple[Any, ...]] = {}
        self.cancel_calls = 0
        self.left_in_queue: dict[str, Item] = {}
        """Items of flows that are over, or replaced by a redrive, which were cancelled with an unknown outcome."""
        self.probe = "unknown"
        for number in range(2):
            self.simulator.network.always(f"{STATUS_URL}step-{number}", lambda: PROBES[self.probe])
        self.flows = 0
        self.processes = 0
        self.start_process()

    def teardown(self) -> None:
        try:
            if self.flows:
                self.come_to_rest()
        finally:
            self.runner.run(self.simulator.crash())
            self.runner.close()

    @property
    def now(self) -> int:
        return self.simulator.clock()

    @property
    def active(self) -> bool:
        return self.flow.status == "active"

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
        self.start(steps)

    def start(self, steps: list[Rules]) -> None:
        self.flows += 1
        self.flow_id = f"flow-{self.flows}"
        self.flow = FlowModel(
            {f"step-{number}": Item(f"step-{number}", rules, self.now) for number, rules in enumerate(steps)}
        )
        self.runner.run(self.starting(self.flow))
        self.begin(self.flow)
        self.note_ids()

    @precondition(lambda self: not self.active)
    @rule(steps=st.lists(RULES, min_size=1, max_size=2))
    def start_another_flow(self, steps: list[Rules]) -> None:
        self.start_next(steps)

    def start_next(self, steps: list[Rules]) -> None:
        """The steps are defined anew; what is still on the wire for the old flow stays there."""
        for item in self.flow.items.values():
            self.leave(item)
        self.runner.run(self.simulator.sweep(SweepName.REQUEUE))  # nothing waits in the lanes any more
        self.start(steps)

    @precondition(lambda self: not self.active)
    @rule(number=ITEM, reports=st.lists(REPORTS, min_size=1, max_size=3))
    def come_too_late(self, number: int, reports: list[Report]) -> None:
        """Everything that may be said to a flow that has ended."""
        item = self.item(number)
        said = item.said and Report(item.said[0], item.said[1], item.said[2])
        for report in [*reports, said or reports[0]]:
            self.report(number, report)
        self.heartbeat(number, 0.5, None)
        self.cancel(chance=0)

    @precondition(lambda self: self.active)
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

    @precondition(lambda self: self.active)
    @rule(number=ITEM, progress=PROGRESS, message=st.sampled_from([None, "a", "rendering \u2028 \x7f"]))
    def heartbeat(self, number: int, progress: float | None, message: str | None) -> None:
        item = self.item(number)
        beating = self.simulator.engine.reports.heartbeat(
            self.holder(item), Heartbeat(progress=progress, message=message)
        )
        answer = self.run(beating)
        expected = item.beat(progress, message, self.now)
        if isinstance(answer, str):
            assert answer == expected
        else:
            assert (answer.deadline_at, answer.cancel_requested) == (item.deadline_at, item.status == "cancelled")

    @precondition(lambda self: self.simulator.network.waiting())
    @rule(which=st.integers(0, 3), kind=ANSWERS)
    def an_endpoint_answers(self, which: int, kind: str) -> None:
        self.endpoint_answers(self.waiting_call(which), kind)

    @precondition(lambda self: self.simulator.network.waiting())
    @rule(kind=ANSWERS)
    def the_last_endpoint_answers(self, kind: str) -> None:
        self.endpoint_answers(self.waiting_call(-1), kind)

    @precondition(lambda self: self.active)
    @rule(number=ITEM, how=st.sampled_from(["timeout", "500", "silence"]))
    def an_outcome_becomes_unknown(self, number: int, how: str) -> None:
        """A short way to what would seldom come about by chance."""
        item = self.item(number)
        if item.status == "held":
            self.review(number, "approve")
        if item.status in ("pending", "not_completed") and item.due_at is not None:
            self.time_passes(max(0, item.due_at - self.now), [SweepName.REQUEUE])
        if how == "silence":
            self.time_passes(100_000, [SweepName.DEADLINES])
            return
        for call in self.simulator.network.waiting():
            if call.metadata["work_id"] == self.work_ids[item.step_id] and call.attempt == item.attempt:
                self.endpoint_answers(call, how)

    @precondition(lambda self: any(item.undecided for item in self.flow.items.values()))
    @rule(state=st.sampled_from([*PROBES, "running", "running"]), waits=st.booleans())
    def status_url_says(self, state: str, waits: bool) -> None:
        """What it will say from now on; it is asked about what is due, now or soon."""
        self.probe = state
        probes = [item.probe.due_at for item in self.flow.items.values() if item.probe is not None]
        self.simulator.clock.advance(max(0, min(probes) - self.now) if waits else 0)
        self.run_sweep(SweepName.PROBES)

    @precondition(lambda self: any(item.status == "held" for item in self.flow.items.values()))
    @rule(number=ITEM, verdict=st.sampled_from(["approve", "approve", "approve", "reject"]))
    def review(self, number: int, verdict: str) -> None:
        item = self.item(number)
        answer = self.run(self.reviewing(item, verdict))
        if item.status != "held":
            assert answer is None, "there is nothing to review"
            return
        item.review(verdict, self.now)
        self.flow.settle(self.now)
        assert answer["status"] == {"approve": "approved", "reject": "rejected"}[verdict]

    @precondition(lambda self: any(item.hold is not None for item in self.flow.items.values()))
    @rule(number=ITEM, settlement=SETTLEMENTS)
    def settle(self, number: int, settlement: Settlement) -> None:
        """Whatever waits in the queue, and whatever does not."""
        item = self.item(number)
        answer = self.run(self.settling(item, settlement))
        expected = item.settle(settlement.outcome, settlement.outputs, settlement.error, self.now)
        self.flow.settle(self.now)
        assert (answer if isinstance(answer, str) else answer["status"]) == expected

    @precondition(lambda self: self.flow.status == "failed")
    @rule()
    def redrive(self) -> None:
        self.runner.run(self.simulator.sweep(SweepName.REQUEUE))  # nothing waits in the lanes any more
        self.runner.run(self.simulator.engine.flows.redrive(self.flow_id))
        for step_id, item in self.flow.items.items():
            if item.status != "succeeded":
                self.leave(item)
                self.flow.items[step_id] = Item(step_id, item.rules, self.now)
        self.flow.status, self.flow.error = "active", None
        self.begin(self.flow)
        self.note_ids()

    @precondition(lambda self: self.active)
    @rule(chance=st.integers(0, 7))
    def cancel(self, chance: int) -> None:
        if chance:
            return  # most flows shall live longer than that
        answer = self.run(self.simulator.engine.flows.cancel(self.flow_id))
        if self.flow.status in ("completed", "failed"):
            assert answer == FlowFinal.code
        elif self.active:
            self.flow.finish("cancelled", self.now)

    @precondition(lambda self: self.active)
    @rule(milliseconds=MOVES, sweeps=SWEEPS)
    def time_passes(self, milliseconds: int, sweeps: list[SweepName]) -> None:
        self.simulator.clock.advance(milliseconds)
        for name in sweeps:
            self.run_sweep(name)

    @precondition(lambda self: self.active)
    @rule()
    def the_next_attempt_is_due(self) -> None:
        items = [item for item in self.flow.items.values() if item.status in ("pending", "not_completed")]
        waiting = [item.due_at for item in items if item.due_at is not None]
        self.time_passes(max(0, min(waiting, default=self.now) - self.now), [SweepName.REQUEUE])

    @precondition(lambda self: self.active)
    @rule(milliseconds=MOVES)
    def time_passes_unnoticed(self, milliseconds: int) -> None:
        self.simulator.clock.advance(milliseconds)

    @rule(
        during=st.sampled_from(["nothing", "stop", "report", "answer", "sweep", "cancel", "settle", "review"]),
        point=st.sampled_from(CrashPoint),
        number=ITEM,
        report=REPORTS,
        kind=ANSWERS,
        sweep=st.sampled_from(SweepName),
        settlement=SETTLEMENTS,
        chance=st.integers(0, 7),
    )
    def restart(
        self,
        during: str,
        point: CrashPoint,
        number: int,
        report: Report,
        kind: str,
        sweep: SweepName,
        settlement: Settlement,
        chance: int,
    ) -> None:
        """Stop or crash, around a commit or not, and start anew on the same database."""
        after = copy.deepcopy(self.flow)
        if during == "report":
            self.crash_during(self.expect_report(after, number, report), point, after)
        elif during == "answer" and self.simulator.network.waiting():
            call = self.waiting_call(number)
            self.apply_answer(after, call, kind)
            self.crash_during(self.simulator.network.answer(call, REPLIES[kind]), point, after)
        elif during == "sweep":
            if sweep is SweepName.PROBES:  # what is answered is recorded by a commit of its own
                self.claim_probes(after)
            else:
                self.apply_sweep(after, sweep)
            self.crash_during(self.simulator.sweep(sweep), point, after)
        elif during == "settle":
            item = after.items[self.item(number).step_id]
            item.settle(settlement.outcome, settlement.outputs, settlement.error, self.now)
            after.settle(self.now)
            self.crash_during(self.settling(item, settlement), point, after)
        elif during == "review" and self.item(number).status == "held":
            item = after.items[self.item(number).step_id]
            item.review("approve", self.now)
            self.crash_during(self.reviewing(item, "approve"), point, after)
        elif during == "cancel" and self.active and not chance:
            after.finish("cancelled", self.now)
            self.crash_during(self.simulator.engine.flows.cancel(self.flow_id), point, after)
        else:
            self.runner.run(self.simulator.stop() if during == "stop" else self.simulator.crash())
        self.start_process()

    # What it means -----------------------------------------------------------------------------------------------

    def start_process(self) -> None:
        self.processes += 1
        self.runner.run(self.simulator.start())

    def begin(self, flow: FlowModel) -> None:
        """New items are sent at once, unless their step is left to the sweep."""
        for item in flow.items.values():
            if item.status == "pending" and not item.rules.queued:
                item.claim(self.now, self.processes)

    def note_ids(self) -> None:
        shown = self.runner.run(self.simulator.engine.queries.flow(self.flow_id))
        self.work_ids = {step_id: step["work"][-1]["work_id"] for step_id, step in shown["steps"].items()}

    def leave(self, item: Item) -> None:
        """The machine looks at this item no longer; what is owed for it stays owed."""
        self.cancel_calls += item.cancel_calls
        if item.hold is not None:
            self.left_in_queue[self.work_ids[item.step_id]] = item

    def run_sweep(self, name: SweepName) -> None:
        asked = len(self.simulator.network.calls)
        self.runner.run(self.simulator.sweep(name))
        if name is not SweepName.PROBES:
            self.apply_sweep(self.flow, name)
            return
        calls = [call for call in self.simulator.network.calls[asked:] if call.url.startswith(STATUS_URL)]
        order = [call.headers["Counterfoil-Step-Id"] for call in calls]
        expected = [item.step_id for item in self.claim_probes(self.flow)]
        assert sorted(order) == sorted(expected), f"asked about {order}, not about {expected}"
        for step_id in order:
            self.flow.items[step_id].take_answer(self.probe, PROBED.get(self.probe), self.now)
            self.flow.settle(self.now)

    def claim_probes(self, flow: FlowModel) -> list[Item]:
        return [item for item in flow.items.values() if item.claim_probe(self.now)]

    async def reviewing(self, item: Item, verdict: Any) -> Any:
        engine = self.simulator.engine
        page = await engine.control_queries.approvals(status="pending", flow_id=self.flow_id, cursor=None, limit=9)
        for approval in page["approvals"]:
            if approval["work_id"] == self.work_ids[item.step_id]:
                return await engine.approvals.review(approval["approval_id"], "ann", verdict, None)
        return None

    def settling(self, item: Item, settlement: Settlement) -> Coroutine[Any, Any, Any]:
        return self.simulator.engine.reconciliations.settle(self.work_ids[item.step_id], settlement, "ann")

    async def starting(self, flow: FlowModel) -> None:
        engine = self.simulator.engine
        for step_id, item in flow.items.items():
            await engine.steps.put(step_id, definition_of(item.rules, step_id))
        await engine.flows.start(StartFlow(flow_id=self.flow_id, goals=list(flow.items)))

    def endpoint_answers(self, call: Call, kind: str) -> None:
        self.runner.run(self.simulator.network.answer(call, REPLIES[kind]))
        self.apply_answer(self.flow, call, kind)

    def expect_report(self, flow: FlowModel, number: int, report: Report) -> Coroutine[Any, Any, Any]:
        item = flow.items[self.item(number).step_id]
        item.report(report, self.now)
        flow.settle(self.now)
        return self.reporting(item, report)

    def reporting(self, item: Item, report: Report) -> Coroutine[Any, Any, Any]:
        return self.simulator.engine.reports.complete(self.holder(item), StepResult.model_validate(report.body()))

    def holder(self, item: Item) -> str:
        """The work item, by the receipt that its worker was sent, whichever process issued it."""
        engine, work_id = self.simulator.engine, self.work_ids[item.step_id]
        sent = [call.token for call in self.dispatches() if call.metadata["work_id"] == work_id]
        token = sent[0] if sent else engine.context.receipts.issue(self.flow_id, item.step_id, work_id)
        return engine.reports.work_of(self.flow_id, item.step_id, token)

    def dispatches(self) -> list[Call]:
        return [call for call in self.simulator.network.calls if not call.url.startswith((CANCEL_URL, STATUS_URL))]

    def waiting_call(self, which: int) -> Call:
        calls = self.simulator.network.waiting()
        return calls[which % len(calls)]

    def apply_answer(self, flow: FlowModel, call: Call, kind: str) -> None:
        item = flow.items.get(call.metadata["step_id"])
        if item is not None and call.metadata["work_id"] == self.work_ids[item.step_id]:  # not of a flow that has ended
            take_reply(flow, item, call.attempt, kind, self.now)

    def apply_sweep(self, flow: FlowModel, name: SweepName) -> None:
        take_sweep(flow, name, self.processes, self.now)

    def crash_during(self, action: Coroutine[Any, Any, Any], point: CrashPoint, after: FlowModel) -> None:
        """What was committed has happened, though no caller was told; what was not has not."""
        reached = self.runner.run(self.simulator.crash_during(action, point))
        if reached and point is CrashPoint.AFTER_COMMIT:
            self.flow = after

    def come_to_rest(self) -> None:
        """No flow is ever stuck: it ends by itself when people have decided, unless it may try for ever."""
        self.probe = "unknown"
        sweeps = [SweepName.ORPHANS, SweepName.DEADLINES, SweepName.PROBES, SweepName.REQUEUE]
        for _ in range(12):
            if self.active:
                self.time_passes(LONGEST_RETRY_AFTER_MS, sweeps)
                for number in range(2):
                    if self.item(number).status == "held":
                        self.review(number, "approve")
                    if self.item(number).hold is not None and self.active:
                        self.settle(number, Settlement(outcome="failed", error="at rest"))
        if self.active:
            assert any(item.rules.max_retries == -1 for item in self.flow.items.values())
            self.cancel(chance=0)
        self.engine_and_model_agree()
        assert self.simulator.examine() == []

    # What must always hold ---------------------------------------------------------------------------------------

    async def look(self) -> tuple[Any, list[Any], int]:
        """The flow and every work item so far as the API shows them, and how many cancel calls there were."""
        queries, read = self.simulator.engine.queries, self.simulator.store.read
        flow = await queries.flow(self.flow_id)
        items = await queries.work_items(limit=1000)
        calls = len(await read("find_calls", now=self.now + 10**9, limit=1000))
        events = await read("journal_after", after=0, limit=100_000)
        calls += sum(1 for event in events if event[1] in ("cancel_delivered", "cancel_undelivered"))
        return orjson.loads(orjson.dumps(flow)), orjson.loads(orjson.dumps(items))["work"], calls

    @invariant()
    def engine_and_model_agree(self) -> None:
        flow, items, cancel_calls = self.runner.run(self.look())
        error = flow["error"] and flow["error"]["code"]
        assert (flow["status"], flow["outputs"], error) == (self.flow.status, self.flow.outputs, self.flow.error)
        for step_id, item in self.flow.items.items():
            work = flow["steps"][step_id]["work"][-1]
            assert work["work_id"] == self.work_ids[step_id]
            error = work["error"] and work["error"]["code"]
            hold = work["hold"] if work["hold"] in HELD else None  # otherwise it is the id of an approval
            shown, expected = {name: work[name] for name in SHOWN} | {"error": error, "hold": hold}, shown_of(item)
            assert shown == expected, f"{step_id}: the engine shows {shown}, and not {expected}"
        for work in items:
            if work["status"] in ("succeeded", "failed", "cancelled"):
                seen = (work["status"], work["outputs"], work["error"], work["recorded_at"])
                assert self.outcomes.setdefault(work["work_id"], seen) == seen, "the first outcome never changes"
        owed = self.cancel_calls + sum(item.cancel_calls for item in self.flow.items.values())
        assert cancel_calls == owed, "every worker that was sent something is told"

    @invariant()
    def every_unknown_outcome_is_in_the_queue(self) -> None:
        page = self.runner.run(self.simulator.engine.effect_queries.reconciliations(limit=1000))
        for step_id, item in self.flow.items.items():
            if item.maybe_held and self.work_ids[step_id] in {entry["work_id"] for entry in page["reconciliations"]}:
                item.hold = item.rules.policy
            item.maybe_held = False
        held = {self.work_ids[step_id]: item for step_id, item in self.flow.items.items() if item.hold is not None}
        expected = {work_id: item.hold for work_id, item in (held | self.left_in_queue).items()}
        assert {entry["work_id"]: entry["hold"] for entry in page["reconciliations"]} == expected

    @invariant()
    def attempts_are_bounded_and_each_is_sent_once(self) -> None:
        sent = [(call.metadata["work_id"], call.attempt) for call in self.dispatches()]
        assert len(set(sent)) == len(sent)
        for item in self.flow.items.values():
            if item.rules.max_retries >= 0:
                assert item.attempt <= item.rules.max_retries + 1 + item.granted

    @invariant()
    def nothing_is_broken(self) -> None:
        if next(self.doctor_due):
            assert self.simulator.examine() == []

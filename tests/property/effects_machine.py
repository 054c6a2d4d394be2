"""The machine that makes things happen to the effects of several flows, in any order, and counts at the network.

The database is a real one, of either store. Endpoints, ``status_url``, workers, reviewers, operators, the clock and the
crashes are simulated, so that Hypothesis chooses them. After every step the account of what was sent, which is in
effects_ledger.py, is compared with what the engine shows.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.replies import Reply
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Call, CrashPoint, Simulator, answered, connection_refused, timed_out
from tests.by_hand import Place
from tests.property.choices import DEFAULTS, MOVES
from tests.property.effects_ledger import FINAL, HELD, Account, Ledger, Spec
from tests.property.model import LONGEST_RETRY_AFTER_MS

MOST_FLOWS = 7
STATUS = "http://worker/status/"

SPECS = st.builds(
    Spec,
    policy=st.sampled_from(["unsafe_once", "reconcile", "dedupe", "idempotent", "pure"]),
    scope=st.sampled_from(["global", "flow"]),
    kind=st.sampled_from(["async", "async", "sync"]),
    status_url=st.booleans(),
    max_retries=st.sampled_from([1, 2, 0]),
    approval=st.sampled_from([False, False, True]),
    parallelism=st.sampled_from([None, None, 1]),
)
NO_EFFECT = {
    "refused": connection_refused(),
    "503": answered(503),
    "425": answered(425),
    "429": answered(429, retry_after_ms=4_000),
    "retriable": answered(200, {"success": False, "error": "busy", "retriable": True}),
}
MAYBE = {
    "ack": answered(202),
    "done": answered(200, {"success": True, "outputs": {"id": 1}}),
    "declined": answered(200, {"success": False, "error": "declined"}),
    "timeout": timed_out(),
    "500": answered(500),
    "408": answered(408),
    "400": answered(400),
}
ANSWERS = st.sampled_from([*NO_EFFECT, *MAYBE, "timeout", "ack", "ack"])
REPORTS = st.sampled_from(
    [
        StepResult(success=True, outputs={"id": 1}),
        StepResult(success=True, outputs={"id": 2}),
        StepResult(success=False, error="declined"),
        StepResult(success=False, error="not now", retriable=True),
    ]
)
PROBES: dict[str, Reply] = {
    "running": answered(200, {"state": "running"}),
    "done": answered(200, {"state": "done", "result": {"success": True, "outputs": {"id": 3}}}),
    "failed": answered(200, {"state": "done", "result": {"success": False, "error": "declined"}}),
    "retriable": answered(200, {"state": "done", "result": {"success": False, "retriable": True}}),
    "not_found": answered(200, {"state": "not_found"}),
    "unknown": answered(200, {"state": "unknown"}),
    "error": answered(404, {"state": "not_found"}),
    "refused": connection_refused(),
}
SETTLEMENTS = st.sampled_from(
    [
        Settlement(outcome="not_applied"),
        Settlement(outcome="not_applied"),
        Settlement(outcome="applied", outputs={"id": 4}),
        Settlement(outcome="failed", error="settled by hand"),
    ]
)
EFFECT_SWEEPS = [
    *(SweepName.REQUEUE, SweepName.DEDUP, SweepName.PROBES, SweepName.DEADLINES, SweepName.ORPHANS),
    *(SweepName.FORGETTING, SweepName.APPROVALS, SweepName.FLOW_CLOCKS),
]
WHICH = st.integers(0, 11)
POINTS = st.sampled_from([None, None, None, *CrashPoint])


def definition_of(spec: Spec, step_id: str) -> StepDefinition:
    work: dict[str, Any] = {"max_retries": spec.max_retries}
    if spec.parallelism is not None:
        work["parallelism"] = spec.parallelism
    return StepDefinition.model_validate(
        {
            "kind": spec.kind,
            "endpoint": f"http://worker/{step_id}",
            "status_url": STATUS + step_id if spec.status_url else None,
            "effect": {"policy": spec.policy, "scope": spec.scope, "key": {"keep": ["order"]}},
            "control": {"approval": {}} if spec.approved_first else {},
            "work": work,
        }
    )


class EffectsMachine(RuleBasedStateMachine):
    """Rules are the things that happen; each may end with a crash around its commit."""

    def __init__(self, place: Place, doctor_every: int) -> None:
        super().__init__()
        self.doctor_due = itertools.cycle(number == 0 for number in range(doctor_every))
        self.runner = asyncio.Runner()
        self.simulator = Simulator(place, defaults=DEFAULTS, retry_after_limit_ms=LONGEST_RETRY_AFTER_MS)
        self.ledger = Ledger()
        self.specs: dict[str, Spec] = {}
        self.flows: list[str] = []
        self.items: list[dict[str, Any]] = []
        self.queue: list[dict[str, Any]] = []
        self.approvals: list[dict[str, Any]] = []
        self.seen = 0
        self.probe = "unknown"
        self.runner.run(self.simulator.start())

    def teardown(self) -> None:
        try:
            if self.flows:
                self.come_to_rest()
        finally:
            self.runner.run(self.simulator.crash())
            self.runner.close()

    @initialize(specs=st.lists(SPECS, min_size=2, max_size=3))
    def register(self, specs: list[Spec]) -> None:
        for number, spec in enumerate(specs):
            step_id = f"step-{number}"
            self.specs[step_id] = spec
            self.simulator.network.always(STATUS + step_id, lambda: PROBES[self.probe])
            self.runner.run(self.simulator.engine.steps.put(step_id, definition_of(spec, step_id)))

    # What happens ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.flows) < MOST_FLOWS)
    @rule(number=WHICH, order=st.integers(0, 1), both=st.booleans(), point=POINTS)
    def start_flow(self, number: int, order: int, both: bool, point: CrashPoint | None) -> None:
        steps = list(self.specs)
        goals = {steps[number % len(steps)], *(steps[:2] if both else [])}
        flow_id = f"flow-{len(self.flows)}"
        request = StartFlow(flow_id=flow_id, goals=sorted(goals), init={"order": order, "note": flow_id})
        answer = self.act(lambda: self.simulator.engine.flows.start(request), point)
        if answer is not None or point is CrashPoint.AFTER_COMMIT:
            self.flows.append(flow_id)

    @precondition(lambda self: self.waiting())
    @rule(which=WHICH, kind=ANSWERS, point=POINTS)
    def an_endpoint_answers(self, which: int, kind: str, point: CrashPoint | None) -> None:
        call = self.waiting()[which % len(self.waiting())]
        if kind in NO_EFFECT:
            self.account(call).proves_none(call.attempt)
        reply = {**NO_EFFECT, **MAYBE}[kind]
        self.act(lambda: self.simulator.network.answer(call, reply), point)

    @precondition(lambda self: self.sent_items())
    @rule(which=WHICH, report=REPORTS, point=POINTS)
    def report(self, which: int, report: StepResult, point: CrashPoint | None) -> None:
        """The worker of an item reports, whatever has become of the item."""
        work = self.sent_items()[which % len(self.sent_items())]
        answer = self.act(lambda: self.simulator.engine.reports.complete(work["work_id"], report), point)
        taken = getattr(answer, "verdict", None) == "accepted" or (answer is None and point)
        if report.retriable and taken:
            self.ledger.accounts[work["work_id"]].proves_none()

    @precondition(lambda self: self.sent_items())
    @rule(which=WHICH, point=POINTS)
    def heartbeat(self, which: int, point: CrashPoint | None) -> None:
        work = self.sent_items()[which % len(self.sent_items())]
        self.act(lambda: self.simulator.engine.reports.heartbeat(work["work_id"], Heartbeat(progress=0.5)), point)

    @rule(state=st.sampled_from(list(PROBES)))
    def status_url_says(self, state: str) -> None:
        self.probe = state
        self.run_sweep(SweepName.PROBES, None)

    @precondition(lambda self: self.approvals)
    @rule(which=WHICH, verdict=st.sampled_from(["approve", "approve", "approve", "reject"]), point=POINTS)
    def review(self, which: int, verdict: Any, point: CrashPoint | None) -> None:
        approval = self.approvals[which % len(self.approvals)]
        engine, approval_id = self.simulator.engine, approval["approval_id"]
        answer = self.act(lambda: engine.approvals.review(approval_id, "ann", verdict, None), point)
        if verdict == "approve" and (isinstance(answer, dict) or point is CrashPoint.AFTER_COMMIT):
            self.ledger.accounts[approval["work_id"]].approvals += 1

    @precondition(lambda self: self.queue)
    @rule(which=WHICH, settlement=SETTLEMENTS, point=POINTS)
    def settle(self, which: int, settlement: Settlement, point: CrashPoint | None) -> None:
        """An operator settles an item; a second one comes too late."""
        entry = self.queue[which % len(self.queue)]
        work_id, account = entry["work_id"], self.ledger.accounts[entry["work_id"]]
        answer = self.act(lambda: self.simulator.engine.reconciliations.settle(work_id, settlement, "ann"), point)
        if point is None:
            assert isinstance(answer, dict), f"an item of the queue cannot be settled: {answer}"
            again = self.act(lambda: self.simulator.engine.reconciliations.settle(work_id, settlement, "bob"), None)
            assert again == "NOT_WAITING_FOR_RECONCILIATION"
            expected = {"applied": "succeeded", "failed": "failed"}.get(settlement.outcome)
            if entry["status"] == "cancelled":
                expected = "cancelled"
            assert expected in (None, answer["status"])
            asks = entry["hold"] == "unsafe_once" and settlement.outcome == "not_applied" and expected != "cancelled"
            assert ("approval_id" in answer) is asks
        if settlement.outcome == "not_applied" and point is not CrashPoint.BEFORE_COMMIT:
            account.not_applied += 1

    @precondition(lambda self: self.items)
    @rule(which=WHICH, settlement=SETTLEMENTS)
    def settle_what_does_not_wait(self, which: int, settlement: Settlement) -> None:
        work_id = self.items[which % len(self.items)]["work_id"]
        if work_id not in {entry["work_id"] for entry in self.queue}:
            answer = self.act(lambda: self.simulator.engine.reconciliations.settle(work_id, settlement, "ann"), None)
            assert answer == "NOT_WAITING_FOR_RECONCILIATION"

    @precondition(lambda self: self.flows)
    @rule(which=WHICH, point=POINTS)
    def cancel(self, which: int, point: CrashPoint | None) -> None:
        flow_id = self.flows[which % len(self.flows)]
        self.act(lambda: self.simulator.engine.flows.cancel(flow_id), point)

    @precondition(lambda self: any(work["status"] == "failed" for work in self.items))
    @rule(which=WHICH, point=POINTS)
    def redrive(self, which: int, point: CrashPoint | None) -> None:
        failed = [work["flow_id"] for work in self.items if work["status"] == "failed"]
        flow_id = failed[which % len(failed)]
        self.act(lambda: self.simulator.engine.flows.redrive(flow_id), point)

    @rule(name=st.sampled_from(EFFECT_SWEEPS), point=POINTS)
    def sweep(self, name: SweepName, point: CrashPoint | None) -> None:
        self.run_sweep(name, point)

    @rule(milliseconds=MOVES, sweeps=st.permutations(EFFECT_SWEEPS))
    def time_passes(self, milliseconds: int, sweeps: list[SweepName]) -> None:
        self.simulator.clock.advance(milliseconds)
        for name in sweeps:
            self.run_sweep(name, None)

    @rule(stop=st.booleans())
    def restart(self, stop: bool) -> None:
        self.runner.run(self.simulator.stop() if stop else self.simulator.crash())
        self.runner.run(self.simulator.start())

    # How it happens ----------------------------------------------------------------------------------------------

    def act(self, action: Callable[[], Coroutine[Any, Any, Any]], point: CrashPoint | None) -> Any:
        """The answer of an action, or the code of its refusal; None: the process crashed around its commit."""
        if point is None:
            try:
                answer = self.runner.run(action())
            except CounterfoilError as error:
                answer = error.code
        else:
            reached = self.runner.run(self.simulator.crash_during(action(), point))
            self.runner.run(self.simulator.start())
            answer = None if reached else "no commit"
        self.take_calls()
        return answer

    def run_sweep(self, name: SweepName, point: CrashPoint | None) -> None:
        self.act(lambda: self.simulator.sweep(name), point)

    def sent_items(self) -> list[dict[str, Any]]:
        """Items whose receipt is known to a worker."""
        return [work for work in self.items if self.ledger.accounts[work["work_id"]].attempts]

    def waiting(self) -> list[Call]:
        return [call for call in self.simulator.network.waiting() if not call.url.startswith(STATUS)]

    def account(self, call: Call) -> Account:
        step_id = call.metadata["step_id"]
        return self.ledger.of(call.metadata["work_id"], step_id, self.specs[step_id])

    def take_calls(self) -> None:
        """Enter what has been sent since, in its order."""
        for call in self.simulator.network.calls[self.seen :]:
            if call.url.startswith(STATUS):
                self.take_probe(call)
            else:
                account, key = self.account(call), call.headers["Idempotency-Key"]
                self.refuse_repeats(account, key)
                account.sent(call.attempt, key)
                assert call.metadata["idempotency_key"] == key
        self.seen = len(self.simulator.network.calls)

    def take_probe(self, call: Call) -> None:
        attempt, step_id = int(call.headers["Counterfoil-Attempt"]), call.headers["Counterfoil-Step-Id"]
        assert "receipt_token" not in str(call.headers)
        if self.probe in ("not_found", "retriable"):
            for work in self.items:
                if (work["flow_id"], work["step_id"]) == (call.headers["Counterfoil-Flow-Id"], step_id):
                    self.ledger.accounts[work["work_id"]].proves_none(attempt)

    def refuse_repeats(self, account: Account, key: str) -> None:
        """No item is sent whose key has a result: it takes that, unless a person has asked for it to be sent."""
        earlier = self.ledger.recorded.get((account.step_id, key))
        if earlier not in (None, account.work_id):
            items = {work["work_id"]: work for work in self.runner.run(self.look_at_items())}
            assert items[account.work_id]["redrive_of"] is not None, "sent, though its key has a result"

    # What must always hold ---------------------------------------------------------------------------------------

    async def look_at_items(self) -> list[dict[str, Any]]:
        page = orjson.loads(orjson.dumps(await self.simulator.engine.queries.work_items(limit=1000)))
        items: list[dict[str, Any]] = page["work"]
        return items

    async def look(self) -> None:
        engine = self.simulator.engine
        self.items = await self.look_at_items()
        page = await engine.effect_queries.reconciliations(limit=1000)
        self.queue = orjson.loads(orjson.dumps(page["reconciliations"]))
        approvals = await engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=1000)
        self.approvals = orjson.loads(orjson.dumps(approvals))["approvals"]

    @invariant()
    def engine_and_account_agree(self) -> None:
        self.runner.run(self.look())
        self.ledger.check_items(self.items, self.specs)
        for work in self.items:
            shares, ended = self.specs[work["step_id"]].shares, work["status"] in ("succeeded", "failed")
            if shares and ended and (self.ledger.accounts[work["work_id"]].attempts):
                self.ledger.recorded[work["step_id"], work["idempotency_key"]] = work["work_id"]
        self.every_unknown_outcome_is_in_the_queue()

    def every_unknown_outcome_is_in_the_queue(self) -> None:
        queued = {entry["work_id"]: entry for entry in self.queue}
        for work in self.items:
            waits = work["status"] == "not_completed" and work["hold"] in HELD
            if waits:
                assert queued[work["work_id"]]["hold"] == work["hold"]
            elif work["work_id"] in queued:
                assert work["status"] == "cancelled", "in the queue, though it does not wait to be settled"

    @invariant()
    def nothing_is_broken(self) -> None:
        if next(self.doctor_due):
            assert self.simulator.examine() == []

    def come_to_rest(self) -> None:
        """Nothing is ever stuck: with operators and reviewers who decide, every flow ends."""
        self.probe = "unknown"
        for round_number in range(40):
            self.runner.run(self.look())
            if all(work["status"] in FINAL for work in self.items) and not self.queue:
                break
            for _ in self.approvals:
                self.runner.run(self.look())
                if self.approvals:
                    self.review(0, "approve", None)
            again = Settlement(outcome="not_applied" if round_number < 3 else "failed")
            for _ in self.queue:
                self.runner.run(self.look())
                if self.queue:
                    self.settle(0, again, None)
            while self.waiting():  # as the transport does: no call waits longer than its timeout
                self.an_endpoint_answers(0, "timeout", None)
            self.time_passes(LONGEST_RETRY_AFTER_MS, EFFECT_SWEEPS)
            self.engine_and_account_agree()
        self.runner.run(self.look())
        assert [work for work in self.items if work["status"] not in FINAL] == []
        assert self.queue == []
        statuses = [self.runner.run(self.simulator.engine.queries.flow(flow_id))["status"] for flow_id in self.flows]
        assert set(statuses) <= {"completed", "failed", "cancelled"}
        assert self.simulator.examine() == []

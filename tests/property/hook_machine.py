"""The machine that makes things happen to hooks of several flows, in any order, and asks the model about each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import orjson
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.hooks.tokens import given
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.flows.start import Start
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import CrashPoint, Simulator, answered
from tests.by_hand import Place
from tests.property.hook_model import HookModel, HookSpec

SPECS = st.builds(
    HookSpec,
    on_conflict=st.sampled_from(["fail", "wait", "wait", "supersede"]),
    collect=st.sampled_from([1, 2, 3]),
    on_timeout=st.sampled_from(["fail", "complete"]),
    late=st.booleans(),
)
TOKENS = st.sampled_from(["a", "b"])
WHICH = st.integers(0, 11)
MOST_FLOWS = 9


class HookMachine(RuleBasedStateMachine):
    """Rules are the things that happen; some end with a crash around their commit."""

    def __init__(self, place: Place, doctor_every: int) -> None:
        super().__init__()
        self.doctor_due = itertools.cycle(number == 0 for number in range(doctor_every))
        self.runner = asyncio.Runner()
        self.simulator = Simulator(place)
        self.model = HookModel()
        self.numbers = itertools.count(1)
        self.registered: set[str] = set()
        self.do(self.simulator.start())
        self.simulator.network.always("http://worker/check", answered(202))
        self.put("check", {"attributes": {"token": {"role": "required"}, "checked": {"role": "output"}}})

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def put(self, step_id: str, definition: dict[str, Any]) -> None:
        if step_id not in self.registered:
            whole = definition if "kind" in definition else {"endpoint": "http://worker/check", **definition}
            self.do(self.simulator.engine.steps.put(step_id, StepDefinition.model_validate(whole)))
            self.registered.add(step_id)

    def teardown(self) -> None:
        self.do(self.simulator.crash())
        findings = self.simulator.examine()
        self.runner.close()
        assert not findings, findings

    def pick(self, which: int, *statuses: str) -> str | None:
        hooks = self.model.hooks.items()
        flows = [flow_id for flow_id, hook in hooks if hook.status in statuses and not hook.stopped]
        return flows[which % len(flows)] if flows else None

    # -- what happens ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.model.hooks) < MOST_FLOWS)
    @rule(spec=SPECS, token=TOKENS, expects=st.booleans())
    def start(self, spec: HookSpec, token: str, expects: bool) -> None:
        attributes: dict[str, Any] = {"token": {"role": "required"}}
        if spec.late:
            attributes["checked"] = {"role": "required"}
        hook = {
            "token": "{token}", "collect": spec.collect, "on_conflict": spec.on_conflict, "on_timeout": spec.on_timeout,
        }  # fmt: skip
        work = {"deadline_ms": 10_000}
        self.put(spec.step_id, {"kind": "hook", "hook": hook, "attributes": attributes, "work": work})
        flow_id = f"flow-{next(self.numbers)}"
        engine, now = self.simulator.engine, self.simulator.clock.advance(1)
        request = StartFlow(flow_id=flow_id, goals=[spec.step_id], init={"token": token})
        self.do(engine.commit.submit(Start(request, engine.context, expects=expects)))
        self.do(self.replies_are_recorded())
        self.model.start(flow_id, spec, token, now, expects=expects)

    @rule(which=WHICH)
    def go_on(self, which: int) -> None:
        """The step before a hook completes."""
        flow_id = self.pick(which, "none", "expected")
        if flow_id is not None:
            self.report_check(flow_id, StepResult(success=True, outputs={"checked": True}))
            self.model.open(flow_id, self.simulator.clock.now)

    @rule(which=WHICH)
    def fail_before(self, which: int) -> None:
        """The step before a hook fails, and its flow with it."""
        flow_id = self.pick(which, "none", "expected")
        if flow_id is not None:
            self.report_check(flow_id, StepResult(success=False, error="broken"))
            self.model.hooks[flow_id].stopped = True

    @rule(
        token=TOKENS, delivery=st.sampled_from([None, "d1", "d2"]), simple=st.sampled_from([False, False, False, True])
    )
    def deliver(self, token: str, delivery: str | None, simple: bool) -> None:
        payload = next(self.numbers) if simple else {"n": next(self.numbers)}
        self.simulator.clock.advance(1)
        assert self.answer(token, payload, delivery) == self.model.deliver(token, payload, delivery)

    @rule(token=TOKENS, point=st.sampled_from(list(CrashPoint)))
    def deliver_and_crash(self, token: str, point: CrashPoint) -> None:
        """The engine crashes around the commit, so the sender has no answer, and sends it again."""
        payload, delivery = {"n": next(self.numbers)}, f"crash-{next(self.numbers)}"
        self.simulator.clock.advance(1)
        sent = self.simulator.engine.hooks.deliver(given(token), Incoming(payload, delivery))
        self.do(self.simulator.crash_during(sent, point))
        self.do(self.simulator.start())
        first = self.model.deliver(token, payload, delivery)
        again = self.answer(token, payload, delivery)
        if isinstance(first, str) or point is CrashPoint.BEFORE_COMMIT:
            assert again == first
        else:
            assert again == self.model.deliver(token, payload, delivery)

    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        flow_id = self.pick(which, "none", "expected", "queued", "waiting")
        if flow_id is not None:
            self.simulator.clock.advance(1)
            self.do(self.simulator.engine.flows.cancel(flow_id))
            self.model.cancel(flow_id)

    @rule(which=WHICH)
    def redrive(self, which: int) -> None:
        hooks = self.model.hooks.items()
        failed = [name for name, hook in hooks if hook.stopped or str(hook.outcome).startswith("HOOK_")]
        if failed:
            flow_id = failed[which % len(failed)]
            now = self.simulator.clock.advance(1)
            self.do(self.simulator.engine.flows.redrive(flow_id))
            self.do(self.replies_are_recorded())
            self.model.redrive(flow_id, now)

    @rule(milliseconds=st.sampled_from([2_000, 6_000, 11_000]))
    def wait(self, milliseconds: int) -> None:
        now = self.simulator.clock.advance(milliseconds)
        self.do(self.simulator.sweep(SweepName.DEADLINES))
        self.model.expire(now)

    @rule()
    def register_waiting(self) -> None:
        while self.do(self.simulator.sweep(SweepName.HOOKS)):
            pass
        self.model.register_owners()

    @rule()
    def restart(self) -> None:
        self.do(self.simulator.crash())
        self.do(self.simulator.start())

    def report_check(self, flow_id: str, result: StepResult) -> None:
        self.simulator.clock.advance(1)
        item = self.flow(flow_id)["steps"]["check"]["work"][-1]
        self.do(self.simulator.engine.reports.complete(item["work_id"], result))

    # -- what must hold ----------------------------------------------------------------------------

    async def replies_are_recorded(self) -> None:
        """No other commit is under way: a crash is at the commit that it is meant for."""
        sending = {call.task for call in self.simulator.network.calls if call.task is not None and not call.task.done()}
        if sending:
            await asyncio.wait(sending)

    def answer(self, token: str, payload: Any, delivery: str | None) -> Any:
        try:
            hooks = self.simulator.engine.hooks
            return self.do(hooks.deliver(given(token), Incoming(payload, delivery)))
        except CounterfoilError as refusal:
            return refusal.code

    def flow(self, flow_id: str) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(orjson.dumps(self.do(self.simulator.engine.queries.flow(flow_id))))
        return document

    @invariant()
    def agrees_with_the_model(self) -> None:
        for flow_id, hook in self.model.hooks.items():
            items = self.flow(flow_id)["steps"][hook.spec.step_id]["work"]
            if hook.status in ("none", "expected") or not items:
                assert not items
                assert hook.status != "waiting"
                continue
            item = items[-1]
            assert item.get("hook", {"status": "ended"})["status"] == hook.status, (flow_id, item, hook)
            outcome = (item["error"] or {}).get("code") if item["status"] == "failed" else item["status"]
            assert outcome == (hook.outcome or "active"), (flow_id, item, hook)
            if hook.outcome is not None and hook.outcome != "cancelled":
                assert item["outputs"] == hook.outputs, (flow_id, item, hook)
            elif hook.status != "ended":
                assert item["hook"]["received"] == len(hook.payloads)
        self.compare_owners()
        if next(self.doctor_due):
            assert self.simulator.examine() == []

    def compare_owners(self) -> None:
        for token in ("a", "b"):
            owner = self.model.owner.get(token)
            buffers = [hook for hook in self.model.expected.get(token, ()) if hook.takes]
            first = owner or (buffers[0] if buffers else None)
            try:
                found = self.do(self.simulator.engine.hook_queries.hook(given(token)))["flow_id"]
            except CounterfoilError:
                found = None
            assert found == (None if first is None else first.flow_id)

"""Starting a flow: one transaction plans it, makes its steps and first work, and claims what can be sent at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from counterfoil.domain.errors import FlowExists, HookNotFound
from counterfoil.domain.flows.launch import Launch, launch, plan_launch
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.flows.settle import begin
from counterfoil.domain.hooks.delivering import Incoming, deliver_to_flow
from counterfoil.domain.hooks.expecting import expect_hooks
from counterfoil.domain.hooks.tokens import Token, given, has_made_form, read_made
from counterfoil.domain.records import Flow, KeyedFlow
from counterfoil.domain.runs.admission import RunClaim, admit
from counterfoil.domain.runs.ownership import start_digest
from counterfoil.domain.runs.requests import HookSignal
from counterfoil.domain.states import FINAL_FLOWS
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.receipts import Receipts
from counterfoil.engine.context import EngineContext
from counterfoil.store.group_commit.batch import ReadOnlyCommand
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.flows import FlowStarted, PlanDocument


@dataclass(frozen=True)
class Reuse:
    """A start that made no flow: the flow that owns its run key is the answer."""

    flow_id: str
    outcome: Literal["adopted", "retained", "signalled"]
    """``retained``: the owner has ended."""


@dataclass(frozen=True)
class _Signal:
    """The signal of a start. ``token``: None if it has the form of a made one and is not."""

    token: Token | None
    incoming: Incoming

    @classmethod
    def of(cls, signal: HookSignal, receipts: Receipts) -> _Signal:
        token = read_made(receipts, signal.hook) if has_made_form(signal.hook) else given(signal.hook)
        return cls(token, Incoming(signal.payload, signal.delivery_id, origin={"via": "signal"}))

    def deliver(self, unit: UnitOfWork, flow_id: str, now: int) -> None:
        """Deliver it to a hook of this flow, or of its sub-flows; raises HookNotFound if it has none with the token."""
        if self.token is None:
            raise HookNotFound
        deliver_to_flow(unit, flow_id, self.token, self.incoming, now)


class Start:
    """``POST /api/v1/flows``. The id is made before the decision, so that deciding again gives the same flow."""

    def __init__(
        self, request: StartFlow, context: EngineContext, started_by: str | None = None, *, expects: bool = False
    ) -> None:
        self._request = request
        self._expects = expects or request.idempotency_key is not None or request.signal is not None
        """Whether payloads for its hooks are kept that come before their steps start."""
        self._started_by = started_by
        """The API key that started it: an approval with ``separate_requester`` must come from another key."""
        self._flow_id = request.flow_id or context.new_id()
        self._known = context.known
        self._signal = None if request.signal is None else _Signal.of(request.signal, context.receipts)

    def needs(self, needs: ReadSet) -> None:
        needs.registers.add(str(self._known.register.revision))
        if self._request.flow_id is not None:
            needs.flows.add(self._flow_id)
        if self._request.idempotency_key is not None:
            needs.run_keys.add(self._request.idempotency_key)
        if self._signal is not None and self._signal.token is not None:
            needs.hook_tokens.add(self._signal.token.token_id)

    def decide(self, unit: UnitOfWork, now: int) -> FlowStarted | Reuse:
        """The flow that was started, or the one that owns the run key."""
        request, superseded = self._request, None
        if request.idempotency_key is not None:
            admission = admit(unit, self._claim(request.idempotency_key), now)
            if admission.owner is not None:
                return self._reuse(unit, admission.owner, now, signals=admission.signal)
            superseded = admission.superseded
        return self._start(unit, superseded, now)

    def _claim(self, run_key: str) -> RunClaim:
        request = self._request
        started_with = start_digest(request.goals, request.init)
        flow = KeyedFlow(self._flow_id, run_key, 0, started_with, request.retain_ms, request.retain_failed)
        return RunClaim(flow, request.on_conflict, request.if_owner)

    def _reuse(self, unit: UnitOfWork, owner: Flow, now: int, *, signals: bool) -> Reuse:
        if signals and self._signal is not None:
            self._signal.deliver(unit, owner.flow_id, now)
            return Reuse(owner.flow_id, "signalled")
        return Reuse(owner.flow_id, "retained" if owner.status in FINAL_FLOWS else "adopted")

    def _start(self, unit: UnitOfWork, superseded: str | None, now: int) -> FlowStarted:
        request, flow_id = self._request, self._flow_id
        if request.flow_id is not None and unit.find_flow(flow_id) is not None:
            raise FlowExists(flow_id=flow_id)
        options = request.options()
        if self._started_by is not None:
            options["started_by"] = self._started_by
        wanted = Launch(
            flow_id, request.goals, request.init, request.metadata, request.labels, options, superseded=superseded
        )
        plan = launch(unit, wanted, now)
        begin(unit, flow_id, now)
        if self._expects:
            expect_hooks(unit, flow_id, now)
        if self._signal is not None:
            self._signal.deliver(unit, flow_id, now)
        document: FlowStarted = {
            "flow_id": flow_id,
            "status": unit.flow(flow_id).status,
            "goals": plan.goals,
            "plan": cast(PlanDocument, plan.document()),
            "created_at": rfc3339(now),
            "reused": False,
        }
        if superseded is not None:
            document["superseded"] = superseded
        return document


class Preview(ReadOnlyCommand):
    """``POST /api/v1/plan``: the plan of a start, without starting anything."""

    def __init__(self, request: StartFlow, context: EngineContext) -> None:
        self._request = request
        self._known = context.known

    def needs(self, needs: ReadSet) -> None:
        needs.registers.add(str(self._known.register.revision))

    def decide(self, unit: UnitOfWork, now: int) -> PlanDocument:
        return cast(PlanDocument, plan_launch(unit, self._request.goals, self._request.init).document())

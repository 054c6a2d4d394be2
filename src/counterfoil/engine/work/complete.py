"""Completing work: one report against one receipt, or by an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.inbox import ANSWERED
from counterfoil.domain.callbacks.mapping import Ignored
from counterfoil.domain.effects.reconciling import counting_granted
from counterfoil.domain.errors import InvalidResult, UnknownReceipt, UnknownWork, WorkNotActive
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.records import GATED, Work
from counterfoil.domain.states import FINAL_WORK, WorkStatus
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.decisions import RetryRules, Verdict, beat, report
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class Completion:
    """The outcome of a report."""

    verdict: Verdict
    status: WorkStatus
    recorded_at: int | None
    sent_at: int | None
    http_status: int = 200
    """The answer's status: another one only where the step asks for it, for a vendor."""
    challenge: str | None = None
    """What a vendor wants back that verifies the URL."""

    @property
    def recorded_text(self) -> str:
        """When it was recorded, as JSON text."""
        return "null" if self.recorded_at is None else f'"{rfc3339(self.recorded_at)}"'


@dataclass(frozen=True, slots=True)
class CallbackReport:
    """The result that was read from a vendor's callback, and the rules for another attempt if it is a failure."""

    result: StepResult
    retry: RetryRules


ReadCallback = Callable[[Accept, int], Ignored | CallbackReport]


class Complete:
    """Decide a StepResult for the work item of a receipt; the first outcome wins."""

    __slots__ = ("_read", "_result", "_retry", "_verify", "_work_id")

    def __init__(
        self,
        work_id: str,
        result: StepResult | InvalidResult,
        retry: RetryRules,
        verify: Callable[[int], None] | None = None,
        read: ReadCallback | None = None,
    ) -> None:
        self._work_id = work_id
        self._result = result
        """An error: the body is no StepResult, so that only a step with ``accept`` can read it."""
        self._retry = retry
        self._verify = verify
        """Checks the report's signature at a given time; asked only for steps that want one."""
        self._read = read
        """Reads the report as a vendor's callback at a given time; asked only for steps with ``accept``."""

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self._work_id)

    def decide(self, unit: UnitOfWork, now: int) -> Completion:
        work = unit.find_work(self._work_id)
        if work is None or work.version == GATED:  # there is no receipt for a step that an agent runs
            raise UnknownReceipt
        step = unit.version(work.version)
        definition, accept, result, retry = step.definition, step.definition.accept, self._result, self._retry
        if accept is None and isinstance(result, InvalidResult):
            raise result
        if definition.require_signature and self._verify is not None:
            self._verify(now)
        if accept is not None or isinstance(result, InvalidResult):
            callback = _read_by(accept, self._read, result, retry, now)
            if isinstance(callback, Ignored):
                return _ignored(work, accept, callback.challenge)
            result, retry = callback.result, callback.retry
        if not result.success:
            retry = counting_granted(unit, work, step, retry)
        verdict, events = report(work, result, step, retry, now, unit.findings)
        status = 200 if accept is None else accept.answer.status_of(verdict.value)
        for event in events:
            if status != 200:
                event.data[ANSWERED] = status
            unit.record(event)
        if events:
            settle(unit, work.flow_id, now)
        after = unit.work(self._work_id)
        recorded_at = now if events else after.recorded_at
        return Completion(verdict, after.status, recorded_at, work.sent_at, status)


def _read_by(
    accept: Accept | None,
    read: ReadCallback | None,
    result: StepResult | InvalidResult,
    retry: RetryRules,
    now: int,
) -> Ignored | CallbackReport:
    """What a report says, read as the step accepts it; raises InvalidResult if it is no StepResult either."""
    if accept is not None and read is not None:
        return read(accept, now)
    if isinstance(result, InvalidResult):
        raise result
    return CallbackReport(result, retry)


def _ignored(work: Work, accept: Accept | None, challenge: str | None = None) -> Completion:
    """The answer to a callback that says nothing about the outcome. With a challenge it is a 200, for its body."""
    status = 200 if accept is None or challenge is not None else accept.answer.status_of("ignored")
    return Completion(Verdict.IGNORED, work.status, work.recorded_at, work.sent_at, status, challenge)


@dataclass(slots=True)
class OperatorCompletion:
    """What an operator's report is answered with, and the ids that the answer names."""

    completion: Completion
    flow_id: str
    step_id: str


class CompleteAsOperator:
    """Decide a StepResult of an operator, which needs no receipt, as at the webhook. The journal names the operator.

    A work item that waits for its sub-flow has its outcome from there alone.
    """

    __slots__ = ("_by", "_read", "_replay_of", "_result", "_retry", "_work_id")

    def __init__(
        self,
        work_id: str,
        result: StepResult | InvalidResult,
        retry: RetryRules,
        by: str,
        replay_of: str | None = None,
        read: ReadCallback | None = None,
    ) -> None:
        self._work_id = work_id
        self._result = result
        self._retry = retry
        self._read = read
        self._by = by
        """The name of the API key."""
        self._replay_of = replay_of

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self._work_id)

    def decide(self, unit: UnitOfWork, now: int) -> OperatorCompletion:
        work = unit.find_work(self._work_id)
        if work is None:
            raise UnknownWork
        if work.version == GATED:
            raise UnknownWork("an agent runs this step: it is completed through the gate")
        step = unit.version(work.version)
        if step.definition.kind == "flow" and work.status not in FINAL_WORK:
            raise WorkNotActive("this work item is completed by its sub-flow", status=work.status, recorded_at=None)
        callback = _read_by(step.definition.accept, self._read, self._result, self._retry, now)
        if isinstance(callback, Ignored):
            return OperatorCompletion(_ignored(work, None), work.flow_id, work.step_id)
        result = callback.result
        retry = callback.retry if result.success else counting_granted(unit, work, step, callback.retry)
        verdict, events = report(work, result, step, retry, now, unit.findings, via="operator")
        for event in events:
            event.data["by"] = self._by
            if self._replay_of is not None:
                event.data["replay_of"] = self._replay_of
            unit.record(event)
        if events:
            settle(unit, work.flow_id, now)
        after = unit.work(self._work_id)
        recorded_at = now if events else after.recorded_at
        completion = Completion(verdict, after.status, recorded_at, work.sent_at)
        return OperatorCompletion(completion, work.flow_id, work.step_id)


@dataclass(slots=True)
class HeartbeatAnswer:
    """When the next heartbeat is due, and whether the work was cancelled."""

    deadline_at: int | None
    cancel_requested: bool
    journaled_at: int | None = None
    """The time of its event; None: the journal has none."""


class Beat:
    """A heartbeat for the work item of a receipt."""

    __slots__ = ("_heartbeat", "_journaled", "_verify", "_work_id")

    def __init__(
        self, work_id: str, heartbeat: Heartbeat, verify: Callable[[int], None] | None = None, *, journaled: bool = True
    ) -> None:
        self._work_id = work_id
        self._heartbeat = heartbeat
        self._verify = verify
        self._journaled = journaled

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self._work_id)

    def decide(self, unit: UnitOfWork, now: int) -> HeartbeatAnswer:
        work = unit.find_work(self._work_id)
        if work is None or work.version == GATED:  # there is no receipt for a step that an agent runs
            raise UnknownReceipt
        step = unit.version(work.version)
        if step.definition.require_signature and self._verify is not None:
            self._verify(now)
        events = beat(work, self._heartbeat, step, now, journaled=self._journaled)
        for event in events:
            unit.record(event)
        work = unit.work(self._work_id)
        journaled_at = now if events and events[-1].journaled else None
        return HeartbeatAnswer(work.deadline_at, work.status is WorkStatus.CANCELLED, journaled_at)

"""What workers report: completions and heartbeats against a receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from counterfoil.domain.errors import CounterfoilError, InvalidSignature, Unavailable, UnknownReceipt
from counterfoil.domain.work.decisions import Verdict
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.context import EngineContext
from counterfoil.engine.work.complete import (
    Beat,
    Complete,
    CompleteAsOperator,
    Completion,
    HeartbeatAnswer,
    OperatorCompletion,
)
from counterfoil.engine.work.heartbeats import HeartbeatPace
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit


class MessageVerifier(Protocol):
    """Checks the signature of a received message, as Standard Webhooks has it."""

    def verify(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> None: ...


class Reports:
    """The use cases of the webhook."""

    def __init__(
        self, context: EngineContext, commit: GroupCommit, metrics: Metrics, verifier: MessageVerifier | None
    ) -> None:
        self._context = context
        self._commit = commit
        self._metrics = metrics
        self._verifier = verifier
        self._heartbeat_pace = HeartbeatPace()

    def work_of(self, flow_id: str, step_id: str, token: str) -> str:
        """The work item of a receipt; anything forged, mistyped or of another flow or step is unknown."""
        work_id = self._context.receipts.work_id_of(flow_id, step_id, token)
        if work_id is None:
            raise UnknownReceipt
        return work_id

    def verify(self, headers: Mapping[str, str], body: bytes, now: int) -> None:
        """Raise InvalidSignature unless the body carries a good signature."""
        if self._verifier is None:
            raise InvalidSignature("the engine has no signing secret, so no signature can be checked")
        self._verifier.verify(headers, body, now)

    async def complete(
        self, work_id: str, result: StepResult, verify: Callable[[int], None] | None = None
    ) -> Completion:
        """Record a report; ``verify`` checks its signature where the step requires one."""
        self._require_accepting()
        command = Complete(work_id, result, self._context.retry_rules_for(result), verify)
        try:
            completion = await self._commit.submit(command)
        except CounterfoilError as error:
            self._count(error)
            raise
        self._count(completion)
        return completion

    async def complete_as_operator(
        self, work_id: str, result: StepResult, by: str, replay_of: str | None = None
    ) -> OperatorCompletion:
        """Record a report that an operator gives; ``by`` is the name of the API key, ``replay_of`` a callback."""
        self._require_accepting()
        command = CompleteAsOperator(work_id, result, self._context.retry_rules_for(result), by, replay_of)
        return await self._commit.submit(command)

    def take_completion(
        self,
        work_id: str,
        result: StepResult,
        verify: Callable[[int], None],
        resolve: Callable[[Completion | CounterfoilError], None],
    ) -> bool:
        """The same without a coroutine: ``resolve`` is called after the commit. False: the queue is full."""

        def resolved(answer: Completion | CounterfoilError) -> None:
            self._count(answer)
            resolve(answer)

        return self._commit.enqueue(Complete(work_id, result, self._context.retry_rules_for(result), verify), resolved)

    async def heartbeat(
        self, work_id: str, heartbeat: Heartbeat, verify: Callable[[int], None] | None = None
    ) -> HeartbeatAnswer:
        """Record a heartbeat; ``verify`` as in ``complete``."""
        self._require_accepting()
        journaled = self._heartbeat_pace.journals(work_id, self._context.clock())
        return await self._commit.submit(Beat(work_id, heartbeat, verify, journaled=journaled))

    def _require_accepting(self) -> None:
        if not self._context.accepting:
            raise Unavailable("the engine is stopping; retry later")

    def _count(self, answer: Completion | CounterfoilError) -> None:
        if isinstance(answer, CounterfoilError):
            self._metrics.completed(answer.code)
            return
        self._metrics.completed(answer.verdict)
        if answer.verdict is Verdict.ACCEPTED and answer.recorded_at is not None and answer.sent_at is not None:
            self._metrics.callback_took((answer.recorded_at - answer.sent_at) / 1000)

"""What workers report: completions and heartbeats against a receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.mapping import Ignored
from counterfoil.domain.callbacks.reading import read_callback, read_report
from counterfoil.domain.errors import (
    CounterfoilError,
    InvalidResult,
    InvalidSignature,
    Unavailable,
    UnknownReceipt,
)
from counterfoil.domain.work.decisions import Verdict
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.context import EngineContext
from counterfoil.engine.work.complete import (
    Beat,
    CallbackReport,
    Complete,
    CompleteAsOperator,
    Completion,
    HeartbeatAnswer,
    OperatorCompletion,
    ReadCallback,
)
from counterfoil.engine.work.heartbeats import HeartbeatPace
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit

log = structlog.get_logger(__name__)

_ACCEPTED = Verdict.ACCEPTED  # looked up only once: see domain/flows/settle.py


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

    def read(self, accept: Accept, headers: Mapping[str, str], body: bytes, now: int) -> Ignored | CallbackReport:
        """What a vendor's callback reports. The jitter is drawn here: only now it is known whether it may be needed."""
        secrets = self._context.secrets
        if accept.signature is not None and not secrets.values_of(accept.signature.check.secret):
            log.warning("callback_secret_missing", secret=accept.signature.check.secret)
        return self._as_report(read_callback(accept, headers, body, secrets, now))

    def read_again(self, accept: Accept, headers: Mapping[str, str], body: bytes) -> Ignored | CallbackReport:
        """What a kept body reports, with the headers that are kept; its signature is not checked again."""
        return self._as_report(read_report(accept, headers, body))

    def _as_report(self, result: Ignored | StepResult) -> Ignored | CallbackReport:
        return result if isinstance(result, Ignored) else CallbackReport(result, self._context.retry_rules_for(result))

    async def complete(
        self,
        work_id: str,
        result: StepResult | InvalidResult,
        verify: Callable[[int], None] | None = None,
        read: ReadCallback | None = None,
    ) -> Completion:
        """Record a report; ``verify`` checks its signature where the step requires one.

        ``read``: reads it as a vendor's callback, for a step with ``accept``; for any other, ``result`` is refused if
        it is an error.
        """
        self._require_accepting()
        command = Complete(work_id, result, self._context.retry_rules_for(result), verify, read)
        try:
            completion = await self._commit.submit(command)
        except CounterfoilError as error:
            self._count(error)
            raise
        self._count(completion)
        return completion

    async def complete_as_operator(
        self,
        work_id: str,
        result: StepResult | InvalidResult,
        by: str,
        replay_of: str | None = None,
        read: ReadCallback | None = None,
    ) -> OperatorCompletion:
        """Record a report that an operator gives; ``by`` is the name of the API key, ``replay_of`` a callback.

        ``read`` as in ``complete``.
        """
        self._require_accepting()
        command = CompleteAsOperator(work_id, result, self._context.retry_rules_for(result), by, replay_of, read)
        return await self._commit.submit(command)

    def take_completion(
        self,
        work_id: str,
        result: StepResult,
        verify: Callable[[int], None],
        resolve: Callable[[Completion | CounterfoilError], None],
        read: ReadCallback | None = None,
    ) -> bool:
        """The same without a coroutine: ``resolve`` is called after the commit. False: the queue is full."""

        def resolved(answer: Completion | CounterfoilError) -> None:
            self._count(answer)
            resolve(answer)

        retry = self._context.retry_rules_for(result)
        return self._commit.enqueue(Complete(work_id, result, retry, verify, read), resolved)

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
        if answer.verdict is not _ACCEPTED:
            self._metrics.completed(answer.verdict)
            return
        recorded_at, sent_at = answer.recorded_at, answer.sent_at
        self._metrics.accepted(None if recorded_at is None or sent_at is None else (recorded_at - sent_at) / 1000)

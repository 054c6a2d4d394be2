"""A guarded step of an agent: gate call before the body, report after it, claim kept in between.

``async with client.step(...) as step`` calls the gate; however the body ends is reported. A body cannot be skipped, so
``step.done`` says that the step was completed before, and ``step.output`` is its output.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import uuid4

from counterfoil.client.calls.workflows import GateOptions, check_options
from counterfoil.client.documents import GateAnswer, RetryContext
from counterfoil.client.errors import (
    ApiError,
    ApprovalRequired,
    ClaimLostError,
    ClientError,
    ConnectionFailed,
    StepBlocked,
    StepFailed,
    StepInFlightError,
    StepInputMismatchError,
    StepUnwanted,
    Unavailable,
    WorkflowTerminalError,
)
from counterfoil.client.reports import Backoff

if TYPE_CHECKING:
    from counterfoil.client.api import Client

logger = logging.getLogger("counterfoil.agent")

T = TypeVar("T")

UNTIL_ANSWERED = Backoff(tries=8, first=0.2, limit=5.0, retry_after_limit=30.0)
"""How often a gate call or a report is repeated while no answer comes: both are safe to repeat."""
LAST_REPORT_SECONDS = 5.0
LONGEST_ERROR = 4096
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.25, 5.0
"""Between two polls of an approval, or of a claim of another agent."""
DECIDED = frozenset({"succeeded", "held", "pending"})
"""States of a step's work in which a new evaluation would undo something: it is completed, or has an approval."""


class GuardedStep:
    """A step that the gate has allowed, or that is ``done``."""

    def __init__(
        self,
        client: Client,
        workflow_id: str,
        step_id: str,
        options: GateOptions,
        *,
        wait_for_approval: float | None = None,
        wait_for_claim: float | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        check_options(options)
        self.workflow_id = workflow_id
        self.step_id = step_id
        self.done = False
        self.output: Mapping[str, Any] | None = None
        """What is reported when the body ends; for a step that is done, its recorded output."""
        self.gate: GateAnswer | None = None
        """The answer of the gate; None if the workflow has ended."""
        self.retry_context: RetryContext
        """Which attempt this is, and the outcome of earlier attempts."""
        self._client = client
        self._options = options
        self._key = options.get("key")
        self._lease = options.get("claim")
        if self._lease is not None and not options.get("holder"):
            self._options = {**options, "holder": f"agent-{uuid4().hex}"}
        self._patience_with_people = wait_for_approval
        self._patience_with_agents = wait_for_claim or 0.0
        self._backoff = backoff or UNTIL_ANSWERED
        self._reported = False
        self._prolonging: asyncio.Task[None] | None = None
        self._lost: ClientError | None = None
        self._cancelling = 0

    async def complete(
        self,
        output: Mapping[str, Any] | None = None,
        *,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """Report the outcome now, not only when the body ends. It is final."""
        if output is not None and not isinstance(output, Mapping):
            raise TypeError(f"the output of step {self.step_id} must be a mapping, not {type(output).__name__}")
        self.output = dict(output or {})
        self._stop_prolonging()
        self._reported = True  # even if no answer comes: a later exception must not be reported as a failure
        report = self._until_answered(
            lambda: self._client.complete_step(
                self.workflow_id,
                self.step_id,
                self.output,
                key=self._key,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                cost_usd=cost_usd,
            )
        )
        await _seen_through(report)

    # -- the gate ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            answer = await self._ask_as_wanted()
        except WorkflowTerminalError as ended:
            self._reuse_of_ended(ended)
            return self
        if answer["decision"] == "require_approval" and self._patience_with_people is not None:
            answer = await self._after_review(answer, self._patience_with_people)
        if answer["decision"] == "block":
            raise StepBlocked(answer)
        if answer["decision"] == "require_approval":
            raise ApprovalRequired(answer)
        self.gate, self.retry_context = answer, answer["retry_context"]
        if answer["work_status"] == "succeeded":
            self._reuse()
        elif self._lease is not None:
            owner = _this_task()
            self._cancelling = owner.cancelling()
            self._prolonging = asyncio.create_task(self._prolong(owner, self._lease))
        return self

    def _reuse(self) -> None:
        self.done, self.output = True, self.retry_context["prior_output"] or {}

    def _reuse_of_ended(self, ended: WorkflowTerminalError) -> None:
        """A repeated run of an ended workflow gets the recorded outputs of its steps, and nothing else."""
        context = ended.retry_context
        if context is None or not context["prior_output_available"]:
            raise ended
        if not ended.same_input or context["idempotency_key"] != (self._key or ""):
            raise ended
        self.retry_context = cast(RetryContext, context)
        self._reuse()

    async def _ask_as_wanted(self) -> GateAnswer:
        """Call the gate, with a new evaluation only where that cannot undo something.

        A new evaluation would reopen a completed step, and would bypass an approval.
        """
        if self._options.get("retry_policy") != "reevaluate" or not await self._is_decided():
            return await self._ask(self._options)
        try:
            return await self._ask_again()
        except StepInputMismatchError:  # the recorded decision is about another input
            return await self._ask(self._options)

    async def _is_decided(self) -> bool:
        workflow = await self._until_answered(lambda: self._client.get_workflow(self.workflow_id))
        step = next((step for step in workflow["steps"] if step["step_id"] == self.step_id), None)
        return step is not None and (step["work_status"] in DECIDED or step["approval_status"] == "rejected")

    async def _ask_again(self) -> GateAnswer:
        return await self._ask({**self._options, "retry_policy": "idempotent"})

    async def _ask(self, options: GateOptions) -> GateAnswer:
        """The gate's answer; a claim of another agent is awaited for ``wait_for_claim`` seconds."""
        clock = asyncio.get_running_loop().time
        over, pause = clock() + self._patience_with_agents, FIRST_LOOK_SECONDS
        while True:
            try:
                return await self._until_answered(
                    lambda: self._client.gate(self.workflow_id, self.step_id, include_prior_output=True, **options)
                )
            except StepInFlightError as claimed:
                left = over - clock()
                if left <= 0:
                    raise
                await asyncio.sleep(min(left, pause, _until(claimed.lease_expires_at)))
                pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)

    async def _after_review(self, answer: GateAnswer, patience: float) -> GateAnswer:
        """The gate's answer after the review, or the present answer if there is none within ``patience`` seconds."""
        clock = asyncio.get_running_loop().time
        over, pause = clock() + patience, FIRST_LOOK_SECONDS
        approval_id = answer["approval_id"] or ""
        while (await self._until_answered(lambda: self._client.approval(approval_id)))["status"] == "pending":
            left = over - clock()
            if left <= 0:
                return answer
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_LOOK_SECONDS)
        return await self._ask_again()

    # -- the claim -----------------------------------------------------------------------------

    async def heartbeat(self, progress: float | None = None, message: str | None = None) -> None:
        """Report progress, and prolong the claim. Raises if this agent no longer has the claim."""
        lease, holder = self._options.get("claim"), self._options.get("holder")
        if lease is None or not holder:
            raise ClientError("only a claimed step has heartbeats: use claim=")
        try:
            sign = await self._client.prolong_claim(
                self.workflow_id, self.step_id, holder, lease, progress=progress, message=message
            )
        except ClaimLostError:  # it may have expired while no answer came; the first gate call gets it then
            options: GateOptions = {**self._options, "retry_policy": "idempotent"}
            answer = await self._client.gate(self.workflow_id, self.step_id, **options)
            if answer["decision"] != "allow" or answer["work_status"] == "succeeded":
                raise
        else:
            if sign["cancel_requested"]:
                raise StepUnwanted(f"step {self.step_id} is not needed: its workflow has ended")

    async def _prolong(self, owner: asyncio.Task[Any], lease: float) -> None:
        """Prolong the claim while the body runs. If it is lost, the body is cancelled."""
        while True:
            await asyncio.sleep(lease / 3)
            try:
                await self.heartbeat()
            except (ConnectionFailed, Unavailable) as error:
                logger.warning("the claim of step %s could not be prolonged: %s", self.step_id, error)
            except ClientError as error:
                self._lost = error
                owner.cancel()
                return

    def _stop_prolonging(self) -> None:
        if self._prolonging is not None:
            self._prolonging.cancel()
            self._prolonging = None

    def _was_lost(self) -> bool:
        """Whether the body was cancelled only because the claim is lost."""
        return self._lost is not None and _this_task().uncancel() <= self._cancelling

    # -- the report ----------------------------------------------------------------------------

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_prolonging()
        if self._was_lost() and isinstance(error, asyncio.CancelledError):
            assert self._lost is not None
            raise self._lost from None
        if error is None:
            reused = self.done and self.output == (self.retry_context["prior_output"] or {})
            if not self._reported and not reused:
                await self.complete(self.output)
        elif not self._reported and not self.done and isinstance(error, Exception | asyncio.CancelledError):
            await _seen_through(self._report_failure(error))

    async def _report_failure(self, error: BaseException) -> None:
        """Report that the attempt failed. The body's error propagates, whether the report arrives or not."""
        cancelled = isinstance(error, asyncio.CancelledError)
        text = "the agent was stopped while it ran the step" if cancelled else f"{type(error).__name__}: {error}"
        text = text[:LONGEST_ERROR].replace("\0", " ").encode("utf-8", "replace").decode()
        retriable = not isinstance(error, StepFailed)
        holder = None if self._lease is None else self._options.get("holder")
        try:
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await self._until_answered(
                    lambda: self._client.fail_step(
                        self.workflow_id, self.step_id, text, retriable=retriable, key=self._key, holder=holder
                    )
                )
        except (ClientError, TimeoutError) as unreported:
            logger.warning("the failure of step %s could not be reported: %r", self.step_id, unreported)

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call while no answer comes, or the engine is not available: a repeat has no further effect."""
        failures = 0
        while True:
            try:
                return await call()
            except (ConnectionFailed, Unavailable) as error:
                failures += 1
                if failures >= self._backoff.tries:
                    raise
                retry_after = error.retry_after if isinstance(error, ApiError) else None
                await asyncio.sleep(self._backoff.delay(failures, retry_after))


async def _seen_through(report: Coroutine[Any, Any, Any]) -> None:
    """Deliver a report although the agent is cancelled meanwhile, for a few seconds at most."""
    sending = asyncio.ensure_future(report)
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending}, timeout=LAST_REPORT_SECONDS)
        if not sending.done():
            sending.cancel()
        elif not sending.cancelled() and (unreported := sending.exception()) is not None:
            logger.warning("a report could not be delivered: %r", unreported)
        raise


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    return task


def _until(moment: str) -> float:
    """Seconds until a time of the engine, by the clock of this machine; a tenth at least, should they differ."""
    try:
        seconds = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    except ValueError:
        seconds = 0.0
    return max(0.1, seconds)

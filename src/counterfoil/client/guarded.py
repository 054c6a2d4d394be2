"""A step of an agent between its gate and its report: asked for, run at most by one, and always reported.

``async with client.step(...) as step`` asks the gate; whatever ends the body is reported. A body cannot be skipped, so
``step.done`` says that there is nothing left to do, and ``step.output`` is what the earlier attempt gave.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import uuid4

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
from counterfoil.client.workflows import GateOptions

if TYPE_CHECKING:
    from counterfoil.client.api import Client

logger = logging.getLogger("counterfoil.agent")

T = TypeVar("T")

UNTIL_ANSWERED = Backoff(tries=8, first=0.2, limit=5.0, retry_after_limit=30.0)
"""How often the gate is asked, and an outcome is reported, while nobody answers: both can be repeated safely."""
LAST_REPORT_SECONDS = 5.0
LONGEST_ERROR = 4096
FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.25, 5.0
"""Between two looks at an approval, or at a claim of another agent."""
DECIDED = frozenset({"succeeded", "held", "pending"})
"""States of a step's work in which a new evaluation would undo something: it is done, or in the hands of people."""


class GuardedStep:
    """A step that the gate has let through, or that is ``done``."""

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
        self.workflow_id = workflow_id
        self.step_id = step_id
        self.done = False
        self.output: Mapping[str, Any] | None = None
        """What is reported when the body ends; of a step that is done, what it gave."""
        self.gate: GateAnswer | None = None
        """What the gate answered; None of a step of a workflow that has ended."""
        self.retry_context: RetryContext
        """Which attempt this is, and what became of those before."""
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
        """Report the outcome now, not only when the body ends. It is final: nothing that follows changes it."""
        if output is not None and not isinstance(output, Mapping):
            raise TypeError(f"the output of step {self.step_id} must be a mapping, not {type(output).__name__}")
        self.output = dict(output or {})
        self._stop_prolonging()
        self._reported = True  # even if no answer comes: what follows must not call it a failure
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
        """A run that is repeated as a whole, after its end, is given what its steps gave, and can do nothing else."""
        context = ended.retry_context
        if context is None or not context["prior_output_available"]:
            raise ended
        if not ended.same_input or context["idempotency_key"] != (self._key or ""):
            raise ended
        self.retry_context = cast(RetryContext, context)
        self._reuse()

    async def _ask_as_wanted(self) -> GateAnswer:
        """Ask, with a new evaluation only where that is of use.

        To evaluate again what is done would open it again, and what people look at, or have agreed to, is theirs.
        """
        if self._options.get("retry_policy") != "reevaluate" or not await self._is_decided():
            return await self._ask(self._options)
        try:
            return await self._ask_again()
        except StepInputMismatchError:  # it is decided, but about something else
            return await self._ask(self._options)

    async def _is_decided(self) -> bool:
        workflow = await self._until_answered(lambda: self._client.get_workflow(self.workflow_id))
        step = next((step for step in workflow["steps"] if step["step_id"] == self.step_id), None)
        return step is not None and (step["work_status"] in DECIDED or step["approval_status"] == "rejected")

    async def _ask_again(self) -> GateAnswer:
        return await self._ask({**self._options, "retry_policy": "idempotent"})

    async def _ask(self, options: GateOptions) -> GateAnswer:
        """The gate's answer; while another agent has claimed the step, it is waited for as long as was said."""
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
        """The gate's answer once people have decided, or the one there is when patience ends."""
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
        """Say how far the work is, and keep the claim. Raises if the step is no longer this agent's."""
        lease, holder = self._options.get("claim"), self._options.get("holder")
        if lease is None or not holder:
            raise ClientError("only a step that is claimed has heartbeats: give a claim")
        try:
            sign = await self._client.prolong_claim(
                self.workflow_id, self.step_id, holder, lease, progress=progress, message=message
            )
        except ClaimLostError:  # it may have lapsed while nobody answered; whoever asks first has it then
            options: GateOptions = {**self._options, "retry_policy": "idempotent"}
            answer = await self._client.gate(self.workflow_id, self.step_id, **options)
            if answer["decision"] != "allow" or answer["work_status"] == "succeeded":
                raise
        else:
            if sign["cancel_requested"]:
                raise StepUnwanted(f"step {self.step_id} is unwanted: its workflow has ended")

    async def _prolong(self, owner: asyncio.Task[Any], lease: float) -> None:
        """Keep the claim while the body runs. If it is lost, so is the work: the body is cancelled."""
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
        """Whether the body was cancelled because the claim is lost, and for no other reason."""
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
        """Say that the attempt failed. Whether that arrives or not, it is the body's error that counts."""
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
        """Call again while nobody answers, or the engine is not available: whoever repeats himself changes nothing."""
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
    """Let a report be delivered though the agent is cancelled meanwhile, for a few seconds at most."""
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

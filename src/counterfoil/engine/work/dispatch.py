"""Dispatching: send claimed work, and record the response of the endpoint.

The protocol. An attempt is sent only after its intent was committed (``after_commit`` is given what the batch wrote),
and only before its deadline and while the lease holds under which it was claimed. Its reply is recorded only for that
attempt and that owner: if anything else happened to the item in the meantime (a webhook, a deadline, a
cancellation), the reply is too late and changes nothing.

An attempt that this machine cannot send, for want of descriptors, memory, ports or threads, is held back and tried
again under the same intent. If that does not help for half of its acknowledgement timeout, the item is given back:
nothing was sent, so the attempt keeps its number and no retry is used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from functools import partial
from typing import Any

import structlog

from counterfoil.domain.effects.policies import Cause
from counterfoil.domain.effects.reconciling import counting_granted
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.launch import LINKS
from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.gate.retry_context import retry_context_of_dispatch
from counterfoil.domain.hooks.tokens import made_token
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import FlowInputs, StepVersion, Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.time import optional_rfc3339
from counterfoil.domain.work.decisions import RetryRules, acknowledge, fail, give_back, is_taken, report, take_back
from counterfoil.domain.work.replies import (
    Acknowledged,
    AttemptNotCompleted,
    Failed,
    NotSent,
    Outcome,
    Reply,
    Reported,
    SendOutcome,
    classify,
)
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.context import EngineContext
from counterfoil.engine.subscriptions.messages import USER_AGENT, MessageSigner, Transport, recorded
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.capacity import BatchCapacity, Slots
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.transport.exhaustion import Shortage

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0

log = structlog.get_logger(__name__)


class RecordReply:
    """Records the outcome of an attempt: what the endpoint's response means for it."""

    def __init__(
        self, work: Work, outcome: Outcome, http_status: int | None, retry: RetryRules, hold: str | None = None
    ) -> None:
        self._work_id = work.work_id
        self._attempt = work.attempt
        self._owner = work.owner
        self._outcome = outcome
        self._http_status = http_status
        self._retry = retry
        self._hold = hold

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self._work_id)

    def decide(self, unit: UnitOfWork, now: int) -> str:
        """The outcome of the attempt, as the metrics name it."""
        work = unit.work(self._work_id)
        if work.status is not WorkStatus.ACTIVE or work.attempt != self._attempt:
            return "late"
        step, outcome = unit.version(work.version), self._outcome
        if work.owner != self._owner and not (isinstance(outcome, Reported) and is_taken(work, step)):
            return "late"
        if isinstance(outcome, Acknowledged):
            unit.record(acknowledge(work, now, self._http_status, outcome.note))
            return "acknowledged"
        retry = counting_granted(unit, work, step, self._retry)
        if isinstance(outcome, AttemptNotCompleted):
            event = give_back(
                work,
                step,
                retry,
                now,
                code=outcome.code,
                message=outcome.message,
                delivery=outcome.delivery,
                cause=outcome.cause,
                retry_after_ms=outcome.retry_after_ms,
                via="response",
            )
            unit.record(event)
            word = "not_completed" if outcome.delivery is SendOutcome.ANSWERED else str(outcome.delivery)
        elif isinstance(outcome, NotSent):
            code, message = outcome.code, outcome.message
            unit.record(take_back(work, step, retry, now, code=code, message=message, hold=self._hold))
            word = "not_sent"
        elif isinstance(outcome, Failed):
            unit.record(fail(work, now, outcome.code, outcome.message, "response"))
            word = "failed"
        else:
            _, events = report(work, outcome.result, step, retry, now, unit.findings, via="response")
            for event in events:
                unit.record(event)
            word = str(unit.work(self._work_id).status)
        settle(unit, work.flow_id, now)
        return word


class Dispatcher:
    """Sends claimed work, so many at a time, and records every reply."""

    def __init__(
        self,
        context: EngineContext,
        transport: Transport,
        signer: MessageSigner | None,
        metrics: Metrics,
        slots: Slots,
        lease: Lease,
        shortage: Shortage,
        wakeups: Wakeups,
    ) -> None:
        self._context = context
        self._transport = transport
        self._signer = signer
        self._metrics = metrics
        self.slots = slots
        self._lease = lease
        self._shortage = shortage
        self._wakeups = wakeups
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def prepare(self, unit: UnitOfWork) -> None:
        unit.node_id = self._context.node_id
        unit.new_id = self._context.new_id
        unit.rules = self._context.rules
        if not self._stopping.is_set() and self._lease.held:
            unit.capacity = BatchCapacity(self.slots)

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        """Send every attempt whose intent has just been committed; its reply is submitted to the same commit."""
        dispatched = EventType.WORK_DISPATCHED
        if dispatched not in unit.changes.kinds():
            return
        for event in unit.changes.events:
            if event.type is dispatched and event.work_id is not None:
                work = unit.work(event.work_id)
                # It may have ended, or gone on to another attempt, in the very commit that claimed it.
                if work.status is WorkStatus.ACTIVE and work.attempt == event.attempt:
                    hold = event.data.get("approval_id")
                    self._launch(commit, work, unit.version(work.version), unit.inputs(work.flow_id), hold)

    def stop(self) -> None:
        """Claim nothing more; attempts in flight go on."""
        self._stopping.set()

    async def drain(self, timeout_seconds: float) -> int:
        """Wait for attempts in flight, then cancel the rest: the next start treats their outcome as unknown."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)

    def _launch(self, commit: GroupCommit, work: Work, step: StepVersion, inputs: FlowInputs, hold: str | None) -> None:
        self.slots.occupy(work.lane)
        task = asyncio.create_task(self._attempt(commit, work, step, inputs, hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(
        self, commit: GroupCommit, work: Work, step: StepVersion, inputs: FlowInputs, hold: str | None
    ) -> None:
        try:
            reply = await self._send(work, step, dump_json(self._request(work, step, inputs)))
        except Exception:  # a bug, and perhaps sent: better unknown now than silent until the deadline
            log.exception("dispatch_failed", flow_id=work.flow_id, step_id=work.step_id, work_id=work.work_id)
            failed = "the engine failed while this attempt was being sent"
            reply = Reply(SendOutcome.UNKNOWN, error=failed, cause=Cause.NODE_LOST)
        finally:
            self.slots.release(work.lane)
            if self.slots.waiting:
                self._wakeups.now(SweepName.REQUEUE)
        outcome = classify(reply, "async" if step.definition.kind == "async" else "sync")
        record = RecordReply(work, outcome, reply.status, self._context.retry_rules(), hold)
        await self._record(commit, record, work)

    async def _send(self, work: Work, step: StepVersion, body: bytes) -> Reply:
        """Make the call; while this machine lacks the resources for it, retry for half of the call's time at most."""
        assert step.definition.endpoint is not None, "only what has an endpoint is dispatched"
        loop = asyncio.get_running_loop()
        patience, began, pause = step.work.ack_timeout_ms, loop.time(), FIRST_PAUSE_SECONDS
        timeout_ms = patience
        while True:
            reply = await self._transport.post(
                step.definition.endpoint,
                body=body,
                headers=self._headers(work, body),
                timeout_ms=timeout_ms,
                may_send=partial(self._may_send, work),
            )
            if reply.lack is None:
                self._shortage.end()
                return reply
            with self._shortage.waiting(reply.lack):
                if await self._stops_within(pause):
                    return reply
            timeout_ms = patience - int((loop.time() - began) * 1000)
            if timeout_ms < patience / 2:
                return reply
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _stops_within(self, seconds: float) -> bool:
        """Wait so long; returns whether the engine stops meanwhile, or has stopped already."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _may_send(self, work: Work) -> bool:
        """Whether the attempt is still this node's: its deadline has not passed, and its lease holds."""
        in_time = work.due_at is None or self._context.clock() < work.due_at
        return in_time and self._lease.holds(work.owner)

    async def _record(self, commit: GroupCommit, command: RecordReply, work: Work) -> None:
        """A reply must not get lost because the store is unavailable for a moment: try until it is recorded."""
        try:
            outcome = await recorded(commit, command)
        except CounterfoilError:
            log.exception("reply_not_recorded", flow_id=work.flow_id, step_id=work.step_id, work_id=work.work_id)
        else:
            if outcome is not None:
                self._metrics.dispatched(outcome)

    def _request(self, work: Work, step: StepVersion, inputs: FlowInputs) -> dict[str, Any]:
        """The body that the endpoint receives. The flow's own metadata never overrides the engine's."""
        definition = step.definition
        token = self._context.receipts.issue(work.flow_id, work.step_id, work.work_id)
        metadata: dict[str, Any] = {
            **inputs.metadata,
            "flow_id": work.flow_id,
            "step_id": work.step_id,
            "work_id": work.work_id,
            "receipt_token": token,
            "attempt": work.attempt,
            "max_attempts": step.work.max_attempts,
            "idempotency_key": work.idempotency_key,
            "retry_context": retry_context_of_dispatch(work),
        }
        if definition.kind == "async":
            url = f"{self._context.webhook_base_url}/webhook/{work.flow_id}/{work.step_id}/{token}"
            metadata["webhook_url"] = url
            metadata["heartbeat_url"] = f"{url}/heartbeat"
            metadata["deadline_at"] = optional_rfc3339(work.deadline_at)
        else:
            for name in ("webhook_url", "heartbeat_url", "deadline_at"):
                metadata.pop(name, None)
        if LINKS in inputs.options:
            metadata["hooks"] = self._links(work, step, inputs.options[LINKS])
        if work.undoes is not None:
            return {**(work.arguments or {}), "metadata": {**metadata, "compensating": True, "undoes": work.undoes}}
        arguments = work.arguments if work.arguments is not None else arguments_for(definition, inputs.init)
        return {"arguments": arguments, "metadata": metadata}

    def _links(self, work: Work, step: StepVersion, links: dict[str, dict[str, Any]]) -> dict[str, str]:
        """The URL of each hook with a made token. Items of a fan-out have the link of the item with their index."""
        receipts, base = self._context.receipts, f"{self._context.webhook_base_url}/api/v1/hooks"
        found = {}
        for step_id, link in links.items():
            if not link["for_each"] or (step.definition.fans_out and link["flow_id"] == work.flow_id):
                item = work.item if link["for_each"] else 0
                found[step_id] = f"{base}/{made_token(receipts, link['flow_id'], step_id, item)}"
        return found

    def _headers(self, work: Work, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Idempotency-Key": work.idempotency_key,
            "traceparent": traceparent(work),
        }
        if self._signer is not None:
            message_id = f"{work.work_id}.{work.attempt}"
            headers.update(self._signer.headers(message_id, self._context.clock(), body))
        return headers


def traceparent(work: Work) -> str:
    """One trace for a flow, one span for an attempt: the same ids wherever they are made."""
    trace = hashlib.blake2b(work.flow_id.encode(), digest_size=16).hexdigest()
    span = hashlib.blake2b(f"{work.work_id}.{work.attempt}".encode(), digest_size=8).hexdigest()
    return f"00-{trace}-{span}-01"

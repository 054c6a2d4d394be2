"""Telling workers that their work is no longer wanted: each call is kept until it was delivered or given up."""

from __future__ import annotations

import asyncio
from functools import partial

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.model import CancelCall
from counterfoil.domain.replies import Delivery, Reply
from counterfoil.domain.retry import backoff_ms
from counterfoil.domain.steps import WorkDefaults
from counterfoil.engine.cancel import ClaimCancelCall, RecordCancelCall
from counterfoil.engine.context import EngineContext
from counterfoil.engine.dispatch import USER_AGENT, MessageSigner, Transport
from counterfoil.observability.metrics import Metrics
from counterfoil.store.batch import ForEach
from counterfoil.store.commit import GroupCommit
from counterfoil.store.needs import Find

RULES = WorkDefaults(max_retries=8, init_backoff_ms=500, max_backoff_ms=60_000, ack_timeout_ms=10_000)
"""How a cancel call is tried: nine times over some minutes. A worker that cannot be told learns it by heartbeat."""


IN_HAND_MS = RULES.ack_timeout_ms + 5_000
"""How long whoever makes a call has it to himself: as long as it can take. After a crash it is made again then."""


def _always() -> bool:
    """A cancel call made twice does no harm, so it needs no lease."""
    return True


class CancelCaller:
    """Makes due cancel calls. After a crash a call may be made twice: cancelling twice is harmless."""

    def __init__(
        self,
        context: EngineContext,
        commit: GroupCommit,
        transport: Transport,
        signer: MessageSigner | None,
        metrics: Metrics,
    ) -> None:
        self._context = context
        self._commit = commit
        self._transport = transport
        self._signer = signer
        self._metrics = metrics

    async def make_due(self, now: int, limit: int) -> int:
        """Make the calls that are due, at most so many; how many were made."""
        find = Find.of("find_calls", now=now, limit=limit)
        claimed = await self._commit.submit(ForEach(find, partial(ClaimCancelCall, for_ms=IN_HAND_MS)))
        calls = [call for call in claimed if call is not None]
        await asyncio.gather(*(self._make(call) for call in calls))
        return len(calls)

    async def _make(self, call: CancelCall) -> None:
        body = dump_json(call.body)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Idempotency-Key": f"cancel.{call.work_id}",
        }
        if self._signer is not None:
            headers.update(self._signer.headers(f"cancel.{call.work_id}", self._context.clock(), body))
        reply = await self._transport.post(
            call.url, body=body, headers=headers, timeout_ms=RULES.ack_timeout_ms, may_send=_always
        )
        command = self._decide(call, reply)
        self._metrics.cancel_called("delivered" if command.delivered else "retried" if command.retry_at else "given_up")
        await self._commit.submit(command)

    def _decide(self, call: CancelCall, reply: Reply) -> RecordCancelCall:
        answered = reply.delivery is Delivery.ANSWERED and reply.status is not None
        note = f"answered {reply.status}" if answered else reply.error
        if answered and 200 <= (reply.status or 0) < 300:
            return RecordCancelCall(call.call_id, delivered=True, retry_at=None, note=note)
        final = reply.permanent or (answered and (reply.status or 0) < 500 and reply.status not in (408, 425, 429))
        if final or call.attempt >= RULES.max_retries:
            return RecordCancelCall(call.call_id, delivered=False, retry_at=None, note=note)
        limit = self._context.retry_after_limit_ms
        delay = backoff_ms(RULES, call.attempt + 1, self._context.draw(), reply.retry_after_ms, limit)
        return RecordCancelCall(call.call_id, delivered=False, retry_at=self._context.clock() + delay, note=note)

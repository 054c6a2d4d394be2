"""Cancel calls, which tell workers to stop: each call is kept until it was delivered or given up."""

from __future__ import annotations

import asyncio
from functools import partial

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import CancelCall
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.cancel import ClaimCancelCall, RecordCancelCall
from counterfoil.engine.subscriptions.messages import MessageSigner, Messenger, Transport, in_hand_ms
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.transport.exhaustion import Shortage

RULES = WorkDefaults(max_retries=8, init_backoff_ms=500, max_backoff_ms=60_000, ack_timeout_ms=10_000)
"""How a cancel call is tried: nine times over some minutes. A worker that cannot be told learns it by heartbeat."""

AT_ONCE = 64
"""Cancel calls that are made at the same time."""


class CancelCaller:
    """Makes due cancel calls. After a crash a call may be made twice: cancelling twice is harmless."""

    def __init__(
        self,
        context: EngineContext,
        commit: GroupCommit,
        transport: Transport,
        signer: MessageSigner | None,
        metrics: Metrics,
        shortage: Shortage,
    ) -> None:
        self._commit = commit
        self._messenger = Messenger(context, transport, RULES, shortage)
        self._signer = signer
        self._metrics = metrics

    def due(self, now: int, limit: int) -> ForEach[CancelCall | None]:
        """The search for calls that are due, and the command that claims each."""
        find = Find.of("find_calls", now=now, limit=min(limit, AT_ONCE))
        return ForEach(find, partial(ClaimCancelCall, for_ms=in_hand_ms(RULES)))

    async def make(self, claimed: list[CancelCall | None]) -> int:
        """Make the calls that were claimed; returns how many."""
        calls = [call for call in claimed if call is not None]
        await asyncio.gather(*(self._make(call) for call in calls))
        return len(calls)

    async def _make(self, call: CancelCall) -> None:
        key = f"cancel.{call.work_id}"
        outcome = await self._messenger.send(
            call.url,
            dump_json(call.body),
            message_id=key,
            attempt=call.attempt,
            until=call.due_at,
            signer=self._signer,
            headers={"Idempotency-Key": key},
        )
        self._metrics.cancel_called(outcome.word)
        delivered = outcome.word == "delivered"
        record = RecordCancelCall(call.call_id, delivered, outcome.retry_at, outcome.note, tries=int(outcome.sent))
        await self._commit.submit(record)

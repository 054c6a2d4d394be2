"""Deliveries to subscribers: each is kept until it was accepted or given up.

A delivery is made twice when a node crashes before it recorded the first: both have the same ``webhook-id``. Deliveries
to one subscriber are concurrent, so their order is not that of the events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import structlog

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.steps.definitions import HOUR_MS, WorkDefaults
from counterfoil.domain.subscriptions.definitions import Delivery
from counterfoil.engine.context import EngineContext
from counterfoil.engine.subscriptions.commands import DisableSubscription, secrets_of
from counterfoil.engine.subscriptions.messages import Messenger, Outcome, Transport, in_hand_ms, recorded
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.kinds.subscriptions import DELIVERIES
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.transport.exhaustion import Shortage
from counterfoil.transport.signing import Signer

RULES = WorkDefaults(max_retries=18, init_backoff_ms=5_000, max_backoff_ms=4 * HOUR_MS, ack_timeout_ms=10_000)
"""A delivery is tried nineteen times over about a day."""
AT_ONCE = 64
"""Concurrent deliveries of one node."""
AT_ONCE_TO_ONE = 8
"""Concurrent deliveries to one subscriber: a slow one must not take all places."""
GONE = 410

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClaimDelivery:
    """Claim a due delivery: no other node makes it until it is recorded or the claim expires."""

    delivery_id: str
    for_ms: int

    def needs(self, needs: ReadSet) -> None:
        needs.deliveries.add(self.delivery_id)

    def decide(self, unit: UnitOfWork, now: int) -> tuple[Delivery, str] | None:
        """The delivery, due when the claim expires, and its URL."""
        delivery = unit.delivery(self.delivery_id)
        if delivery is None or delivery.due_at is None or delivery.due_at > now:
            return None
        subscription = unit.controls().subscriptions.get(delivery.subscription_id)
        if subscription is None:  # it was deleted while this was being written
            unit.records(DELIVERIES).put(self.delivery_id, None)
            return None
        if not subscription.definition.enabled:
            unit.records(DELIVERIES).put(
                self.delivery_id, replace(delivery, due_at=None, note="the subscription is disabled")
            )
            return None
        claimed = replace(delivery, due_at=now + self.for_ms)
        unit.records(DELIVERIES).put(self.delivery_id, claimed)
        return claimed, subscription.definition.url


@dataclass(slots=True)
class RecordDelivery:
    """A delivery was tried: delete it when it was accepted, else try again later, or keep it as given up.

    ``until``: when the claim of this try expires. If the delivery is due at another time by now, it was claimed again
    or redelivered meanwhile: then a failure of this try changes nothing.
    """

    delivery_id: str
    until: int
    outcome: Outcome

    def needs(self, needs: ReadSet) -> None:
        needs.deliveries.add(self.delivery_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        delivery = unit.delivery(self.delivery_id)
        if delivery is None:
            return
        if self.outcome.word == "delivered" or delivery.subscription_id not in unit.controls().subscriptions:
            unit.records(DELIVERIES).put(self.delivery_id, None)
        elif delivery.due_at == self.until:
            retry_at, note = self.outcome.retry_at, self.outcome.note
            attempt = delivery.attempt + int(self.outcome.sent)
            tried = replace(delivery, attempt=attempt, due_at=retry_at, note=note)
            unit.records(DELIVERIES).put(self.delivery_id, tried)


class Notifier:
    """Makes due deliveries, so many at a time, and records the outcome of each."""

    def __init__(
        self,
        context: EngineContext,
        commit: GroupCommit,
        transport: Transport,
        metrics: Metrics,
        shortage: Shortage,
        wakeups: Wakeups,
    ) -> None:
        self._context = context
        self._commit = commit
        self._messenger = Messenger(context, transport, RULES, shortage)
        self._metrics = metrics
        self._under_way: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wakeups = wakeups
        self._stopping = False

    @property
    def is_full(self) -> bool:
        return len(self._tasks) >= AT_ONCE

    def busy(self) -> str:
        """The subscriptions with as many deliveries under way as they may have, as JSON text."""
        return dump_json(sorted(key for key, count in self._under_way.items() if count >= AT_ONCE_TO_ONE)).decode()

    def has_room(self) -> bool:
        return not (self._stopping or self.is_full)

    def due(self, now: int, limit: int) -> ForEach[tuple[Delivery, str] | None]:
        """The search for deliveries that are due, and the command that claims each."""
        room = min(limit, AT_ONCE - len(self._tasks))
        find = Find.of("find_deliveries", now=now, share=AT_ONCE_TO_ONE, limit=room, busy=self.busy())
        return ForEach(find, partial(ClaimDelivery, for_ms=in_hand_ms(RULES)))

    async def launch(self, claimed: list[tuple[Delivery, str] | None]) -> int:
        """Begin with the deliveries that were claimed; returns how many were found."""
        for found in claimed:
            if found is not None:
                self._launch(*found)
        return len(claimed)

    async def drain(self, timeout_seconds: float) -> None:
        """Begin nothing more and wait for what is under way; the rest is made again when its time in hand is over."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _launch(self, delivery: Delivery, url: str) -> None:
        self._under_way[delivery.subscription_id] += 1
        task = asyncio.create_task(self._make(delivery, url))
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, delivery.subscription_id))

    def _over(self, subscription_id: str, task: asyncio.Task[None]) -> None:
        was_full = self.is_full or self._under_way[subscription_id] >= AT_ONCE_TO_ONE
        self._tasks.discard(task)
        self._under_way[subscription_id] -= 1
        if not self._under_way[subscription_id]:
            del self._under_way[subscription_id]
        if was_full and not self._stopping:  # others may have been passed over for this one
            self._wakeups.now(SweepName.DELIVERIES)

    async def _make(self, delivery: Delivery, url: str) -> None:
        subscription_id, until = delivery.subscription_id, delivery.due_at or 0
        signer = Signer(",".join(secrets_of(self._context.receipts, subscription_id)))
        try:
            outcome = await self._messenger.send(
                url,
                delivery.body.encode(),
                message_id=delivery.delivery_id,
                attempt=delivery.attempt,
                until=until,
                signer=signer,
            )
            self._metrics.delivered(outcome.word)
            await recorded(self._commit, RecordDelivery(delivery.delivery_id, until, outcome))
            if outcome.status == GONE and await recorded(self._commit, DisableSubscription(subscription_id, url)):
                log.warning("subscription_disabled", subscription_id=subscription_id, reason=outcome.note)
        except Exception:  # it is made again when its time in hand is over
            log.exception("delivery_failed", subscription_id=subscription_id, delivery_id=delivery.delivery_id)
            return
        if outcome.word == "given_up":
            log.warning(
                "delivery_given_up",
                subscription_id=subscription_id,
                delivery_id=delivery.delivery_id,
                type=delivery.type,
                attempts=delivery.attempt + 1,
                reason=outcome.note,
            )

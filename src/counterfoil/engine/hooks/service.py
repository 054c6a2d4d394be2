"""The use cases of hooks: payloads, and the sweep over hooks that had to wait for their tokens."""

from __future__ import annotations

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.hooks.delivering import Delivered, Incoming
from counterfoil.domain.hooks.tokens import Token
from counterfoil.engine.hooks.commands import Deliver, RegisterWaiting
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.wire.hooks import PayloadTaken


class Hooks:
    """The use cases of hooks."""

    def __init__(self, commit: GroupCommit, metrics: Metrics) -> None:
        self._commit = commit
        self._metrics = metrics

    async def deliver(self, token: Token, incoming: Incoming) -> PayloadTaken:
        """Deliver a payload; returns once it is durable."""
        return self.answer(await self.receive(token, incoming))

    async def receive(self, token: Token, incoming: Incoming) -> Delivered:
        """The same; which hook has the payload, and since when."""
        try:
            delivered = await self._commit.submit(Deliver(token, incoming))
        except CounterfoilError as error:
            self._metrics.hook_delivery(error.code)
            raise
        verdicts = {"ignored": delivered.ignored, "duplicate": delivered.duplicate, "buffered": delivered.buffered}
        self._metrics.hook_delivery(next((name for name, holds in verdicts.items() if holds), "delivered"))
        return delivered

    @staticmethod
    def answer(delivered: Delivered) -> PayloadTaken:
        answer: PayloadTaken = {
            "flow_id": delivered.flow_id,
            "step_id": delivered.step_id,
            "delivered": not delivered.ignored,
            "duplicate": delivered.duplicate,
        }
        if delivered.buffered:
            answer["buffered"] = True
        if delivered.ignored:
            answer["ignored"] = True
        if delivered.challenge is not None:
            answer["challenge"] = delivered.challenge
        return answer

    def waking(self, now: int, limit: int) -> ForEach[bool]:
        """The search for hooks that own their tokens since another hook ended, and the command for each."""
        return ForEach(Find.of("find_waking_hooks", limit=limit), RegisterWaiting)

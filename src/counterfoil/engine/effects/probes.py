"""Probes: ``status_url`` is asked about attempts whose outcome is unknown.

The protocol. The right to ask is claimed first, so that of several nodes one asks; then the call is made, and its
answer recorded against the attempt that it is about. After a crash in between the claim expires, and a node asks
again: asking changes nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial

from counterfoil.domain.effects.probing import read_answer
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.engine.context import EngineContext
from counterfoil.engine.effects.commands import ClaimedProbe, ClaimProbe, RecordProbe
from counterfoil.engine.subscriptions.messages import USER_AGENT, MessageSigner, Transport, in_hand_ms, recorded
from counterfoil.engine.work.dispatch import traceparent
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find

RULES = WorkDefaults(ack_timeout_ms=10_000)
"""How long an answer of a ``status_url`` is waited for."""
AT_ONCE = 64
"""Questions that are asked at the same time."""


class Prober:
    """Asks what has become of attempts whose outcome is unknown."""

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

    def due(self, now: int, limit: int) -> ForEach[ClaimedProbe | None]:
        """The search for questions that are due, and the command that claims each."""
        find = Find.of("find_due_probes", now=now, limit=min(limit, AT_ONCE))
        return ForEach(find, partial(ClaimProbe, for_ms=in_hand_ms(RULES)))

    async def ask(self, claimed: list[ClaimedProbe | None]) -> int:
        """Ask the questions that were claimed; returns how many."""
        probes = [probe for probe in claimed if probe is not None]
        await asyncio.gather(*(self._ask(probe) for probe in probes))
        return len(probes)

    async def _ask(self, probe: ClaimedProbe) -> None:
        url = probe.step.definition.status_url
        assert url is not None, "only a step with a status_url is asked about"
        reply = await self._transport.get(
            url,
            headers=self._headers(probe),
            timeout_ms=RULES.ack_timeout_ms,
            may_send=lambda: self._context.clock() < probe.until,
        )
        answer = read_answer(reply)
        self._metrics.probed(answer.state)
        work = probe.work
        await recorded(self._commit, RecordProbe(work.work_id, work.attempt, answer, self._context.retry_rules()))

    def _headers(self, probe: ClaimedProbe) -> dict[str, str]:
        """The ids and the key of the attempt, signed like a dispatch; never its receipt."""
        work = probe.work
        headers = {
            "User-Agent": USER_AGENT,
            "Idempotency-Key": work.idempotency_key,
            "Counterfoil-Flow-Id": work.flow_id,
            "Counterfoil-Step-Id": work.step_id,
            "Counterfoil-Attempt": str(work.attempt),
            "traceparent": traceparent(work),
        }
        if self._signer is not None:
            headers.update(self._signer.headers(f"probe.{work.work_id}.{work.attempt}", self._context.clock(), b""))
        return headers

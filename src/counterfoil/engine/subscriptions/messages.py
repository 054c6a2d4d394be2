"""Messages that are kept until somebody took them: how each is sent, and what its answer means for the next try.

The protocol. A message is taken in hand first: it is due again only when the call must be over, so nobody else makes it
meanwhile. Then the call is made, and what became of it recorded. After a crash in between it is made again, with the
same id: whoever receives messages must know one that he has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from counterfoil.domain.errors import Unavailable
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.work.replies import RETRIED_STATUSES, Reply, SendOutcome
from counterfoil.domain.work.retry import backoff_ms, retries_left
from counterfoil.engine.context import EngineContext
from counterfoil.store.group_commit.batch import Command
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.transport.exhaustion import Shortage
from counterfoil.version import __version__

USER_AGENT = f"counterfoil/{__version__}"
LONGEST_PAUSE_SECONDS = 2.0
AFTER_THE_CALL_MS = 5_000
NOT_SENT_PAUSE_MS = 1_000
"""When a message is tried again that this machine could not send."""

Answer = TypeVar("Answer")


class Transport(Protocol):
    """Outbound HTTP that never raises for what the network does."""

    async def post(
        self, url: str, *, body: bytes, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply:
        """``may_send`` is asked last, before the first byte leaves: if it says no, nothing was delivered."""
        ...


class MessageSigner(Protocol):
    """Signs an outgoing message as Standard Webhooks has it."""

    def headers(self, message_id: str, now_ms: int, body: bytes) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one call. ``retry_at`` is set exactly for what is tried again.

    ``sent``: it was made. If not, this machine lacked what it takes, and it does not count as a try.
    """

    word: Literal["delivered", "retried", "given_up"]
    note: str
    status: int | None = None
    retry_at: int | None = None
    sent: bool = True


def in_hand_ms(rules: WorkDefaults) -> int:
    """How long whoever makes a call has it to himself: as long as it can take."""
    return rules.ack_timeout_ms + AFTER_THE_CALL_MS


class Messenger:
    """Sends messages by the rules of their kind."""

    def __init__(self, context: EngineContext, transport: Transport, rules: WorkDefaults, shortage: Shortage) -> None:
        self._context = context
        self._transport = transport
        self._rules = rules
        self._shortage = shortage

    async def send(
        self,
        url: str,
        body: bytes,
        *,
        message_id: str,
        attempt: int,
        until: int,
        signer: MessageSigner | None,
        headers: dict[str, str] | None = None,
    ) -> Outcome:
        """Make the call that follows ``attempt`` others, unless the time is over that it was taken in hand for."""
        all_headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, **(headers or {})}
        if signer is not None:
            all_headers.update(signer.headers(message_id, self._context.clock(), body))
        reply = await self._transport.post(
            url,
            body=body,
            headers=all_headers,
            timeout_ms=self._rules.ack_timeout_ms,
            may_send=lambda: self._context.clock() < until,
        )
        return self._outcome(reply, attempt + 1)

    def _outcome(self, reply: Reply, attempts: int) -> Outcome:
        status = reply.status if reply.delivery is SendOutcome.ANSWERED else None
        note = reply.error if status is None else f"answered {status}"
        if status is not None and 200 <= status < 300:
            return Outcome("delivered", note, status)
        if reply.lack is not None:
            self._shortage.note(reply.lack)
            return Outcome("retried", note, retry_at=self._context.clock() + NOT_SENT_PAUSE_MS, sent=False)
        refused = status is not None and status < 500 and status not in RETRIED_STATUSES
        if reply.permanent or refused or not retries_left(self._rules, attempts):
            return Outcome("given_up", note, status)
        limit = self._context.retry_after_limit_ms
        delay = backoff_ms(self._rules, attempts, self._context.draw(), reply.retry_after_ms, limit)
        return Outcome("retried", note, status, self._context.clock() + delay)


async def recorded(commit: GroupCommit, command: Command[Answer]) -> Answer | None:
    """Submit what must not get lost because the store is away for a moment: until it is taken, or the engine stops."""
    pause = 0.05
    while True:
        try:
            return await commit.submit(command)
        except Unavailable:
            if commit.closed:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

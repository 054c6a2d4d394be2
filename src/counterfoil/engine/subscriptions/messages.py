"""Messages that are kept until they were accepted: how each is sent, and what the response means for the next try.

The protocol. A message is claimed first: it becomes due again only when the call must be over, so no other node sends
it meanwhile. Then the call is made and its outcome recorded. After a crash in between it is sent again, with the same
id: receivers must recognise a message that they have seen.
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
"""Delay before a message is tried again that this machine could not send."""

Answer = TypeVar("Answer")


class Transport(Protocol):
    """Outbound HTTP that never raises for what the network does."""

    async def post(
        self, url: str, *, body: bytes, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply:
        """``may_send`` is asked last, before the first byte leaves: if it says no, nothing was delivered."""
        ...

    async def get(
        self, url: str, *, headers: dict[str, str], timeout_ms: int, may_send: Callable[[], bool]
    ) -> Reply: ...


class MessageSigner(Protocol):
    """Signs an outgoing message as Standard Webhooks has it."""

    def headers(self, message_id: str, now_ms: int, body: bytes) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one call. ``retry_at`` is set exactly for a call that is tried again.

    ``sent``: False when this machine lacked the resources for the call; it does not count as a try then.
    """

    word: Literal["delivered", "retried", "given_up"]
    note: str
    status: int | None = None
    retry_at: int | None = None
    sent: bool = True


def in_hand_ms(rules: WorkDefaults) -> int:
    """How long a claim lasts: as long as the call can take."""
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
        """Make the call after ``attempt`` others, unless its claim has expired."""
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
    """Submit a command that must not be lost while the store is unavailable: until it is taken, or the engine stops."""
    pause = 0.05
    while True:
        try:
            return await commit.submit(command)
        except Unavailable:
            if commit.closed:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

"""The callback inbox: lists and shows callbacks, gives the body of one for a replay, and forgets old ones."""

from __future__ import annotations

from counterfoil.domain.callbacks.inbox import Callback, CallbackKind
from counterfoil.domain.errors import CallbackNotReplayable, HookNotFound
from counterfoil.domain.hooks.tokens import Token
from counterfoil.engine.callbacks.commands import ForgetCallback
from counterfoil.engine.callbacks.recorder import CallbackRecorder
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.callback_queries import CallbackFilters, CallbackQueries
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.wire.callbacks import CallbackDetail, CallbackPage

FORGOTTEN_TOGETHER = 500
PAUSE_MS = 50
"""Between two rounds of forgetting, so that other commands have their turn."""


class Callbacks:
    """The use cases of the inbox. What this node has noted is written before it is read."""

    def __init__(self, context: EngineContext, recorder: CallbackRecorder, queries: CallbackQueries) -> None:
        self._context = context
        self.recorder = recorder
        self._queries = queries
        self.kept_ms = context.callbacks.kept_ms
        self._due_at = 0

    async def page(self, filters: CallbackFilters, cursor: str | None, limit: int) -> CallbackPage:
        await self.recorder.flush()
        return await self._queries.callbacks(filters, cursor, limit)

    async def detail(self, callback_id: str) -> CallbackDetail:
        await self.recorder.flush()
        return await self._queries.detail(callback_id)

    async def replayable(self, callback_id: str) -> tuple[Callback, bytes]:
        """A callback and its body; raises CallbackNotReplayable with the reason why there is nothing to replay."""
        await self.recorder.flush()
        callback = await self._queries.callback(callback_id)
        if callback.kind == CallbackKind.HEARTBEAT:
            raise CallbackNotReplayable(
                "a heartbeat says that a worker is alive now: only the worker can send it again"
            )
        if callback.flow_id is None:
            raise CallbackNotReplayable("its receipt is unknown, so there is no work item to replay it for")
        if callback.body is None:
            raise CallbackNotReplayable(
                "its body is not kept: the setting callbacks.keep_bodies says whose bodies are, "
                "callbacks.body_bytes how long they may be"
            )
        return callback, callback.body.encode()

    async def hook_token(self, callback: Callback) -> Token:
        """The token of the hook that a payload is for, as the engine knows it; raises CallbackNotReplayable."""
        tokens = await self._queries.hook_tokens(callback)
        if len(tokens) != 1:
            reason = "more than one hook of its step waits" if tokens else "no hook of its step waits any more"
            raise CallbackNotReplayable(reason)
        return Token(tokens[0], None)

    async def hook_token_of_work(self, work_id: str) -> Token:
        """The token of the hook of a work item, as the engine knows it; raises UnknownWork or HookNotFound."""
        token_id = await self._queries.hook_token_of(work_id)
        if token_id is None:
            raise HookNotFound("this work item is no hook that waits for a payload")
        return Token(token_id, None)

    def old(self, now: int, limit: int) -> ForEach[bool]:
        """The search for callbacks that were kept long enough, and the command for each."""
        assert self.kept_ms is not None
        cutoff = now - self.kept_ms
        return ForEach(
            Find.of("find_old_callbacks", cutoff=cutoff, limit=min(limit, FORGOTTEN_TOGETHER)), ForgetCallback
        )

    def has_old(self) -> bool:
        """Whether a callback may have been kept long enough, as far as this node knows."""
        return self.kept_ms is not None and self._due_at <= self._context.clock()

    async def next_old(self) -> int | None:
        """When the oldest callback was kept long enough; never at once, so that a round is followed by a pause.

        Later ones are due later: until then neither the search nor this question is put to the store again.
        """
        if self.kept_ms is None:
            return None
        now = self._context.clock()
        if self._due_at <= now:
            oldest = await self._queries.oldest()
            self._due_at = max((now if oldest is None else oldest) + self.kept_ms, now + PAUSE_MS)
        return self._due_at

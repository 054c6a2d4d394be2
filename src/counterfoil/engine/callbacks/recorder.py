"""Records callbacks that were not accepted, outside of the hot path: buffered in memory, written in batches.

The protocol. ``note`` only adds to the buffer, which is bounded; nothing waits for it, and an answer never depends on
it. A moment later the buffer is written by group commit, a few hundred rows at a time. A crash may lose what was noted
in that moment, never an answer. While the store is unavailable the buffer is kept and written afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import orjson
import structlog

from counterfoil.domain.callbacks.inbox import ACCEPTED, Callback, CallbackKind, digest_of, kept_text, trace_of
from counterfoil.domain.callbacks.mapping import readable_headers
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.redaction import without_receipts
from counterfoil.engine.callbacks.commands import RecordCallbacks
from counterfoil.engine.callbacks.sampling import Rate, RatePerItem
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.reading import read
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.protocol import Store

WRITE_AFTER_SECONDS = 0.25
"""How long callbacks are gathered before they are written."""
RETRY_SECONDS = 1.0
ROWS_TOGETHER = 256
MOST_BUFFERED = 10_000
MOST_BUFFERED_BYTES = 16 * 1024 * 1024
"""Of kept bodies."""

log = structlog.get_logger(__name__)


class CallbackMetrics(Protocol):
    """What the metrics are told of callbacks."""

    def callbacks_recorded(self, count: int) -> None: ...
    def callback_dropped(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a request besides its outcome.

    ``work_id``: of a valid receipt. ``flow_id``, ``step_id``: of a hook; those of a work item are looked up.
    """

    work_id: str | None = None
    flow_id: str | None = None
    step_id: str | None = None
    body: bytes | None = None
    """None: it was not read."""
    announced: int | None = None
    """How long the body is, as its headers say."""
    source: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        """What its rate is counted by; None: the sender has proved nothing."""
        return self.work_id or (None if self.flow_id is None else f"{self.flow_id}/{self.step_id}")


class CallbackRecorder:
    """Takes note of callbacks. One for each node."""

    def __init__(self, context: EngineContext, store: Store, commit: GroupCommit, metrics: CallbackMetrics) -> None:
        self._context = context
        self._store = store
        self._commit = commit
        self._metrics = metrics
        self.rules = context.callbacks
        self.keeps_accepted = context.callbacks.keep_bodies == "all"
        """Whether accepted callbacks are to be noted as well."""
        self._unknown = Rate(self.rules.unknown_per_second, self.rules.unknown_burst)
        self._items = RatePerItem()
        self._buffer: deque[Callback] = deque()
        self._buffered_bytes = 0
        self._written = 0
        """How many callbacks have left the buffer."""
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    def note(self, kind: CallbackKind, verdict: str, status: int, arrival: Arrival, at: int | None = None) -> None:
        """Take note of a callback that was answered with this verdict and status.

        ``at``: for an accepted one, the time of its event, which the record completes; else it is now.
        """
        now = self._context.clock()
        key = arrival.key
        if not (self._unknown.takes(now) if key is None else verdict == ACCEPTED or self._items.takes(key, now)):
            self._metrics.callback_dropped("unknown_receipt" if key is None else "repeated")
            return
        if len(self._buffer) >= MOST_BUFFERED or self._buffered_bytes >= MOST_BUFFERED_BYTES:
            self._metrics.callback_dropped("buffer_full")
            return
        callback = self._callback(kind, verdict, status, arrival, now if at is None else at)
        self._buffer.append(callback)
        self._buffered_bytes += _bytes_of(callback)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_later(), name="callbacks")

    def _callback(self, kind: CallbackKind, verdict: str, status: int, arrival: Arrival, at: int) -> Callback:
        body, kept = arrival.body, None
        keeps = self.rules.keep_bodies == "all" or (self.rules.keep_bodies == "refused" and verdict != ACCEPTED)
        if body is not None and keeps and len(body) <= self.rules.body_bytes:
            kept = kept_text(body)
        return Callback(
            self._context.new_id(),
            at,
            kind,
            verdict,
            status,
            flow_id=arrival.flow_id,
            step_id=arrival.step_id,
            work_id=arrival.work_id,
            size=arrival.announced if body is None else len(body),
            digest=None if body is None else digest_of(body),
            source=arrival.source,
            trace_id=trace_of(arrival.headers.get("traceparent")),
            body=kept,
            headers=None if kept is None else readable_headers(arrival.headers),
        )

    async def flush(self) -> None:
        """Write everything that was noted until now; raises Unavailable. A reader sees its own node's callbacks."""
        noted = self._written + len(self._buffer)
        while self._written < noted:
            async with self._writing:
                await self._write_some()

    async def close(self) -> None:
        """Write the rest, if the store takes it, and stop."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        try:
            await self.flush()
        except CounterfoilError:
            log.warning("callbacks_lost", callbacks=len(self._buffer))

    async def _write_later(self) -> None:
        pause = WRITE_AFTER_SECONDS
        while self._buffer:
            await asyncio.sleep(pause)
            try:
                async with self._writing:
                    await self._write_some()
                pause = 0 if len(self._buffer) >= ROWS_TOGETHER else WRITE_AFTER_SECONDS
            except CounterfoilError as failure:
                log.debug("callbacks_not_written", cause=failure.code)
                pause = RETRY_SECONDS
        self._writer = None

    async def _write_some(self) -> None:
        """Write the oldest callbacks of the buffer; they leave it when they are durable."""
        count = min(len(self._buffer), ROWS_TOGETHER)
        if not count:
            return
        written = await self._with_work([self._buffer[place] for place in range(count)])
        written = await self._with_read_headers(written) if self.rules.keep_bodies != "none" else written
        await self._commit.submit(RecordCallbacks(written, self.rules.most_rows))
        for _ in range(count):
            self._buffered_bytes -= _bytes_of(self._buffer.popleft())
        self._written += count
        self._metrics.callbacks_recorded(count)

    async def _with_work(self, callbacks: list[Callback]) -> list[Callback]:
        """The same with the flow, step and attempt of their work items, by one query for all of them."""
        wanted = sorted({each.work_id for each in callbacks if each.work_id is not None})
        if not wanted:
            return callbacks
        rows = await read(self._store, "work_of_callbacks", work=orjson.dumps(wanted).decode())
        found = {work_id: (flow_id, step_id, attempt) for work_id, flow_id, step_id, attempt in rows}
        return [_with_item(each, found.get(each.work_id or "")) for each in callbacks]

    async def _with_read_headers(self, callbacks: list[Callback]) -> list[Callback]:
        """The same; of headers, only those are left that the map of the step reads, as a replay needs no other."""
        steps = sorted({step for each in callbacks if each.headers is not None and (step := _step_of(each))})
        if not steps:
            return [replace(each, headers=None) for each in callbacks]
        rows = await read(self._store, "versions_of_callbacks", steps=orjson.dumps(steps).decode())
        versions = {(flow_id, step_id): version for flow_id, step_id, version in rows}
        return [self._with_headers_of(each, versions.get(_step_of(each) or ("", ""))) for each in callbacks]

    def _with_headers_of(self, callback: Callback, name: str | None) -> Callback:
        version = None if name is None else self._context.known.version(name)
        accept = None if version is None else version.definition.accept
        if callback.headers is None or accept is None or accept.map is None:
            return replace(callback, headers=None)
        return replace(callback, headers=without_receipts(accept.map.headers_read(callback.headers)) or None)


def _with_item(callback: Callback, item: tuple[str, str, int] | None) -> Callback:
    if item is None:
        return callback
    flow_id, step_id, attempt = item
    return replace(callback, flow_id=flow_id, step_id=step_id, attempt=attempt)


def _step_of(callback: Callback) -> tuple[str, str] | None:
    return None if callback.flow_id is None or callback.step_id is None else (callback.flow_id, callback.step_id)


def _bytes_of(callback: Callback) -> int:
    return len(callback.body or "") + sum(map(len, (callback.headers or {}).values()))

"""Results of flows, and the polls that wait for them. A poll that waits costs a future and a timer, and no reads.

A poll registers first and looks second, so an end that is committed in between is not missed. It looks in the store,
unless the node itself has started the flow lately and not seen it end. Then it waits until

- the commit that ends the flow: the after-commit handler makes the document from the records of that commit, once for
  all polls of the flow. Where the batch has not seen the outputs of all steps, they are read once for all of them.
- another node says that the flow has ended: it is read once for all polls of the flow.
- other nodes may have ended any flow (a notification that names none, or the renewal of the lease): one query asks
  which of all flows that are waited for are no longer open.
- the time is over, or the engine stops: the poll reads the state and the outputs so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson
import structlog

from counterfoil.domain.errors import CounterfoilError, Unavailable, UnknownFlow
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import Flow
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus
from counterfoil.engine.queries.documents import fragment, gathered_outputs
from counterfoil.engine.queries.reading import off_loop, read
from counterfoil.engine.queries.recent_flows import RecentFlows
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.flows import FlowResult

READ_TOGETHER = 64
"""Flows whose results are read by one query: their outputs are in memory at the same time."""

End = asyncio.Future[FlowResult | CounterfoilError | None]
"""Of one poll: the final result, why it cannot be told, or None: the wait is over without it."""

log = structlog.get_logger(__name__)


def result_document(flow_id: str, status: FlowStatus, outputs: Mapping[str, Any], error: str | None) -> FlowResult:
    """``error``: JSON text. The outputs become JSON text here, once, however many polls are answered with it."""
    return {
        "flow_id": flow_id,
        "status": status.value,
        "outputs": fragment(dump_json(outputs).decode()),
        "error": fragment(error),
    }


def committed_result(flow: Flow, outputs: Mapping[str, Any]) -> FlowResult:
    """The result by the records of the commit that ended the flow."""
    error = None if flow.error is None else dump_json(flow.error).decode()
    return result_document(flow.flow_id, flow.status, outputs, error)


class Results:
    """Reads results, and answers the polls that wait for them."""

    def __init__(self, store: Store, is_alone: Callable[[], bool]) -> None:
        """``is_alone``: no other node writes to the store, as far as this one knows."""
        self._store = store
        self.recent = RecentFlows()
        self._is_alone = is_alone
        self._polls: dict[str, set[End]] = {}
        self._ended: set[str] = set()
        """Flows that are said to have ended, and whose results are to be read."""
        self._any = False
        """Any flow may have ended."""
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    async def result(self, flow_id: str, wait_ms: int) -> tuple[FlowResult, bool]:
        """The flow's result and whether it is final; waits at most ``wait_ms`` for the end."""
        if wait_ms > 0 and not self._closed:
            final = await self._final(flow_id, wait_ms)
            if final is not None:
                return final, True
        return await self._read(flow_id, so_far=True)

    def awaited(self, flow_ids: Iterable[str]) -> list[str]:
        """Those of some flows whose end polls wait for."""
        polls = self._polls
        return [flow_id for flow_id in flow_ids if flow_id in polls] if polls else []

    def __len__(self) -> int:
        """How many polls wait."""
        return sum(map(len, self._polls.values()))

    def tell(self, flow_id: str, document: FlowResult) -> None:
        """A flow has ended with this result: answer the polls that wait for it."""
        _settle_all(self._polls.get(flow_id, ()), document)

    def read_ended(self, flow_ids: Iterable[str]) -> None:
        """These flows are said to have ended: read the results of those that are waited for."""
        self._ended.update(self._polls.keys() & set(flow_ids))
        self._look()

    def look_again(self) -> None:
        """Other nodes may have ended any flow."""
        self.recent.clear()
        self._any = bool(self._polls)  # a poll that comes later looks for itself
        self._look()

    def close(self) -> None:
        """The engine is stopping: end every wait."""
        self._closed = True
        for polls in self._polls.values():
            _settle_all(polls, None)

    async def _final(self, flow_id: str, wait_ms: int) -> FlowResult | None:
        """The result once the flow has ended; None: not within the time, or not before the engine stops."""
        loop = asyncio.get_running_loop()
        end: End = loop.create_future()
        self._polls.setdefault(flow_id, set()).add(end)
        timer = loop.call_later(wait_ms / 1000, _settle_all, (end,), None)
        try:
            if not (self._is_alone() and self.recent.is_open(flow_id)):
                document, final = await self._read(flow_id, so_far=False)
                if final:
                    return document
            answer = await end
        finally:
            timer.cancel()
            self._forget(flow_id, end)
        if isinstance(answer, CounterfoilError):
            raise answer.with_traceback(None)  # each of its polls raises the same one
        return answer

    def _forget(self, flow_id: str, end: End) -> None:
        polls = self._polls[flow_id]
        polls.discard(end)
        if not polls:
            del self._polls[flow_id]

    async def _read(self, flow_id: str, *, so_far: bool) -> tuple[FlowResult, bool]:
        """``so_far``: with the outputs also of a flow that has not ended."""
        documents = await self._read_all([flow_id], so_far=so_far)
        if flow_id not in documents:
            raise UnknownFlow
        return documents[flow_id]

    async def _read_all(self, flow_ids: list[str], *, so_far: bool) -> dict[str, tuple[FlowResult, bool]]:
        wanted = orjson.dumps(flow_ids).decode()
        rows = await read(self._store, "results_of_flows", flow_ids=wanted, so_far=so_far)
        return await off_loop(lambda: _documents(rows), rows)

    # What is read for polls that wait ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what is to be read, after what is being read."""
        if (self._any or self._ended) and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read_for_polls(), name="results")

    async def _read_for_polls(self) -> None:
        while self._any or self._ended:
            if self._any:
                self._any = False
                self._ended.update(await self._not_open(list(self._polls)))
            ended = [self._ended.pop() for _ in range(min(len(self._ended), READ_TOGETHER))]
            # A poll that comes while they are read may have come after a redrive: it is not answered by this.
            waiting = {flow_id: tuple(polls) for flow_id in ended if (polls := self._polls.get(flow_id))}
            if waiting:
                await self._answer(waiting)

    async def _not_open(self, flow_ids: list[str]) -> list[str]:
        """Which of these have ended, or are gone. None if that cannot be asked now: it is asked again soon."""
        try:
            rows = await read(self._store, "flows_not_open", flow_ids=orjson.dumps(flow_ids).decode())
        except Unavailable as failure:
            log.debug("polls_not_examined", reason=str(failure.__cause__))
            return []
        return [row[0] for row in rows]

    async def _answer(self, waiting: Mapping[str, tuple[End, ...]]) -> None:
        """Tell the polls of flows that have ended. A flow that was redriven meanwhile is waited for again."""
        try:
            documents = await self._read_all(list(waiting), so_far=False)
        except CounterfoilError as failure:
            for polls in waiting.values():
                _settle_all(polls, failure)
            return
        for flow_id, polls in waiting.items():
            document, final = documents.get(flow_id, (UnknownFlow(), True))  # it was pruned
            if final:
                _settle_all(polls, document)


def _settle_all(polls: Iterable[End], answer: FlowResult | CounterfoilError | None) -> None:
    for end in polls:
        if not end.done():  # the caller may have left
            end.set_result(answer)


def _documents(rows: Iterable[Row]) -> dict[str, tuple[FlowResult, bool]]:
    """By flow, its result and whether it is final. A flow has a row for each step with outputs, one at least."""
    documents = {}
    for (flow_id, state, error), of_flow in groupby(rows, itemgetter(0, 1, 2)):
        texts = [(flow_id, row[3]) for row in of_flow if row[3] is not None]
        status = FlowStatus(state)
        document = result_document(flow_id, status, gathered_outputs(texts).get(flow_id, {}), error)
        documents[flow_id] = (document, status in FINAL_FLOWS)
    return documents

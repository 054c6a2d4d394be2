"""Reading: what the API shows of steps, flows, work and the journal. Readers never wait for the writer."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from counterfoil.domain.effects.policies import DEDUP
from counterfoil.domain.errors import (
    UnknownFlow,
    UnknownReceipt,
    UnknownSchedule,
    UnknownStep,
    UnknownWork,
)
from counterfoil.domain.flows.requests import RedriveRequest
from counterfoil.domain.schedules import SCHEDULE_ID_PATTERN
from counterfoil.domain.states import FINAL_FLOWS, StepStatus
from counterfoil.domain.time import optional_rfc3339
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.attempts import read_attempts
from counterfoil.engine.queries.documents import (
    Document,
    event_document,
    flow_step_document,
    gathered_outputs,
    listed_flow,
    schedule_document,
    step_document,
    step_reasons,
    whole_flow,
    work_document,
)
from counterfoil.engine.queries.hook_queries import hook_of_work
from counterfoil.engine.queries.reading import (
    Listed,
    converted,
    not_a_cursor,
    numeric_cursor,
    off_loop,
    read,
    read_list,
    read_page,
)
from counterfoil.engine.queries.results import Results
from counterfoil.store.kinds.schedules import read_schedule
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.flows import FlowDocument, FlowResult, FlowsPage, FlowSummary, StepInFlow
from counterfoil.wire.hooks import HookOfWork
from counterfoil.wire.journal import EventsPage
from counterfoil.wire.schedules import ScheduleDocument, SchedulesPage
from counterfoil.wire.steps import StepDocument
from counterfoil.wire.work import ReceiptState, WorkDetail, WorkDocument, WorkPage

_WITHOUT_OUTCOME = frozenset({str(StepStatus.SKIPPED), str(StepStatus.CANCELLED)})
_FINAL = frozenset(str(status) for status in FINAL_FLOWS)


StreamedEvent = tuple[int, str, bytes]
"""Number, type, JSON document."""


class JournalPage(NamedTuple):
    """Events in their order. ``more``: others may stand behind the last one already."""

    events: list[StreamedEvent]
    more: bool


class Queries:
    """Every read of the API."""

    def __init__(self, store: Store, context: EngineContext, results: Results) -> None:
        self._store = store
        self._context = context
        self._results = results

    async def step(self, step_id: str) -> StepDocument:
        rows = await self._read("get_step", step_id=step_id)
        if not rows:
            raise UnknownStep
        return step_document(rows[0], self._context.defaults)

    async def steps(self) -> list[StepDocument]:
        return [step_document(row, self._context.defaults) for row in await self._read("list_steps")]

    async def flow(self, flow_id: str) -> FlowDocument:
        rows = await self._read("get_flow", flow_id=flow_id)
        if not rows:
            raise UnknownFlow
        outputs = await self._outputs([flow_id])
        steps = await self._steps_of(flow_id)
        return whole_flow(rows[0], outputs.get(flow_id, {}), steps)

    async def _steps_of(self, flow_id: str) -> dict[str, StepInFlow]:
        rows = await self._read("get_flow_steps", flow_id=flow_id)
        steps = {row[0]: flow_step_document(row) for row in rows}
        items = await self._read("work_of_flow", flow_id=flow_id)
        for document in await self._work_documents(items):
            steps[document["step_id"]]["work"].append(document)
        if any(step["kind"] == "hook" for step in steps.values()):
            hooks = await self._hooks_of(flow_id)
            for document in (item for step in steps.values() for item in step["work"] if item["work_id"] in hooks):
                document["hook"] = hooks[document["work_id"]]
        for step_id, reason in (await self._reasons(flow_id, rows)).items():
            steps[step_id]["reason"] = reason
        return steps

    async def _hooks_of(self, flow_id: str) -> dict[str, HookOfWork]:
        """By work item, what its hook waits for."""
        return {row[0]: hook_of_work(row) for row in await self._read("hooks_of_flow", flow_id=flow_id)}

    async def _reasons(self, flow_id: str, steps: list[Row]) -> dict[str, str]:
        """By step, why it was skipped or cancelled. The journal is read only if there are such steps."""
        unwanted = {row[0]: row[5] for row in steps if row[1] in _WITHOUT_OUTCOME and row[5]}
        if not unwanted:
            return {}
        times = orjson.dumps(sorted(set(unwanted.values()))).decode()
        entries = await self._read("ends_without_outcome", flow_id=flow_id, times=times)
        reasons = await off_loop(lambda: step_reasons(entries), entries)
        return {step_id: reason for step_id, reason in reasons.items() if step_id in unwanted}

    async def _outputs(self, flow_ids: list[str]) -> dict[str, Document]:
        """The outputs of flows, by flow."""
        rows = await self._read("outputs_of_flows", flow_ids=orjson.dumps(flow_ids).decode())
        return await off_loop(lambda: gathered_outputs(rows), rows)

    async def _with_outputs(self, flows: list[Row]) -> list[FlowSummary]:
        """Flows of a list with their outputs: as many as fit into a page, one at least."""
        order = [row[1] for row in flows]
        wanted = orjson.dumps(order).decode()
        rows, full = await read_page(self._store, "outputs_of_flows", self._context.page_bytes, flow_ids=wanted)
        if full:  # of the last flow there may be more
            shown = order.index(rows[-1][0])
            if not shown:
                return [listed_flow(flows[0], (await self._outputs(order[:1]))[order[0]])]
            flows, rows = flows[:shown], [row for row in rows if row[0] != rows[-1][0]]
        outputs = await off_loop(lambda: gathered_outputs(rows), rows)
        return [listed_flow(row, outputs.get(row[1], {})) for row in flows]

    async def failed_work(self, request: RedriveRequest) -> list[Row]:
        """Matching failed work, oldest first: work, flow, step."""
        return await self._read("find_failed_work", **request.filter.model_dump(), limit=request.limit)

    async def flows(
        self,
        *,
        status: str | None = None,
        label: tuple[str, str] | None = None,
        goal: str | None = None,
        since_ms: int | None = None,
        run_key: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> FlowsPage:
        filters = {
            "status": status,
            "label": None if label is None else f"{label[0]}:{label[1]}",
            "goal": goal,
            "since": since_ms,
            "before": numeric_cursor(cursor),
        }
        if run_key is not None:
            rows, following = await self._list("list_keyed_flows", limit, run_key=run_key, **filters)
        else:
            usual = status in (None, "completed")
            rows, following = await self._list("list_flows" if usual else "list_open_flows", limit, **filters)
        flows = await self._with_outputs(rows)
        if len(flows) < len(rows):
            following = str(rows[len(flows) - 1][0])
        return {"flows": flows, "next_cursor": following}

    async def result(self, flow_id: str, wait_ms: int) -> tuple[FlowResult, bool]:
        """The flow's result and whether it is final; waits at most ``wait_ms`` for the end."""
        return await self._results.result(flow_id, wait_ms)

    async def has_ended(self, flow_id: str) -> bool:
        """Whether a flow is final at this moment."""
        rows = await self._read("get_flow_result", flow_id=flow_id)
        if not rows:
            raise UnknownFlow
        return rows[0][1] in _FINAL

    async def events(self, flow_id: str, *, cursor: str | None = None, limit: int = 200) -> EventsPage:
        rows, following = await self._list("journal_of_flow", limit, flow_id=flow_id, after=numeric_cursor(cursor) or 0)
        if not rows and not await self._read("flow_exists", flow_id=flow_id):
            raise UnknownFlow
        return {"events": await converted(event_document, rows), "next_cursor": following}

    async def work_items(
        self,
        *,
        status: str | None = None,
        step_id: str | None = None,
        overdue: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> WorkPage:
        query, filters = "list_work", {"step_id": step_id, "after": numeric_cursor(cursor)}
        if status == "gated_not_completed":
            query, filters["now"] = "list_gated_work", self._context.clock()
        else:
            filters["status"] = status
            if overdue:
                query, filters["now"] = "list_overdue_work", self._context.clock()
        rows, following = await self._list(query, limit, **filters)
        return {"work": await self._work_documents(rows), "next_cursor": following}

    async def _work_documents(self, rows: list[Row]) -> list[WorkDocument]:
        """Work items with what they wait for, which is read only if one of them waits for the result of another."""
        documents = await converted(work_document, rows)
        waiting = [document["work_id"] for document in documents if document["hold"] == DEDUP]
        if waiting:
            rows = await self._read("awaited_items", work_ids=orjson.dumps(waiting).decode())
            awaited: dict[str, str] = {work_id: owner for work_id, owner, _ in rows}
            for document in documents:
                document["waits_for"] = awaited.get(document["work_id"])
        return documents

    async def work_item(self, work_id: str) -> WorkDetail:
        rows = await self._read("get_work", work_id=work_id)
        if not rows:
            raise UnknownWork
        [document] = await self._work_documents(rows)
        hook = (await self._hooks_of(document["flow_id"])).get(work_id)
        if hook is not None:
            document["hook"] = hook
        events = await self._read("journal_of_work", flow_id=document["flow_id"], work_id=work_id)
        attempts = read_attempts(events)
        return {
            **document,
            "attempts": attempts.documents,
            "dedup_of": attempts.dedup_of,
            "probed": attempts.probed,
        }

    async def receipt(self, work_id: str) -> ReceiptState:
        """The state of a work item as the holder of its receipt may see it."""
        rows = await self._read("receipt_status", work_id=work_id)
        if not rows:
            raise UnknownReceipt
        status, attempt, deadline_at, recorded_at = rows[0]
        return {
            "status": status,
            "attempt": attempt,
            "deadline_at": optional_rfc3339(deadline_at),
            "recorded_at": optional_rfc3339(recorded_at),
            "cancel_requested": status == "cancelled",
        }

    async def journal_after(self, seq: int, flow_id: str | None, limit: int) -> JournalPage:
        """Events after a sequence number, a page of them."""
        parameters: dict[str, Any] = {"after": seq, "limit": limit}
        if flow_id is not None:
            parameters["flow_id"] = flow_id
        query = "journal_after" if flow_id is None else "journal_of_flow"
        rows, full = await read_page(self._store, query, self._context.page_bytes, **parameters)
        return JournalPage(await converted(_streamed, rows), more=full or len(rows) >= limit)

    async def schedule(self, schedule_id: str) -> ScheduleDocument:
        rows = await self._read("get_schedule", schedule_id=schedule_id)
        if not rows:
            raise UnknownSchedule
        return schedule_document(read_schedule(rows[0]))

    async def schedules(self, *, cursor: str | None = None, limit: int = 100) -> SchedulesPage:
        """By id; a cursor is the last id of the page before."""
        if cursor is not None and not re.fullmatch(SCHEDULE_ID_PATTERN, cursor):
            raise not_a_cursor()
        rows, following = await self._list("list_schedules", limit, after=cursor)
        return {"schedules": [schedule_document(read_schedule(row)) for row in rows], "next_cursor": following}

    async def last_seq(self) -> int:
        return int((await self._read("last_seq"))[0][0])

    async def open_work_by_state(self) -> dict[str, int]:
        states = dict.fromkeys(("pending", "held", "active", "not_completed"), 0)
        states.update(dict(await self._read("open_work_by_state")))
        return states

    async def oldest_waiting_seconds(self) -> dict[str, float]:
        now = self._context.clock()
        return {step: max(0, now - since) / 1000 for step, since in await self._read("oldest_waiting")}

    async def _read(self, query: str, **parameters: Any) -> list[Row]:
        return await read(self._store, query, **parameters)

    async def _list(self, query: str, limit: int, **parameters: Any) -> Listed:
        return await read_list(self._store, query, self._context.page_bytes, limit, **parameters)


def _streamed(row: Row) -> StreamedEvent:
    return row[0], row[1], orjson.dumps(event_document(row))

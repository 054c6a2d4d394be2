"""Reading the reconciliation queue, and which items wait for which. Readers never wait for the writer."""

from __future__ import annotations

from typing import Any, cast

from counterfoil.domain.effects.reservations import IRREVERSIBLE
from counterfoil.domain.errors import NotWaitingForReconciliation, UnknownWork
from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.domain.urls import mask_url
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.reading import converted, next_timed, read, read_list, timed_cursor
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.effects import LastProbe, ReconciliationDocument, ReconciliationPage

LAPSED = "reservation_lapsed"
"""The cause of the unknown outcome of a reserved effect."""


class EffectQueries:
    """Every read of unknown outcomes."""

    def __init__(self, store: Store, context: EngineContext) -> None:
        self._store = store
        self._context = context

    async def reconciliations(
        self,
        *,
        step_id: str | None = None,
        hold: str | None = None,
        since_ms: int | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> ReconciliationPage:
        """The queue, the longest waiting item first; a cursor names the last item of the page before."""
        after_since, after_work = timed_cursor(cursor)
        listed = await read_list(
            self._store,
            "list_reconciliations",
            self._context.page_bytes,
            limit,
            after_since=after_since,
            after_work=after_work,
            step_id=step_id,
            hold=hold,
            since=since_ms,
            now=self._context.clock(),
        )
        documents = await converted(_document, listed.rows)
        return {"reconciliations": documents, "next_cursor": next_timed(listed)}

    async def reconciliation(self, work_id: str) -> ReconciliationDocument:
        """One item of the queue."""
        rows = await read(self._store, "get_reconciliation", work_id=work_id)
        if rows:
            _, _, _, _, _, hold, *_ = rows[0]
            if hold is not None:
                return _document(rows[0])
        _, status = await self._work(work_id)
        raise NotWaitingForReconciliation(work_id=work_id, status=status)

    async def flow_of_work(self, work_id: str) -> str:
        flow_id, _ = await self._work(work_id)
        return flow_id

    async def by_hold(self) -> dict[str, tuple[int, float]]:
        """How many items and reservations wait, and for how many seconds the oldest has, by their hold."""
        now = self._context.clock()
        rows = await read(self._store, "reconciliations_by_hold", now=now)
        return {hold: (count, max(0, now - since) / 1000) for hold, count, since in rows}

    async def _work(self, work_id: str) -> tuple[str, str]:
        """The flow and the status of a work item."""
        rows = await read(self._store, "get_work", work_id=work_id)
        if not rows:
            raise UnknownWork
        _, _, flow_id, _, _, status, *_ = rows[0]
        return flow_id, status


def _document(row: Row) -> ReconciliationDocument:
    (since, _, work_id, flow_id, step_id, hold, cause, attempt, probed_at, probe_state, due_at,
     idempotency_key, arguments, status, definition, init, *effect) = row  # fmt: skip
    if work_id is None:
        return _lapsed(since, attempt, *effect)
    step = StepDefinition.model_validate_json(definition)
    called_with: dict[str, Any] = parse_json(arguments) if arguments else arguments_for(step, parse_json(init or "{}"))
    last_probe = None if probed_at is None else {"at": rfc3339(probed_at), "state": probe_state}
    return {
        "work_id": work_id,
        "flow_id": flow_id,
        "step_id": step_id,
        "status": status,
        "hold": hold,
        "cause": cause,
        "attempt": attempt,
        "idempotency_key": idempotency_key,
        "arguments": called_with,
        "since": rfc3339(since),
        "status_url": None if step.status_url is None else mask_url(step.status_url),
        "last_probe": cast("LastProbe | None", last_probe),
        "next_probe_at": optional_rfc3339(due_at),
    }


def _lapsed(since: int, fence: int, tool: str, effect_key: str, holder: str) -> ReconciliationDocument:
    """A lapsed reservation of an irreversible effect: it belongs to no flow, and has no ``status_url``."""
    return {
        "work_id": None,
        "flow_id": None,
        "step_id": None,
        "status": "pending",
        "hold": IRREVERSIBLE,
        "cause": LAPSED,
        "attempt": fence,
        "idempotency_key": effect_key,
        "arguments": None,
        "since": rfc3339(since),
        "status_url": None,
        "last_probe": None,
        "next_probe_at": None,
        "tool": tool,
        "effect_key": effect_key,
        "holder": holder,
    }

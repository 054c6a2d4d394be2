"""Reading hooks: what they wait for. Readers never wait for the writer."""

from __future__ import annotations

from counterfoil.domain.errors import HookNotFound
from counterfoil.domain.hooks.tokens import Token
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.reading import next_timed, read, read_list, timed_cursor
from counterfoil.store.protocol import Row, Store
from counterfoil.wire.hooks import HookDocument, HookOfWork, HooksPage, ListedHook


class HookQueries:
    """Every read of hooks."""

    def __init__(self, store: Store, context: EngineContext) -> None:
        self._store = store
        self._context = context

    async def hook(self, token: Token) -> HookDocument:
        """The hook that takes the next payload with this token."""
        for query in ("get_hook", "get_expected_hook"):
            rows = await read(self._store, query, token_id=token.token_id)
            if rows:
                return _document(rows[0])
        raise HookNotFound

    async def hooks(self, *, step_id: str | None = None, cursor: str | None = None, limit: int = 100) -> HooksPage:
        """Active hooks, the longest waiting first; a cursor names the last one of the page before."""
        after_at, after_work = timed_cursor(cursor)
        listed = await read_list(
            self._store,
            "list_hooks",
            self._context.page_bytes,
            limit,
            after_at=after_at,
            after_work=after_work,
            step_id=step_id,
        )
        return {"hooks": [_listed(row) for row in listed.rows], "next_cursor": next_timed(listed)}

    async def waiting(self) -> int:
        """How many hooks wait for a payload."""
        return int((await read(self._store, "count_hooks"))[0][0])


def hook_of_work(row: Row) -> HookOfWork:
    """What the hook of a work item waits for; the first column is the work item."""
    _, status, token, received, collect = row
    return {"status": status, "token": token, "received": received, "collect": collect}


def _document(row: Row) -> HookDocument:
    _, _, flow_id, step_id, _, status, _, received, collect, deadline_at = row
    return {
        "flow_id": flow_id,
        "step_id": step_id,
        "status": "expected" if status == "expected" else "waiting",  # the owner of a token may be about to register
        "received": received,
        "collect": collect,
        "deadline_at": optional_rfc3339(deadline_at),
    }


def _listed(row: Row) -> ListedHook:
    registered_at, work_id, _, _, item, _, token, _, _, _ = row
    return {
        **_document(row),
        "work_id": work_id,
        "item": item,
        "token": token,
        "registered_at": rfc3339(registered_at),
    }

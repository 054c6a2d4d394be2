"""How PostgreSQL reads: what a batch costs must not grow with what is waiting, whatever the tables were like when the
server last looked at them.

A plan is made once and kept. One that was made while a table was nearly empty finds it cheapest to read all of it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.kind import Write
from counterfoil.store.postgres.connection import SESSION, Connection
from counterfoil.store.postgres.statements import COORDINATION, QUERIES, combined, packed, with_parameters
from counterfoil.store.protocol import Store
from tests.store.backends import NewConnection, write
from tests.store.records import flow_record, new_records, step_run, work_item

pytestmark = pytest.mark.postgresql_only

GROWING = {
    *("flows", "flow_steps", "work", "open_flows", "open_work", "gates", "approvals", "journal", "flow_inputs"),
    *("reconciliations", "dedup_records", "dedup_waiters"),
    *("hooks", "hook_tokens", "hook_payloads", "hook_deliveries"),
}
WRITES = [
    ("update_flows", "close_flows", "follow_flows"),
    ("move_flows", "close_moved_flows"),
    ("update_steps",),
    ("count_steps",),
    ("complete_steps",),
    ("update_work", "follow_work", "close_work"),
    ("end_work", "close_ended_work"),
    ("prune_flows", "forget_flows"),
    ("prune_work", "forget_work"),
    ("put_reconciliations",),
    ("put_dedup", "put_waiters"),
    ("delete_dedup", "delete_waiters"),
    ("prune_reconciliations", "prune_waiters"),
    ("put_hooks", "put_hook_tokens", "put_hook_payloads", "put_hook_deliveries"),
    ("delete_hook_tokens",),
    ("prune_hooks", "prune_hook_payloads", "prune_hook_deliveries", "empty_hooks"),
]
READS = [
    "ends_without_outcome",
    "find_claimable",
    "find_due_flows",
    "find_due_probes",
    "find_expected_hooks",
    "find_forgettable",
    "find_overdue",
    "find_prunable",
    "find_waking",
    "find_waking_hooks",
    "flows_not_open",
    "get_flow",
    "get_expected_hook",
    "get_gates",
    "get_hook",
    "get_reconciliation",
    "get_workflow",
    "hooks_of_flow",
    "journal_of_flow",
    "journal_of_works",
    "list_flows",
    "list_open_flows",
    "outputs_of_flows",
    "results_of_flows",
]


LOADS = sorted({query for load in KINDS.loads.values() for query in (load.query, load.finds_work) if query})


def whole_write(queries: tuple[str, ...]) -> str:
    """The statement of a batch that writes these."""
    widths = {query: parameters({**QUERIES, **COORDINATION}[query]) for query in queries}
    return combined([Write(query, [(None,) * width]) for query, width in widths.items()])[0]


def parameters(text: str) -> int:
    return max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)


async def scans(connection: Connection, text: str) -> Iterator[dict[str, Any]]:
    """The parts of its kept plan that read a table which grows."""
    given = ", ".join(["NULL"] * parameters(text))
    await connection.execute(f"PREPARE kept AS {text}")
    explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE kept{f'({given})' if given else ''}")
    await connection.execute("DEALLOCATE kept")

    def parts(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield plan
        for part in plan.get("Plans", ()):
            yield from parts(part)

    [whole] = json.loads(explained)
    return (
        part for part in parts(whole["Plan"]) if part.get("Relation Name") in GROWING and "Scan" in part["Node Type"]
    )


@pytest.fixture
async def nearly_empty(store: Store, new_connection: NewConnection) -> Connection:
    """One flow that is under way, of which the server has taken note; nothing is in the tables of what is open."""
    await write(store, new_records(flow_record(), step_run(), work_item()))
    connection = await new_connection()
    await connection.execute(SESSION)
    await connection.execute("DELETE FROM open_flows")
    await connection.execute("DELETE FROM open_work")
    await connection.execute("ANALYZE")
    return connection


def numbered(query: str) -> str:
    """A query whose parameters have names, as PostgreSQL takes it."""
    return with_parameters(query, defaultdict(lambda: None))[0]


@pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(whole_write(queries), id=queries[0]) for queries in WRITES),
        *(pytest.param(packed(QUERIES[query]), id=query) for query in LOADS),
        *(pytest.param(numbered(query), id=query) for query in READS),
    ],
)
async def test_every_table_is_read_by_keys_however_small_it_once_was(nearly_empty: Connection, text: str) -> None:
    for scan in await scans(nearly_empty, text):
        if scan["Node Type"] == "Bitmap Heap Scan":
            assert "Recheck Cond" in scan, scan
        else:
            assert "Index Cond" in scan or "TID Cond" in scan, scan

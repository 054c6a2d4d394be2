"""Calls of tool contracts on SQLite: 64 concurrent callers in one process, each call with a key of its own.

Compared with what the calls write: a transaction for each call that writes its row and an audit row, committed with the
same durability by one thread, without a contract, a lookup or an event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from benchmarks.measures import Measure, Outcome, Size, middle_of
from counterfoil.contracts import AsyncToolContract, SqliteDedupStore, ToolCall, tool_contract
from counterfoil.contracts.stores import sqlite_tables

CALLERS = 64
LEAST_CALLS_A_SECOND = 2_000


class Refund(BaseModel):
    payment_id: str
    amount_minor: int


class Refunded(BaseModel):
    refund_id: str


@tool_contract(name="issue_refund", version="1.0.0", effect="write-non-idempotent", value="high")
async def issue_refund(call: ToolCall[Refund]) -> Refunded:
    return Refunded(refund_id=f"r-{call.arguments.payment_id}")


async def contracts(size: Size) -> list[Outcome]:
    """Contract calls/s over bare transactions/s, in turns."""
    ratios: list[float] = []
    rates: list[float] = []
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        store = SqliteDedupStore(Path(directory, "contracts.db"))
        contract = issue_refund.bind(store)
        bare = sqlite_tables.connect(Path(directory, "bare.db"), 5.0)
        await _calls(contract, numbers, size.calls // 4)  # warm-up
        for turn in range(size.turns):
            if turn % 2:
                ours = await _calls(contract, numbers, size.calls)
                other = _transactions(bare, numbers, size.calls // 4)
            else:
                other = _transactions(bare, numbers, size.calls // 4)
                ours = await _calls(contract, numbers, size.calls)
            ratios.append(ours / other)
            rates.append(ours)
        bare.close()
        store.close()
    return [
        middle_of(f"contract calls/s of {CALLERS} callers over bare transactions/s with the same rows", ratios, 0.5),
        middle_of(
            f"contract calls/s of {CALLERS} callers over {LEAST_CALLS_A_SECOND:,}",
            [rate / LEAST_CALLS_A_SECOND for rate in rates],
            1.0,
        ),
    ]


async def _calls(contract: AsyncToolContract[Refund, Refunded], numbers: Iterator[int], count: int) -> float:
    """Calls/s, each of them durable when it is counted."""
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            key = f"call-{next(numbers)}"
            await contract(ToolCall({"payment_id": key, "amount_minor": 1_400}, idempotency_key=key))

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return count / (time.perf_counter() - started)


def _transactions(connection: sqlite3.Connection, numbers: Iterator[int], count: int) -> float:
    """Transactions/s."""
    started = time.perf_counter()
    for _ in range(count):
        number = next(numbers)
        key, now = f"call-{number}", time.time_ns() // 1_000_000
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO counterfoil_effects (id, tool, key, class, state, fence, holder, expires_at, window_ms, "
            "arguments_digest, result, recorded_at, forget_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(number, "issue_refund", key, "write-non-idempotent", "complete-success", 1, f"call-{number:032x}"),
                *(now, 604_800_000, f"{number:064x}", f'{{"refund_id":"r-{key}"}}', now, now + 604_800_000),
            ),
        )
        connection.execute(
            "INSERT INTO counterfoil_effect_audit (effect_id, number, at, type, holder) VALUES (?, 1, ?, ?, ?)",
            (number, now, "effect_completed", f"call-{number:032x}"),
        )
        connection.execute("COMMIT")
    return count / (time.perf_counter() - started)


MEASURES: dict[str, Measure] = {"contracts": contracts}

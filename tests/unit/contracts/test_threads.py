"""Tools that are not async: plain code calls them in its own thread, code on an event loop in a thread of a pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from counterfoil.contracts import (
    OutcomeUnknown,
    SqliteDedupStore,
    ToolCall,
    ToolContract,
    ToolFailure,
    tool_contract,
    using,
)

setting: ContextVar[str] = ContextVar("setting", default="unset")


class Payment(BaseModel):
    payment_id: str


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteDedupStore]:
    made = SqliteDedupStore(tmp_path / "effects.db")
    yield made
    made.close()


@pytest.fixture
def seen() -> list[tuple[str, str]]:
    """The thread and the context of each execution."""
    return []


@pytest.fixture
def pay(store: SqliteDedupStore, seen: list[tuple[str, str]]) -> ToolContract[Payment, dict[str, Any]]:
    @tool_contract(
        name="pay",
        version="1.0.0",
        effect="write-non-idempotent",
        store=store,
        errors={"CARD_EXPIRED": "Ask."},
    )
    def pay(call: ToolCall[Payment]) -> dict[str, Any]:
        seen.append((threading.current_thread().name, setting.get()))
        if call.arguments.payment_id == "expired":
            raise ToolFailure("CARD_EXPIRED")
        if call.arguments.payment_id == "broken":
            raise KeyError
        return {"paid": call.arguments.payment_id}

    return pay


def call(key: str, payment_id: str = "p") -> ToolCall[dict[str, Any]]:
    return ToolCall({"payment_id": payment_id}, idempotency_key=key)


def test_plain_code_calls_it_in_its_own_thread_and_context(
    pay: ToolContract[Payment, dict[str, Any]], seen: list[tuple[str, str]]
) -> None:
    setting.set("from the caller")
    assert pay(call("k")) == pay(call("k")) == {"paid": "p"}
    assert seen == [(threading.current_thread().name, "from the caller")]


def test_its_errors_reach_plain_code(pay: ToolContract[Payment, dict[str, Any]]) -> None:
    for replayed in (False, True):
        with pytest.raises(ToolFailure) as error:
            pay(call("e", "expired"))
        assert error.value.replayed is replayed
    with pytest.raises(OutcomeUnknown) as unknown:
        pay(call("b", "broken"))
    assert isinstance(unknown.value.__cause__, KeyError)


def test_an_interrupt_of_the_tool_reaches_plain_code(store: SqliteDedupStore) -> None:
    @tool_contract(name="stop", version="1.0.0", effect="write-non-idempotent", store=store)
    def stop(call: ToolCall[Payment]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop(call("k"))


def test_many_threads_share_one_effect(pay: ToolContract[Payment, dict[str, Any]], seen: list[tuple[str, str]]) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: pay(call("k")), range(64)))
    assert answers == [{"paid": "p"}] * 64
    assert len(seen) == 1


async def test_from_an_event_loop_it_runs_in_a_thread(
    pay: ToolContract[Payment, dict[str, Any]], seen: list[tuple[str, str]]
) -> None:
    setting.set("from the task")
    answers = await asyncio.gather(*(pay.run(call("k")) for _ in range(10)))
    assert answers == [{"paid": "p"}] * 10
    [(thread, context)] = seen
    assert (thread != threading.current_thread().name, context) == (True, "from the task")


async def test_on_an_event_loop_a_blocking_call_is_refused(
    pay: ToolContract[Payment, dict[str, Any]], seen: list[tuple[str, str]]
) -> None:
    with pytest.raises(RuntimeError, match=r"await pay.run\(call\)"):
        pay(call("k"))
    assert seen == []


def test_a_tool_may_call_another_tool(pay: ToolContract[Payment, dict[str, Any]], store: SqliteDedupStore) -> None:
    @tool_contract(name="outer", version="1.0.0", effect="write-non-idempotent", store=store)
    def outer(given: ToolCall[Payment]) -> dict[str, Any]:
        return pay(call(f"{given.idempotency_key}:inner"))

    assert outer(call("k")) == {"paid": "p"}


def test_a_block_gives_unbound_contracts_their_store(store: SqliteDedupStore) -> None:
    @tool_contract(name="outer", version="1.0.0", effect="irreversible")
    def outer(given: ToolCall[Payment]) -> int:
        return 7

    with using(store):
        assert outer(call("k")) == 7
    assert asyncio.run(store.show("outer", "k")) is not None


def test_a_store_serves_several_event_loops(pay: ToolContract[Payment, dict[str, Any]]) -> None:
    assert [asyncio.run(pay.run(call("k"))) for _ in range(3)] == [{"paid": "p"}] * 3

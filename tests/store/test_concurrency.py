"""Concurrent commands: one outcome for a receipt, the first one; nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.complete import Beat, Complete
from counterfoil.engine.work.expire import ExpireOverdue
from counterfoil.store.group_commit.batch import Command
from counterfoil.store.protocol import Store
from counterfoil.testing.simulator import StillClock
from tests.store.nodes import Node, add_item, add_items, register, success
from tests.store.records import RETRY

FINAL = ("work_succeeded", "work_failed", "work_cancelled")


@pytest.fixture(params=[1, 7, 512], ids=lambda limit: f"batches-of-{limit}")
async def node(store: Store, clock: StillClock, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    await register(store)
    node = Node("node", store, clock, batch_limit=int(request.param))
    await node.start()
    yield node
    await node.stop()


async def test_of_many_results_one_wins(store: Store, node: Node) -> None:
    await add_item(store, "work")
    answers = await asyncio.gather(*(node.outcome(success("work", number)) for number in range(50)))
    assert Counter(answers) == {"accepted": 1, "CONFLICTING_RESULT": 49}
    [row] = await store.read("get_work", work_id="work")
    assert parse_json(row[12])["outputs"] == {"number": answers.index("accepted")}
    told = [row[1] for row in await store.read("journal_of_flow", flow_id="work", after=0, limit=100)]
    assert told == ["work_succeeded", "step_completed", "flow_completed"]


async def test_of_many_equal_results_one_is_recorded(store: Store, node: Node) -> None:
    await add_item(store, "work")
    assert await node.outcomes(*(success("work", 1) for _ in range(50))) == {"accepted": 1, "ALREADY_SUCCEEDED": 49}


async def test_each_of_many_receipts_has_its_own_outcome(store: Store, node: Node) -> None:
    names = await add_items(store, 40)
    assert await node.outcomes(*(success(name, number) for number in range(3) for name in names)) == {
        "accepted": 40,
        "CONFLICTING_RESULT": 80,
    }
    rows = await store.read("list_work", status="succeeded", step_id=None, after=None, limit=100)
    assert len(rows) == 40


async def test_of_many_claims_one_sends_the_attempt(store: Store, node: Node) -> None:
    await add_item(store, "work", WorkStatus.PENDING)
    assert await node.outcomes(*(ClaimDue("work", "work") for _ in range(20))) == {"True": 1, "False": 19}
    [row] = await store.read("get_work", work_id="work")
    assert (row[5], row[6]) == ("active", 1)


async def test_whatever_ends_an_item_it_ends_once(store: Store, node: Node, clock: StillClock) -> None:
    """Results, deadline, cancellation and heartbeats for the same item in one moment."""
    names = await add_items(store, 30, attempt=3)
    clock.advance(60_000)
    commands: list[Command[Any]] = []
    for number, name in enumerate(names):
        several: list[Command[Any]] = [
            success(name, 1),
            ExpireOverdue(name, RETRY),
            Cancel(name),
            Beat(name, Heartbeat(progress=0.5)),
            Complete(name, StepResult(success=False, error="broken"), RETRY),
        ]
        commands += several[number % 5 :] + several[: number % 5]
    answers = await asyncio.gather(*(node.outcome(command) for command in commands))
    assert "INTERNAL" not in answers
    for name in names:
        told = [row[1] for row in await store.read("journal_of_flow", flow_id=name, after=0, limit=100)]
        assert sum(1 for kind in told if kind in FINAL) == 1, told
        assert sum(1 for kind in told if kind.startswith("flow_")) == 1, told


async def test_events_of_one_commit_are_seen_together(store: Store, node: Node) -> None:
    """A reader sees all of a batch or nothing of it: never a step that ended in a flow that has not."""
    names = await add_items(store, 60)
    writing = asyncio.gather(*(node.outcome(success(name, 0)) for name in names))
    while not writing.done():
        events = await store.read("journal_after", after=0, limit=1000)
        kinds = Counter(row[1] for row in events)
        assert kinds["work_succeeded"] == kinds["step_completed"] == kinds["flow_completed"]
    await writing

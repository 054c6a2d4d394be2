"""Batches: good and bad commands share a transaction, and a bad one leaves no trace in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError, InternalError, UnknownFlow, UnknownReceipt
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.receipts import Receipts
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.cancel import Cancel, ClaimCancelCall
from counterfoil.engine.flows.start import Start
from counterfoil.engine.steps import PutStep
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.complete import Complete
from counterfoil.engine.work.expire import ExpireOverdue
from counterfoil.store.group_commit.batch import Command, ForEach
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.store.backends import load
from tests.store.nodes import Node, add_item, add_items, claimable, register, success
from tests.store.records import DEFAULTS, NOW, RETRY, step_version

CONTEXT = EngineContext(Receipts([b"secret"]), defaults=DEFAULTS)


@pytest.fixture
async def node(store: Store, clock: StillClock) -> AsyncIterator[Node]:
    await register(store)
    node = Node("node", store, clock)
    await node.start()
    yield node
    await node.stop()


def start(flow_id: str, *goals: str) -> Start:
    return Start(StartFlow(flow_id=flow_id, goals=list(goals) or ["step"]), CONTEXT)


@dataclass
class Poisoned:
    """Does what another command does, and then falls over if it is for a certain item."""

    command: ClaimDue | ExpireOverdue
    error: Exception
    poison: str

    def needs(self, needs: ReadSet) -> None:
        self.command.needs(needs)

    def decide(self, unit: UnitOfWork, now: int) -> str:
        self.command.decide(unit, now)
        if self.command.work_id == self.poison:
            raise self.error
        return self.command.work_id


async def kinds(store: Store) -> list[tuple[str, str]]:
    """What the journal tells: which flow, and what."""
    return [(row[3], row[1]) for row in await store.read("journal_after", after=0, limit=999)]


async def states(store: Store, *names: str) -> list[str]:
    return [(await store.read("receipt_status", work_id=name))[0][0] for name in names]


async def test_bad_commands_of_every_kind_leave_no_trace(store: Store, node: Node) -> None:
    await add_item(store, "good")
    await add_item(store, "done", WorkStatus.SUCCEEDED)
    commands: list[Command[Any]] = [
        start("new"),
        start("new"),
        start("other", "nowhere"),
        success("good", 1),
        success("good", 2),
        success("done"),
        success("unknown"),
        Cancel("unknown"),
        PutStep(step_version("another")),
    ]
    answers = await asyncio.gather(*map(node.outcome, commands))
    assert answers[1:] == [
        "FLOW_EXISTS",
        "UNKNOWN_STEP",
        "accepted",
        "CONFLICTING_RESULT",
        "CONFLICTING_RESULT",
        "UNKNOWN_RECEIPT",
        "UNKNOWN_FLOW",
        "True",
    ]
    assert len(node.committed) == 1, "they shared one transaction"
    told = await kinds(store)
    assert [kind for flow, kind in told if flow == "good"] == ["work_succeeded", "step_completed", "flow_completed"]
    assert {flow for flow, _ in told} == {"good", "new"}
    assert await store.read("flow_exists", flow_id="other") == []
    assert len(await store.read("work_of_flow", flow_id="new")) == 1


async def test_a_batch_of_bad_commands_writes_nothing(store: Store, node: Node) -> None:
    assert await node.outcomes(success("a"), Cancel("b"), start("c", "nowhere")) == {
        UnknownReceipt.code: 1,
        UnknownFlow.code: 1,
        "UNKNOWN_STEP": 1,
    }
    assert await store.read("last_seq") == [(0,)]
    assert node.committed == [], "nothing follows from a batch that changed nothing"


@pytest.mark.parametrize("error", [UnknownFlow(), ZeroDivisionError("a bug")], ids=["refused", "broken"])
@pytest.mark.parametrize("beside", [0, 20])
async def test_one_that_falls_over_does_not_spoil_its_neighbours(
    store: Store, node: Node, error: Exception, beside: int
) -> None:
    names = await add_items(store, 3 + beside, WorkStatus.PENDING)
    commands = [Poisoned(ClaimDue(name, name), error, poison=names[1]) for name in names]
    expected = error.code if isinstance(error, CounterfoilError) else InternalError.code
    assert await asyncio.gather(*map(node.outcome, commands)) == [names[0], expected, *names[2:]]
    assert await states(store, *names) == ["active", "pending", *["active"] * (beside + 1)]
    assert names[1] not in {flow for flow, _ in await kinds(store)}


# One command that stands for all that a search finds.


@pytest.mark.parametrize("error", [UnknownFlow(), ZeroDivisionError("a bug")], ids=["refused", "broken"])
async def test_one_poisoned_item_does_not_spoil_the_others_that_were_found(
    store: Store, node: Node, error: Exception
) -> None:
    names = await add_items(store, 5, WorkStatus.PENDING)

    def make(work_id: str, flow_id: str) -> Poisoned:
        return Poisoned(ClaimDue(work_id, flow_id), error, poison=names[2])

    done = await node.commit.submit(ForEach(claimable(), make))
    assert sorted(done) == [name for name in names if name != names[2]]
    assert await states(store, *names) == ["active", "active", "pending", "active", "active"]
    assert names[2] not in {flow for flow, _ in await kinds(store)}


async def test_two_searches_of_one_batch_do_each_item_once(store: Store, node: Node) -> None:
    names = await add_items(store, 5, WorkStatus.PENDING)
    one, two = await asyncio.gather(*(node.commit.submit(ForEach(claimable(), ClaimDue)) for _ in range(2)))
    assert (sorted(one), sorted(two)) == ([True] * 5, [False] * 5)
    assert [kind for _, kind in await kinds(store)] == ["work_dispatched"] * 5
    assert await states(store, *names) == ["active"] * 5


async def test_what_a_search_finds_may_have_ended_in_the_same_batch(
    store: Store, node: Node, clock: StillClock
) -> None:
    names = await add_items(store, 3)
    clock.advance(60_000)

    def expire(work_id: str) -> ExpireOverdue:
        return ExpireOverdue(work_id, RETRY)

    search = ForEach(Find.of("find_overdue", now=clock(), limit=9), expire)
    accepted, expired = await asyncio.gather(node.outcome(success(names[1])), node.commit.submit(search))
    assert (accepted, sorted(expired)) == ("accepted", [False, True, True]), "whatever was decided first wins"
    assert await states(store, *names) == ["not_completed", "succeeded", "not_completed"]


async def test_a_search_that_finds_nothing_is_answered_with_nothing(store: Store, node: Node) -> None:
    assert await node.commit.submit(ForEach(claimable(), ClaimDue)) == []
    assert await node.outcome(success("unknown")) == "UNKNOWN_RECEIPT"


async def test_a_search_does_not_change_what_it_finds(store: Store) -> None:
    await add_item(store, "work", WorkStatus.PENDING)
    for _ in range(2):
        search = claimable()
        assert (await load(store, ReadSet(finds={search}))).found(search) == [("work", "work")]
    assert await states(store, "work") == ["pending"]


async def test_a_cancel_call_is_taken_in_hand_once(store: Store, node: Node, clock: StillClock) -> None:
    version = await register(store, cancel_url="http://worker.test/cancel")
    await add_item(store, "work", version=version)
    assert await node.outcome(Cancel("work")) == "None"
    search = Find.of("find_calls", now=NOW, limit=9)

    def take(call_id: str) -> ClaimCancelCall:
        return ClaimCancelCall(call_id, for_ms=100)

    first, second = await asyncio.gather(*(node.commit.submit(ForEach(search, take)) for _ in range(2)))
    assert [call.call_id for call in first if call is not None] == ["work"]
    assert second == [None]
    clock.advance(99)
    assert await node.commit.submit(ForEach(Find.of("find_calls", now=clock(), limit=9), take)) == []
    clock.advance(1)
    [again] = await node.commit.submit(ForEach(Find.of("find_calls", now=clock(), limit=9), take))
    assert again is not None, "the node that had it in hand is taken for dead"


async def test_searches_and_commands_of_all_kinds_share_a_transaction(store: Store, node: Node) -> None:
    await add_items(store, 4, WorkStatus.PENDING)
    await add_item(store, "reported")
    found, accepted, refused, started = await asyncio.gather(
        node.commit.submit(ForEach(claimable(limit=2), ClaimDue)),
        node.outcome(success("reported")),
        node.outcome(success("unknown")),
        node.outcome(start("new")),
    )
    assert (found, accepted, refused) == ([True, True], "accepted", "UNKNOWN_RECEIPT")
    assert "new" in started
    assert len(node.committed) == 1


async def test_a_failure_ends_a_flow_with_what_was_not_loaded_yet(store: Store, node: Node) -> None:
    """The end of a flow needs its other work, which was not known beforehand: it is loaded in a second round."""
    await node.commit.submit(PutStep(step_version("one")))
    await node.commit.submit(PutStep(step_version("two")))
    await node.commit.submit(start("flow", "one", "two"))
    work: dict[str, str] = {row[3]: row[1] for row in await store.read("work_of_flow", flow_id="flow")}

    def failure(step: str) -> Complete:
        return Complete(work[step], StepResult(success=False, error="no"), RETRY)

    await add_item(store, "reported")
    assert await node.outcomes(failure("one"), success("reported")) == {"accepted": 2}
    assert await states(store, work["one"], work["two"]) == ["failed", "cancelled"]
    assert await node.outcome(failure("two")) == "WORK_CANCELLED"

"""Bugs in one command, or rows that changed behind the engine's back: the command is answered, the batch goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from counterfoil.domain.errors import InternalError, Unavailable
from counterfoil.domain.states import WorkStatus
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.observability.metrics import Metrics
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.group_commit.batch import Command, ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.by_hand import by_hand, stubborn_work
from tests.eventually import eventually
from tests.store.backends import place_of
from tests.store.nodes import Node, add_item, add_items, claimable, register, success

BUG = InternalError.code


@pytest.fixture
async def node(store: Store, clock: StillClock) -> AsyncIterator[Node]:
    await register(store)
    node = Node("node", store, clock)
    await node.start()
    yield node
    await node.stop()


async def states(store: Store, *names: str) -> list[str]:
    return [(await store.read("receipt_status", work_id=name))[0][0] for name in names]


def touched(store: Store) -> set[str]:
    """The flows that the journal tells of; by hand, for the store may hold back what follows a rolled back batch."""
    return {row[0] for row in by_hand(place_of(store), "SELECT flow_id FROM journal")}


def named(logs: Any, event: str) -> list[Any]:
    return [entry["command"] for entry in logs if entry["event"] == event]


class FaultyNeeds:
    """Cannot even say what it needs."""

    def needs(self, needs: ReadSet) -> None:
        needs.work.add("nowhere")
        raise ZeroDivisionError("a bug")

    def decide(self, unit: UnitOfWork, now: int) -> None:
        raise AssertionError("it was not to be decided")


class PoisonedClaim(ClaimDue):
    def needs(self, needs: ReadSet) -> None:
        if self.work_id == "work-002":
            raise ZeroDivisionError("a bug")
        super().needs(needs)


# Bugs in what prepares a batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [0, 3])
async def test_a_bug_in_the_needs_of_one_command_is_answered_alone(store: Store, node: Node, beside: int) -> None:
    names = await add_items(store, beside)
    with capture_logs() as logs:
        commands: list[Command[Any]] = [FaultyNeeds(), *map(success, names)]
        answers = await asyncio.gather(*map(node.outcome, commands))
    assert answers == [BUG, *["accepted"] * beside]
    assert named(logs, "command_failed") == ["FaultyNeeds"]
    assert len(node.committed) == min(beside, 1), "they shared one transaction"
    assert await node.outcome(success("unknown")) == "UNKNOWN_RECEIPT", "and the writer goes on"


async def test_a_bug_in_the_needs_of_one_item_does_not_spoil_the_others_that_were_found(
    store: Store, node: Node
) -> None:
    names = await add_items(store, 5, WorkStatus.PENDING)
    with capture_logs() as logs:
        assert await node.commit.submit(ForEach(claimable(), PoisonedClaim)) == [True] * 4
    assert named(logs, "command_failed") == ["PoisonedClaim"]
    assert await states(store, *names) == ["active", "active", "pending", "active", "active"]


async def test_a_world_that_cannot_be_prepared_fails_its_batch_and_not_the_writer(store: Store, node: Node) -> None:
    names = await add_items(store, 3)

    def broken(unit: UnitOfWork) -> None:
        raise ZeroDivisionError("a bug")

    prepare, node.prepare = node.prepare, broken  # type: ignore[method-assign]
    for _ in range(2):
        with capture_logs() as logs:
            assert await node.outcomes(*map(success, names)) == {BUG: 3}
        assert [entry["commands"] for entry in logs if entry["event"] == "batch_failed"] == [3]
    node.prepare = prepare  # type: ignore[method-assign]
    assert await node.outcomes(*map(success, names)) == {"accepted": 3}


# Guards --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stubborn", [["work-000"], ["work-004", "work-011"], ["work-018", "work-019"]])
async def test_a_refused_row_fails_the_command_that_touched_it(store: Store, node: Node, stubborn: list[str]) -> None:
    names = await add_items(store, 20)
    with stubborn_work(place_of(store), *stubborn), capture_logs() as logs:
        answers = await asyncio.gather(*(node.outcome(success(name)) for name in names))
    assert [name for name, answer in zip(names, answers, strict=True) if answer == BUG] == stubborn
    assert answers.count("accepted") == 20 - len(stubborn)
    assert named(logs, "guard_refused") == ["Complete"] * len(stubborn)
    assert touched(store) == set(names) - set(stubborn)
    assert await states(store, *stubborn) == ["active"] * len(stubborn)
    assert await node.outcomes(*map(success, stubborn)) == {"accepted": len(stubborn)}, "when it was mended"


async def test_commands_on_the_same_row_are_decided_one_after_the_other_when_their_batch_is_split(
    store: Store, node: Node
) -> None:
    await add_items(store, 3)
    with stubborn_work(place_of(store), "work-001"):
        first, second = success("work-000", 1), success("work-000", 2)
        commands: list[Command[Any]] = [first, success("work-001"), second, Cancel("work-002")]
        answers = await asyncio.gather(*map(node.outcome, commands))
    assert answers == ["accepted", BUG, "CONFLICTING_RESULT", "None"]
    assert await states(store, "work-000", "work-001", "work-002") == ["succeeded", "active", "cancelled"]


@pytest.mark.parametrize("found", [1, 2, 5])
async def test_a_refused_row_does_not_spoil_the_others_that_were_found(store: Store, node: Node, found: int) -> None:
    names = await add_items(store, found, WorkStatus.PENDING)
    await add_item(store, "reported")
    with stubborn_work(place_of(store), names[-1]), capture_logs() as logs:
        claimed, accepted = await asyncio.gather(
            node.commit.submit(ForEach(claimable(), ClaimDue)), node.outcome(success("reported"))
        )
    assert (claimed, accepted) == ([True] * (found - 1), "accepted")
    assert named(logs, "guard_refused") == ["ClaimDue"]
    assert await states(store, *names) == [*["active"] * (found - 1), "pending"]
    assert await node.commit.submit(ForEach(claimable(), ClaimDue)) == [True]


# The end of a writer -------------------------------------------------------------------------------------------------


class BrokenMetrics(Metrics):
    def set_backlog(self, commands: int) -> None:
        raise ZeroDivisionError("a bug")


async def test_a_writer_that_ends_by_a_bug_is_loud_and_leaves_nothing_waiting(store: Store, clock: StillClock) -> None:
    commit = GroupCommit(
        store, clock, BrokenMetrics(), DefinitionCache(), backlog_limit=100, batch_limit=2, batches=store.batches
    )
    asked = [asyncio.create_task(commit.submit(Cancel(f"flow-{number}"))) for number in range(9)]
    await asyncio.sleep(0)
    with capture_logs() as logs:
        commit.start()
        answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} == {InternalError, Unavailable}, "those under way, those that waited"
    assert {entry["log_level"] for entry in logs if entry["event"] == "writer_ended"} == {"critical"}
    with pytest.raises(Unavailable, match="writer of this engine has failed"):
        await commit.submit(Cancel("late"))
    await commit.close()


async def test_a_writer_that_is_cancelled_is_loud(store: Store, clock: StillClock) -> None:
    commit = GroupCommit(store, clock, Metrics(), DefinitionCache(), backlog_limit=9, batch_limit=9)
    commit.start()
    with capture_logs() as logs:
        [task] = [task for task in asyncio.all_tasks() if task.get_name() == "group-commit"]
        task.cancel()
        await eventually(lambda: commit.failed)
    assert [entry["event"] for entry in logs] == ["writer_ended"]
    await commit.close()

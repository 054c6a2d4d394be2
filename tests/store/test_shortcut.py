"""The short way of a batch: one statement, written by what a node remembers, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, cast

import pytest
from asyncpg import DivisionByZeroError

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.policies.controls import Controls
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.results import Heartbeat
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.flows.start import Start
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.complete import Beat
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.postgres.doctor import examine
from counterfoil.store.postgres.locking import BeginAgain
from counterfoil.store.postgres.optimistic import decide_unlocked, write_decided
from counterfoil.store.postgres.statements import COORDINATION
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.postgres.transaction import execute
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.flows import FlowStarted
from tests.store.backends import NewConnection, batch_of
from tests.store.nodes import CONTEXT, Pair, add_item, add_items, success
from tests.store.records import DEFAULTS, step_version

pytestmark = pytest.mark.postgresql_only


def beat(work_id: str) -> Beat:
    return Beat(work_id, Heartbeat(progress=0.5))


async def told(store: Store, flow_id: str) -> list[str]:
    return [row[1] for row in await store.read("journal_of_flow", flow_id=flow_id, after=0, limit=999)]


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each batch had that went the long way."""
    taken: list[int] = []

    async def noted(connection: Any, batch: Any, *rest: Any) -> None:
        taken.append(len(batch))
        await execute(connection, batch, *rest)

    monkeypatch.setattr("counterfoil.store.postgres.writer.execute", noted)
    return taken


ENDED = ["work_succeeded", "step_completed", "flow_completed"]


async def test_reports_go_the_short_way_whether_their_work_is_remembered_or_not(
    store: Store, nodes: Pair, long_ways: list[int]
) -> None:
    names = await add_items(store, 5)
    await nodes[0].outcome(success(names[0]))  # the node comes to know the step
    long_ways.clear()
    await asyncio.gather(*(nodes[0].outcome(beat(name)) for name in names[1:]))
    assert set(await asyncio.gather(*(nodes[0].outcome(success(name)) for name in names[1:]))) == {"accepted"}
    for name in names[1:]:
        assert await told(store, name) == ["work_heartbeat", *ENDED]
    answers = await nodes[0].outcomes(success(names[1]), success(names[2], 1), success("nobody"))
    assert answers == {"ALREADY_SUCCEEDED": 1, "CONFLICTING_RESULT": 1, "UNKNOWN_RECEIPT": 1}
    assert long_ways == []


async def test_a_start_goes_the_short_way_beside_others(store: Store, nodes: Pair, long_ways: list[int]) -> None:
    """Alone it cannot: if the answer were lost, there would be no flow by which to tell what became of it."""
    names = await add_items(store, 3)
    await nodes[0].outcome(success(names[0]))
    await nodes[0].commit.submit(Start(StartFlow(goals=["step"]), CONTEXT))  # its plan is stored then
    long_ways.clear()
    start = Start(StartFlow(goals=["step"]), CONTEXT)
    answers = await asyncio.gather(nodes[0].commit.submit(start), nodes[0].outcome(success(names[1])))
    assert answers[1] == "accepted"
    assert long_ways == []
    assert await told(store, cast(FlowStarted, answers[0])["flow_id"]) == [
        "flow_started",
        "step_started",
        "work_created",
        "work_dispatched",
    ]
    await nodes[0].commit.submit(Start(StartFlow(goals=["step"]), CONTEXT))
    assert long_ways == [1]


async def test_a_start_beside_a_heartbeat_that_the_journal_leaves_out_goes_the_long_way(
    store: Store, nodes: Pair, long_ways: list[int]
) -> None:
    """If the answer were lost, no entry would be about a flow that was there before."""
    [name] = await add_items(store, 1)
    await nodes[0].outcome(beat(name))
    await nodes[0].commit.submit(Start(StartFlow(goals=["step"]), CONTEXT))  # its plan is stored then
    long_ways.clear()
    left_out = Beat(name, Heartbeat(message="left out"), journaled=False)
    start = Start(StartFlow(goals=["step"]), CONTEXT)
    await asyncio.gather(nodes[0].commit.submit(start), nodes[0].outcome(left_out))
    assert long_ways == [2]
    long_ways.clear()
    await nodes[0].outcome(left_out)
    assert long_ways == [], "alone it needs no entry"
    assert await told(store, name) == ["work_heartbeat"]


async def test_nothing_is_claimed_by_the_short_way_without_a_lease(
    store: Store, nodes: Pair, long_ways: list[int]
) -> None:
    names = await add_items(store, 2)
    await nodes[0].outcome(success(names[0]))
    await store.leave("node-a")
    start = Start(StartFlow(flow_id="new", goals=["step"]), CONTEXT)
    answers = await nodes[0].outcomes(start, success(names[1]))
    assert answers == {"UNAVAILABLE": 2}
    assert await told(store, "new") == []
    assert await told(store, names[1]) == []


async def test_what_another_node_has_changed_is_looked_at_again(
    store: Store, nodes: Pair, long_ways: list[int]
) -> None:
    """The memory of a node is no more than a guess that the database confirms or not."""
    await add_item(store, "work")
    await nodes[0].outcome(beat("work"))
    assert await nodes[1].outcome(success("work", 1)) == "accepted"
    assert await nodes[0].outcome(success("work", 2)) == "CONFLICTING_RESULT"
    assert long_ways[-1] == 1


async def test_no_report_is_refused_by_memory_alone(store: Store, nodes: Pair) -> None:
    """One node knows work that was never sent; meanwhile the other sends it, and the first gets its result."""
    start = Start(StartFlow(flow_id="flow", goals=["step"]), CONTEXT)
    nodes[0].prepare = lambda unit: None  # type: ignore[method-assign] # no place to send it from
    await nodes[0].commit.submit(start)
    [row] = await store.read("work_of_flow", flow_id="flow")
    work_id = row[1]
    assert await nodes[0].outcome(success(work_id)) == "WORK_NOT_ACTIVE"
    assert await nodes[1].outcome(ClaimDue(work_id, "flow")) == "True"
    assert await nodes[0].outcome(success(work_id)) == "accepted"


async def test_a_command_that_needs_more_takes_the_whole_batch_along_the_long_way(
    store: Store, nodes: Pair, long_ways: list[int]
) -> None:
    for name in ("one", "two"):
        await add_item(store, name)
    long_ways.clear()
    assert await nodes[0].outcomes(success("one"), Cancel("two")) == {"accepted": 1, "None": 1}
    assert long_ways == [2]


async def test_what_was_remembered_is_forgotten_with_the_connection(
    store: Store, nodes: Pair, new_connection: NewConnection
) -> None:
    """Behind the next one may be a server that has lost some commits, and then made others of the same number."""
    assert isinstance(store, PostgresStore)
    await add_item(store, "work")
    await nodes[0].outcome(beat("work"))
    other = await new_connection()
    await other.execute("UPDATE work SET attempt = 7 WHERE work_id = 'work'")  # and the revision is the same
    for writer in store._writers:
        assert writer.connection is not None
        await writer.connection.close()
    assert await nodes[0].outcome(beat("work")) != "UNAVAILABLE"
    [row] = await store.read("receipt_status", work_id="work")
    assert row[1] == 7, "it was read again, and not written by memory"


async def test_both_nodes_at_once_with_all_they_remember(store: Store, nodes: Pair) -> None:
    """Heartbeats, results and cancellations of the same flows on both: each ends once, and the journal tells how."""
    dice = random.Random(7)
    flows = [f"flow-{number}" for number in range(12)]
    for flow_id in flows:
        await nodes[0].commit.submit(Start(StartFlow(flow_id=flow_id, goals=["step"]), CONTEXT))
    work = {flow_id: (await store.read("work_of_flow", flow_id=flow_id))[0][1] for flow_id in flows}
    commands: list[Any] = []
    for flow_id in flows:
        commands += [(node, beat(work[flow_id])) for node in nodes for _ in range(6)]
        commands += [(node, success(work[flow_id], number)) for number, node in enumerate(nodes * 3)]
        commands += [(dice.choice(nodes), Cancel(flow_id))]
    dice.shuffle(commands)
    answers = await asyncio.gather(*(node.outcome(command) for node, command in commands))
    assert not {"UNAVAILABLE", "INTERNAL_ERROR"} & set(answers)
    for flow_id in flows:
        ends = [kind for kind in await told(store, flow_id) if kind in ("flow_completed", "flow_cancelled")]
        assert len(ends) == 1, ends
    assert isinstance(store, PostgresStore)
    assert examine(store.access.dsn, DEFAULTS) == []


class Rig:
    """A memory and a connection in the test's hand."""

    def __init__(self, store: Store, connection: Any) -> None:
        self.store = store
        self.connection = connection
        self.memory = OpenFlowCache(alone=False)

    async def remember(self, work_id: str) -> None:
        """As if this node had changed the flow of this name last."""
        batch = self.batch(beat(work_id))
        await self.store.execute(batch)
        self.memory.learn(batch.unit, {})

    async def decide(self, batch: Any) -> bool:
        return await decide_unlocked(self.connection, batch, self.memory, DEFAULTS)

    @staticmethod
    def batch(*commands: Any) -> Any:
        def prepare(unit: UnitOfWork) -> None:
            version = step_version()
            unit.definitions.versions[version.version] = version
            unit.add_controls(Controls(0))
            unit.node_id = "node-a"

        return batch_of(*commands, prepare=prepare)


@pytest.fixture
async def rig(store: Store, nodes: Pair, new_connection: NewConnection) -> Rig:
    return Rig(store, await new_connection())


async def test_a_statement_that_comes_too_late_writes_nothing(store: Store, rig: Rig) -> None:
    """The node that asked what became of it has raised the revision of one of its flows: the late batch fails."""
    for name in ("one", "two"):
        await add_item(store, name)
        await rig.remember(name)
    batch = rig.batch(success("one"), success("two"))
    assert await rig.decide(batch)
    await rig.connection.execute(COORDINATION["raise_revision"], "two")
    with pytest.raises(BeginAgain) as refusal:
        await write_decided(rig.connection, batch, rig.memory)
    assert isinstance(refusal.value.__cause__, DivisionByZeroError)
    for name in ("one", "two"):
        assert await told(store, name) == ["work_heartbeat"]
        [row] = await store.read("receipt_status", work_id=name)
        assert row[0] == WorkStatus.ACTIVE
    assert len(rig.memory) == 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE work SET status = 'cancelled' WHERE work_id = 'work'",
        "UPDATE flow_steps SET status = 'cancelled' WHERE flow_id = 'work'",
        "UPDATE flows SET status = 'completed' WHERE flow_id = 'work'",
        "DELETE FROM flows WHERE flow_id = 'work'",
        "UPDATE controls SET revision = revision + 1",
    ],
)
async def test_every_row_must_be_as_it_was_remembered(store: Store, rig: Rig, change: str) -> None:
    """And the policies must be those by which it was decided."""
    await add_item(store, "work")
    await rig.remember("work")
    await rig.connection.execute(change)
    batch = rig.batch(success("work"))
    assert await rig.decide(batch)
    with pytest.raises(BeginAgain):
        await write_decided(rig.connection, batch, rig.memory)
    assert await told(store, "work") == ["work_heartbeat"]


async def test_of_two_at_once_the_second_waits_and_then_writes_nothing(
    store: Store, rig: Rig, new_connection: NewConnection
) -> None:
    await add_item(store, "work")
    await rig.remember("work")
    batch = rig.batch(success("work"))
    assert await rig.decide(batch)
    other = await new_connection()
    async with other.transaction():
        await other.execute(COORDINATION["raise_revision"], "work")
        writing = asyncio.create_task(write_decided(rig.connection, batch, rig.memory))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not await other.fetchval(waiting):
            await asyncio.sleep(0)
    with pytest.raises(BeginAgain):
        await writing
    assert Counter(await told(store, "work")) == {"work_heartbeat": 1}

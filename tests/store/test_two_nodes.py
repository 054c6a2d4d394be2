"""Two nodes on one database, each with a store and a writer of its own: together they do everything exactly once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import asyncpg
import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.flows.start import Start
from counterfoil.engine.steps import PutStep
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.complete import Beat, Complete
from counterfoil.engine.work.expire import ExpireOverdue, ReclaimOrphan
from counterfoil.store.group_commit.batch import Command, ForEach
from counterfoil.store.postgres.doctor import examine
from counterfoil.store.postgres.statements import with_parameters
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.journal import ENTRIES, events_of
from tests.store.backends import NewConnection, are_waiting, batch_of, load, write
from tests.store.nodes import CONTEXT, Node, Pair, add_item, add_items, claimable, register, success
from tests.store.records import DEFAULTS, NOW, RETRY, flow_record, new_records, step_version

pytestmark = pytest.mark.postgresql_only


async def at_once(nodes: Pair, commands: list[Command[Any]]) -> list[str]:
    """The outcomes of commands that the nodes get in turn."""
    return await asyncio.gather(*(nodes[number % 2].outcome(command) for number, command in enumerate(commands)))


def told(store: Store, kind: str) -> Counter[str]:
    """How often the journal tells something of each flow."""
    return Counter(event["flow_id"] for event in journal(store) if event["type"] == kind)


def journal(store: Store) -> list[dict[str, Any]]:
    return events_of(by_hand(dsn_of(store), ENTRIES))


async def test_of_many_results_on_both_one_wins(store: Store, nodes: Pair) -> None:
    for name in await add_items(store, 10):
        answers = await at_once(nodes, [success(name, number) for number in range(40)])
        assert Counter(answers) == {"accepted": 1, "CONFLICTING_RESULT": 39}
        [row] = await store.read("get_work", work_id=name)
        assert parse_json(row[12])["outputs"] == {"number": answers.index("accepted")}
        assert told(store, "flow_completed")[name] == 1


async def test_of_many_claims_on_both_one_sends_the_attempt(store: Store, nodes: Pair) -> None:
    names = await add_items(store, 10, WorkStatus.PENDING)
    for name in names:
        answers = await at_once(nodes, [ClaimDue(name, name) for _ in range(20)])
        assert Counter(answers) == {"True": 1, "False": 19}
    assert told(store, "work_dispatched") == dict.fromkeys(names, 1)


async def test_two_searches_at_once_share_what_there_is(store: Store, nodes: Pair) -> None:
    names = await add_items(store, 120, WorkStatus.PENDING)

    async def claim_all(node: Node) -> int:
        claimed = 0
        while await store.read("due_lanes"):
            claimed += sum(await node.commit.submit(ForEach(claimable(limit=7), ClaimDue)))
        return claimed

    claimed = await asyncio.gather(*map(claim_all, nodes))
    assert sum(claimed) == 120
    assert told(store, "work_dispatched") == dict.fromkeys(names, 1), "nothing was sent by both"
    owners = {row[0] for row in by_hand(dsn_of(store), "SELECT owner FROM work")}
    assert owners == {"node-a", "node-b"}


@pytest.mark.parametrize(
    ("query", "status"), [("find_claimable", WorkStatus.PENDING), ("find_overdue", WorkStatus.ACTIVE)]
)
async def test_a_search_passes_over_what_another_has_in_hand(
    store: Store, nodes: Pair, new_connection: NewConnection, query: str, status: WorkStatus
) -> None:
    names = await add_items(store, 6, status, due_at=NOW)
    search = claimable(limit=4, share=4) if query == "find_claimable" else Find.of(query, now=NOW, limit=4)
    text, values = with_parameters(search.query, dict(search.parameters))
    other = await new_connection()
    async with other.transaction():
        in_hand = {row[0] for row in await other.fetch(text, *values)}
        unit = await asyncio.wait_for(load(store, ReadSet(finds={search})), 5)  # it does not wait for the other
        found = {row[0] for row in unit.found(search)}
    assert (len(in_hand), len(found)) == (4, 2)
    assert in_hand | found == set(names)


async def test_the_limit_of_a_step_holds_over_all_nodes(store: Store, nodes: Pair) -> None:
    limited = step_version("narrow", work={"parallelism": 3})
    await nodes[0].commit.submit(PutStep(limited))
    fields = {"step_id": "narrow", "version": limited.version, "lane": limited.lane}
    names = await add_items(store, 40, WorkStatus.PENDING, **fields)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            counts: dict[str, int] = dict(await store.read("open_work_by_state"))
            most = max(most, counts["active"])

    async def drive(node: Node) -> int:
        sent = 0
        while any(count for _, count in await store.read("open_work_by_state")):
            sent += sum(await node.commit.submit(ForEach(claimable(limited.lane, limit=9), ClaimDue)))
            rows = await store.read("list_work", status="active", step_id=None, after=None, limit=9)
            await asyncio.gather(*(node.outcome(success(row[1])) for row in rows))
        return sent

    watching = asyncio.create_task(watch())
    sent = await asyncio.gather(*map(drive, nodes))
    watching.cancel()
    assert sum(sent) == len(names)
    assert 1 <= most <= 3
    out = 0
    for event in journal(store):
        out += {"work_dispatched": 1, "work_succeeded": -1}.get(event["type"], 0)
        assert out <= 3


async def test_a_flow_that_both_start_is_started_once(store: Store, nodes: Pair) -> None:
    for number in range(20):
        request = StartFlow(flow_id=f"flow-{number}", goals=["step"], labels={"k": "v"})
        answers = await at_once(nodes, [Start(request, CONTEXT) for _ in range(6)])
        assert Counter(answers)["FLOW_EXISTS"] == 5, answers
        assert len(await store.read("work_of_flow", flow_id=f"flow-{number}")) == 1
    assert set(told(store, "flow_started").values()) == {1}


async def test_flows_that_both_start_in_another_order_do_not_lock_each_other_out(store: Store, nodes: Pair) -> None:
    for turn in range(20):
        names = [f"flow-{turn}-{number}" for number in range(8)]

        def start_all(order: list[str]) -> list[Command[Any]]:
            return [Start(StartFlow(flow_id=name, goals=["step"]), CONTEXT) for name in order]

        answers = await asyncio.gather(
            *map(nodes[0].outcome, start_all(names)), *map(nodes[1].outcome, start_all(names[::-1]))
        )
        assert Counter(answers)["FLOW_EXISTS"] == len(names), answers
    assert await deadlocks(store) == 0


async def test_steps_that_both_register_in_another_order_do_not_lock_each_other_out(
    store: Store, nodes: Pair, new_connection: NewConnection
) -> None:
    names = [f"step-{number}" for number in range(5)]
    for name in names:
        await register(store, name)
    holding, eye = await new_connection(), await new_connection()
    await holding.execute("BEGIN; SELECT 1 FROM steps WHERE step_id = 'step-2' FOR UPDATE")  # in the middle of both
    there = [nodes[0].outcome(PutStep(step_version(name, name="there"))) for name in names]
    back = [nodes[1].outcome(PutStep(step_version(name, name="back"))) for name in reversed(names)]
    registered = asyncio.gather(*there, *back)
    await eventually(lambda: are_waiting(eye, 2), what="both of them at a lock")
    await holding.execute("COMMIT")
    assert await registered == ["False"] * 10
    assert await deadlocks(store) == 0


async def test_random_batches_over_the_same_flows_never_stand_in_each_others_way(
    store: Store, nodes: Pair, clock: StillClock
) -> None:
    """Whatever two nodes do to the same flows, in whichever order: nothing fails, and neither locks the other out."""
    narrow = step_version("narrow", work={"parallelism": 2})
    for version in (narrow, step_version("other", cancel_url="http://worker.test/cancel")):
        await nodes[0].commit.submit(PutStep(version))
    chaos = [Chaos(node, clock, seed) for seed, node in enumerate(nodes)]
    await asyncio.gather(*(each.run(100) for each in chaos))
    answers = chaos[0].answers + chaos[1].answers
    assert not {"UNAVAILABLE", "INTERNAL"} & set(answers), answers
    assert answers["accepted"] > 50, answers
    assert examine(dsn_of(store), DEFAULTS) == [], "the tables hold what the journal tells"
    assert await deadlocks(store) == 0


class Chaos:
    """Rounds of random commands on one node, over flows that the other node has in hand as well."""

    def __init__(self, node: Node, clock: StillClock, seed: int) -> None:
        self._node = node
        self._clock = clock
        self._dice = random.Random(seed)
        self.answers: Counter[str] = Counter()

    async def run(self, rounds: int) -> None:
        for number in range(rounds):
            self._clock.advance(300)
            rows = await self._node.store.read("list_work", status=None, step_id=None, after=None, limit=9_999)
            work = [(row[1], row[2]) for row in rows[-30:]]
            commands = [self._any(number, work) for _ in range(self._dice.randint(2, 30))]
            self.answers.update(await asyncio.gather(*map(self._node.outcome, commands)))

    def _any(self, number: int, work: list[tuple[str, str]]) -> Command[Any]:
        dice, now = self._dice, self._clock()
        work_id, flow_id = dice.choice(work) if work else ("unknown", "unknown")
        new_id = f"flow-{number // 3}-{dice.randrange(4)}"
        lanes = [f"{step}@worker.test" for step in ("step", "other", "narrow")]
        overdue, orphaned = Find.of("find_overdue", now=now, limit=9), Find.of("find_orphaned", owner="node-a", limit=9)
        commands: list[tuple[int, Command[Any]]] = [
            (6, Start(StartFlow(flow_id=new_id, goals=dice.sample(["step", "other", "narrow"], 2)), CONTEXT)),
            (2, Start(StartFlow(goals=["narrow"]), CONTEXT)),
            (8, Complete(work_id, StepResult(success=dice.random() < 0.9, outputs={}), RETRY)),
            (2, Complete(work_id, StepResult(success=False, retriable=True, error="later"), RETRY)),
            (4, Beat(work_id, Heartbeat(progress=0.5))),
            (1, Cancel(flow_id)),
            (2, ClaimDue(work_id, flow_id)),
            (3, ForEach(claimable(*lanes, now=now, limit=9), ClaimDue)),
            (1, ForEach(overdue, lambda work_id: ExpireOverdue(work_id, RETRY))),
            (1, ForEach(orphaned, lambda work_id, owner: ReclaimOrphan(work_id, owner, RETRY))),
        ]
        return dice.choices([command for _, command in commands], [weight for weight, _ in commands])[0]


class SeeFlow:
    """Looks at a flow, and whether others could have it now."""

    def __init__(self, store: Store, flow_id: str, *, beside: str) -> None:
        self._store = store
        self._flow_id = flow_id
        self._beside = beside

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self._beside)
        needs.open_flows.add(self._flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool | None:
        """Whether it is locked; None: it is not there."""
        return None if unit.find_flow(self._flow_id) is None else is_locked(self._store, self._flow_id)


async def test_what_a_batch_sees_it_has_locked(store: Store, nodes: Pair, new_connection: NewConnection) -> None:
    """Also a flow that began after its lock was looked for, and before it was loaded."""
    await add_item(store, "first")
    holding, eye = await new_connection(), await new_connection()
    await holding.execute("BEGIN; SELECT 1 FROM flows FOR UPDATE")
    answers: list[bool | None] = []
    batch = batch_of(SeeFlow(store, "new", beside="first"), answers=answers)
    running = asyncio.ensure_future(store.execute(batch))
    await eventually(lambda: are_waiting(eye, 1), what="the batch at the lock")
    await write(nodes[1].store, new_records(flow_record(flow_id="new")))
    await holding.execute("COMMIT")
    await running
    batch.answer()
    assert answers == [True]


def is_locked(store: Store, flow_id: str) -> bool:
    try:
        by_hand(dsn_of(store), f"SELECT 1 FROM flows WHERE flow_id = '{flow_id}' FOR UPDATE NOWAIT")
    except asyncpg.LockNotAvailableError:
        return True
    return False


def dsn_of(store: Store) -> str:
    assert isinstance(store, PostgresStore)
    return store.access.dsn


async def deadlocks(store: Store) -> int:
    """How often the server has had to end a transaction because two waited for each other, when all is over.

    A connection tells its count at its end, at the latest.
    """
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    own = "FROM pg_stat_database WHERE datname = current_database()"
    statements = f"SELECT pg_terminate_backend(pid, 5000) {others}", f"SELECT deadlocks {own}"
    return int(by_hand(dsn_of(store), *statements)[0][0])

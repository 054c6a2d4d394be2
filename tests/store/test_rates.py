"""When steps were sent: every store keeps it as it was told, and lets one batch at a time count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.domain.states import WorkStatus
from counterfoil.domain.steps.definitions import DAY_MS
from counterfoil.domain.work.rates import SentTimes
from counterfoil.engine.steps import PutStep
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.store.backends import NewConnection, are_waiting, batch_of, load, write
from tests.store.nodes import Node, Pair, add_items, claimable, register
from tests.store.records import NOW, Written, step_version
from tests.store.test_two_nodes import dsn_of, journal

LIMIT = 3
PER_MS = 1_000


async def sent(store: Store, *steps: str) -> list[SentTimes]:
    unit = await load(store, ReadSet(rates=set(steps)))
    return [unit.sent_times(step_id) for step_id in steps]


async def test_a_step_that_was_never_sent_has_no_times(store: Store) -> None:
    assert await sent(store, "step", "other") == [SentTimes(), SentTimes()]


async def test_times_are_kept_and_replaced(store: Store) -> None:
    times, other = SentTimes((NOW - 5, NOW, NOW), 3), SentTimes((NOW,), 10)
    await write(store, Written(rates={"step": SentTimes((NOW - 9,), 1), "other": other}))
    await write(store, Written(rates={"step": times}))
    assert await sent(store, "other", "step") == [other, times]


async def test_as_many_as_there_may_be(store: Store) -> None:
    times = SentTimes(tuple(NOW - DAY_MS + number * 8_000 for number in range(10_000)), 10_000)
    await write(store, Written(rates={"step": times}))
    assert await sent(store, "step") == [times]


# ------------------------------------------------------------------------------------------------ counting


async def limited(store: Store, count: int, **fields: Any) -> tuple[str, list[str]]:
    """Work that waits for a step with a limit: its lane, and the work."""
    version = step_version("limited", work={"rate_limit": {"count": LIMIT, "per_ms": PER_MS}})
    await register(store, "limited", work={"rate_limit": {"count": LIMIT, "per_ms": PER_MS}})
    own = {"step_id": "limited", "version": version.version, "lane": version.lane}
    return version.lane, await add_items(store, count, WorkStatus.PENDING, **own, **fields)


async def test_claims_of_a_batch_and_of_the_next_see_each_other(store: Store) -> None:
    _, names = await limited(store, 6)
    await store.join("node", 60_000)
    answers: list[Any] = []
    node = Node("node", store, lambda: NOW)
    await store.execute(batch_of(*(ClaimDue(name, name) for name in names[:2]), answers=answers, prepare=node.prepare))
    batch = batch_of(*(ClaimDue(name, name) for name in names[2:]), answers=answers, prepare=node.prepare)
    await store.execute(batch)
    batch.answer()
    assert answers == [True, False, False, False]
    assert await sent(store, "limited") == [SentTimes((NOW,) * 3, 3)]


class Refused(ClaimDue):
    """Claims, and is refused after all."""

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        super().decide(unit, now)
        raise ValueError(self.work_id)


async def test_a_claim_that_is_refused_after_all_does_not_count(store: Store) -> None:
    _, names = await limited(store, 5)
    await store.join("node", 60_000)
    answers: list[Any] = []
    node = Node("node", store, lambda: NOW)
    commands = [Refused(names[0], names[0]), *(ClaimDue(name, name) for name in names[1:])]
    batch = batch_of(*commands, answers=answers, prepare=node.prepare)
    await store.execute(batch)
    batch.answer()
    assert answers[1:] == [True, True, True, False]


# ------------------------------------------------------------------------------------------------ several nodes


@pytest.mark.postgresql_only
async def test_the_limit_holds_over_all_nodes(store: Store, nodes: Pair, clock: StillClock) -> None:
    """Both claim as fast as they can, while time goes on by a fifth of a window after each round."""
    version = step_version("limited", work={"rate_limit": {"count": LIMIT, "per_ms": PER_MS}})
    await nodes[0].commit.submit(PutStep(version))
    own = {"step_id": "limited", "version": version.version, "lane": version.lane}
    names = await add_items(store, 30, WorkStatus.PENDING, **own)

    async def drive(node: Node) -> int:
        claims = 0
        while await store.read("due_lanes"):
            search = claimable(version.lane, now=clock(), limit=4)
            claims += sum(await node.commit.submit(ForEach(search, ClaimDue)))
            clock.advance(PER_MS // 5)
        return claims

    claimed = await asyncio.gather(*map(drive, nodes))
    assert sum(claimed) == len(names)
    at = sorted(event["at"] for event in journal(store) if event["type"] == "work_dispatched")
    assert len(at) == len(names)
    assert all(sum(start <= time < start + PER_MS for time in at) <= LIMIT for start in at)
    assert by_hand(dsn_of(store), "SELECT count(*) FROM step_rates") == [(1,)]


@pytest.mark.postgresql_only
async def test_a_batch_that_counts_keeps_the_others_waiting(
    store: Store, nodes: Pair, new_connection: NewConnection
) -> None:
    """The same lock as for what is out: what another has sent but not committed is not passed over."""
    _, names = await limited(store, 1)
    other, eye = await new_connection(), await new_connection()
    async with other.transaction():
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.parallelism.limited', 0))"
        await other.execute(lock)
        claim = asyncio.create_task(nodes[1].commit.submit(ClaimDue(names[0], names[0])))
        await eventually(lambda: are_waiting(eye, 1), what="a claim that waits")
        full = f"[{NOW},0,0]"
        await other.execute("INSERT INTO step_rates (step_id, most, sent) VALUES ('limited', 3, $1)", full)
    assert not await claim

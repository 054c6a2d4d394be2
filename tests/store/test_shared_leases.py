"""Leases of many nodes on one database: a lease that has lapsed never lives again, and two never hold the same work."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.results import Heartbeat
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.complete import Beat
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.statements import COORDINATION, with_parameters
from counterfoil.store.postgres.transaction import LeaseLost
from counterfoil.store.protocol import Store
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.store.backends import NewConnection, are_waiting, batch_of
from tests.store.nodes import LEASE_MS, Node, add_item, orphans, register, success

pytestmark = pytest.mark.postgresql_only

OVER = 0
"""The length of a lease that has lapsed as soon as it begins."""
SOON = 300


async def has_lapsed(eye: Connection) -> bool:
    """Whether the one lease is over, as other transactions see it."""
    return bool(await eye.fetchval("SELECT lease_until <= clock_timestamp() FROM nodes"))


async def test_each_hears_how_many_others_live(store: Store) -> None:
    for number, node in enumerate("abc"):
        await store.join(node, LEASE_MS)
        assert await store.renew(node, LEASE_MS) == number
    await store.join("lapsed", OVER)
    await store.leave("b")
    assert await store.renew("a", LEASE_MS) == 1


async def test_a_lease_lapses_and_never_lives_again(store: Store, new_connection: NewConnection) -> None:
    eye = await new_connection()
    await store.join("me", SOON)
    assert not await has_lapsed(eye)
    assert await store.renew("me", SOON) == 0
    await eventually(lambda: has_lapsed(eye), what="the end of the lease")
    for lease_ms in (LEASE_MS, OVER, LEASE_MS):
        assert await store.renew("me", lease_ms) is None
    assert await has_lapsed(eye)


async def test_a_lease_that_was_left_or_never_was_cannot_be_renewed(store: Store) -> None:
    await store.join("me", LEASE_MS)
    await store.leave("me")
    assert await store.renew("me", LEASE_MS) is None
    await store.leave("nobody")
    assert await store.renew("nobody", LEASE_MS) is None


async def test_a_name_is_used_once(store: Store) -> None:
    await store.join("me", OVER)
    with pytest.raises(StoreFailure, match="nodes_pkey"):
        await store.join("me", LEASE_MS)
    assert await store.renew("me", LEASE_MS) is None


async def test_nodes_that_have_long_been_gone_are_forgotten(store: Store, new_connection: NewConnection) -> None:
    eye = await new_connection()
    for name in ("gone", "lapsed"):
        await store.join(name, OVER)
    await eye.execute("UPDATE nodes SET lease_until = lease_until - INTERVAL '25 hours' WHERE node_id = 'gone'")
    await add_item(store, "work", owner="gone")
    await store.join("new", LEASE_MS)
    assert {row[0] for row in await eye.fetch("SELECT node_id FROM nodes")} == {"lapsed", "new"}
    assert await orphans(store, "new") == {("work", "gone")}, "what they left behind is not"


async def test_a_node_keeps_its_work_until_its_lease_lapses_or_it_leaves(store: Store) -> None:
    await store.join("alive", LEASE_MS)
    await store.join("lapsed", OVER)
    await store.join("left", LEASE_MS)
    for owner in ("alive", "lapsed", "left"):
        await add_item(store, f"of-{owner}", owner=owner)
    assert await orphans(store, "alive") == {("of-lapsed", "lapsed")}
    await store.leave("left")
    assert await orphans(store, "alive") == {("of-lapsed", "lapsed"), ("of-left", "left")}
    assert await orphans(store, "lapsed") == {("of-left", "left")}, "a node never finds its own"


async def test_the_secret_is_that_of_the_first(store: Store) -> None:
    answers = await asyncio.gather(*(store.receipt_secret(f"proposed-{number}") for number in range(9)))
    assert len(set(answers)) == 1
    assert await store.receipt_secret("later") == answers[0]


# A renewal and a search for orphans at the very moment when a lease lapses: one of them wins, for both of them.


async def test_a_lease_that_is_just_being_renewed_has_not_lapsed(store: Store, new_connection: NewConnection) -> None:
    renewing, eye = await new_connection(), await new_connection()
    await store.join("late", SOON)
    await add_item(store, "work", owner="late")
    async with renewing.transaction():
        assert await renewing.fetch(COORDINATION["renew_lease"], "late", LEASE_MS), "it was in time"
        await eventually(lambda: has_lapsed(eye), what="the end of the old lease")
        assert await orphans(store, "me") == set()
    assert await orphans(store, "me") == set()
    assert await store.renew("late", LEASE_MS) == 0


async def test_a_lease_that_was_found_lapsed_is_not_renewed_meanwhile(
    store: Store, new_connection: NewConnection
) -> None:
    """The renewal has begun in time, but the search for orphans has the lease's row when it is over."""
    searching, holding, eye = await new_connection(), await new_connection(), await new_connection()
    await store.join("late", SOON)
    await add_item(store, "work", owner="late")
    text, values = with_parameters("find_orphaned", {"owner": "me", "limit": 9})
    async with holding.transaction(), searching.transaction():
        await holding.fetch("SELECT 1 FROM nodes FOR SHARE")
        renewal = asyncio.create_task(store.renew("late", LEASE_MS))
        await eventually(lambda: are_waiting(eye, 1), what="the renewal at the lock")
        await eventually(lambda: has_lapsed(eye), what="the end of the lease")
        assert [tuple(row) for row in await searching.fetch(text, *values)] == [("work", "late")]
    assert await renewal is None


async def test_several_nodes_find_different_orphans_of_the_same_one(
    store: Store, new_connection: NewConnection
) -> None:
    searching = await new_connection()
    await store.join("late", OVER)
    for name in ("a", "b"):
        await add_item(store, name, owner="late")
    text, values = with_parameters("find_orphaned", {"owner": "other", "limit": 1})
    async with searching.transaction():
        [first] = await searching.fetch(text, *values)
        [second] = await orphans(store, "me")
    assert {tuple(first), second} == {("a", "late"), ("b", "late")}


# Without a lease nothing is claimed; everything else goes on.


@pytest.fixture
async def lapsed(store: Store, clock: StillClock) -> Node:
    node = Node("lapsed", store, clock)
    await register(store)
    await store.join("lapsed", OVER)
    return node


async def test_a_lapsed_node_claims_nothing(store: Store, lapsed: Node) -> None:
    await add_item(store, "work", WorkStatus.PENDING)
    await add_item(store, "other")
    with pytest.raises(LeaseLost):
        await store.execute(batch_of(ClaimDue("work", "work"), success("other"), prepare=lapsed.prepare))
    states = [(await store.read("receipt_status", work_id=name))[0][0] for name in ("work", "other")]
    assert states == ["pending", "active"], "nothing of the batch was written"
    assert await store.read("last_seq") == [(0,)]


async def test_a_lapsed_node_records_what_it_is_told(store: Store, lapsed: Node) -> None:
    """Also of what it was sending: only a claim needs a lease."""
    lapsed.commit.start()
    for name in ("reported", "beating"):
        await add_item(store, name, owner="lapsed")
    assert await lapsed.outcome(success("reported")) == "accepted"
    answer = await lapsed.commit.submit(Beat("beating", Heartbeat(progress=0.5)))
    assert not answer.cancel_requested
    await lapsed.commit.close()


async def test_a_lapsed_node_begins_anew_under_another_name(store: Store, lapsed: Node) -> None:
    await add_item(store, "work", WorkStatus.NOT_COMPLETED, attempt=1)
    lapsed.commit.start()
    assert await lapsed.outcome(ClaimDue("work", "work")) == "UNAVAILABLE"
    await store.join("again", LEASE_MS)
    lapsed.node_id = "again"
    assert await lapsed.outcome(ClaimDue("work", "work")) == "True"
    await lapsed.commit.close()

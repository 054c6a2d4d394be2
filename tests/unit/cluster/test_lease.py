"""The node's lease: it believes in it no longer than the store does, and comes back under another name."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from counterfoil.domain.work.receipts import Receipts
from counterfoil.engine.cluster.lease import Lease, ever_running
from counterfoil.engine.context import EngineContext
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.testing.simulator import StillClock
from tests.by_hand import Place, by_hand
from tests.eventually import elapsed, eventually
from tests.store.records import DEFAULTS

LEASE_MS = 60_000
SHORT_MS = 300


class Hands:
    """A clock of seconds that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(place: Place) -> AsyncIterator[PostgresStore]:
    assert isinstance(place, str)
    store = PostgresStore(place, StillClock(), DEFAULTS)
    await store.open()
    yield store
    await store.close()


def context_of(name: str) -> EngineContext:
    """A context whose node is called so, and then so-2, so-3 ..."""
    names = itertools.count(2)
    return EngineContext(Receipts([b"secret"]), node_id=name, new_id=lambda: f"{name}-{next(names)}")


def is_held(lease: Lease) -> bool:
    """Asked anew each time, which the type checker would not believe of a property."""
    return lease.held


Make = Callable[..., tuple[Lease, EngineContext]]


@pytest.fixture
def make(store: PostgresStore) -> Make:
    def make_one(
        name: str = "node", lease_ms: int = LEASE_MS, clock: Callable[[], float] = ever_running
    ) -> tuple[Lease, EngineContext]:
        context = context_of(name)
        return Lease(store, context, lease_ms, clock), context

    return make_one


@pytest.mark.sqlite_only
async def test_the_only_process_needs_none(tmp_path: Path) -> None:
    """Without a length there is no lease, and nothing to keep: the store is not even asked."""
    context = context_of("node")
    lease = Lease(SqliteStore(tmp_path / "never opened", StillClock(), DEFAULTS), context, None)
    for _ in range(2):
        assert is_held(lease)
        assert lease.holds("node")
        assert lease.holds(None)
        await lease.keep()
        await lease.keep_on()
        await lease.leave()
    assert (lease.keep_every_ms, lease.others, context.node_id) == (None, 0, "node")


@pytest.mark.postgresql_only
async def test_before_it_has_joined_a_node_may_nothing(make: Make) -> None:
    lease, _ = make()
    assert not is_held(lease)
    assert not lease.holds("node")
    await lease.leave()  # there is nothing to give back
    await lease.keep()
    assert is_held(lease)
    assert lease.holds("node")
    assert not lease.holds("another")
    assert not lease.holds(None), "what no node has claimed is not sent either"


@pytest.mark.postgresql_only
async def test_it_is_renewed_often_enough_that_two_may_fail(make: Make) -> None:
    lease, _ = make(lease_ms=3_000)
    assert lease.keep_every_ms == 1_000


@pytest.mark.postgresql_only
async def test_it_ends_for_the_node_when_it_was_not_renewed(make: Make) -> None:
    hands = Hands()
    lease, context = make(clock=hands)
    await lease.keep()
    hands.now += 59.9
    assert is_held(lease)
    hands.now += 0.1
    assert not is_held(lease)
    assert not lease.holds("node")
    await lease.keep()
    assert is_held(lease)
    assert context.node_id == "node", "the store has not taken it away yet"


@pytest.mark.postgresql_only
async def test_it_is_counted_from_before_it_was_asked_for(make: Make) -> None:
    """However long the answer takes: the store cannot have begun to count any earlier."""
    ticks = itertools.count(1_000, 20)
    lease, _ = make(clock=lambda: float(next(ticks)))
    await lease.keep()
    asked_at = lease._until - LEASE_MS / 1_000
    await lease.keep()
    assert lease._until - LEASE_MS / 1_000 == asked_at + 20, "the next tick, which was the one before the renewal"


@pytest.mark.postgresql_only
async def test_each_knows_how_many_others_there_are(make: Make) -> None:
    (one, _), (two, _) = make("one"), make("two")
    for lease in (one, two, one):
        await lease.keep()
    assert (one.others, two.others) == (1, 1)
    await two.leave()
    await one.keep()
    assert one.others == 0


@pytest.mark.postgresql_only
async def test_a_node_that_comes_back_late_has_another_name(make: Make, store: PostgresStore) -> None:
    lease, context = make(lease_ms=SHORT_MS)
    await lease.keep()
    await eventually(lambda: not lease.held, what="the end of the lease")
    await elapsed(0.05)  # the store's comes later
    await lease.keep()
    assert context.node_id == "node-2"
    assert is_held(lease)
    assert lease.holds("node-2")
    assert not lease.holds("node"), "what it claimed before is no longer its own"
    assert await store.renew("node", LEASE_MS) is None
    assert await store.renew("node-2", LEASE_MS) is not None


@pytest.mark.postgresql_only
async def test_the_node_never_believes_in_it_longer_than_the_store(make: Make, store: PostgresStore) -> None:
    lease, context = make(lease_ms=SHORT_MS)
    await lease.keep()
    await lease.keep()
    seen_alive = 0
    while True:
        alive = await store._fetch(store._keeper, "SELECT lease_until > clock_timestamp() FROM nodes")
        if not lease.held:
            break
        assert alive[0][0]
        seen_alive += 1
    assert seen_alive
    assert context.node_id == "node"


@pytest.mark.postgresql_only
async def test_what_was_given_back_is_over_at_once(make: Make, store: PostgresStore) -> None:
    lease, _ = make()
    await lease.keep()
    await lease.leave()
    assert not is_held(lease)
    assert await store.renew("node", LEASE_MS) is None


@pytest.mark.postgresql_only
async def test_while_the_store_fails_it_runs_out_by_itself(make: Make, place: Place) -> None:
    hands = Hands()
    lease, context = make(clock=hands)
    await lease.keep()
    by_hand(place, "ALTER TABLE nodes RENAME TO elsewhere")
    hands.now += 30
    with pytest.raises(StoreFailure):
        await lease.keep()
    assert is_held(lease), "it was not prolonged, but it is not over either"
    hands.now += 30
    assert not is_held(lease)
    with pytest.raises(StoreFailure):
        await lease.leave()
    by_hand(place, "ALTER TABLE elsewhere RENAME TO nodes")
    await lease.keep()
    assert (lease.held, context.node_id) == (True, "node")


@pytest.mark.postgresql_only
async def test_a_new_name_that_could_not_join_holds_nothing(make: Make, place: Place) -> None:
    """It has lapsed and the store will not have it: it may nothing, under any name, until it has joined."""
    lease, context = make()
    await lease.keep()
    by_hand(
        place,
        "UPDATE nodes SET lease_until = joined_at - INTERVAL '1 second'",
        "ALTER TABLE nodes ADD CONSTRAINT full_house CHECK (node_id = 'node')",
    )
    for _ in range(2):
        with pytest.raises(StoreFailure, match="full_house"):
            await lease.keep()
        assert not is_held(lease)
        assert not lease.holds(context.node_id)
    by_hand(place, "ALTER TABLE nodes DROP CONSTRAINT full_house")
    await lease.keep()
    assert lease.holds(context.node_id)
    assert context.node_id not in ("node", "node-2")


@pytest.mark.postgresql_only
async def test_a_node_that_is_stopping_keeps_it_until_it_is_told_to_stop(make: Make, place: Place) -> None:
    lease, context = make(lease_ms=SHORT_MS)
    await lease.keep()
    keeping = asyncio.create_task(lease.keep_on())
    by_hand(place, "ALTER TABLE nodes RENAME TO elsewhere")
    await elapsed(SHORT_MS / 3_000)
    by_hand(place, "ALTER TABLE elsewhere RENAME TO nodes")  # a failure does not end it
    for _ in range(4):
        await elapsed(SHORT_MS / 2_000)
        await eventually(lambda: lease.held, what="a lease")
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    await eventually(lambda: not lease.held, what="the end of the lease")
    assert context.node_id.startswith("node")

"""Leases, as far as both stores have them: which work may be reclaimed, and that it is reclaimed once."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.domain.states import WorkStatus
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.expire import ReclaimOrphan
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.store.backends import write
from tests.store.nodes import LEASE_MS, Node, add_items, claimable, orphans, register
from tests.store.records import RETRY, flow_record, new_records, work_item


async def test_what_an_unknown_node_was_sending_is_orphaned(store: Store) -> None:
    """On a store of one process that is every other node: it has ended before this one could begin."""
    owners = {"mine": "node-b", "acknowledged": None, "earlier": "node-a", "later": "node-c"}
    items = [work_item(work_id=name, owner=owner) for name, owner in owners.items()]
    await write(store, new_records(flow_record(), *items))
    assert await orphans(store, "node-b") == {("earlier", "node-a"), ("later", "node-c")}
    assert len(await orphans(store, "node-b", limit=1)) == 1
    assert await orphans(store, "node-b", limit=0) == set()


async def test_a_node_never_finds_what_it_is_sending_itself(store: Store, clock: StillClock) -> None:
    await register(store)
    await add_items(store, 3, WorkStatus.PENDING)
    node = Node("me", store, clock)
    await node.start()
    assert await node.commit.submit(ForEach(claimable(), ClaimDue)) == [True, True, True]
    assert await store.renew("me", LEASE_MS) == 0, "there is no other"
    assert await orphans(store, "me") == set()
    await node.stop()
    assert len(await orphans(store, "another")) == 3, "it has gone, and left it behind"


async def test_orphans_are_taken_over_once(store: Store, clock: StillClock) -> None:
    await register(store)
    names = await add_items(store, 3, owner="dead")
    node = Node("me", store, clock)
    await node.start()
    search = Find.of("find_orphaned", owner="me", limit=99)
    takeovers = [ForEach(search, lambda work_id, owner: ReclaimOrphan(work_id, owner, RETRY)) for _ in range(4)]
    answers = await asyncio.gather(*map(node.commit.submit, takeovers))
    assert sorted(sum(answer) for answer in answers) == [0, 0, 0, 3]
    assert [(await store.read("get_work", work_id=name))[0][5] for name in names] == ["not_completed"] * 3
    assert await orphans(store, "me") == set()
    await node.stop()


async def test_what_is_told_is_heard(store: Store) -> None:
    """Nothing may depend on it, but as long as all is well there is no reason for it not to come."""
    heard: list[str] = []
    store.listen(heard.append)
    message = "x" * 7_900

    async def told() -> bool:
        await store.notify(message)  # again, until the listener has begun to
        return message in heard

    await eventually(told, what="the word")


@pytest.mark.sqlite_only
async def test_the_only_process_is_always_alone_and_alive(store: Store) -> None:
    await store.join("me", 0)
    assert await store.renew("me", 0) == 0
    await store.leave("me")
    assert await store.renew("me", 0) == 0
    assert await store.receipt_secret("proposed") is None, "its secret is in a file"

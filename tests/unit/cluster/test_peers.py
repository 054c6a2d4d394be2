"""Word from node to node: gathered for a moment, told once, and heard for what it is worth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncpg
import orjson
import pytest

from counterfoil.domain.work.receipts import Receipts
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.cluster.peers import BUSY_SECONDS, MANY_FLOWS, MOST_FLOWS, Peers
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.feed import Feed, FeedReader
from counterfoil.engine.queries.results import Results
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.capacity import Slots
from counterfoil.engine.work.sending_room import SendingRoom
from counterfoil.store.group_commit.batch_sizes import BatchSizer
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.listening import CHANNEL
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.testing.simulator import StillClock
from tests.databases import NewDatabase
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.store.records import DEFAULTS

pytestmark = pytest.mark.postgresql_only

A_MOMENT = 0.1
LONG = 10.0


class NotedResults(Results):
    """With a note of the flows that are said to have ended; None: any may have."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store, lambda: False)
        self.ended: list[list[str] | None] = []

    def read_ended(self, flow_ids: Iterable[str]) -> None:
        noted = list(flow_ids)
        if noted:
            self.ended.append(noted)
        super().read_ended(noted)

    def look_again(self) -> None:
        self.ended.append(None)
        super().look_again()


class NotedRoom(SendingRoom):
    """With a note of the steps that have room again."""

    def __init__(self, slots: Slots, wakeups: Wakeups) -> None:
        super().__init__(slots, wakeups)
        self.made: list[list[str]] = []

    def make(self, steps: Iterable[str], defined: Iterable[str] | None = None) -> None:
        noted = list(steps)
        self.made.append(noted)
        super().make(noted, defined)


@dataclass
class Node:
    """What of a node talks to its peers."""

    name: str
    store: PostgresStore
    feed: Feed = field(default_factory=Feed)
    sizer: BatchSizer = field(default_factory=lambda: BatchSizer(2))
    dues: int = 0

    def __post_init__(self) -> None:
        context = EngineContext(Receipts([b"secret"]), node_id=self.name)
        self.lease = Lease(self.store, context, 60_000)
        wakeups = Wakeups()
        wakeups.listen(self._count)
        self.room = NotedRoom(Slots(1, 1), wakeups)
        self.results = NotedResults(self.store)
        self.peers = Peers(self.store, context, self.lease, self.feed, self.results, wakeups, self.room, self.sizer)

    @property
    def rooms(self) -> list[list[str]]:
        return self.room.made

    def _count(self, sweep: SweepName, due_at: int | None) -> None:
        assert (sweep, due_at) == (SweepName.REQUEUE, None)
        self.dues += 1


@pytest.fixture
def proxy(new_database: NewDatabase) -> Iterator[Proxy]:
    with Proxy(new_database()) as proxy:
        yield proxy


@pytest.fixture
async def spoken(proxy: Proxy) -> AsyncIterator[list[dict[str, Any]]]:
    """Every message that is sent, as any listener receives it."""
    words: list[dict[str, Any]] = []
    connection: Connection = await asyncpg.connect(proxy.dsn)
    await connection.add_listener(CHANNEL, lambda *heard: words.append(orjson.loads(heard[-1])))
    yield words
    connection.terminate()


@pytest.fixture
async def nodes(proxy: Proxy) -> AsyncIterator[tuple[Node, Node]]:
    pair = [Node(name, PostgresStore(proxy.dsn, StillClock(), DEFAULTS)) for name in ("one", "two")]
    for node in pair:
        await node.store.open()
    for node in (*pair, pair[0]):  # the first must hear of the second
        await node.lease.keep()
    await until_they_listen(pair)
    yield pair[0], pair[1]
    for node in pair:
        await node.peers.stop()
        await node.store.close()


async def until_they_listen(pair: list[Node]) -> None:
    """Send until both nodes receive: a connection that listens may be a moment late. Then forget what was heard."""

    async def all_hear() -> bool:
        for node in pair:
            node.peers.tell(due=True)
        return all(node.dues for node in pair)

    await eventually(all_hear, what="ears")
    for node in pair:
        await node.peers.finish()
    await heard_all(*pair)
    for node in pair:
        node.rooms.clear()
        node.dues = 0


async def heard_all(*nodes: Node) -> None:
    """Whatever these have said before has been heard: words come in their order."""
    mark = orjson.dumps({"from": "another", "flows": [], "steps": ["the mark"], "due": False}).decode()
    for node in nodes:
        await node.peers.finish()
    await nodes[0].store.notify(mark)
    for node in nodes:
        await eventually(partial(has_heard, node, "the mark"), what="the mark")
        node.rooms.remove(["the mark"])


def has_heard(node: Node, step_id: str) -> bool:
    return any(step_id in room for room in node.rooms)


async def rung(subscription: FeedReader, within: float = LONG) -> bool:
    waiting = asyncio.create_task(subscription.wait(2 * LONG))
    done, _ = await asyncio.wait({waiting}, timeout=within)
    waiting.cancel()
    return bool(done)


Pair = tuple[Node, Node]
Words = list[dict[str, Any]]


async def test_a_flow_that_changed_wakes_its_readers_on_other_nodes(nodes: Pair) -> None:
    one, two = nodes
    with two.feed.subscribe("flow") as of_flow, two.feed.subscribe(None) as of_all, two.feed.subscribe("x") as other:
        one.peers.tell(flows=["flow"])
        assert await rung(of_flow)
        assert await rung(of_all)
        await heard_all(*nodes)
        assert not await rung(other, A_MOMENT)


async def test_only_flows_that_ended_are_looked_at_for_polls(nodes: Pair) -> None:
    one, two = nodes
    one.peers.tell(flows=["changed", "ended"])
    one.peers.tell(ended=["ended"])
    await heard_all(*nodes)
    one.peers.tell(flows=["changed"], steps=["step"])
    await heard_all(*nodes)
    assert (one.results.ended, two.results.ended) == ([], [["ended"]])


@pytest.mark.parametrize("many", [MOST_FLOWS, MOST_FLOWS + 1])
async def test_flows_that_ended_are_named_though_more_have_changed(nodes: Pair, spoken: Words, many: int) -> None:
    one, two = nodes
    spoken.clear()
    ended = [f"f{number:03}" for number in range(many)]
    one.peers.tell(flows=[*ended, "another"], ended=ended)
    await heard_all(*nodes)
    await eventually(lambda: spoken, what="the word")
    assert spoken[0]["flows"] is None
    assert two.results.ended == ([ended] if many <= MOST_FLOWS else [None])


async def test_an_earlier_release_does_not_say_which_flows_ended(nodes: Pair) -> None:
    """While nodes are upgraded one after the other."""
    one, two = nodes
    for flows in (["flow"], None):
        message = {"from": "a node of before", "flows": flows, "steps": [], "due": False}
        await one.store.notify(orjson.dumps(message).decode())
    await heard_all(*nodes)
    assert two.results.ended == [["flow"], None]


async def test_room_and_due_work_are_told(nodes: Pair) -> None:
    one, two = nodes
    one.peers.tell(steps=["b", "a"])
    await eventually(lambda: two.rooms, what="word of the room")
    assert (two.rooms, two.dues) == ([["a", "b"]], 0)
    one.peers.tell(due=True)
    await eventually(lambda: two.dues, what="word of due work")
    assert (two.rooms, two.dues) == ([["a", "b"]], 1)


async def test_a_node_ignores_its_own_messages(nodes: Pair) -> None:
    one, _ = nodes
    with one.feed.subscribe("flow") as subscription:
        one.peers.tell(flows=["flow"], steps=["step"], due=True)
        await heard_all(*nodes)
        assert not await rung(subscription, A_MOMENT)
    assert (one.rooms, one.dues) == ([], 0)


async def test_what_is_told_in_one_moment_is_one_word(nodes: Pair, spoken: Words) -> None:
    one, two = nodes
    spoken.clear()
    for number in range(50):
        one.peers.tell(flows=[f"flow-{number % 5}"], steps=["step"] if number == 7 else [], due=number == 9)
    await eventually(lambda: two.dues, what="the word")
    await eventually(lambda: spoken, what="the word")
    flows = [f"flow-{number}" for number in range(5)]
    assert spoken == [{"from": "one", "flows": flows, "ended": [], "steps": ["step"], "due": True}]


async def test_what_is_told_while_a_word_is_said_is_said_after_it(nodes: Pair, spoken: Words) -> None:
    one, two = nodes
    for number in range(20):
        one.peers.tell(steps=[f"step-{number}"])
        await eventually(partial(has_heard, two, f"step-{number}"), what="the word")
    assert sorted({step for room in two.rooms for step in room}) == sorted(f"step-{number}" for number in range(20))


async def test_alone_a_node_says_nothing(nodes: Pair, spoken: Words) -> None:
    one, two = nodes
    await two.lease.leave()
    await one.lease.keep()
    spoken.clear()
    one.peers.tell(flows=["flow"], steps=["step"], due=True)
    await one.peers.finish()
    two.peers.tell(steps=["the end"])  # it has not looked round since, and still believes in the other
    await eventually(lambda: spoken, what="the word")
    assert [word["steps"] for word in spoken] == [["the end"]]


@pytest.mark.parametrize("many", [MOST_FLOWS, MOST_FLOWS + 1])
async def test_more_flows_than_can_be_told_are_any_flow(nodes: Pair, spoken: Words, many: int) -> None:
    one, two = nodes
    spoken.clear()
    with two.feed.subscribe("a reader") as subscription:
        one.peers.tell(flows=[f"f{number}" for number in range(many)], steps=["step"])
        await eventually(partial(has_heard, two, "step"), what="the word")
        assert await rung(subscription, A_MOMENT) == (many > MOST_FLOWS)
    await eventually(lambda: spoken, what="the word")
    assert (spoken[0]["flows"] is None) == (many > MOST_FLOWS)


async def test_ids_that_are_too_long_for_a_message_are_any(nodes: Pair, spoken: Words) -> None:
    """A message of PostgreSQL has a limit."""
    one, two = nodes
    spoken.clear()
    with two.feed.subscribe("a reader") as subscription:
        one.peers.tell(flows=["f" * 200 + str(number) for number in range(50)], steps=["step"], due=True)
        assert await rung(subscription)
    await eventually(lambda: two.dues and spoken, what="word of due work")
    assert [(word["flows"], word["steps"]) for word in spoken] == [(None, ["step"])]


async def test_ids_of_ended_flows_that_are_too_long_are_any_as_well(nodes: Pair, spoken: Words) -> None:
    one, two = nodes
    spoken.clear()
    ended = ["f" * 200 + str(number) for number in range(50)]
    one.peers.tell(flows=ended, ended=ended, steps=["step"], due=True)
    await eventually(lambda: two.dues and spoken, what="word of due work")
    assert [(word["flows"], word["ended"], word["steps"]) for word in spoken] == [(None, None, [])]
    assert two.results.ended == [None]


async def test_a_word_that_cannot_be_said_is_forgotten(nodes: Pair, proxy: Proxy, spoken: Words) -> None:
    one, two = nodes
    proxy.refuse()
    one.peers.tell(steps=["lost"])
    await one.peers.finish()
    proxy.admit()

    async def told() -> bool:
        one.peers.tell(steps=["later"])
        return has_heard(two, "later")

    await eventually(told, what="the next word")
    assert not has_heard(two, "lost")


@pytest.mark.parametrize(
    "noise",
    [
        "",
        "no json",
        "[]",
        "5",
        "null",
        '"text"',
        "{}",
        '{"from": "x"}',
        '{"from": "x", "flows": [], "steps": []}',
        '{"from": "x", "flows": 7, "steps": [], "due": false}',
        '{"from": "x", "flows": [], "ended": 7, "steps": [], "due": false}',
        '{"from": "x", "flows": [[1], {}, 2], "ended": [[1], {}, 2], "steps": [], "due": false}',
    ],
)
async def test_what_others_say_on_the_same_channel_is_ignored(nodes: Pair, noise: str) -> None:
    one, two = nodes
    with two.feed.subscribe("flow") as subscription:
        await one.store.notify(noise)
        await heard_all(*nodes)
        assert not await rung(subscription, A_MOMENT)
    assert (two.rooms, two.dues) == ([], 0)


async def test_last_words_are_said(nodes: Pair) -> None:
    one, two = nodes
    one.peers.tell(steps=["last"])
    await one.peers.finish()
    await eventually(partial(has_heard, two, "last"), what="the last words")
    await one.peers.finish()


async def test_a_stopped_node_sends_no_more(nodes: Pair) -> None:
    one, two = nodes
    one.peers.tell(steps=["unsaid"])
    await one.peers.stop()
    await heard_all(*nodes)
    assert not has_heard(two, "unsaid")


async def test_a_new_node_is_known_before_the_next_count(nodes: Pair) -> None:
    one, two = nodes
    one.lease.others = 0  # as it was before the other one came
    assert one.sizer.patience_at_rest == 0
    two.peers.greet()
    await heard_all(two, one)
    assert one.lease.others == 1
    assert one.sizer.patience_at_rest > 0, "its batches are sized for several nodes from now on"


async def test_where_much_changes_words_gather_longer(nodes: Pair) -> None:
    one, two = nodes
    with two.feed.subscribe(None) as reader:
        began = time.monotonic()
        one.peers.tell(flows=map(str, range(MANY_FLOWS + 1)))
        assert await rung(reader)
        assert time.monotonic() - began >= BUSY_SECONDS

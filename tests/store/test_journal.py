"""The journal: in order for each flow, and without a gap for a reader that follows all flows."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.work.results import Heartbeat
from counterfoil.engine.work.complete import Beat
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.protocol import Row, Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.store.backends import MakeStore, NewConnection, write
from tests.store.nodes import Node, add_items, register
from tests.store.records import NOW

PAGE = 20
FIRST = 64
"""The number of the first event of the first entry."""


async def follow(store: Store, count: int) -> list[Row]:
    """Read as a stream does: behind the last that was seen, a page at a time, until so many events have come."""
    seen: list[Row] = []
    while len(seen) < count:
        seen += await store.read("journal_after", after=seen[-1][0] if seen else 0, limit=PAGE)
    return seen


async def beat_on(node: Node, names: list[str], count: int) -> None:
    """So many heartbeats, in waves of different sizes."""
    dice = random.Random(node.node_id)
    while count:
        wave = min(count, dice.randint(1, 12))
        chosen = [dice.choice(names) for _ in range(wave)]
        await asyncio.gather(*(node.commit.submit(Beat(name, Heartbeat(message=node.node_id))) for name in chosen))
        count -= wave


async def check_following(store: Store, nodes: list[Node], each: int) -> None:
    """Nodes write while two readers follow: each reader sees every event once, in the order of its number."""
    await register(store)
    names = await add_items(store, 5)
    for node in nodes:
        await node.start()
    total = each * len(nodes)
    readers = [asyncio.create_task(follow(node.store, total)) for node in (nodes[0], nodes[-1])]
    await asyncio.gather(*(beat_on(node, names, each) for node in nodes))
    followed = await asyncio.gather(*readers)
    everything = await store.read("journal_after", after=0, limit=total + 1)
    assert len(everything) == total
    assert [row[0] for row in everything] == sorted({row[0] for row in everything})
    for seen in followed:
        assert seen == everything
    for name in names:
        of_flow = await store.read("journal_of_flow", flow_id=name, after=0, limit=total)
        assert of_flow == [row for row in everything if row[3] == name]
    for node in nodes:
        await node.stop()


async def test_a_reader_of_one_writer_misses_nothing(store: Store, clock: StillClock) -> None:
    await check_following(store, [Node("a", store, clock, batch_limit=7)], each=400)


@pytest.mark.postgresql_only
async def test_a_reader_of_two_writers_misses_nothing(
    store: Store, make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    other = make_store(tmp_path, clock)
    await other.open()
    nodes = [Node("a", store, clock, batch_limit=7), Node("b", other, clock, batch_limit=3)]
    await check_following(store, nodes, each=300)
    await other.close()


def told_of(flow_id: str, count: int, work_id: str | None = None) -> list[Event]:
    return [Event(EventType.WORK_HEARTBEAT, NOW, flow_id, "step", work_id, 1, {"n": n}) for n in range(count)]


@pytest.mark.parametrize("limit", [1, 7, 63, 64, 65, 500])
async def test_pages_may_end_in_the_middle_of_what_was_written_together(store: Store, limit: int) -> None:
    """More events of one flow in one commit than a row takes, between those of others."""
    events = [*told_of("a", 3, "w1"), *told_of("b", 150), *told_of("b", 2, "w2"), *told_of("a", 1), *told_of("b", 1)]
    await write(store, Changes(events=events))

    async def pages(query: str, **parameters: str) -> list[Row]:
        seen: list[Row] = []
        while page := await store.read(query, after=seen[-1][0] if seen else 0, limit=limit, **parameters):
            assert len(page) <= limit
            seen += page
        return seen

    everything = await pages("journal_after")
    assert [(row[3], row[5], parse_json(row[7])["n"]) for row in everything] == [
        (event.flow_id, event.work_id, event.data["n"]) for event in events
    ]
    assert [row[0] for row in everything] == sorted({row[0] for row in everything})
    for flow_id in ("a", "b"):
        assert await pages("journal_of_flow", flow_id=flow_id) == [row for row in everything if row[3] == flow_id]
    of_work = await store.read("journal_of_work", flow_id="b", work_id="w2")
    assert of_work == [row for row in everything if row[5] == "w2"]


async def test_numbers_may_be_larger_than_any_that_there_is(store: Store) -> None:
    await write(store, Changes(events=told_of("a", 3)))
    for after in (2**31, 2**53, 10**18 - 1):
        assert await store.read("journal_after", after=after, limit=500) == []
        assert await store.read("journal_of_flow", flow_id="a", after=after, limit=500) == []


# Two transactions, of which the one that drew its number later commits first.


class Writer:
    """A transaction in the test's hand, begun as a batch begins one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        await self._connection.execute("BEGIN; SELECT pg_current_xact_id()")

    async def tell(self, flow_id: str) -> None:
        """Draw a number."""
        statement = "INSERT INTO journal (flow_id, at, events) VALUES ($1, 1, $2)"
        await self._connection.execute(statement, flow_id, '[["work_heartbeat",null,0,null,{}]]')

    async def end(self, how: str) -> None:
        await self._connection.execute(how)


async def told(store: Store, after: int = 0, limit: int = 99) -> list[str]:
    return [row[3] for row in await store.read("journal_after", after=after, limit=limit)]


@pytest.mark.postgresql_only
@pytest.mark.parametrize("older_draws_first", [True, False])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_what_stands_behind_a_number_still_to_come_is_held_back(
    store: Store, new_connection: NewConnection, older_draws_first: bool, end: str
) -> None:
    await write(store, Changes(events=[Event(EventType.WORK_HEARTBEAT, NOW, "zero", data={})]))
    writers = [Writer(await new_connection()) for _ in range(2)]
    for writer in writers:  # and no transaction begins or ends between them: the younger is the last of all
        await writer.begin()
    first, second = writers if older_draws_first else reversed(writers)
    await first.tell("first")
    await second.tell("second")
    await second.end("COMMIT")
    assert await told(store) == ["zero"]
    assert await told(store, after=FIRST) == []
    await write(store, Changes(events=[Event(EventType.WORK_HEARTBEAT, NOW, "third", data={})]))
    assert await told(store, after=FIRST) == [], "nor is what came later"
    await first.end(end)
    kept = ["first"] if end == "COMMIT" else []
    await until_told(store, ["zero", *kept, "second", "third"])
    assert await told(store, after=FIRST) == [*kept, "second", "third"]


async def until_told(store: Store, expected: list[str], after: int = 0) -> None:
    """Transactions of other databases count as well, for the server numbers them all: they end, too."""

    async def is_told() -> bool:
        return await told(store, after) == expected

    await eventually(is_told, what=f"{expected} behind {after}")


@pytest.mark.postgresql_only
async def test_a_hole_that_stays_holds_no_reader_up(store: Store, new_connection: NewConnection) -> None:
    """Also not while others write all the time: only those are waited for that began before the hole was seen."""
    lost, busy = Writer(await new_connection()), Writer(await new_connection())
    for number in range(3):
        await lost.begin()
        await lost.tell("lost")
        await lost.end("ROLLBACK")
        await write(store, Changes(events=[Event(EventType.WORK_HEARTBEAT, NOW, f"kept-{number}", data={})]))
    await until_told(store, ["kept-0", "kept-1", "kept-2"])
    assert await told(store, limit=2) == ["kept-0", "kept-1"]
    await lost.begin()
    await lost.tell("lost")
    await busy.begin()
    await lost.end("ROLLBACK")
    await write(store, Changes(events=[Event(EventType.WORK_HEARTBEAT, NOW, "kept-3", data={})]))
    assert await told(store, after=6 * FIRST) == [], "busy may have drawn it"
    later = Writer(await new_connection())
    await later.begin()
    await busy.end("COMMIT")
    await until_told(store, ["kept-3"], after=6 * FIRST)  # later began when it was drawn already
    await later.end("COMMIT")

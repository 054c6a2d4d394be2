"""Schedules as every store keeps them: written, found when due, listed in pages, and fired once by many nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.schedules import Schedule, ScheduleDefinition
from counterfoil.domain.time import rfc3339
from counterfoil.engine.context import EngineContext
from counterfoil.engine.schedules import DeleteSchedule, FireSchedule, PutSchedule
from counterfoil.store.group_commit.batch import Command, ForEach
from counterfoil.store.kinds.schedules import SCHEDULES, read_schedule
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.store.backends import NewConnection, are_waiting, batch_of, find, load, write
from tests.store.nodes import CONTEXT, Node, Pair, register
from tests.store.records import NOW

FULL = Schedule(
    schedule_id="full",
    cron="0 6 * * *",
    timezone="Europe/Vienna",
    every_ms=None,
    flow={"goals": ["step"], "init": {"text": "naïve 🦆", "big": 123456789012345678901234567890}},
    catch_up="all",
    enabled=True,
    anchor_at=NOW - 1,
    next_at=NOW + 5,
    last_at=NOW - 5,
    last_flow_id="flow",
    last_error={"code": "UNKNOWN_STEP", "message": "no", "at": "then"},
    created_at=NOW - 9,
    updated_at=NOW,
)
BARE = replace(
    FULL,
    schedule_id="bare",
    cron=None,
    timezone=None,
    every_ms=2**40,
    enabled=False,
    next_at=None,
    last_at=None,
    last_flow_id=None,
    last_error=None,
)


async def write_all(store: Store, *schedules: Schedule) -> None:
    await write(store, Changes(schedules={each.schedule_id: each for each in schedules}))


def numbered(number: int, **fields: Any) -> Schedule:
    return replace(FULL, schedule_id=f"schedule-{number:03}", **fields)


def put(schedule_id: str, **fields: Any) -> PutSchedule:
    given = {"every_ms": 1_000, "flow": {"goals": ["step"]}, **fields}
    return PutSchedule(schedule_id, ScheduleDefinition.model_validate(given), CONTEXT)


def fire(context: EngineContext = CONTEXT, now: int = NOW, limit: int = 100) -> ForEach[Any]:
    return ForEach(Find.of("find_due_schedules", now=now, limit=limit), partial(FireSchedule, context=context))


# ------------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize("schedule", [FULL, BARE], ids=lambda schedule: schedule.schedule_id)
async def test_what_is_written_is_what_is_loaded(store: Store, schedule: Schedule) -> None:
    await write_all(store, schedule)
    unit = await load(store, ReadSet(schedules={schedule.schedule_id, "nobody"}))
    assert unit.records(SCHEDULES).get(schedule.schedule_id) == schedule
    assert unit.records(SCHEDULES).get("nobody") is None
    assert [read_schedule(row) for row in await store.read("list_schedules", after=None, limit=9)] == [schedule]
    [row] = await store.read("get_schedule", schedule_id=schedule.schedule_id)
    assert read_schedule(row) == schedule


async def test_what_is_put_again_is_changed_in_every_field(store: Store) -> None:
    await write_all(store, FULL, BARE)
    changed = replace(BARE, schedule_id="full", created_at=NOW + 1, updated_at=NOW + 2, anchor_at=NOW + 3)
    await write_all(store, changed)
    unit = await load(store, ReadSet(schedules={"full", "bare"}))
    assert (unit.records(SCHEDULES).get("full"), unit.records(SCHEDULES).get("bare")) == (changed, BARE)


async def test_what_is_deleted_is_gone(store: Store) -> None:
    await write_all(store, FULL, BARE)
    await write(store, Changes(schedules={"full": None, "nobody": None}))
    assert [row[0] for row in await store.read("list_schedules", after=None, limit=9)] == ["bare"]


async def test_commands_of_one_batch_see_each_other(store: Store) -> None:
    await register(store)
    answers: list[Any] = []
    commands: list[Command[Any]] = [
        put("a"),
        put("a"),
        put("a", every_ms=500),
        DeleteSchedule("a"),
        DeleteSchedule("a"),
        put("a"),
    ]
    await store.execute(batch := batch_of(*commands, answers=answers))
    batch.answer()
    created = [answer[1] if isinstance(answer, tuple) else type(answer).__name__ for answer in answers]
    assert created == [True, False, False, "NoneType", "UnknownSchedule", True]
    assert [row[3] for row in await store.read("list_schedules", after=None, limit=9)] == [1_000]


async def test_a_command_that_is_refused_leaves_no_trace(store: Store) -> None:
    await register(store)

    class Refused(PutSchedule):
        def decide(self, unit: Any, now: int) -> Any:
            super().decide(unit, now)
            raise ZeroDivisionError

    await store.execute(batch_of(Refused("a", put("a").definition, CONTEXT), put("b")))
    assert [row[0] for row in await store.read("list_schedules", after=None, limit=9)] == ["b"]


async def test_pages_show_each_exactly_once(store: Store) -> None:
    await write_all(store, *(numbered(number) for number in range(7)))
    seen: list[str] = []
    after = None
    while rows := await store.read("list_schedules", after=after, limit=3):
        seen += [row[0] for row in rows]
        after = rows[-1][0]
    assert seen == [f"schedule-{number:03}" for number in range(7)]


# ------------------------------------------------------------------------------------------------ what is due


async def test_what_is_due_is_found_the_longest_due_first(store: Store) -> None:
    assert await store.read("next_schedule") == [(None,)]
    due = [numbered(number, next_at=NOW - number) for number in range(4)]
    await write_all(store, *due, numbered(8, next_at=NOW + 1), numbered(9, next_at=None, enabled=False))
    found = [row[0] for row in await find(store, "find_due_schedules", now=NOW, limit=3)]
    assert found == ["schedule-003", "schedule-002", "schedule-001"]
    assert len(await find(store, "find_due_schedules", now=NOW, limit=9)) == 4
    assert await find(store, "find_due_schedules", now=NOW - 9, limit=9) == []
    assert await store.read("next_schedule") == [(NOW - 3,)]


# ------------------------------------------------------------------------------------------------ many nodes


async def started(store: Store) -> Counter[tuple[str, str]]:
    """How many flows there are of each schedule and tick."""
    filters = {"status": None, "label": None, "goal": None, "since": None, "before": None, "limit": 100_000}
    metadata = [parse_json(row[7]) for row in await store.read("list_flows", **filters)]
    return Counter((each["schedule_id"], each["scheduled_at"]) for each in metadata)


@pytest.mark.postgresql_only
async def test_each_tick_is_fired_by_one_of_the_nodes(store: Store, nodes: Pair, clock: StillClock) -> None:
    names = [f"schedule-{number:02}" for number in range(40)]
    await asyncio.gather(*(nodes[0].commit.submit(put(name, catch_up="all")) for name in names))
    clock.advance(20_000)
    fired = Counter[str]()

    async def sweep(node: Node) -> None:
        while (await store.read("next_schedule"))[0][0] <= clock():
            for firing in await node.commit.submit(fire(now=clock(), limit=3)):
                fired[node.node_id] += 0 if firing is None else firing.started

    await asyncio.gather(*map(sweep, [*nodes] * 2))
    ticks = [rfc3339(NOW + 1_000 * number) for number in range(1, 21)]
    assert await started(store) == dict.fromkeys([(name, tick) for name in names for tick in ticks], 1)
    assert fired.total() == 40 * 20
    assert len(fired) == 2, "both took part"


@pytest.mark.postgresql_only
async def test_a_search_passes_over_what_another_node_has_in_hand(
    store: Store, nodes: Pair, new_connection: NewConnection
) -> None:
    await write_all(store, *(numbered(number, next_at=NOW) for number in range(3)))
    other = await new_connection()
    async with other.transaction():
        await other.execute("SELECT 1 FROM schedules WHERE schedule_id = 'schedule-001' FOR UPDATE")
        found = await asyncio.wait_for(find(store, "find_due_schedules", now=NOW, limit=9), 5)
    assert {row[0] for row in found} == {"schedule-000", "schedule-002"}


@pytest.mark.postgresql_only
async def test_a_change_waits_for_the_batch_that_has_the_schedule_in_hand(
    store: Store, nodes: Pair, new_connection: NewConnection
) -> None:
    """And then sees what became of it: here another node has just moved it on."""
    await write_all(store, numbered(1, cron=None, timezone=None, every_ms=1_000, next_at=NOW))
    other, eye = await new_connection(), await new_connection()
    async with other.transaction():
        await other.execute("UPDATE schedules SET next_at = next_at + 77000")
        flow = {"goals": ["step"], "init": {"another": 1}}
        changing = asyncio.create_task(nodes[0].commit.submit(put("schedule-001", flow=flow)))
        await eventually(lambda: are_waiting(eye, 1), what="the wait for the lock")
    schedule, created = await changing
    assert (created, schedule.flow, schedule.next_at) == (False, flow, NOW + 77_000)


@pytest.mark.postgresql_only
async def test_of_many_batches_that_make_the_same_schedule_one_does(store: Store, nodes: Pair) -> None:
    for number in range(10):
        name = f"same-{number}"
        answers = await asyncio.gather(
            *(
                node.commit.submit(put(name, flow={"goals": ["step"], "init": {"by": node.node_id}}))
                for node in [*nodes] * 5
            )
        )
        assert Counter(created for _, created in answers) == {True: 1, False: 9}


@pytest.mark.postgresql_only
async def test_changing_deleting_and_firing_at_once_come_to_an_end(
    store: Store, nodes: Pair, clock: StillClock
) -> None:
    """In whatever order: nothing is fired twice, and there is no deadlock."""
    names = [f"schedule-{number}" for number in range(6)]
    for turn in range(15):
        clock.advance(1_000)
        commands: list[Any] = [fire(now=clock(), limit=4), fire(now=clock(), limit=6)]
        commands += [put(name, catch_up="all", flow={"goals": ["step"], "init": {"n": turn}}) for name in names]
        commands += [DeleteSchedule(names[turn % 6])]
        outcomes = await asyncio.gather(*(node.outcomes(*commands[start::2]) for start, node in enumerate([*nodes])))
        assert not sum(outcomes, Counter[str]())["INTERNAL"]
        assert not sum(outcomes, Counter[str]())["UNAVAILABLE"]
    assert set((await started(store)).values()) == {1}

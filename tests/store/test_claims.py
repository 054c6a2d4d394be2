"""Finding what is due: by lane and in fair shares, the longest waiting first, and never what is not due."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

from counterfoil.domain.records import Work
from counterfoil.domain.states import WorkStatus
from counterfoil.store.protocol import Store
from tests.store.backends import find, write
from tests.store.records import NOW, flow_record, new_records, work_item

WAITING = (WorkStatus.PENDING, WorkStatus.NOT_COMPLETED)


async def add(store: Store, *items: Work) -> None:
    """Put items into the store, each flow of theirs with them: a search holds the flow of what it finds."""
    flows = [flow_record(flow_id=flow_id) for flow_id in sorted({item.flow_id for item in items})]
    await write(store, new_records(*flows, *items))


def waiting(lane: str, number: int, due_at: int | None, status: WorkStatus = WorkStatus.PENDING) -> Work:
    return work_item(status, work_id=f"{lane}-{number}", flow_id=f"flow-of-{lane}", lane=lane, due_at=due_at)


async def claimable(store: Store, *lanes: str, share: int = 100, limit: int = 100) -> list[tuple[str, str]]:
    text = orjson.dumps(lanes).decode()
    rows = await find(store, "find_claimable", lanes=text, now=NOW, share=share, limit=limit)
    return [(work_id, flow_id) for work_id, flow_id in rows]


@pytest.mark.parametrize("status", WorkStatus)
async def test_only_what_waits_for_an_attempt_is_claimable(store: Store, status: WorkStatus) -> None:
    await add(store, waiting("a@x", 1, NOW, status))
    assert await claimable(store, "a@x") == ([("a@x-1", "flow-of-a@x")] if status in WAITING else [])


async def test_only_what_is_due_is_claimable(store: Store) -> None:
    dates = {1: NOW + 1, 2: NOW, 3: NOW - 1, 4: None}
    await add(store, *(waiting("a@x", number, due_at) for number, due_at in dates.items()))
    assert {work_id for work_id, _ in await claimable(store, "a@x")} == {"a@x-2", "a@x-3"}


async def test_the_longest_due_of_a_lane_comes_first(store: Store) -> None:
    await add(store, *(waiting("a@x", number, NOW - number) for number in (3, 9, 1, 7, 5)))
    assert {work_id for work_id, _ in await claimable(store, "a@x", share=2)} == {"a@x-9", "a@x-7"}


async def test_a_full_lane_does_not_starve_the_others(store: Store) -> None:
    crowd = [waiting("slow@x", number, NOW - 1_000) for number in range(50)]
    await add(store, *crowd, waiting("b@y", 1, NOW), waiting("c@z", 1, NOW))
    found = await claimable(store, "slow@x", "b@y", "c@z", share=4, limit=12)
    assert Counter(work_id.partition("-")[0] for work_id, _ in found) == {"slow@x": 4, "b@y": 1, "c@z": 1}


async def test_no_more_than_the_limit(store: Store) -> None:
    await add(store, *(waiting(lane, number, NOW) for lane in ("a@x", "b@y") for number in range(5)))
    assert len(await claimable(store, "a@x", "b@y", share=5, limit=7)) == 7


async def test_lanes_that_were_not_asked_for_are_left_alone(store: Store) -> None:
    await add(store, waiting("a@x", 1, NOW), waiting("b@y", 1, NOW))
    assert await claimable(store, "b@y", "nothing@there") == [("b@y-1", "flow-of-b@y")]
    assert await claimable(store) == []


async def test_every_lane_with_something_to_send_and_when(store: Store) -> None:
    assert await store.read("due_lanes") == []
    await add(
        store,
        waiting("a@x", 1, NOW + 5),
        waiting("a@x", 2, NOW + 3, WorkStatus.NOT_COMPLETED),
        waiting("b@y", 1, NOW - 3),
        waiting("b@y", 2, None),
        waiting("c@z", 1, None),
        *(waiting("d@z", number, NOW, status) for number, status in enumerate(WorkStatus) if status not in WAITING),
    )
    assert dict(await store.read("due_lanes")) == {"a@x": NOW + 3, "b@y": NOW - 3}


async def overdue(store: Store, limit: int = 100) -> list[str]:
    return [work_id for (work_id,) in await find(store, "find_overdue", now=NOW, limit=limit)]


async def test_active_work_is_overdue_when_its_clock_has_run_out(store: Store) -> None:
    clocks = {"past": NOW - 5, "long past": NOW - 50, "now": NOW, "later": NOW + 1}
    others = [work_item(status, work_id=str(status), due_at=NOW - 9) for status in set(WorkStatus) - {"active"}]
    await add(store, *(work_item(work_id=name, due_at=due) for name, due in clocks.items()), *others)
    assert await overdue(store) == ["long past", "past", "now"]
    assert await overdue(store, limit=2) == ["long past", "past"]
    assert (await store.read("next_clock"))[0][0] == NOW - 50


async def test_no_clock_runs_when_nothing_is_active(store: Store) -> None:
    await add(store, work_item(WorkStatus.PENDING))
    assert (await store.read("next_clock"))[0][0] is None


async def test_open_work_is_counted_by_state(store: Store) -> None:
    items = [work_item(status, work_id=f"{status}-{n}") for n, status in enumerate([*WorkStatus, WorkStatus.ACTIVE])]
    await add(store, *items)
    counts: dict[str, int] = dict(await store.read("open_work_by_state"))
    assert {state: counts.get(state, 0) for state in ("pending", "active", "not_completed")} == {
        "pending": 1,
        "active": 2,
        "not_completed": 1,
    }


async def test_the_oldest_waiting_item_of_every_step(store: Store) -> None:
    items = [
        work_item(work_id=f"{step}-{sent}", step_id=step, sent_at=sent)
        for step, times in {"a": (30, 10, 20), "b": (5,)}.items()
        for sent in times
    ]
    await add(store, *items, work_item(WorkStatus.SUCCEEDED, work_id="done", step_id="c", sent_at=1))
    assert dict(await store.read("oldest_waiting")) == {"a": 10, "b": 5}

"""Callbacks: kept, found, bounded and removed by both stores alike."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from counterfoil.domain.callbacks.inbox import Callback, CallbackKind
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.engine.callbacks.commands import ForgetCallback, RecordCallbacks
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.journal import MOST_EVENTS
from counterfoil.store.kinds.work import CALLBACK_COLUMNS, CALLBACKS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from tests.by_hand import by_hand
from tests.store.backends import batch_of, load, place_of, write
from tests.store.nodes import Node, Pair
from tests.store.records import NOW, flow_record, new_records, step_run, work_item

FULL = Callback(
    "c1",
    NOW,
    CallbackKind.HOOK,
    "duplicate",
    200,
    flow_id="flow",
    step_id="step",
    work_id="work",
    attempt=3,
    size=2**40,
    digest="sha256:00",
    source="::1",
    trace_id="4b" * 16,
    body='{"é": "\U0001f600"}',
    headers={"x-event": "é"},
)
BARE = Callback("c2", NOW + 1, CallbackKind.COMPLETION, "UNKNOWN_RECEIPT", 404)
EVERYTHING: dict[str, Any] = dict.fromkeys(
    ("before_at", "before_ordinal", "flow_id", "step_id", "work_id", "kind", "verdict", "since", "until")
)


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    assert [each.name for each in fields(FULL) if getattr(FULL, each.name) == each.default] == []


async def run(store: Store, *commands: Any) -> list[Any]:
    answers: list[Any] = []
    batch = batch_of(*commands, answers=answers)
    await store.execute(batch)
    batch.answer()
    return answers


async def listed(store: Store, **filters: Any) -> list[str]:
    rows = await store.read("list_callbacks", **{**EVERYTHING, "limit": 100, **filters})
    return [CALLBACK_COLUMNS.read(row[1:]).callback_id for row in rows]


@pytest.mark.parametrize("callback", [FULL, BARE])
async def test_a_callback_comes_back_as_it_was(store: Store, callback: Callback) -> None:
    assert await run(store, RecordCallbacks([callback], 10)) == [1]
    assert [
        CALLBACK_COLUMNS.read(row) for row in await store.read("get_callback", callback_id=callback.callback_id)
    ] == [callback]
    unit = await load(store, ReadSet(callbacks={callback.callback_id, "none"}))
    assert unit.records(CALLBACKS).get(callback.callback_id) == callback
    assert unit.records(CALLBACKS).get("none") is None


async def test_the_same_callbacks_again_are_there_once(store: Store) -> None:
    """A commit whose outcome was unknown is made again."""
    for _ in range(2):
        assert await run(store, RecordCallbacks([FULL, BARE], 10)) == [2]
    assert await listed(store) == ["c2", "c1"]


async def test_the_oldest_go_when_there_are_too_many(store: Store) -> None:
    for number in range(10):
        await run(store, RecordCallbacks([replace(BARE, callback_id=f"{number}-{each}") for each in range(3)], 7))
        assert by_hand(place_of(store), "SELECT count(*) FROM callbacks")[0][0] <= 7
    assert await listed(store) == ["9-2", "9-1", "9-0", "8-2", "8-1", "8-0", "7-2"]
    await run(store, RecordCallbacks([replace(BARE, callback_id=f"many-{each}") for each in range(20)], 7))
    assert await listed(store) == [f"many-{each}" for each in range(19, 12, -1)]
    await run(store, RecordCallbacks([BARE], 1))
    assert await listed(store) == ["c2"]


async def test_filters_and_order(store: Store) -> None:
    accepted = replace(FULL, callback_id="ok", verdict="accepted")
    other = replace(FULL, callback_id="c3", flow_id="other", step_id="other", work_id="w2", at=NOW + 1)
    await run(store, RecordCallbacks([FULL, BARE, other, accepted], 10))
    assert await listed(store) == ["c3", "c2", "c1"]
    assert await listed(store, flow_id="flow") == ["c1"]
    assert await listed(store, step_id="other") == ["c3"]
    assert await listed(store, work_id="w2") == ["c3"]
    assert await listed(store, kind="hook") == ["c3", "c1"]
    assert await listed(store, verdict="UNKNOWN_RECEIPT") == ["c2"]
    assert await listed(store, since=NOW + 1) == ["c3", "c2"]
    assert await listed(store, until=NOW + 1) == ["c1"]
    [(ordinal, *_), *_] = await store.read("list_callbacks", **{**EVERYTHING, "limit": 1})
    assert await listed(store, before_at=NOW + 1, before_ordinal=ordinal) == ["c2", "c1"]
    wanted = json.dumps([["flow", NOW], ["other", NOW + 1], ["none", NOW]])
    assert [row[0] for row in await store.read("accepted_callbacks", wanted=wanted)] == ["ok"]


async def test_old_ones_are_found_and_forgotten(store: Store) -> None:
    await run(store, RecordCallbacks([replace(BARE, callback_id=str(each), at=NOW + each) for each in range(5)], 10))
    assert await store.read("next_old_callback") == [(NOW,)]
    find = Find.of("find_old_callbacks", cutoff=NOW + 2, limit=2)
    assert await run(store, ForEach(find, ForgetCallback)) == [[True, True]]
    assert await listed(store) == ["4", "3", "2"]
    assert await run(store, ForEach(find, ForgetCallback)) == [[True]]
    assert await run(store, ForEach(find, ForgetCallback)) == [[]]
    assert await store.read("next_old_callback") == [(NOW + 3,)]


async def test_the_work_of_callbacks_is_looked_up_together(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item(attempt=4)))
    rows = await store.read("work_of_callbacks", work=json.dumps(["work", "none"]))
    assert rows == [("work", "flow", "step", 4)]
    assert await store.read("hook_token_of_work", work_id="work") == [(None,)]
    assert await store.read("hook_token_of_work", work_id="none") == []
    assert await store.read("hook_tokens_of_callback", flow_id="flow", step_id="step") == []


async def test_the_journal_is_walked_backwards(store: Store) -> None:
    def event(number: int, kind: EventType, **data: Any) -> Event:
        return Event(kind, NOW + number, f"flow{number % 2}", "step", f"work{number}", 1, data)

    events: list[tuple[EventType, dict[str, Any]]] = [
        (EventType.WORK_SUCCEEDED, {"via": "webhook"}),
        (EventType.WORK_CANCELLED, {}),
        (EventType.WORK_HEARTBEAT, {"progress": None}),
        (EventType.HOOK_RECEIVED, {}),
        (EventType.WORK_FAILED, {"via": "response"}),
    ]
    for number, (kind, data) in enumerate(events, 1):
        await write(store, Changes(events=[event(number, kind, **data)], at=NOW + number))
    last = (await store.read("last_seq"))[0][0] // MOST_EVENTS
    rows = await store.read("callbacks_in_journal", before=last, limit=10)
    assert [(row[0], row[3] - NOW, row[4] is not None) for row in rows] == [
        (last - 5 + number, number, number in (1, 3, 4)) for number in (5, 4, 3, 2, 1)
    ]
    assert len(await store.read("callbacks_in_journal", before=last - 3, limit=10)) == 2
    assert len(await store.read("callbacks_in_journal", before=last, limit=2)) == 2
    of_flow: dict[str, Any] = {"flow_id": "flow1", "before": last, "limit": 10}
    rows = await store.read("callbacks_in_journal_of_flow", work_id=None, **of_flow)
    assert [(row[2], row[4] is not None) for row in rows] == [("work5", False), ("work3", True), ("work1", True)]
    rows = await store.read("callbacks_in_journal_of_flow", work_id="work3", **of_flow)
    assert [row[2] for row in rows if row[4] is not None] == ["work3"]
    assert (await store.read("journal_entry", seq=last))[0][0] == last
    assert await store.read("journal_entry", seq=last + 1) == []
    assert await store.read("journal_entry_from", seq=last - 1) == [(last - 1, NOW + 4)]
    assert await store.read("journal_entry_from", seq=last + 1) == []


@pytest.mark.postgresql_only
async def test_two_nodes_share_one_limit(nodes: Pair, store: Store) -> None:
    async def record(node: Node, name: str) -> None:
        for turn in range(10):
            callbacks = [replace(BARE, callback_id=f"{name}{turn}{each}") for each in range(4)]
            await node.commit.submit(RecordCallbacks(callbacks, 6))

    await asyncio.gather(record(nodes[0], "a"), record(nodes[1], "b"))
    assert len(await listed(store)) <= 6 + 4  # what the other node adds meanwhile goes with the next commit
    await nodes[0].commit.submit(RecordCallbacks([replace(BARE, callback_id="last")], 6))
    assert len(await listed(store)) == 6

"""Reservations of tools: kept, found and forgotten by both stores alike; one winner, also of several nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from counterfoil.domain.effects.effect_requests import CompleteEffect, ReserveEffect
from counterfoil.domain.effects.reservations import EffectState
from counterfoil.domain.effects.reserved_effects import ReservedEffect, bucket_of, effect_id
from counterfoil.domain.errors import CounterfoilError
from counterfoil.engine.effects.reservations import ForgetEffect, RecordOutcome, Reserve
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.kinds.effects import FENCES, RESERVATIONS, read_listed_reservation, read_reservation
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.testing.simulator import StillClock
from tests.by_hand import by_hand
from tests.store.backends import find, load, place_of, write
from tests.store.nodes import Node, Pair
from tests.store.records import NOW
from tests.store.test_records import AWKWARD

KEY = "refund:order/7 \u2028 \U0001f600"
FULL = ReservedEffect(
    effect_id=effect_id("refund", KEY),
    tool="refund",
    effect_key=KEY,
    effect_class="irreversible",
    state=EffectState.SUCCEEDED,
    fence=2**40,
    holder="agent \u2028",
    reserved_at=NOW,
    window_ms=86_400_000,
    arguments_digest="digest",
    expires_at=NOW + 1,
    outcome={"result": AWKWARD},
    recorded_at=NOW + 2,
    forget_at=NOW + 3,
    hits=2**40,
    audited=7,
    audit=[{"at": NOW, "type": "dedup_hit", "holder": "\x00 '"}],
)
BARE = replace(
    FULL,
    state=EffectState.PENDING,
    window_ms=None,
    arguments_digest=None,
    outcome=None,
    recorded_at=None,
    forget_at=None,
    expires_at=None,
)


def asked(key: str = "k", holder: str = "h", **more: Any) -> Reserve:
    body = {"tool": "refund", "key": key, "class": "write-non-idempotent", "holder": holder, **more}
    return Reserve(ReserveEffect.model_validate(body), effect_id("refund", key))


def done(fence: int, key: str = "k", result: Any = None) -> RecordOutcome:
    request = CompleteEffect.model_validate({"fence": fence, "success": True, "result": result})
    return RecordOutcome(effect_id("refund", key), request)


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    assert [each.name for each in fields(FULL) if getattr(FULL, each.name) == each.default] == []


@pytest.mark.parametrize("record", [FULL, BARE])
async def test_a_record_comes_back_as_it_was_until_it_is_forgotten(store: Store, record: ReservedEffect) -> None:
    key = record.effect_id
    await write(store, Changes(reservations={key: replace(BARE, fence=1)}))
    await write(store, Changes(reservations={key: record}, at=NOW + 2))
    unit = await load(store, ReadSet(reservations={key, "other"}))
    assert unit.records(RESERVATIONS).get(key) == record
    assert unit.records(RESERVATIONS).get("other") is None
    [row] = await store.read("get_effect", effect_id=key, now=NOW)
    assert read_reservation(row) == record
    query = {"after_tool": "", "after_key": "", "last_tool": "refund", "now": NOW, "limit": 9}
    [row] = await store.read("list_effects", state=None, **query)
    assert read_listed_reservation(row) == replace(record, audit=None)
    await write(store, Changes(reservations={key: None}))
    assert (await load(store, ReadSet(reservations={key}))).records(RESERVATIONS).get(key) is None


async def test_a_fence_floor_never_falls(store: Store) -> None:
    for fence in (3, 7, 5):
        await write(store, Changes(fences={"00ff": fence, "00aa": 1}))
    floors = (await load(store, ReadSet(fences={"00ff", "00aa", "eeee"}))).records(FENCES)
    assert [floors.get(bucket) for bucket in ("00ff", "00aa", "eeee")] == [7, 1, 0]


async def test_a_key_has_one_record(store: Store) -> None:
    """Whatever its id is: the schema refuses a second record of a tool and key."""
    await write(store, Changes(reservations={BARE.effect_id: BARE}))
    with pytest.raises(StoreFailure):
        await write(store, Changes(reservations={"other": replace(BARE, effect_id="other")}))


async def test_a_hit_writes_no_outcome_again(store: Store) -> None:
    key = FULL.effect_id
    await write(store, Changes(reservations={key: FULL}, at=NOW + 2))
    hit = replace(FULL, hits=5, audited=8, audit=[*(FULL.audit or ()), {"at": NOW}])
    await write(store, Changes(reservations={key: replace(hit, outcome=None)}, at=NOW + 9))
    assert (await load(store, ReadSet(reservations={key}))).records(RESERVATIONS).get(key) == hit


# ------------------------------------------------------------------------------------------------ one winner


@pytest.fixture
async def lone(store: Store, clock: StillClock) -> Any:
    node = Node("n", store, clock)
    await node.start()
    yield node
    await node.stop()


async def test_one_of_a_hundred_callers_gets_the_reservation(lone: Node) -> None:
    outcomes = await race(lone.commit, 100)
    assert outcomes == {"granted": 1, "RETRY_IN_FLIGHT": 99}
    answers = await asyncio.gather(*(lone.commit.submit(done(1)) for _ in range(100)))
    assert Counter(duplicate for _, duplicate in answers) == {False: 1, True: 99}
    assert await race(lone.commit, 100) == {"recorded": 100}
    record = await stored(lone.store)
    assert (record.hits, record.audited, record.fence) == (100, 102, 1)


async def race(*commits: Any, key: str = "k", **more: Any) -> Counter[str]:
    """What became of callers that all ask at once, some of them of each node: the last argument is their number."""
    *nodes, number = commits

    async def ask(place: int) -> str:
        try:
            _, verdict = await nodes[place % len(nodes)].submit(asked(key, f"h{place}", **more))
        except CounterfoilError as error:
            return error.code
        return str(verdict.value)

    return Counter(await asyncio.gather(*(ask(place) for place in range(number))))


async def stored(store: Store, key: str = "k") -> ReservedEffect:
    name = effect_id("refund", key)
    record = (await load(store, ReadSet(reservations={name}))).records(RESERVATIONS).get(name)
    assert record is not None
    return record


@pytest.mark.postgresql_only
async def test_one_caller_of_two_nodes_gets_the_reservation(nodes: Pair, clock: StillClock) -> None:
    first, second = nodes
    for number in range(20):
        outcomes = await race(first.commit, second.commit, 50, key=f"k{number}", ttl_seconds=1)
        assert outcomes == {"granted": 1, "RETRY_IN_FLIGHT": 49}
    clock.advance(1_000)
    for number in range(20):
        outcomes = await race(first.commit, second.commit, 50, key=f"k{number}")
        assert outcomes == {"granted": 1, "RETRY_IN_FLIGHT": 49}
        assert (await stored(first.store, f"k{number}")).fence == 2


@pytest.mark.postgresql_only
async def test_two_nodes_forget_and_reserve_at_once(nodes: Pair, clock: StillClock) -> None:
    """Whichever comes first, the fence of the new reservation is higher than that of the forgotten one."""
    first, second = nodes
    forgetting = ForgetEffect(effect_id("refund", "k"))
    for fence in range(1, 60, 2):
        mine, _ = await first.commit.submit(asked(window="1s"))
        await first.commit.submit(done(mine.fence))
        clock.advance(1_000)
        _, (record, _) = await asyncio.gather(
            first.commit.submit(forgetting), second.commit.submit(asked(window="1s", holder="other"))
        )
        assert (mine.fence, record.fence) == (fence, fence + 1)
        await second.commit.submit(done(record.fence))
        clock.advance(1_000)
        assert await second.commit.submit(forgetting), "the next caller finds the floor alone"


# ------------------------------------------------------------------------------------------------ forgetting


async def test_records_past_their_window_are_forgotten_in_small_batches(lone: Node, clock: StillClock) -> None:
    for number in range(10):
        await lone.commit.submit(asked(f"k{number}", window="90s"))
        await lone.commit.submit(done(1, f"k{number}"))
    await lone.commit.submit(asked("pending", window="90s"))
    await lone.commit.submit(asked("forever", window="forever"))
    await lone.commit.submit(done(1, "forever"))
    forgetting = ForEach(Find.of("find_forgettable_effects", now=NOW + 90_000, limit=4), ForgetEffect)
    assert await lone.store.read("next_forgetting") == [(NOW + 90_000,)]
    assert await lone.commit.submit(forgetting) == [False] * 4, "decided again by the time of the batch"
    clock.advance(90_000)
    rounds = []
    while answers := await lone.commit.submit(forgetting):
        rounds.append(answers)
    assert rounds == [[True] * 4, [True] * 4, [True] * 2]
    kept = by_hand(place_of(lone.store), "SELECT effect_key FROM reservations ORDER BY effect_key")
    assert kept == [("forever",), ("pending",)]
    assert await lone.store.read("next_forgetting") == [(None,)]
    assert await lone.commit.submit(asked("k3", holder="late")) is not None
    assert (await stored(lone.store, "k3")).fence == 2


async def test_a_thousand_forgotten_keys_leave_a_floor_each_at_most(lone: Node, clock: StillClock) -> None:
    keys = [f"k{number}" for number in range(1_000)]
    for key in keys:
        await write(lone.store, Changes(fences={bucket_of(effect_id("refund", key)): 1}))
    floors = by_hand(place_of(lone.store), "SELECT count(*), max(fence) FROM fence_floors")
    buckets = {bucket_of(effect_id("refund", key)) for key in keys}
    assert floors == [(len(buckets), 1)]
    assert (await lone.commit.submit(asked("k7")))[0].fence == 2


# ------------------------------------------------------------------------------------------------ searches


async def test_the_queue_has_lapsed_irreversible_reservations(store: Store) -> None:
    def record(key: str, **more: Any) -> ReservedEffect:
        return replace(BARE, effect_id=effect_id("refund", key), effect_key=key, **more)

    records = [
        record("late", expires_at=NOW - 5),
        record("now", expires_at=NOW),
        record("alive", expires_at=NOW + 1),
        record("other", expires_at=NOW - 9, effect_class="write-idempotent"),
        record("done", state=EffectState.SUCCEEDED, outcome={"result": 1}, recorded_at=NOW),
    ]
    await write(store, Changes(reservations={each.effect_id: each for each in records}, at=NOW))
    filters: dict[str, Any] = {"step_id": None, "hold": None, "since": None, "after_since": None, "after_work": None}

    async def queue(**more: Any) -> list[str]:
        rows = await store.read("list_reconciliations", **{**filters, "now": NOW, "limit": 9, **more})
        return [row[-2] for row in rows]

    assert await queue() == ["late", "now"]
    assert await queue(hold="irreversible", limit=1) == ["late"]
    assert await queue(hold="reconcile") == []
    assert await queue(step_id="refund") == [], "a reservation belongs to no step"
    assert await queue(since=NOW) == ["now"]
    assert await queue(after_since=NOW - 5, after_work=effect_id("refund", "late")) == ["now"]
    assert await store.read("reconciliations_by_hold", now=NOW) == [("irreversible", 2, NOW - 5)]
    assert await store.read("pending_effects", now=NOW) == [(1, 3)]
    assert await find(store, "find_forgettable_effects", now=NOW, limit=9) == []

"""What a dedup store is: every store passes these tests, the library's own and the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.contracts import DedupStore
from counterfoil.domain.effects.reservations import (
    CompleteVerdict,
    EffectOutcome,
    EffectState,
    ReserveRequest,
    ReserveVerdict,
    SettleVerdict,
)
from counterfoil.testing import MovableClock
from tests.contracts.conftest import Dedup
from tests.eventually import eventually

TOOL = "issue_refund"
TTL = 60_000
HOUR = 3_600_000

ODD_KEYS = [
    "a/b",
    "..",
    "%2F",
    "a b",
    "é",
    "e\u0301",
    "😀" * 255,
    "\n",
    "'; DROP TABLE effects",
    '"',
    "complete",
    "?x=1",
]
RESULTS: list[Any] = [
    None,
    True,
    0,
    2**63 + 1,
    1.5,
    "",
    "a\u0000b",
    [],
    {},
    {"deep": [{"er": [1, None, "\u2028"]}]},
    [{"amount": 10**18 + 1}],
]


def asking(key: str = "k", holder: str = "h1", **fields: Any) -> ReserveRequest:
    known: dict[str, Any] = {
        "tool": TOOL,
        "effect_class": "write-non-idempotent",
        "ttl_ms": TTL,
        "window_ms": HOUR,
        "arguments_digest": "d",
    }
    return ReserveRequest(key=key, holder=holder, **{**known, **fields})


def succeeded(result: Any = None) -> EffectOutcome:
    return EffectOutcome(success=True, result=result)


def failed(**error: Any) -> EffectOutcome:
    return EffectOutcome(success=False, error=error)


async def test_an_absent_key_is_granted_with_the_first_fence(store: DedupStore, clock: MovableClock) -> None:
    before = clock()
    answer = await store.reserve(asking())
    assert (answer.verdict, answer.fence, answer.holder) == (ReserveVerdict.GRANTED, 1, "h1")
    assert before + TTL <= answer.expires_at <= clock() + TTL


async def test_another_holder_is_told_of_the_reservation(dedup: Dedup) -> None:
    granted = await dedup.store.reserve(asking())
    answer = await dedup.another().reserve(asking(holder="h2"))
    assert answer.verdict is ReserveVerdict.IN_FLIGHT
    assert answer.expires_at == granted.expires_at


async def test_the_same_holder_gets_its_reservation_back_with_a_new_ttl(store: DedupStore, clock: MovableClock) -> None:
    granted = await store.reserve(asking())
    clock.advance(seconds=30)
    answer = await store.reserve(asking())
    assert (answer.verdict, answer.fence) == (ReserveVerdict.RENEWED, 1)
    assert answer.expires_at >= granted.expires_at + 30_000


@pytest.mark.parametrize("result", RESULTS, ids=repr)
async def test_a_recorded_result_is_replayed_as_it_was(dedup: Dedup, result: Any) -> None:
    store = dedup.store
    granted = await store.reserve(asking())
    assert await store.complete(TOOL, "k", granted.fence, succeeded(result)) is CompleteVerdict.RECORDED
    answer = await dedup.another().reserve(asking(holder="h2"))
    assert (answer.verdict, answer.fence) == (ReserveVerdict.RECORDED, 1)
    assert answer.outcome == succeeded(result)
    assert answer.recorded_at is not None


async def test_a_recorded_failure_is_replayed(store: DedupStore) -> None:
    granted = await store.reserve(asking())
    await store.complete(TOOL, "k", granted.fence, failed(code="CARD_EXPIRED", details={"n": 1}))
    answer = await store.reserve(asking(holder="h2"))
    assert (answer.verdict, answer.outcome) == (
        ReserveVerdict.RECORDED,
        failed(code="CARD_EXPIRED", details={"n": 1}),
    )


async def test_the_same_outcome_again_is_a_duplicate_and_another_one_a_conflict(store: DedupStore) -> None:
    granted = await store.reserve(asking())
    await store.complete(TOOL, "k", granted.fence, succeeded({"a": 1, "b": 1.0}))
    assert await store.complete(TOOL, "k", 1, succeeded({"b": 1, "a": 1})) is CompleteVerdict.DUPLICATE
    assert await store.complete(TOOL, "k", 1, succeeded({"a": 2})) is CompleteVerdict.CONFLICTING
    assert await store.complete(TOOL, "k", 1, failed(code="X")) is CompleteVerdict.CONFLICTING
    shown = await store.show(TOOL, "k")
    assert shown is not None
    assert (shown.state, shown.result) == (EffectState.SUCCEEDED, {"a": 1, "b": 1.0})


@pytest.mark.parametrize("effect_class", ["write-idempotent", "write-non-idempotent"])
@pytest.mark.parametrize("holder", ["h1", "h2"])
async def test_a_lapsed_reservation_goes_to_the_next_holder_and_fences_the_first_one_off(
    store: DedupStore, clock: MovableClock, effect_class: Any, holder: str
) -> None:
    await store.reserve(asking(effect_class=effect_class))
    clock.advance(milliseconds=TTL)
    second = await store.reserve(asking(effect_class=effect_class, holder=holder))
    assert (second.verdict, second.fence) == (ReserveVerdict.GRANTED, 2)
    assert await store.complete(TOOL, "k", 1, succeeded("late")) is CompleteVerdict.FENCED
    assert await store.complete(TOOL, "k", 2, succeeded("second")) is CompleteVerdict.RECORDED
    assert await store.complete(TOOL, "k", 1, succeeded("second")) is CompleteVerdict.FENCED


@pytest.mark.parametrize("holder", ["h1", "h2"])
async def test_a_lapsed_irreversible_effect_is_never_given_away(
    store: DedupStore, clock: MovableClock, holder: str
) -> None:
    await store.reserve(asking(effect_class="irreversible"))
    clock.advance(hours=100)
    answer = await store.reserve(asking(effect_class="irreversible", holder=holder))
    assert (answer.verdict, answer.holder) == (ReserveVerdict.INCOMPLETE, "h1")


async def test_a_late_completion_with_the_current_fence_counts(store: DedupStore, clock: MovableClock) -> None:
    await store.reserve(asking(effect_class="irreversible"))
    clock.advance(milliseconds=TTL + 1)
    assert await store.complete(TOOL, "k", 1, succeeded("late")) is CompleteVerdict.RECORDED


async def test_a_fence_that_was_never_given_is_refused(store: DedupStore) -> None:
    await store.reserve(asking())
    assert await store.complete(TOOL, "k", 2, succeeded()) is CompleteVerdict.FENCED


async def test_an_unknown_key_cannot_be_completed_or_settled_or_shown(store: DedupStore) -> None:
    assert await store.complete(TOOL, "k", 1, succeeded()) is CompleteVerdict.UNKNOWN
    assert await store.settle(TOOL, "k", "applied") is SettleVerdict.UNKNOWN
    assert await store.show(TOOL, "k") is None


async def test_other_arguments_or_another_class_with_the_same_key_are_refused(store: DedupStore) -> None:
    await store.reserve(asking())
    assert (await store.reserve(asking(arguments_digest="e"))).verdict is ReserveVerdict.KEY_REUSED
    assert (await store.reserve(asking(effect_class="irreversible"))).verdict is ReserveVerdict.KEY_REUSED
    assert (await store.reserve(asking(arguments_digest=None))).verdict is ReserveVerdict.RENEWED
    await store.complete(TOOL, "k", 1, succeeded())
    assert (await store.reserve(asking(arguments_digest="e"))).verdict is ReserveVerdict.KEY_REUSED


async def test_two_tools_never_share_a_key(store: DedupStore) -> None:
    await store.reserve(asking())
    assert (await store.reserve(asking(tool="send_email"))).verdict is ReserveVerdict.GRANTED


async def test_a_key_is_forgotten_after_its_window_and_its_fences_go_on(store: DedupStore, clock: MovableClock) -> None:
    await store.reserve(asking())
    await store.complete(TOOL, "k", 1, succeeded("first"))
    clock.advance(milliseconds=HOUR - 5_000)
    assert (await store.reserve(asking(holder="h2"))).verdict is ReserveVerdict.RECORDED
    clock.advance(milliseconds=5_000)
    assert await store.show(TOOL, "k") is None
    assert (await store.list_effects()).effects == ()
    again = await store.reserve(asking(holder="h3", arguments_digest="other"))
    assert (again.verdict, again.fence) == (ReserveVerdict.GRANTED, 2)
    assert await store.complete(TOOL, "k", 1, succeeded("first")) is CompleteVerdict.FENCED


async def test_fences_go_on_after_the_entry_was_deleted(store: DedupStore, clock: MovableClock) -> None:
    for fence in (1, 2):
        assert (await store.reserve(asking())).fence == fence
        clock.advance(milliseconds=TTL)
    await store.complete(TOOL, "k", 2, succeeded())
    clock.advance(milliseconds=HOUR)
    await store.reserve(asking("other"))  # stores forget by the way
    await store.forget()
    assert await store.show(TOOL, "k") is None
    assert (await store.reserve(asking())).fence > 2


async def test_a_window_of_forever_never_ends(store: DedupStore, clock: MovableClock) -> None:
    await store.reserve(asking(window_ms=None))
    await store.complete(TOOL, "k", 1, succeeded("kept"))
    clock.advance(hours=24 * 365)
    await store.forget()
    assert (await store.reserve(asking(holder="h2", window_ms=None))).outcome == succeeded("kept")


async def test_a_person_settles_what_was_left_pending(store: DedupStore, clock: MovableClock) -> None:
    request = asking(effect_class="irreversible")
    await store.reserve(request)
    assert await store.settle(TOOL, "k", "applied") is SettleVerdict.IN_FLIGHT
    clock.advance(milliseconds=TTL)
    settled = await store.settle(TOOL, "k", "applied", result={"id": 7}, note="found in the ledger")
    assert settled is SettleVerdict.SETTLED
    assert (await store.reserve(asking(effect_class="irreversible", holder="h2"))).outcome == succeeded({"id": 7})
    assert await store.settle(TOOL, "k", "not_applied") is SettleVerdict.CONFLICTING
    shown = await store.show(TOOL, "k")
    assert shown is not None
    assert [entry.type for entry in shown.audit] == ["effect_reserved", "effect_settled", "dedup_hit"]
    assert shown.audit[1].note == "found in the ledger"


async def test_not_applied_frees_the_key_and_its_fences_go_on(store: DedupStore, clock: MovableClock) -> None:
    await store.reserve(asking(effect_class="irreversible"))
    clock.advance(milliseconds=TTL)
    assert await store.settle(TOOL, "k", "not_applied") is SettleVerdict.SETTLED
    assert await store.show(TOOL, "k") is None
    assert await store.complete(TOOL, "k", 1, succeeded("late")) is CompleteVerdict.FENCED
    again = await store.reserve(asking(effect_class="irreversible", holder="h2"))
    assert (again.verdict, again.fence) == (ReserveVerdict.GRANTED, 2)


async def test_settled_as_failed_is_replayed_as_a_failure(store: DedupStore, clock: MovableClock) -> None:
    await store.reserve(asking())
    clock.advance(milliseconds=TTL)
    await store.settle(TOOL, "k", "failed", error={"code": "CARD_EXPIRED"})
    answer = await store.reserve(asking(holder="h2"))
    assert answer.outcome == failed(code="CARD_EXPIRED")


async def test_the_audit_trail_names_each_holder(store: DedupStore) -> None:
    await store.reserve(asking())
    await store.reserve(asking(holder="h2"))
    await store.complete(TOOL, "k", 1, succeeded())
    await store.reserve(asking(holder="h3"))
    shown = await store.show(TOOL, "k")
    assert shown is not None
    trail = [(entry.type, entry.holder) for entry in shown.audit]
    assert trail == [("effect_reserved", "h1"), ("effect_completed", "h1"), ("dedup_hit", "h3")]


@pytest.mark.parametrize("key", ODD_KEYS, ids=ascii)
async def test_any_text_is_a_key(store: DedupStore, key: str) -> None:
    assert (await store.reserve(asking(key))).verdict is ReserveVerdict.GRANTED
    assert await store.complete(TOOL, key, 1, succeeded(key)) is CompleteVerdict.RECORDED
    shown = await store.show(TOOL, key)
    assert shown is not None
    assert (shown.key, shown.result) == (key, key)


async def test_effects_are_listed_by_tool_and_state_in_pages(store: DedupStore) -> None:
    for number in range(5):
        await store.reserve(asking(f"k{number}"))
    await store.reserve(asking("k9", tool="send_email"))
    await store.complete(TOOL, "k1", 1, succeeded())
    first = await store.list_effects(TOOL, EffectState.PENDING, limit=3)
    assert [effect.key for effect in first.effects] == ["k0", "k2", "k3"]
    second = await store.list_effects(TOOL, EffectState.PENDING, cursor=first.next_cursor, limit=3)
    assert ([effect.key for effect in second.effects], second.next_cursor) == (["k4"], None)
    assert {effect.tool for effect in (await store.list_effects()).effects} == {TOOL, "send_email"}


async def test_of_many_at_once_one_is_granted(dedup: Dedup) -> None:
    stores = [dedup.store, dedup.another(), dedup.another()]
    answers = await asyncio.gather(
        *(stores[number % 3].reserve(asking(holder=f"h{number}")) for number in range(60)),
    )
    granted = [answer for answer in answers if answer.verdict is ReserveVerdict.GRANTED]
    assert len(granted) == 1
    assert {answer.verdict for answer in answers} == {ReserveVerdict.GRANTED, ReserveVerdict.IN_FLIGHT}


async def test_of_many_outcomes_at_once_one_is_recorded(dedup: Dedup) -> None:
    stores = [dedup.store, dedup.another()]
    await stores[0].reserve(asking())
    verdicts = await asyncio.gather(
        *(stores[number % 2].complete(TOOL, "k", 1, succeeded(number)) for number in range(20))
    )
    assert verdicts.count(CompleteVerdict.RECORDED) == 1
    assert verdicts.count(CompleteVerdict.CONFLICTING) == 19


async def test_many_keys_at_once_each_go_through(dedup: Dedup) -> None:
    """Batches of several writers lock several rows each, in any order of the callers."""
    stores = [dedup.store, dedup.another(), dedup.another()]

    async def one(number: int) -> None:
        store = stores[number % 3]
        granted = await store.reserve(asking(f"k{number % 50}", holder=f"h{number}"))
        if granted.verdict is ReserveVerdict.GRANTED:
            await store.complete(TOOL, f"k{number % 50}", granted.fence, succeeded(number))

    await asyncio.gather(*(one(number) for number in range(300)))
    listed = (await stores[0].list_effects(limit=100)).effects
    assert len(listed) == 50
    assert {effect.state for effect in listed} == {EffectState.SUCCEEDED}


async def test_what_is_past_its_window_is_deleted_by_the_way(dedup: Dedup) -> None:
    """Nothing else is called: other reservations make room."""
    store, clock = dedup.store, dedup.clock
    for number in range(100):
        await store.reserve(asking(f"old{number}"))
        await store.complete(TOOL, f"old{number}", 1, succeeded())
    clock.advance(milliseconds=HOUR + 1)
    for number in range(4):
        await store.reserve(asking(f"new{number}"))
        clock.advance(seconds=2)

    async def none_left() -> bool:
        return await store.forget() == 0

    await eventually(none_left)
    assert len((await store.list_effects()).effects) == 4

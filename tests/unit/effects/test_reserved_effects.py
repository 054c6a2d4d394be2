"""The record of a key of a tool: every state, every request, every moment, and what the record keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from counterfoil.domain.effects.effect_requests import CompleteEffect, ReserveEffect, SettleEffect
from counterfoil.domain.effects.reservations import EffectState, ReserveVerdict
from counterfoil.domain.effects.reserved_effects import (
    FIRST_ENTRIES,
    LAST_ENTRIES,
    ReservedEffect,
    bucket_of,
    complete_effect,
    effect_id,
    reserve_effect,
    settle_effect,
)
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.time import rfc3339
from tests.store.records import NOW

TTL = 300_000
WINDOW = 86_400_000
CLASSES = ("write-idempotent", "write-non-idempotent", "irreversible")


def asked(holder: str = "h1", effect_class: str = "write-non-idempotent", **fields: Any) -> ReserveEffect:
    body = {"tool": "refund", "key": "k", "class": effect_class, "holder": holder, "window": "24h", **fields}
    return ReserveEffect.model_validate(body)


def pending(effect_class: str = "write-non-idempotent", at: int = NOW, **fields: Any) -> ReservedEffect:
    return reserve_effect(None, 0, asked(effect_class=effect_class, **fields), at)[0]


def completed(effect_class: str = "write-non-idempotent", *, success: bool = True, at: int = NOW) -> ReservedEffect:
    return complete_effect(pending(effect_class, at), done(1, success=success), at)[0]


def freed(effect_class: str = "write-non-idempotent") -> ReservedEffect:
    return settle_effect(pending(effect_class), found_out("not_applied"), "ann", NOW + TTL)


def done(fence: int, *, success: bool = True, value: Any = 1) -> CompleteEffect:
    given = {"result": value} if success else {"error": {"code": value}}
    return CompleteEffect.model_validate({"fence": fence, "success": success, **given})


def found_out(outcome: str, **fields: Any) -> SettleEffect:
    return SettleEffect.model_validate({"outcome": outcome, **fields})


def verdict(record: ReservedEffect | None, request: ReserveEffect, now: int) -> tuple[str, int]:
    """The verdict or the error, and the fence afterwards."""
    try:
        after, said = reserve_effect(record, 0, request, now)
    except CounterfoilError as error:
        return error.code, record.fence if record else 0
    return said.value, after.fence


@pytest.mark.parametrize("effect_class", CLASSES)
@pytest.mark.parametrize("holder", ["h1", "h2"])
def test_every_state_and_moment(effect_class: str, holder: str) -> None:
    request = asked(holder, effect_class)
    alive = "renewed" if holder == "h1" else "RETRY_IN_FLIGHT"
    lapsed = ("UNSAFE_ONCE_INCOMPLETE", 1) if effect_class == "irreversible" else ("granted", 2)
    cases = [
        (None, NOW, ("granted", 1)),
        (pending(effect_class), NOW, (alive, 1)),
        (pending(effect_class), NOW + TTL - 1, (alive, 1)),
        (pending(effect_class), NOW + TTL, lapsed),
        (pending(effect_class), NOW + TTL + 100 * WINDOW, lapsed),
        (completed(effect_class), NOW, ("recorded", 1)),
        (completed(effect_class, success=False), NOW + WINDOW - 1, ("recorded", 1)),
        (completed(effect_class), NOW + WINDOW, ("granted", 2)),
        (freed(effect_class), NOW + TTL, ("granted", 2)),
        (freed(effect_class), NOW + TTL + 100 * WINDOW, ("granted", 2)),
    ]
    for record, now, expected in cases:
        assert verdict(record, request, now) == expected, (record, now)


@pytest.mark.parametrize("record", [pending(arguments_digest="a"), replace(completed(), arguments_digest="a")])
def test_a_key_is_for_one_call(record: ReservedEffect) -> None:
    for fields in ({"arguments_digest": "b"}, {"effect_class": "irreversible"}):
        assert verdict(record, asked(**fields), NOW)[0] == "EFFECT_KEY_REUSED"
    for fields in ({"arguments_digest": "a"}, {}):
        assert verdict(record, asked(**fields), NOW)[0] in ("renewed", "recorded")
    assert verdict(replace(record, arguments_digest=None), asked(arguments_digest="b"), NOW)[0] != "EFFECT_KEY_REUSED"


def test_the_floor_counts_for_a_key_without_a_record_alone() -> None:
    assert reserve_effect(None, 41, asked(), NOW)[0].fence == 42
    assert reserve_effect(freed(), 41, asked(), NOW + TTL)[0].fence == 2, "its own fence is the highest of its key"


def outcome_of(record: ReservedEffect | None, request: CompleteEffect, now: int) -> str:
    try:
        after, duplicate = complete_effect(record, request, now)
    except CounterfoilError as error:
        return error.code
    return "duplicate" if duplicate else after.state.value


def test_every_completion() -> None:
    taken = replace(pending(), fence=2)
    cases = [
        (None, done(1), NOW, "UNKNOWN_EFFECT"),
        (pending(), done(1), NOW, "complete-success"),
        (pending(), done(1, success=False), NOW + TTL + 100 * WINDOW, "complete-failed"),
        (pending("irreversible"), done(1), NOW + TTL, "complete-success"),
        (pending(), done(2), NOW, "FENCED"),
        (taken, done(1), NOW, "FENCED"),
        (completed(), done(1), NOW, "duplicate"),
        (completed(), done(1, value=1.0), NOW, "duplicate"),
        (completed(), done(1, value=True), NOW, "CONFLICTING_RESULT"),
        (completed(), done(1, success=False), NOW, "CONFLICTING_RESULT"),
        (completed(success=False), done(1), NOW, "CONFLICTING_RESULT"),
        (completed(success=False), done(1, success=False), NOW, "duplicate"),
        (completed(), done(2), NOW, "FENCED"),
        (completed(), done(1), NOW + WINDOW, "UNKNOWN_EFFECT"),
        (freed(), done(1), NOW + TTL, "FENCED"),
    ]
    for record, request, now, expected in cases:
        assert outcome_of(record, request, now) == expected, (record, request, now)


@pytest.mark.parametrize("effect_class", CLASSES)
def test_every_settlement(effect_class: str) -> None:
    def settled(record: ReservedEffect | None, outcome: str, now: int) -> str:
        try:
            return settle_effect(record, found_out(outcome), "ann", now).state.value
        except CounterfoilError as error:
            return error.code

    states = {"applied": "complete-success", "failed": "complete-failed", "not_applied": "free"}
    for outcome, state in states.items():
        cases = [
            (None, NOW, "UNKNOWN_EFFECT"),
            (pending(effect_class), NOW + TTL - 1, "RETRY_IN_FLIGHT"),
            (pending(effect_class), NOW + TTL, state),
            (completed(effect_class), NOW, "CONFLICTING_RESULT"),
            (completed(effect_class), NOW + WINDOW, "UNKNOWN_EFFECT"),
            (freed(effect_class), NOW + TTL, "UNKNOWN_EFFECT"),
        ]
        for record, now, expected in cases:
            assert settled(record, outcome, now) == expected, (outcome, record, now)


def test_what_a_record_keeps() -> None:
    record = pending(arguments_digest="a")
    assert (record.effect_id, record.reserved_at, record.expires_at) == (effect_id("refund", "k"), NOW, NOW + TTL)
    assert (record.window_ms, record.forget_at, record.recorded_at, record.outcome) == (WINDOW, None, None, None)
    ended = complete_effect(record, done(1), NOW + 5)[0]
    assert (ended.expires_at, ended.recorded_at, ended.forget_at) == (None, NOW + 5, NOW + 5 + WINDOW)
    assert (ended.outcome, ended.state, ended.reserved_at) == ({"result": 1}, EffectState.SUCCEEDED, NOW)
    hit, said = reserve_effect(ended, 0, asked("h2"), NOW + 6)
    assert (said, hit.hits, hit.holder) == (ReserveVerdict.RECORDED, 1, "h1")
    assert replace(hit, hits=0, audit=ended.audit, audited=2) == ended, "a hit changes nothing else"
    anew = reserve_effect(hit, 0, asked("h3", "irreversible", window="forever"), NOW + 5 + WINDOW)[0]
    assert (anew.hits, anew.audited, anew.arguments_digest, anew.window_ms) == (0, 1, None, None)
    assert (anew.effect_class, anew.outcome, anew.forget_at) == ("irreversible", None, None)


def test_a_result_of_a_window_without_end_is_never_forgotten() -> None:
    record = complete_effect(pending(window="forever"), done(1), NOW)[0]
    assert (record.forget_at, record.is_forgettable(NOW + 10**15)) == (None, False)


def test_the_audit_names_each_change_and_its_time() -> None:
    record = freed()
    assert record.audit == [
        {"at": NOW, "type": "effect_reserved", "holder": "h1"},
        {
            "at": NOW + TTL,
            "type": "effect_settled",
            "holder": "h1",
            "outcome": "not_applied",
            "by": "ann",
            "note": None,
        },
    ]
    again = reserve_effect(record, 0, asked("h2"), NOW + TTL)[0]
    assert [entry["type"] for entry in again.audit or ()] == ["effect_reserved", "effect_settled", "effect_reserved"]
    renewed = reserve_effect(again, 0, asked("h2"), NOW + TTL + 1)[0]
    assert renewed.audit == again.audit, "a renewal is no new reservation"


def test_an_audit_does_not_grow_without_limit() -> None:
    record = completed()
    for number in range(1_000):
        record = reserve_effect(record, 0, asked(f"h{number}"), NOW + number)[0]
    assert (record.hits, record.audited, len(record.audit or ())) == (1_000, 1_002, FIRST_ENTRIES + LAST_ENTRIES)
    holders = [entry["holder"] for entry in record.audit or ()]
    assert holders == ["h1", "h1", *(f"h{n}" for n in range(6)), *(f"h{n}" for n in range(976, 1_000))]


def test_errors_say_what_to_do_next() -> None:
    with pytest.raises(CounterfoilError) as in_flight:
        reserve_effect(pending(), 0, asked("h2"), NOW)
    assert in_flight.value.details == {"retriable": True, "expires_at": rfc3339(NOW + TTL), "holder": "h1"}
    with pytest.raises(CounterfoilError) as incomplete:
        reserve_effect(pending("irreversible"), 0, asked("h2", "irreversible"), NOW + TTL)
    assert incomplete.value.details == {
        "retriable": False,
        "holder": "h1",
        "fence": 1,
        "reserved_at": rfc3339(NOW),
        "expires_at": rfc3339(NOW + TTL),
    }


def test_two_tools_never_share_a_key() -> None:
    pairs = [("a", "b/c"), ("a/b", "c"), ("a", "b"), ("A", "b"), ("b", "a"), ("a", "e\u0301"), ("a", "\u00e9")]
    assert len({effect_id(*pair) for pair in pairs}) == len(pairs)
    assert {len(bucket_of(effect_id(*pair))) for pair in pairs} == {4}

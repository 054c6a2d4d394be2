"""Reservations of effects, whatever callers do in which order: fences only grow, and a recorded outcome is final."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.effects.reservations import (
    COMPLETE,
    CompleteVerdict,
    EffectClass,
    EffectEntry,
    EffectOutcome,
    EffectState,
    ReserveRequest,
    ReserveVerdict,
    SettleVerdict,
    complete,
    reserve,
    settle,
)

TTL, WINDOW = 10_000, 60_000
CLASSES: list[EffectClass] = ["write-idempotent", "write-non-idempotent", "irreversible"]

HOLDERS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), HOLDERS),
        st.tuples(st.just("complete"), st.integers(0, 8), st.sampled_from([1, 2])),
        st.tuples(st.just("settle"), st.sampled_from(["applied", "not_applied", "failed"])),
        st.tuples(st.just("wait"), st.sampled_from([1, TTL - 1, TTL, WINDOW])),
        st.tuples(st.just("delete")),
    ),
    max_size=30,
)


def request(holder: str, effect_class: EffectClass) -> ReserveRequest:
    return ReserveRequest("t", "k", effect_class, holder, TTL, WINDOW, "d")


class Life:
    """One key, as a store would keep it; every change is checked."""

    def __init__(self, effect_class: EffectClass) -> None:
        self.effect_class = effect_class
        self.entry: EffectEntry | None = None
        self.now = 0
        self.floor = 0
        self.fences: list[int] = []
        self.alive: tuple[str, int, int] | None = None
        """Holder, fence and end of the last reservation that was granted or renewed."""

    def reserve(self, holder: str) -> None:
        verdict, after, audit = reserve(self.entry, request(holder, self.effect_class), self.now, self.floor)
        if verdict is ReserveVerdict.GRANTED:
            assert after.fence > max(self.fences, default=0)
            assert self.alive is None or self.now >= self.alive[2], "two holders at once"
            lapsed = (
                self.entry is not None and self.entry.state is EffectState.PENDING and self.entry.is_known(self.now)
            )
            assert not (lapsed and self.effect_class == "irreversible")
            self.fences.append(after.fence)
        if verdict in (ReserveVerdict.GRANTED, ReserveVerdict.RENEWED):
            assert (after.holder, after.expires_at) == (holder, self.now + TTL)
            self.alive = (holder, after.fence, after.expires_at)
        else:
            assert after is self.entry
        assert (audit is not None) == (verdict in (ReserveVerdict.GRANTED, ReserveVerdict.RECORDED))
        self.entry = after

    def complete(self, fence: int, result: int) -> None:
        before = self.entry
        verdict, after, _ = complete(before, fence, EffectOutcome(success=True, result=result), self.now)
        if verdict is CompleteVerdict.RECORDED:
            assert before is not None
            assert (before.state, fence) == (EffectState.PENDING, before.fence)
            assert fence == max(self.fences)
            self.alive = None
        else:
            assert after is before or after is None
        if after is not None:
            self.entry = after

    def settle(self, outcome: str) -> None:
        before = self.entry
        kept = None if outcome == "not_applied" else EffectOutcome(outcome == "applied", None, {})
        verdict, after, _ = settle(before, kept, self.now)
        if verdict is SettleVerdict.SETTLED:
            assert before is not None
            assert after is not None
            assert before.state is EffectState.PENDING
            assert self.now >= before.expires_at
            assert after.fence == before.fence
            self.entry = after
        else:
            assert after is before or after is None

    def delete(self) -> None:
        """What a store may do with an entry past its window."""
        if self.entry is not None and self.entry.forget_at is not None and self.entry.forget_at <= self.now:
            self.floor, self.entry = max(self.floor, self.entry.fence), None

    def check(self, before: EffectEntry | None) -> None:
        if before is not None and before.state in COMPLETE and before.is_known(self.now):
            assert self.entry == before, "a recorded outcome is final within its window"
        if self.entry is not None and self.entry.state is EffectState.PENDING and self.effect_class == "irreversible":
            assert self.entry.forget_at is None


@given(st.sampled_from(CLASSES), STEPS)
def test_whatever_happens_fences_grow_and_outcomes_are_final(effect_class: EffectClass, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    life = Life(effect_class)
    for kind, *arguments in steps:
        before = life.entry
        if kind == "wait":
            life.now += arguments[0]
        else:
            getattr(life, kind)(*arguments)
        life.check(before)


def test_a_free_entry_of_another_action_may_be_reserved() -> None:
    """After ``not_applied`` the key is free for other arguments too."""
    entry = reserve(None, request("a", "irreversible"), 0).entry
    freed = settle(entry, None, TTL).entry
    other = replace(request("b", "write-idempotent"), arguments_digest="e")
    assert reserve(freed, other, TTL).verdict is ReserveVerdict.GRANTED

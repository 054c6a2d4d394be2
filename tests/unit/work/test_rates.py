"""The sliding window: never more than the count in any time of that length, and never less than is allowed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.steps.definitions import DAY_MS, RateLimit, WorkDefaults
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.kinds.work import RATES, read_sent, sent_row
from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.unit import UnitOfWork

NOW = 1_800_000_000_000
LIMIT = RateLimit(count=3, per_ms=1_000)


def sent(*times: int, limit: RateLimit = LIMIT) -> SentTimes:
    """Sent at these times, by the millisecond after NOW."""
    times_sent = SentTimes()
    for time in times:
        times_sent = times_sent.and_now(limit, NOW + time)
    return times_sent


def test_the_first_dispatch_of_a_step_may_go() -> None:
    assert SentTimes().rests_until(LIMIT, NOW) is None


def test_up_to_the_count_may_go_at_once() -> None:
    assert sent(0, 0).rests_until(LIMIT, NOW) is None
    assert sent(0, 0, 0).rests_until(LIMIT, NOW) == NOW + 1_000


def test_the_window_slides() -> None:
    """The next may go when the third last is a whole window ago, not when a new second begins."""
    times = sent(0, 600, 900)
    assert [times.rests_until(LIMIT, NOW + at) for at in (900, 999, 1_000)] == [NOW + 1_000, NOW + 1_000, None]
    times = times.and_now(LIMIT, NOW + 1_000)
    assert times.rests_until(LIMIT, NOW + 1_000) == NOW + 1_600


def test_no_more_times_are_kept_than_count() -> None:
    times = sent(*range(50))
    assert times.times == (NOW + 47, NOW + 48, NOW + 49)


def test_a_smaller_limit_does_not_forget_what_a_larger_one_counts() -> None:
    """Flows of an older definition go on under theirs, beside those of the new one."""
    wide, narrow = RateLimit(count=4, per_ms=10_000), RateLimit(count=1, per_ms=10)
    times = sent(0, limit=wide)
    for at in (20, 40, 60, 80):
        times = times.and_now(narrow, NOW + at)
    assert times.rests_until(wide, NOW + 90) == NOW + 20 + 10_000
    assert times.rests_until(narrow, NOW + 90) is None


def test_what_no_window_reaches_is_forgotten() -> None:
    times = sent(0, 5, DAY_MS)
    assert times.times == (NOW + 5, NOW + DAY_MS)


def test_a_clock_that_is_behind_counts_from_the_last_time() -> None:
    times = sent(500, 100)
    assert times.times == (NOW + 500, NOW + 500)


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.lists(st.integers(0, 15), max_size=80),
    st.randoms(use_true_random=False),
)
def test_in_no_window_are_more_than_allowed_and_none_waits_in_vain(
    count: int, per_ms: int, gaps: list[int], dice: random.Random
) -> None:
    """Whatever comes when, by clocks that differ: at most ``count`` went in any window."""
    limit = RateLimit(count=count, per_ms=per_ms)
    times, went, now = SentTimes(), list[int](), NOW
    for gap in gaps:
        now += gap
        here = now - dice.randrange(4)
        until = times.rests_until(limit, here)
        if until is None:
            times = times.and_now(limit, here)
            went.append(here)
        else:
            assert here < until <= times.times[-1] + per_ms
            assert len(times.times) == count
    for start in went:
        assert sum(start <= at < start + per_ms for at in went) <= count


# ------------------------------------------------------------------------------------------------ in a batch


def counting(times: SentTimes) -> UnitOfWork:
    unit = UnitOfWork({})
    unit.records(RATES).add("step", times)
    return unit


def test_what_is_refused_has_used_up_nothing() -> None:
    unit = counting(sent(0))
    unit.count_sent("step", LIMIT, NOW + 1)
    assert unit.sent_times("step").times == (NOW, NOW + 1), "a command sees what it did itself"
    unit.discard()
    assert unit.sent_times("step").times == (NOW,)
    unit.keep()
    assert not unit.changes.any()


def test_what_is_kept_counts_for_the_next_command() -> None:
    unit = counting(SentTimes())
    for at in (0, 1):
        unit.count_sent("step", LIMIT, NOW + at)
        unit.keep()
        unit.discard()
    assert unit.sent_times("step") == unit.changes.peek(RATES)["step"] == sent(0, 1)


def test_what_was_not_loaded_is_missed() -> None:
    with pytest.raises(NotLoaded) as missed:
        UnitOfWork({}).sent_times("step")
    assert missed.value.wanted == {("rates", "step")}


@pytest.mark.parametrize("times", [(), (0,), (0, 0, 5, 1_000)])
def test_rows_say_the_same(times: tuple[int, ...]) -> None:
    row = sent_row("step", sent(*times, limit=RateLimit(count=9, per_ms=1)))
    assert read_sent(row) == ("step", sent(*times, limit=RateLimit(count=9, per_ms=1)))


def test_rows_are_compact() -> None:
    times = sent(*(number * 8_000 for number in range(10_000)), limit=RateLimit(count=10_000, per_ms=DAY_MS))
    _, most, text = sent_row("step", times)
    assert (most, len(times.times)) == (10_000, 10_000)
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("work", "limited"),
    [(WorkDefaults(), False), (WorkDefaults(parallelism=1), True), (WorkDefaults(rate_limit=LIMIT), True)],
)
def test_a_limit_over_all_flows_is_one(work: WorkDefaults, limited: bool) -> None:
    assert work.is_limited is limited

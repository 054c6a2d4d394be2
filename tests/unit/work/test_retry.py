"""Backoff: the three shapes, the cap, the jitter, the other side's wish, and when it ends."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.steps.attributes import YEAR_MS
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.work.retry import backoff_ms, retries_left

HOUR = 3_600_000


def rules(
    backoff_type: Literal["fixed", "linear", "exponential"] = "fixed",
    *,
    init: int = 100,
    cap: int = 10_000,
    jitter: bool = False,
) -> WorkDefaults:
    return WorkDefaults(backoff_type=backoff_type, init_backoff_ms=init, max_backoff_ms=cap, jitter=jitter)


def delays(work: WorkDefaults, retries: int = 8) -> list[int]:
    return [backoff_ms(work, number, 0.0, None, HOUR) for number in range(1, retries + 1)]


def test_fixed() -> None:
    assert delays(rules("fixed")) == [100] * 8


def test_linear() -> None:
    assert delays(rules("linear", cap=600)) == [100, 200, 300, 400, 500, 600, 600, 600]


def test_exponential() -> None:
    assert delays(rules("exponential", cap=6000)) == [100, 200, 400, 800, 1600, 3200, 6000, 6000]


def test_a_cap_below_the_first_delay_holds_for_the_first_delay_too() -> None:
    assert delays(rules("exponential", init=500, cap=200), 2) == [200, 200]


def test_no_backoff_at_all() -> None:
    assert delays(rules("exponential", init=0), 3) == [0, 0, 0]


@pytest.mark.parametrize("number", [64, 65, 1000, 10**9])
def test_an_unlimited_number_of_retries_stays_at_the_cap(number: int) -> None:
    assert backoff_ms(rules("exponential", init=1, cap=YEAR_MS), number, 0.0, None, HOUR) == YEAR_MS


def test_jitter_is_drawn_from_half_of_the_delay_to_all_of_it() -> None:
    work = rules(init=1000, jitter=True)
    assert backoff_ms(work, 1, 0.0, None, HOUR) == 500
    assert backoff_ms(work, 1, 0.5, None, HOUR) == 750
    assert backoff_ms(work, 1, 0.999999, None, HOUR) == 1000


def test_jitter_spreads_capped_delays_as_well() -> None:
    work = rules("exponential", init=1000, cap=4000, jitter=True)
    assert {backoff_ms(work, 20, draw / 100, None, HOUR) for draw in range(100)} > {2000, 3000}


def test_jitter_is_even() -> None:
    work = rules(init=4, jitter=True)
    drawn = [backoff_ms(work, 1, draw / 300, None, HOUR) for draw in range(300)]
    assert [drawn.count(delay) for delay in (2, 3, 4)] == [100, 100, 100]


def test_a_longer_wish_of_the_other_side_wins_over_the_cap() -> None:
    work = rules(cap=200)
    assert backoff_ms(work, 1, 0.0, 30_000, HOUR) == 30_000
    assert backoff_ms(work, 1, 0.0, 50, HOUR) == 100
    assert backoff_ms(work, 1, 0.0, 0, HOUR) == 100


def test_the_wish_has_a_limit_of_its_own() -> None:
    assert backoff_ms(rules(), 1, 0.0, 10 * HOUR, HOUR) == HOUR
    assert backoff_ms(rules(init=5000), 1, 0.0, 10 * HOUR, 1000) == 5000


@given(
    backoff_type=st.sampled_from(["fixed", "linear", "exponential"]),
    init=st.integers(0, YEAR_MS),
    cap=st.integers(0, YEAR_MS),
    number=st.integers(1, 10**6),
    draw=st.floats(0, 1, exclude_max=True),
    wish=st.none() | st.integers(0, 2 * YEAR_MS),
    limit=st.integers(0, YEAR_MS),
)
def test_bounds(
    backoff_type: Literal["fixed", "linear", "exponential"],
    init: int,
    cap: int,
    number: int,
    draw: float,
    wish: int | None,
    limit: int,
) -> None:
    plain = backoff_ms(rules(backoff_type, init=init, cap=cap), number, draw, None, limit)
    drawn = backoff_ms(rules(backoff_type, init=init, cap=cap, jitter=True), number, draw, None, limit)
    assert min(init, cap) <= plain <= cap
    assert plain / 2 <= drawn <= plain
    wished = backoff_ms(rules(backoff_type, init=init, cap=cap), number, draw, wish, limit)
    assert wished == max(plain, min(wish or 0, limit))


@pytest.mark.parametrize(
    ("max_retries", "attempt", "left"),
    [(0, 1, False), (1, 1, True), (1, 2, False), (5, 5, True), (5, 6, False), (-1, 1, True), (-1, 10**9, True)],
)
def test_retries_left(max_retries: int, attempt: int, left: bool) -> None:
    work = WorkDefaults(max_retries=max_retries)
    assert retries_left(work, attempt) is left
    if work.max_attempts is not None:
        assert left == (attempt < work.max_attempts)

"""Rates of recorded callbacks: a burst, then so many a second, whatever arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.engine.callbacks import sampling
from counterfoil.engine.callbacks.sampling import ITEM_BURST, Rate, RatePerItem

NOW = 1_700_000_000_000


def test_a_burst_at_once_then_one_in_each_interval() -> None:
    rate = Rate(10, 3)
    assert [rate.takes(NOW) for _ in range(5)] == [True, True, True, False, False]
    assert [rate.takes(NOW + 99), rate.takes(NOW + 100), rate.takes(NOW + 100)] == [False, True, False]
    assert [rate.takes(NOW + 10_000) for _ in range(4)] == [True, True, True, False]


def test_none_at_all() -> None:
    rate = Rate(0, 50)
    assert not any(rate.takes(NOW + each) for each in (0, 1_000, 1_000_000))


@given(st.lists(st.integers(0, 400), max_size=300), st.integers(1, 20), st.integers(1, 20))
def test_never_more_than_the_burst_and_the_rate_allow(pauses: list[int], per_second: int, burst: int) -> None:
    rate, now, taken = Rate(per_second, burst), NOW, 0
    for pause in pauses:
        now += pause
        taken += rate.takes(now)
        assert taken <= burst + (now - NOW) * per_second / 1000


def test_each_item_has_a_rate_of_its_own() -> None:
    rates = RatePerItem()
    for key in ("a", "b"):
        assert sum(rates.takes(key, NOW) for _ in range(2 * ITEM_BURST)) == ITEM_BURST
    assert rates.takes("a", NOW + sampling.ITEM_INTERVAL_MS)


def test_items_are_forgotten_once_they_have_their_whole_burst_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_ITEMS", 3)
    rates = RatePerItem()
    for key in "abc":
        rates.takes(key, NOW)
    assert [rates.takes("d", NOW + 2_000), len(rates._rates)] == [True, 1]
    for number in range(10):  # all of them lately: the memory is bounded all the same
        rates.takes(str(number), NOW + 2_000)
        assert len(rates._rates) <= 3

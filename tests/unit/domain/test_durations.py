from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.durations import LONGEST_MS, SHORTEST_MS, duration_text, parse_duration


@pytest.mark.parametrize(
    ("given_text", "milliseconds"),
    [
        ("1s", 1_000),
        ("90s", 90_000),
        ("15m", 900_000),
        ("24h", 86_400_000),
        ("7d", 604_800_000),
        ("366d", LONGEST_MS),
        ("1500ms", 1_500),
        (1_000, 1_000),
        (LONGEST_MS, LONGEST_MS),
    ],
)
def test_a_duration_is_text_or_milliseconds(given_text: str | int, milliseconds: int) -> None:
    assert parse_duration(given_text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "1.5h", "-1h", "1H", "1w", " 1h", "1h ", "1h\n", "1h30m", "\u0661h", "9" * 13 + "d"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 90s or 24h"):
        parse_duration(text)


@pytest.mark.parametrize("given_value", ["0s", "999ms", "367d", "999999999999d", 0, -5, 999, LONGEST_MS + 1])
def test_too_short_and_too_long_is_refused(given_value: str | int) -> None:
    with pytest.raises(ValueError, match="from 1s to 366d"):
        parse_duration(given_value)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(1_000, "1s"), (90_000, "90s"), (900_000, "15m"), (86_400_000, "1d"), (5_400_000, "90m"), (1_001, "1001ms")],
)
def test_the_text_has_the_largest_unit_that_fits(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


@given(st.integers(SHORTEST_MS, LONGEST_MS))
def test_a_text_is_read_as_what_it_was_made_of(milliseconds: int) -> None:
    assert parse_duration(duration_text(milliseconds)) == milliseconds

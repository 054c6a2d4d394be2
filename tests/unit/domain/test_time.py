"""Milliseconds and RFC 3339."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.time import optional_rfc3339, parse_rfc3339, rfc3339

END_OF_TIME = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-1, "1969-12-31T23:59:59.999Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_794_839_170_123, "2026-11-16T14:26:10.123Z"),
        (1_794_839_170_005, "2026-11-16T14:26:10.005Z"),
        (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
        (END_OF_TIME, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_rfc3339(milliseconds: int, text: str) -> None:
    assert rfc3339(milliseconds) == text
    assert parse_rfc3339(text) == milliseconds


def test_optional() -> None:
    assert optional_rfc3339(None) is None
    assert optional_rfc3339(0) == "1970-01-01T00:00:00.000Z"


@given(st.lists(st.integers(-(10**12), END_OF_TIME), min_size=1, max_size=5))
def test_every_time_survives_the_wire(times: list[int]) -> None:
    for milliseconds in times:
        assert parse_rfc3339(rfc3339(milliseconds)) == milliseconds
        assert datetime.fromisoformat(rfc3339(milliseconds)).timestamp() * 1000 == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1970-01-01T00:00:00.0019Z", 1),
        ("1969-12-31T23:59:59.9991Z", -1),
    ],
)
def test_parsing_other_zones_and_fractions(text: str, milliseconds: int) -> None:
    assert parse_rfc3339(text) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-16", "2026-11-16T14:26:10", "2026-13-01T00:00:00Z", "12"])
def test_a_time_without_a_zone_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rfc3339(text)

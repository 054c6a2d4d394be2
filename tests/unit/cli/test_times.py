"""Times and durations in options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from counterfoil.cli.times import milliseconds, since_time


@pytest.mark.parametrize(
    ("text", "length"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("1d", 86_400_000)]
)
def test_durations(text: str, length: int) -> None:
    assert milliseconds(text, "--deadline") == length
    then = datetime.fromisoformat(str(since_time(text)))
    assert timedelta() <= datetime.now(UTC) - timedelta(milliseconds=length) - then < timedelta(seconds=10)


def test_a_duration_may_be_missing() -> None:
    assert milliseconds(None, "--deadline") is None
    assert since_time(None) is None


@pytest.mark.parametrize("text", ["", "5", "1.5h", "-1s", "1w", "2026-11-16T12:00:00Z"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration; use 500ms"):
        milliseconds(text, "--deadline")
    assert since_time(text) == text, "the engine judges times"


@pytest.mark.parametrize("text", ["999999d", "999999999999d"])
def test_a_duration_before_all_times_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is too long"):
        since_time(text)

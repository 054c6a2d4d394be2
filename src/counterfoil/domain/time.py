"""Time as the engine keeps it: whole milliseconds since 1970 (UTC), and RFC 3339 on the wire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

Clock = Callable[[], int]
"""Tells the time in milliseconds; injected everywhere, so that tests can move it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_last_second = (0, "1970-01-01T00:00:00")


def rfc3339(milliseconds: int) -> str:
    """``2026-11-16T14:26:10.123Z``."""
    global _last_second
    second, rest = divmod(milliseconds, 1000)
    kept = _last_second  # read once: another thread may replace it at any moment
    if kept[0] != second:  # most times of one moment share their second: format it once
        moment = _EPOCH + timedelta(seconds=second)
        kept = _last_second = (second, moment.strftime("%Y-%m-%dT%H:%M:%S"))
    return f"{kept[1]}.{rest:03d}Z"


def optional_rfc3339(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else rfc3339(milliseconds)


def parse_rfc3339(text: str) -> int:
    """Milliseconds of a time with a zone; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time needs a zone, such as Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)

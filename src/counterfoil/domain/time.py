"""Times: the engine keeps whole milliseconds since 1970 (UTC), the wire has RFC 3339."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Clock = Callable[[], int]
"""Returns the time in milliseconds; injected everywhere, so that tests can control it."""

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?)([Zz]|[+ -]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=256)
def rfc3339(milliseconds: int) -> str:
    """``2026-11-16T14:26:10.123Z``. Cached, because all events of a commit have the same time."""
    second, rest = divmod(milliseconds, 1000)
    return f"{_whole_second(second)}.{rest:03d}Z"


@lru_cache(maxsize=256)
def _whole_second(second: int) -> str:
    """Most times that are formatted together share their second, which is formatted once."""
    return (_EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")


def optional_rfc3339(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else rfc3339(milliseconds)


def parse_rfc3339(text: str) -> int:
    """Milliseconds of a time with a zone; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time needs a zone, such as Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def wire_time(text: str) -> int:
    """Milliseconds of a time as clients send it; raises ValueError with a message for the client."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("must be a time with a zone (RFC 3339), such as 2026-11-16T14:26:10Z")
    zone = found[2].replace(" ", "+")  # an unescaped plus in a URL arrives as a space
    try:
        return parse_rfc3339(f"{found[1]}{zone}".upper())
    except (ValueError, OverflowError):
        raise ValueError("is not a valid date and time") from None

"""Durations as people write them, ``90s`` or ``24h``, and as the engine keeps them: whole milliseconds."""

from __future__ import annotations

import re

SHORTEST_MS = 1_000
LONGEST_MS = 366 * 24 * 3_600_000

UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
"""Largest first: a duration is written in the largest unit that divides it without remainder."""
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")


def length_ms(text: str) -> int | None:
    """Milliseconds of a text such as ``15m``, however many; None: it is no duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * UNIT_MS[found[2]]


def parse_duration(given: str | int) -> int:
    """Milliseconds of a text such as ``15m``, or of a number of milliseconds; ValueError outside 1 s to 366 d."""
    milliseconds = length_ms(given) if isinstance(given, str) else given
    if milliseconds is None:
        raise ValueError("must be a number followed by s, m, h or d, such as 90s or 24h")
    if not SHORTEST_MS <= milliseconds <= LONGEST_MS:
        raise ValueError("must be from 1s to 366d")
    return milliseconds


def duration_text(milliseconds: int) -> str:
    """The shortest text: ``90s``, ``15m``, ``1d``. ``parse_duration`` turns it back into the same number."""
    size, unit = next((size, unit) for unit, size in UNIT_MS.items() if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"

"""Parsing of times and durations in command options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_LENGTH = re.compile(r"^([0-9]{1,12})(ms|s|m|h|d)$")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str | None, option: str) -> int | None:
    """A duration such as 30s in milliseconds."""
    if text is None:
        return None
    length = _LENGTH.match(text)
    if length is None:
        raise click.BadParameter(f"{text!r} is not a duration; use 500ms, 30s, 15m, 2h or 1d", param_hint=option)
    return int(length[1]) * _MILLISECONDS[length[2]]


def since_time(text: str | None) -> str | None:
    """A timestamp for the API: a duration is subtracted from now, anything else is passed on."""
    length = None if text is None else _LENGTH.match(text)
    if length is None:
        return text
    moment = datetime.now(UTC) - timedelta(milliseconds=int(length[1]) * _MILLISECONDS[length[2]])
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

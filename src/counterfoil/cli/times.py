"""Times and durations in command options."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from counterfoil.domain.durations import length_ms

C = TypeVar("C", bound=Callable[..., Any])


def since_option(entries: str) -> Callable[[C], C]:
    """Add --since to a command that lists or changes these."""
    text = f"Only {entries} since this time (2026-11-16T12:00:00Z), or within this duration (15m, 2h, 1d)."
    return click.option("--since", help=text)


def until_option(entries: str) -> Callable[[C], C]:
    """Add --until."""
    return click.option("--until", help=f"Only {entries} before this time, or longer ago than this (2h).")


def milliseconds(text: str | None, option: str) -> int | None:
    """A duration such as 30s in milliseconds."""
    if text is None:
        return None
    length = length_ms(text)
    if length is None:
        raise click.BadParameter(f"{text!r} is not a duration; use 500ms, 30s, 15m, 2h or 1d", param_hint=option)
    return length


def since_time(text: str | None) -> str | None:
    """A timestamp for the API: a duration is subtracted from now, anything else is passed on."""
    length = None if text is None else length_ms(text)
    if length is None:
        return text
    try:
        moment = datetime.now(UTC) - timedelta(milliseconds=length)
    except OverflowError:
        raise click.BadParameter(f"{text!r} is too long") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

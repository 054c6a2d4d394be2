"""Reading the store: errors of the store, pages bounded in rows and bytes, and conversions of long rows in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from counterfoil.domain.errors import InvalidInput, Unavailable
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.protocol import LONG_BYTES, Page, Row, Store, text_size

T = TypeVar("T")


class Listed(NamedTuple):
    """The rows of one page of a list, and the cursor of the next page; None: there is none."""

    rows: list[Row]
    next_cursor: str | None


async def read(store: Store, query: str, **parameters: Any) -> list[Row]:
    try:
        return await store.read(query, **parameters)
    except StoreFailure as failure:
        raise Unavailable("the store cannot be read now; retry later") from failure


async def read_page(store: Store, query: str, max_bytes: int, **parameters: Any) -> Page:
    """The same for rows that may be long: see ``Store.read_page``."""
    try:
        return await store.read_page(query, max_bytes, **parameters)
    except StoreFailure as failure:
        raise Unavailable("the store cannot be read now; retry later") from failure


async def read_list(store: Store, query: str, max_bytes: int, limit: int, **parameters: Any) -> Listed:
    """One page of a list: at most ``limit`` rows, fewer if they are long; the first column is the cursor."""
    rows, full = await read_page(store, query, max_bytes, limit=limit + 1, **parameters)
    more = len(rows) > limit or (full and bool(rows))
    return Listed(rows[:limit], str(rows[:limit][-1][0]) if more else None)


async def converted(make: Callable[[Row], T], rows: list[Row]) -> list[T]:
    """Convert each row, in a thread if the rows are long."""
    return await off_loop(lambda: [make(row) for row in rows], rows)


async def off_loop(make: Callable[[], T], rows: Iterable[Row]) -> T:
    """Convert rows, in a thread if they are long."""
    return await asyncio.to_thread(make) if sum(map(text_size, rows)) >= LONG_BYTES else make()


def numeric_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise not_a_cursor()
    return int(text)


def timed_cursor(text: str | None) -> tuple[int | None, str | None]:
    """The time and the id that name the last row of a page, in a list by time; ``next_timed`` makes such a cursor."""
    if text is None:
        return None, None
    at, separator, row_id = text.partition("-")
    if not (separator and text.isascii() and at.isdigit() and len(at) < 16 and row_id.isalnum()):
        raise not_a_cursor()
    return int(at), row_id


def next_timed(listed: Listed) -> str | None:
    """The cursor behind a page whose rows begin with a time and an id; None: there is no further page."""
    return None if listed.next_cursor is None else "{}-{}".format(*listed.rows[-1])


def not_a_cursor() -> InvalidInput:
    return InvalidInput(errors=[{"place": "cursor", "message": "is not a cursor of a list"}])

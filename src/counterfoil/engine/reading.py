"""What all reads share: the store that may be away, and pages."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.errors import InvalidInput, Unavailable
from counterfoil.store.commit import StoreFailure
from counterfoil.store.protocol import Row, Store


async def read(store: Store, query: str, **parameters: Any) -> list[Row]:
    try:
        return await store.read(query, **parameters)
    except StoreFailure as failure:
        raise Unavailable("the store cannot be read now, try again later") from failure


def numeric_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise not_a_cursor()
    return int(text)


def not_a_cursor() -> InvalidInput:
    return InvalidInput(errors=[{"place": "cursor", "message": "is not a cursor that a list has given"}])


def next_cursor(rows: list[Row], limit: int) -> str | None:
    """The place after the last row shown, when there are more."""
    return str(rows[limit - 1][0]) if len(rows) > limit else None

"""Which named queries an engine asks of its store, besides what its batches load: counted at the real store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from counterfoil.store.protocol import Page, Row, Store


@contextmanager
def noted_reads(store: Store) -> Iterator[list[str]]:
    """The names of the queries from now on, in their order; each is answered by the store as before."""
    reads: list[str] = []
    read, read_page = store.read, store.read_page

    async def noted(query: str, **parameters: Any) -> list[Row]:
        reads.append(query)
        return await read(query, **parameters)

    async def noted_page(query: str, max_bytes: int, **parameters: Any) -> Page:
        reads.append(query)
        return await read_page(query, max_bytes, **parameters)

    store.read, store.read_page = noted, noted_page  # type: ignore[method-assign]
    try:
        yield reads
    finally:
        store.read, store.read_page = read, read_page  # type: ignore[method-assign]

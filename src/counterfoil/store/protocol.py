"""What the engine needs of a store. SQLite is one, PostgreSQL will be another; both pass one suite of tests."""

from __future__ import annotations

from typing import Any, Protocol

from counterfoil.store.commit import Backend

Row = tuple[Any, ...]


class Store(Backend, Protocol):
    """Opens and closes, begins write transactions for group commit, and answers the named read queries."""

    async def open(self) -> None:
        """Open or create the database, migrate an older one; raises StoreFailure with what to do about it."""
        ...

    async def close(self) -> None: ...

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        """Run a named query on a reader, apart from the writer; raises StoreFailure when it cannot."""
        ...

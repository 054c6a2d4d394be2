"""What the engine needs of a store. SQLite and PostgreSQL each are one; both pass one suite of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from counterfoil.store.commit import Backend

Row = tuple[Any, ...]


class Nodes(Protocol):
    """Who else works on the same store, and how word gets to them. A store of one process answers for itself alone."""

    async def join(self, node_id: str, lease_ms: int) -> None:
        """Begin a lease; raises StoreFailure."""
        ...

    async def renew(self, node_id: str, lease_ms: int) -> int | None:
        """Prolong a lease; how many other nodes there are, or None: it has lapsed, and never lives again."""
        ...

    async def leave(self, node_id: str) -> None:
        """Give the lease back: what the node left behind is anybody's at once."""
        ...

    async def notify(self, message: str) -> None:
        """Tell the other nodes. They may never hear of it: nothing may depend on it."""
        ...

    heard: Callable[[str], None]
    """Called with what other nodes, and this one itself, have told."""


class Store(Backend, Nodes, Protocol):
    """Opens and closes, begins write transactions for group commit, and answers the named read queries."""

    batches: int
    """How many batches it takes at once."""

    async def open(self) -> None:
        """Open or create the database, migrate an older one; raises StoreFailure with what to do about it."""
        ...

    async def close(self) -> None: ...

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        """Run a named query on a reader, apart from the writer; raises StoreFailure when it cannot."""
        ...

    async def probe(self, node_id: str) -> None:
        """Write something durably that changes nothing and takes no room; raises StoreFailure when it cannot."""
        ...

    async def receipt_secret(self, proposed: str) -> str | None:
        """The secret that the nodes of this store share: the first one proposed; None: the store keeps none."""
        ...

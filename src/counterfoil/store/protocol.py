"""What the engine needs of a store. SQLite and PostgreSQL each are one; both pass one suite of tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from counterfoil.store.group_commit.commit import Backend

Row = tuple[Any, ...]


LONG_BYTES = 64 * 1024
"""From here on texts are converted in a thread: on the event loop they would hold up every other request."""


class Page(NamedTuple):
    """The first rows of an answer.

    ``full``: there may be more behind the last row. It ends for its size, or what follows is held back for a moment
    (store/postgres/journal_tail.py).
    """

    rows: list[Row]
    full: bool


def text_size(row: Sequence[Any]) -> int:
    """How many bytes the texts of a row have."""
    return sum(len(value) if value.isascii() else len(value.encode()) for value in row if isinstance(value, str))


class Nodes(Protocol):
    """The nodes of one store: leases and notifications. A store of one process has no other node."""

    async def join(self, node_id: str, lease_ms: int) -> None:
        """Begin a lease; raises StoreFailure."""
        ...

    async def renew(self, node_id: str, lease_ms: int) -> int | None:
        """Prolong a lease; how many other nodes there are, or None: the lease has expired, and cannot be renewed."""
        ...

    async def leave(self, node_id: str) -> None:
        """Give the lease back: other nodes may reclaim the node's attempts at once."""
        ...

    async def notify(self, message: str) -> None:
        """Notify the other nodes. A notification may be lost: nothing may depend on it."""
        ...

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call this with each notification from now on: of other nodes, and of this one itself."""
        ...


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

    async def read_page(self, query: str, max_bytes: int, **parameters: Any) -> Page:
        """The same, up to the first row with which the texts of all rows have so many bytes, that row included."""
        ...

    async def receipt_secret(self, proposed: str | None) -> str | None:
        """The secret that the nodes of this store share: the first one proposed; None: the store keeps none.

        Without a proposal: the one that there is, if any.
        """
        ...

    async def note_receipt_secret(self, check: str, dropped: Sequence[str], now: int) -> None:
        """Remember that this node signs with the secret of a check value from now on, and forget others."""
        ...

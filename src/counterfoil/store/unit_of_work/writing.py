"""From the changes of a batch to rows, statement by statement: the same for every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from counterfoil.store import journal
from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.flows import PRUNED
from counterfoil.store.kinds.kind import ChangesOf, Phase, Pruned, PruneStatement, Revisions, Write
from counterfoil.store.unit_of_work.changes import Changes

JOURNAL_GOES = 50
"""When the journal of pruned flows goes, among what belongs to them."""


def writes_of(changes: Changes, revisions: Revisions = None) -> Iterator[Write]:
    """What a batch writes, table by table; definitions before what names them. Nothing is written that has no rows.

    ``revisions``, on a store that several nodes share: every flow of which anything changes is written then, before
    what belongs to it. Such a store also has tables of what is open, which follow what is written.
    """
    shared = revisions is not None
    return (write for write in _all(changes, revisions) if write.rows and (shared or not write.follows))


def _all(changes: Changes, revisions: Revisions) -> Iterator[Write]:
    journal_and_pruning = _journal_and_pruning(changes)
    for kind in KINDS.to_write(changes.changed_kinds()):
        if kind.written > Phase.JOURNAL:
            yield from journal_and_pruning  # once
        yield from kind.writes(ChangesOf(changes.peek(kind), changes, revisions))
    yield from journal_and_pruning


def _journal_and_pruning(changes: Changes) -> Iterator[Write]:
    if changes.events:
        yield Write("append_journal", journal.pack(changes.events))
    pruned = changes.peek(PRUNED)
    if pruned:
        gone = {key: each.labels for key, each in pruned.items() if each is not None and each.labels is not None}
        emptied: dict[str, Mapping[str, str]] = {
            key: {} for key, each in pruned.items() if each is not None and each.labels is None
        }
        before, after = (
            [each for each in KINDS.prune if (each.order < JOURNAL_GOES) is first] for first in (True, False)
        )
        yield from _pruning(before, Pruned(gone, changes.at))
        yield Write("prune_journal", [(flow_id,) for flow_id in (*sorted(gone), *sorted(emptied))], exact=False)
        yield from _pruning(after, Pruned(gone, changes.at))
        yield from _pruning(KINDS.empty, Pruned(emptied, changes.at))


def _pruning(statements: list[PruneStatement], pruned: Pruned) -> Iterator[Write]:
    for statement in statements:
        rows = statement.rows(pruned)
        yield Write(statement.query, rows, statement.exact)
        if rows and statement.follow is not None:
            yield Write(statement.follow, [()], exact=False, follows=True)

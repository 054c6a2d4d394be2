"""From the rows of a batch's loads to the records of its unit of work: the same for every backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.kinds.kind import Loaded, Rows
from counterfoil.store.unit_of_work.read_set import ReadSet

if TYPE_CHECKING:
    from counterfoil.store.unit_of_work.unit import UnitOfWork


def searches_for_work(needs: ReadSet) -> list[tuple[str, set[str]]]:
    """Queries that come before all loads, with their keys: they find ids of more work to load."""
    return [(load.finds_work, keys) for load, keys in needs.loads() if load.finds_work is not None]


def need_more(needs: ReadSet, work_ids: Iterable[str]) -> None:
    """What ``searches_for_work`` have found is needed, and so are flows that other loads have for keys."""
    needs.work.update(work_ids)
    for load, keys in needs.loads():
        if load.with_flows:
            needs.flows.update(keys)


def fill(unit: UnitOfWork, needs: ReadSet, loaded: Mapping[str, Rows], defaults: WorkDefaults) -> None:
    """Put what was loaded into the unit of work, and note what was asked for and does not exist as such.

    Otherwise a command that needs it would ask for it again and again.
    """
    for load, keys in needs.loads():
        load.fill(Loaded(unit, () if load.query is None else loaded[load.query], keys, defaults))

"""Orders among steps that wait for each other: one that respects all waiting, and who waits in circles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter


def in_order(
    rounds: Mapping[str, int], waits: Mapping[str, Iterable[str]], bringers: Mapping[str, Iterable[str]]
) -> list[str]:
    """Steps by the round in which they can run first; who may bring something stands before who may take it.

    So nobody misses a value because of how steps are named, or because its provider comes late by itself. Only where
    they would wait in a circle, the one that can run earlier does not wait for the other.
    """
    by_round = sorted(rounds, key=lambda step_id: (rounds[step_id], step_id))
    sources = {step_id: set(waits[step_id]) for step_id in by_round}
    later: list[tuple[str, str]] = []
    for step_id in by_round:
        for other in bringers[step_id]:
            if other not in rounds:
                continue
            if rounds[other] < rounds[step_id]:
                sources[step_id].add(other)
            else:
                later.append((step_id, other))
    for step_id, other in later:
        if step_id not in _behind(other, sources):
            sources[step_id].add(other)
    place = {step_id: number for number, step_id in enumerate(by_round)}
    sorter = TopologicalSorter(sources)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        order += ready
        sorter.done(*ready)
    return order


def _behind(step_id: str, sources: Mapping[str, set[str]]) -> set[str]:
    """All that a step waits for, directly or not."""
    found: set[str] = set()
    queue = [step_id]
    while queue:
        new = sources[queue.pop()] - found
        found |= new
        queue += new
    return found


def in_circles(waiting: Mapping[str, Iterable[str]]) -> set[str]:
    """Who waits for himself in the end: who is left when all are gone that nobody waits for, or that wait for none."""
    left = set(waiting)
    while True:
        awaited = {other for step_id in left for other in waiting[step_id] if other in left}
        stays = {step_id for step_id in left & awaited if any(other in left for other in waiting[step_id])}
        if stays == left:
            return left
        left = stays

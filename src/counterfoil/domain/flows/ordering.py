"""Orders steps so that providers come before their consumers, and finds dependency cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter


def in_order(
    rounds: Mapping[str, int], waits: Mapping[str, Iterable[str]], bringers: Mapping[str, Iterable[str]]
) -> list[str]:
    """Steps by the earliest round in which they can run; a provider comes before the steps that may take its values.

    So no step misses an optional value because of step names, or because the provider becomes ready late. Only where an
    optional value would close a dependency cycle, the step that can run earlier does not wait for the other one.
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
    """Every step that a step waits for, directly or indirectly."""
    found: set[str] = set()
    queue = [step_id]
    while queue:
        new = sources[queue.pop()] - found
        found |= new
        queue += new
    return found


def in_circles(waiting: Mapping[str, Iterable[str]]) -> set[str]:
    """Steps on a dependency cycle: repeatedly drop steps with no remaining dependency or no remaining dependent."""
    left = set(waiting)
    while True:
        awaited = {other for step_id in left for other in waiting[step_id] if other in left}
        stays = {step_id for step_id in left & awaited if any(other in left for other in waiting[step_id])}
        if stays == left:
            return left
        left = stays

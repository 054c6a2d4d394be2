"""How many dispatches may be in flight: overall, and to one host, so that a slow host cannot starve the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from counterfoil.domain.records import host_of, step_of


class Rest(NamedTuple):
    """Until when a lane may not be sent, by the rate limit that this version of its step has."""

    until: int
    version: str


class Slots:
    """Counts dispatches in flight.

    ``waiting``: lanes that hold due work which found no place. ``full``: lanes, by their step, that have as many items
    out as their ``parallelism`` allows; an attempt of the step that ends makes room again. ``resting``: lanes, by their
    step, that were sent as often as their rate limit allows, and until when.
    """

    def __init__(self, total: int, per_host: int) -> None:
        self._total = total
        self._per_host = per_host
        self._under_way = 0
        self._by_host: Counter[str] = Counter()
        self._reserved = 0
        self._reserved_by_host: Counter[str] = Counter()
        self.waiting: set[str] = set()
        self.full: dict[str, set[str]] = {}
        self.resting: dict[str, dict[str, Rest]] = {}

    @property
    def under_way(self) -> int:
        return self._under_way

    def may_send(self, lane: str, now: int) -> bool:
        """Whether no limit is known that would keep the lane from being sent."""
        step_id = step_of(lane)
        if lane in self.full.get(step_id, ()):
            return False
        rest = self.rest_of(lane)
        if rest is not None and rest.until <= now:
            self._end_rest(lane)
            rest = None
        return rest is None

    def rest_of(self, lane: str) -> Rest | None:
        return self.resting.get(step_of(lane), {}).get(lane)

    def note_full(self, lane: str) -> None:
        self.full.setdefault(step_of(lane), set()).add(lane)

    def note_rest(self, lane: str, rest: Rest) -> None:
        self.resting.setdefault(step_of(lane), {})[lane] = rest

    def wake_for(self, lane: str, version: str) -> None:
        """Work of this version is due. In a lane of an earlier release it may have another limit than what rests."""
        rest = self.rest_of(lane)
        if rest is not None and rest.version != version:
            self._end_rest(lane)

    def _end_rest(self, lane: str) -> None:
        lanes = self.resting[step_of(lane)]
        del lanes[lane]
        if not lanes:
            del self.resting[step_of(lane)]

    def forget_rests(self, steps: Iterable[str]) -> bool:
        """Another definition may allow more, or another node knows better; returns whether any of these was resting."""
        return sum(self.resting.pop(step_id, None) is not None for step_id in tuple(steps)) > 0

    def forget_full(self, steps: Iterable[str]) -> bool:
        """Attempts of these steps have ended; returns whether any of the steps was full."""
        return bool(self.full) and sum(self.full.pop(step_id, None) is not None for step_id in steps) > 0

    def limited_steps(self) -> set[str]:
        """The steps that are known to be at a limit."""
        return {*self.full, *self.resting}

    def occupy(self, lane: str) -> None:
        self._under_way += 1
        self._by_host[host_of(lane)] += 1

    def release(self, lane: str) -> None:
        host = host_of(lane)
        self._under_way -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def reserve(self, host: str, places: int = 1) -> None:
        """Reserve places for a batch that has not committed yet; a negative number releases them."""
        self._reserved += places
        self._reserved_by_host[host] += places
        if not self._reserved_by_host[host]:
            del self._reserved_by_host[host]

    def free(self) -> int:
        return self._total - self._under_way - self._reserved

    def free_to(self, host: str) -> int:
        return min(self.free(), self._per_host - self._by_host[host] - self._reserved_by_host[host])


class BatchCapacity:
    """Places reserved by one batch: occupied when it has committed, free again if it fails."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._taken: Counter[str] = Counter()
        self._noted: set[str] = set()

    def take(self, lane: str) -> bool:
        host = host_of(lane)
        if self._slots.free_to(host) <= 0:
            return False
        self._slots.reserve(host)
        self._taken[host] += 1
        return True

    def give_back(self) -> None:
        for host, places in self._taken.items():
            self._slots.reserve(host, -places)
        self._taken.clear()

    def note_full(self, lane: str) -> None:
        self._noted.add(step_of(lane))
        self._slots.note_full(lane)

    def note_rest(self, lane: str, version: str, until: int) -> None:
        self._noted.add(step_of(lane))
        self._slots.note_rest(lane, Rest(until, version))

    def retract(self) -> None:
        """The limits that were noted counted claims of this batch, which were never made: they may not be reached."""
        self._slots.forget_full(self._noted)
        self._slots.forget_rests(self._noted)
        self._noted.clear()

    def take_at_once(self, lane: str) -> bool:
        return lane not in self._slots.waiting and self.take(lane)

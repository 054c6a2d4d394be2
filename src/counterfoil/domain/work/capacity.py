"""Dispatch capacity: the interface that a batch asks for room before it claims work."""

from __future__ import annotations

from typing import Protocol


class Capacity(Protocol):
    """How many more dispatches may begin now, for one batch: its commands share the capacity."""

    def take(self, lane: str) -> bool:
        """Take a place for work that has waited for dispatch; False: there is no room."""
        ...

    def take_at_once(self, lane: str) -> bool:
        """Take a place for work that was just created; False: there is no room, or other work of its lane waits."""
        ...

    def note_full(self, lane: str) -> None:
        """Note that the lane has as many active items as its step's ``parallelism`` allows."""
        ...

    def note_rest(self, lane: str, version: str, until: int) -> None:
        """Note that the rate limit of this version of the lane's step is used up until then."""
        ...

    def retract(self) -> None:
        """The batch was rolled back: forget what it noted, which may be wrong."""
        ...

    def give_back(self) -> None:
        """Release the places that the ended batch took. Work that it claimed takes its place when it is sent."""
        ...


class _NoCapacity:
    def take(self, lane: str) -> bool:
        return False

    take_at_once = take

    def note_full(self, lane: str) -> None:
        pass

    def note_rest(self, lane: str, version: str, until: int) -> None:
        pass

    def retract(self) -> None:
        pass

    def give_back(self) -> None:
        pass


NO_CAPACITY: Capacity = _NoCapacity()

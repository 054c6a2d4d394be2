"""How many more dispatches may begin: what a batch asks before it claims work."""

from __future__ import annotations

from typing import Protocol


class Capacity(Protocol):
    """How many more dispatches may begin now. A batch has its own; what it takes is gone for its other commands."""

    def take(self, lane: str) -> bool:
        """A place for work that has waited for its turn."""
        ...

    def take_at_once(self, lane: str) -> bool:
        """A place for work that was made just now; none while others wait in its lane."""
        ...

    def note_full(self, lane: str) -> None:
        """The step of this lane has as many items out as the lane may have."""
        ...

    def note_rest(self, lane: str, version: str, until: int) -> None:
        """The step of this lane was sent as often as this version of it may be, until then."""
        ...

    def retract(self) -> None:
        """The batch came to nothing: what was noted in it may be untrue."""
        ...

    def give_back(self) -> None:
        """The batch is over: what it took is free again, until what it has claimed is really sent."""
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

"""What a batch writes: the last state of each record that it touched, and the journal of how it came about."""

from __future__ import annotations

from dataclasses import dataclass, field

from counterfoil.domain.events import Event
from counterfoil.domain.model import CancelCall, Flow, FlowInputs, StepRun, StepVersion, Work


class NewKeys:
    """Which records did not exist before, and so are inserted instead of updated."""

    __slots__ = ("flows", "steps", "work")

    def __init__(self) -> None:
        self.flows: set[str] = set()
        self.steps: set[tuple[str, str]] = set()
        self.work: set[str] = set()

    def any(self) -> bool:
        return bool(self.flows or self.steps or self.work)


@dataclass
class Changes:
    """All that a batch writes: the last state of each record, and the journal of how it came about."""

    flows: dict[str, Flow] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepRun] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    inputs: dict[str, FlowInputs] = field(default_factory=dict)
    new: NewKeys = field(default_factory=NewKeys)
    calls: dict[str, CancelCall | None] = field(default_factory=dict)
    current: dict[str, StepVersion | None] = field(default_factory=dict)
    versions: dict[str, StepVersion] = field(default_factory=dict)
    """Every version that was current at some moment of the batch: a flow of the batch may have started with it."""
    events: list[Event] = field(default_factory=list)
    at: int = 0
    """The time of the batch."""

    def any(self) -> bool:
        return bool(self.events or self.calls or self.current)

    def touched(self) -> set[str]:
        """The flows of which anything changes: nothing of a flow does without an event."""
        return {event.flow_id for event in self.events}

"""What a batch writes: the last state of each record that it touched, and the journal of how it came about."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.records import (
    Approval,
    CancelCall,
    Flow,
    FlowInputs,
    Gate,
    KeyOwner,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.schedules import Schedule
from counterfoil.domain.subscriptions.definitions import Delivery, Subscription
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.unit_of_work.pruning import Pruned

Key = TypeVar("Key")
R = TypeVar("R")


class NewKeys:
    """Which records did not exist before, and so are inserted instead of updated."""

    __slots__ = ("flows", "steps", "work")

    def __init__(self) -> None:
        self.flows: set[str] = set()
        self.steps: set[tuple[str, str]] = set()
        self.work: set[str] = set()


class Absent:
    """Stands for a record that was not known before."""


_ABSENT = Absent()


class Touched(Generic[Key, R]):
    """The records of one kind that the present command changes: in their place, and remembered as they were before."""

    __slots__ = ("_records", "before")

    def __init__(self, records: dict[Key, R]) -> None:
        self._records = records
        """All records of the kind that the batch knows."""
        self.before: dict[Key, R | Absent] = {}

    def put(self, key: Key, record: R) -> None:
        """A record in the place of what was there, or a new one."""
        if key not in self.before:
            self.before[key] = self._records.get(key, _ABSENT)
        self._records[key] = record

    def keep(self, changed: dict[Key, Any]) -> None:
        """The command was decided: what it has changed is part of what the batch changes."""
        before, records = self.before, self._records
        if before:
            for key in before:
                changed[key] = records[key]
            before.clear()

    def take_back(self) -> None:
        """The command was refused: all records are again as they were."""
        for key, record in self.before.items():
            if isinstance(record, Absent):
                del self._records[key]
            else:
                self._records[key] = record
        self.before.clear()


@dataclass(slots=True)
class Drafted:
    """What commands change beside records that were there before."""

    inputs: dict[str, FlowInputs] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    """Plans that are not known to be stored."""
    new: NewKeys = field(default_factory=NewKeys)
    calls: dict[str, CancelCall | None] = field(default_factory=dict)
    current: dict[str, StepVersion | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    """What brought it about."""

    def is_unusual(self) -> bool:
        """Whether there is anything but events: of most commands there is not."""
        return bool(self.new.flows or self.new.steps or self.new.work or self.calls or self.current)


@dataclass(slots=True)
class Changes(Drafted):
    """All that a batch writes: what its commands change, one after the other."""

    flows: dict[str, Flow] = field(default_factory=dict)
    steps: dict[tuple[str, str], StepRun] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    versions: dict[str, StepVersion] = field(default_factory=dict)
    """Every version that was current at some moment of the batch: a flow of the batch may have started with it."""
    schedules: dict[str, Schedule | None] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    keys: dict[str, KeyOwner] = field(default_factory=dict)
    policies: dict[str, KeptPolicy] = field(default_factory=dict)
    """As they are after the batch; every version that there was is in ``policy_versions``."""
    policy_versions: list[KeptPolicy] = field(default_factory=list)
    subscriptions: dict[str, Subscription | None] = field(default_factory=dict)
    deliveries: dict[str, Delivery | None] = field(default_factory=dict)
    rates: dict[str, SentTimes] = field(default_factory=dict)
    """Steps with a rate limit that were sent."""
    pruned: Pruned = field(default_factory=Pruned)
    at: int = 0
    """The time of the batch."""
    _summed_up: int = 0
    _kinds: AbstractSet[EventType] = frozenset()
    _touched: AbstractSet[str] = frozenset()
    """What the first so many events are, and what they are about: asked for several times, and events only come."""

    def include(self, drafted: Drafted) -> None:
        """What one more command brings that is new."""
        self.new.flows |= drafted.new.flows
        self.new.steps |= drafted.new.steps
        self.new.work |= drafted.new.work
        self.inputs.update(drafted.inputs)
        self.plans.update(drafted.plans)
        self.calls.update(drafted.calls)
        for step_id, version in drafted.current.items():
            self.current[step_id] = version
            if version is not None:
                self.versions[version.version] = version

    def any(self) -> bool:
        return bool(
            self.events
            or self.calls
            or self.current
            or self.schedules
            or self.pruned.ids
            or self.deliveries
            or self.changes_controls
        )

    def note(self, kind: str, records: dict[str, Any]) -> None:
        """What one more command puts in the place of records, by kind; None: takes out."""
        getattr(self, kind).update(records)
        if kind == "policies":
            self.policy_versions.extend(records.values())

    @property
    def changes_controls(self) -> bool:
        """Whether policies or subscriptions change."""
        return bool(self.policies or self.subscriptions)

    def kinds(self) -> AbstractSet[EventType]:
        """Which kinds of events there are."""
        self._sum_up()
        return self._kinds

    def touched(self) -> AbstractSet[str]:
        """The flows of which anything changes: nothing of a flow does without an event."""
        self._sum_up()
        return self._touched

    def journaled(self) -> AbstractSet[str]:
        """The flows of which the journal is told anything."""
        return {event.flow_id for event in self.events if event.journaled}

    def _sum_up(self) -> None:
        if self._summed_up != len(self.events):
            self._kinds = {event.type for event in self.events}
            self._touched = {event.flow_id for event in self.events}
            self._summed_up = len(self.events)

"""Subscriptions: who is told of which events, where, and what is still to be told.

Events have the names of the journal with a dot for the first underscore. What people decided is one name,
``approval.decided``, and an approval that nobody can give any more, because its work has ended, has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from counterfoil.domain.expressions.patterns import compile_glob, is_glob
from counterfoil.domain.flows.requests import LabelKey, LabelText
from counterfoil.domain.journal.event_types import EventType
from counterfoil.domain.policies.definitions import Glob
from counterfoil.domain.steps.attributes import Definition
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN, HttpUrl

SUBSCRIPTION_ID_PATTERN = STEP_ID_PATTERN

DECIDED = "approval.decided"
VOID = "approval.void"
TEST = "test"
"""What ``POST .../test`` sends. Nobody subscribes to it."""

NAME_OF: dict[EventType, str] = {
    **{event_type: event_type.value.replace("_", ".", 1) for event_type in EventType},
    EventType.APPROVAL_APPROVED: DECIDED,
    EventType.APPROVAL_REJECTED: DECIDED,
}
NAMES = frozenset(NAME_OF.values()) | {VOID}
"""Everything that can be subscribed to."""


def names_of(pattern: str) -> frozenset[str]:
    """The events that a name or a glob such as ``flow.*`` stands for; ValueError if there are none."""
    if is_glob(pattern):
        matches = compile_glob(pattern)
        found = frozenset(name for name in NAMES if matches(name))
    else:
        found = NAMES & {pattern}
    if not found:
        raise ValueError("matches no event")
    return found


def _event_pattern(pattern: str) -> str:
    names_of(pattern)
    return pattern


EventPattern = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_event_pattern)]


class SubscriptionMatch(Definition):
    """Which events, of those that are named: everything that is given must fit."""

    flow_labels: dict[LabelKey, LabelText] = Field(default_factory=dict, max_length=32)
    step_id: Glob | None = None
    """An event that is about no step does not fit."""


class SubscriptionDefinition(Definition):
    """``PUT /api/v1/subscriptions/{subscription_id}``."""

    url: HttpUrl
    events: Annotated[
        list[EventPattern], Field(min_length=1, max_length=64, description="names, or globs over them such as `flow.*`")
    ]
    match: SubscriptionMatch = SubscriptionMatch()
    enabled: StrictBool = True
    description: Annotated[str, Field(max_length=4096)] = ""

    @cached_property
    def names(self) -> frozenset[str]:
        """The events that it names."""
        return frozenset().union(*map(names_of, self.events))

    @cached_property
    def steps(self) -> Callable[[str], bool] | None:
        """Which steps it is about; None: all of them, and what is about none."""
        return None if self.match.step_id is None else compile_glob(self.match.step_id)

    def fits_step(self, step_id: str | None) -> bool:
        return self.steps is None or (step_id is not None and self.steps(step_id))

    def fits_labels(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == text for key, text in self.match.flow_labels.items())


@dataclass(frozen=True)
class Subscription:
    """As the store keeps it."""

    subscription_id: str
    definition: SubscriptionDefinition
    note: str | None
    """Why it is disabled, where the engine did it."""
    created_at: int
    updated_at: int


@dataclass(frozen=True)
class Delivery:
    """One message to one subscriber: durable until it was taken, or given up (``due_at`` None)."""

    delivery_id: str
    subscription_id: str
    flow_id: str
    """Empty: it is about none."""
    type: str
    body: str
    """JSON text, as it is sent: its signature is made over these very bytes."""
    attempt: int
    """How often it was tried."""
    due_at: int | None
    note: str | None
    created_at: int


Audience = Mapping[str, tuple[Subscription, ...]]
"""Who is told of what, by the names of events. Who is disabled is told nothing."""


def audience_of(subscriptions: Mapping[str, Subscription]) -> Audience:
    found: dict[str, tuple[Subscription, ...]] = {}
    for subscription in subscriptions.values():
        if subscription.definition.enabled:
            for name in subscription.definition.names:
                found[name] = (*found.get(name, ()), subscription)
    return found

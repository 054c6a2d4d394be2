"""Subscriptions and deliveries: which events are sent to which URL, and the messages that are still to be sent.

Events have the names of the journal with a dot in place of the first underscore. All decisions on an approval have one
name, ``approval.decided``; an approval that became void because its work has ended has another.
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
RECONCILIATION_NEEDED = "work.reconciliation_needed"
TEST = "test"
"""The event that ``POST .../test`` sends. It cannot be subscribed to."""

NAME_OF: dict[EventType, str] = {
    **{event_type: event_type.value.replace("_", ".", 1) for event_type in EventType},
    EventType.APPROVAL_APPROVED: DECIDED,
    EventType.APPROVAL_REJECTED: DECIDED,
}
NAMES = frozenset(NAME_OF.values()) | {VOID, RECONCILIATION_NEEDED}
"""All events that can be subscribed to."""


def names_of(pattern: str) -> frozenset[str]:
    """The events that a name or a glob such as ``flow.*`` matches; raises ValueError if there are none."""
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
    """Filters the named events: every given field must match."""

    flow_labels: dict[LabelKey, LabelText] = Field(default_factory=dict, max_length=32)
    step_id: Glob | None = None
    """An event without a step does not match."""


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
        """Matches step ids; None: all events match, also those without a step."""
        return None if self.match.step_id is None else compile_glob(self.match.step_id)

    def fits_step(self, step_id: str | None) -> bool:
        return self.steps is None or (step_id is not None and self.steps(step_id))

    def fits_labels(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == text for key, text in self.match.flow_labels.items())


@dataclass(frozen=True)
class Subscription:
    """A subscription as it is stored."""

    subscription_id: str
    definition: SubscriptionDefinition
    note: str | None
    """Why it is disabled, if the engine disabled it."""
    created_at: int
    updated_at: int


@dataclass(frozen=True)
class Delivery:
    """One message to one subscriber: kept until it was delivered or given up (``due_at`` None)."""

    delivery_id: str
    subscription_id: str
    flow_id: str
    """Empty: the event belongs to no flow."""
    type: str
    body: str
    """JSON text, exactly as it is sent: the signature covers these bytes."""
    attempt: int
    """The number of attempts so far."""
    due_at: int | None
    note: str | None
    created_at: int


Audience = Mapping[str, tuple[Subscription, ...]]
"""The enabled subscriptions by the names of their events."""


def audience_of(subscriptions: Mapping[str, Subscription]) -> Audience:
    found: dict[str, tuple[Subscription, ...]] = {}
    for subscription in subscriptions.values():
        if subscription.definition.enabled:
            for name in subscription.definition.names:
                found[name] = (*found.get(name, ()), subscription)
    return found

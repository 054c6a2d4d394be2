"""All policies and subscriptions together, at one revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import NO_POLICIES, Policy, PolicySet
from counterfoil.domain.subscriptions.definitions import Audience, Subscription, audience_of


@dataclass(frozen=True)
class KeptPolicy:
    """A policy as it is stored; without a definition it was deleted, and its version numbers continue."""

    policy_id: str
    version: int
    definition: PolicyDefinition | None
    source: str
    """``api``, or the file that it was loaded from."""
    changed_by: str
    created_at: int
    updated_at: int


@dataclass(frozen=True)
class Controls:
    """Immutable. A change creates a new object that reuses every compiled policy that stayed the same."""

    revision: int
    by_id: Mapping[str, Policy] = field(default_factory=dict)
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    policies: PolicySet = NO_POLICIES

    @cached_property
    def audience(self) -> Audience:
        """The subscriptions by the names of their events."""
        return audience_of(self.subscriptions)

    @classmethod
    def of(cls, revision: int, policies: Mapping[str, Policy], subscriptions: Mapping[str, Subscription]) -> Controls:
        return cls(revision, policies, subscriptions, PolicySet(policies.values()) if policies else NO_POLICIES)

    def with_changes(
        self, policies: Mapping[str, KeptPolicy | None], subscriptions: Mapping[str, Subscription | None]
    ) -> Controls:
        """The controls with the changes of a batch applied."""
        if not (policies or subscriptions):
            return self
        by_id, told = dict(self.by_id), dict(self.subscriptions)
        for policy_id, kept in policies.items():
            by_id.pop(policy_id, None)
            if kept is not None and kept.definition is not None:
                by_id[policy_id] = Policy(policy_id, kept.version, kept.definition)
        for subscription_id, subscription in subscriptions.items():
            told.pop(subscription_id, None)
            if subscription is not None:
                told[subscription_id] = subscription
        return Controls.of(self.revision, by_id, told)

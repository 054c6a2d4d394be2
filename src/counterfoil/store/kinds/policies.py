"""Policies, each of their versions, and the controls: all policies and subscriptions at one revision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from counterfoil.domain.policies.controls import Controls, KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import Policy
from counterfoil.domain.subscriptions.definitions import Subscription
from counterfoil.store.kinds.columns import Columns, Conversion, Row
from counterfoil.store.kinds.kind import ChangesOf, Kind, Load, Loaded, Phase, Write, filling, putting
from counterfoil.store.kinds.subscriptions import SUBSCRIPTIONS, read_subscription

if TYPE_CHECKING:
    from counterfoil.store.unit_of_work.changes import Changes


def policy_definition(policy_id: str, definition: str) -> PolicyDefinition:
    """A stored definition. One that this version does not understand blocks what it may have been about: everything."""
    try:
        return PolicyDefinition.model_validate_json(definition)
    except ValueError:
        reason = f"policy {policy_id} was stored by another version and cannot be read: PUT it again"
        return PolicyDefinition.model_validate({"name": policy_id, "action": {"type": "block", "reason": reason}})


POLICY_COLUMNS = Columns(
    KeptPolicy,
    {
        "definition": Conversion(
            "None if {0} is None else {0}.model_dump_json(exclude_unset=True)",
            "None if {0} is None else _definition(policy_id, {0})",
            {"_definition": policy_definition},
        )
    },
)
_PUT = POLICY_COLUMNS.writer()
_VERSION = POLICY_COLUMNS.writer("policy_id", "version", "definition", "source", "changed_by", "updated_at")


def read_policy(row: Sequence[Any]) -> KeptPolicy:
    return POLICY_COLUMNS.read(row)


POLICIES: Kind[str, KeptPolicy] = Kind(
    name="policies",
    key=lambda policy: policy.policy_id,
    loads=(
        Load(
            name="policies",
            query="load_policies",
            columns=POLICY_COLUMNS.names,
            fill=filling(lambda: POLICIES, read_policy),
        ),
    ),
    writes=putting("policies", _PUT),
    written=Phase.OTHERS + 5,
    optimistic=False,
    writers={"put_policies": _PUT},
)
"""As they are after the batch; a policy that was deleted stays, without a definition."""


def _writes_versions(of: ChangesOf[tuple[str, int], KeptPolicy]) -> Iterator[Write]:
    versions = of.records
    rows: list[Row] = [_VERSION.row(policy) for policy in versions.values() if policy is not None]
    yield Write("insert_policy_versions", rows)


POLICY_VERSIONS: Kind[tuple[str, int], KeptPolicy] = Kind(
    name="policy_versions",
    key=lambda policy: (policy.policy_id, policy.version),
    writes=_writes_versions,
    written=Phase.OTHERS + 6,
    optimistic=False,
    writers={"insert_policy_versions": _VERSION},
)
"""Every version of a policy that there was in the batch: each is kept."""


def _fill_controls(loaded: Loaded) -> None:
    """A row for each policy and subscription, or one with the revision alone: then there are none."""
    found = list(loaded.rows)
    if not found:
        return
    policies: dict[str, Policy] = {}
    subscriptions: dict[str, Subscription] = {}
    for _, kind, name, version, definition in found:
        if kind == "policy":
            policies[name] = Policy(name, version, policy_definition(name, definition))
        elif kind == "subscription":
            subscriptions[name] = read_subscription((name, definition, None, 0, 0))
    loaded.unit.add_controls(Controls.of(found[0][0], policies, subscriptions))


def _writes_controls(of: ChangesOf[str, Controls]) -> Iterator[Write]:
    if changes_controls(of.changes):
        yield Write("raise_controls", [(1,)])


def changes_controls(changes: Changes) -> bool:
    """Whether policies or subscriptions change."""
    return bool(changes.peek(POLICIES) or changes.peek(SUBSCRIPTIONS))


CONTROLS: Kind[str, Controls] = Kind(
    name="controls",
    loads=(
        Load(
            name="controls",
            query="load_controls",
            columns=("revision", "kind", "id", "version", "definition"),
            fill=_fill_controls,
        ),
    ),
    writes=_writes_controls,
    written=Phase.OTHERS + 8,
    follows_others=True,
)
"""All policies and subscriptions; the key in a read set is the revision that is known already."""

"""Hooks, the tokens that they own, the payloads that they keep, and the deliveries that they have taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.records import Hook, HookDelivery, HookPayload, HookToken
from counterfoil.store.kinds.columns import JSON, Columns
from counterfoil.store.kinds.kind import Lock, Phase, PruneStatement, by_flow, flow_of, of_flow, plain_kind

HOOK_COLUMNS = Columns(Hook)


def read_hook(row: Sequence[Any]) -> Hook:
    return HOOK_COLUMNS.read(row)


HOOKS = plain_kind(
    "hooks",
    HOOK_COLUMNS,
    "hook_id",
    written=Phase.OTHERS + 8,
    prune=(of_flow("hooks", order=34),),
    empty=(PruneStatement(34, "empty_hooks", by_flow),),
    flow_of_key=flow_of,
    flow_column="flow_id",
)

HOOK_TOKENS = plain_kind(
    "hook_tokens",
    Columns(HookToken),
    "token_id",
    lock=Lock(8, "lock_hook_tokens", "try_lock_hook_tokens", "another node changes the owner of the same hook token"),
    written=Phase.OTHERS + 9,
)
"""A token that no hook owns has no record."""

HOOK_PAYLOADS = plain_kind(
    "hook_payloads",
    Columns(HookPayload, {"payload": JSON}),
    "payload_id",
    written=Phase.OTHERS + 10,
    prune=(of_flow("hook_payloads", order=34),),
    empty=(of_flow("hook_payloads", order=34),),
    flow_of_key=flow_of,
    flow_column="flow_id",
)

HOOK_DELIVERIES = plain_kind(
    "hook_deliveries",
    Columns(HookDelivery),
    "delivery_key",
    written=Phase.OTHERS + 11,
    prune=(of_flow("hook_deliveries", order=34),),
)
"""A command that needs one has the lock of the token: only a payload for that token changes it."""

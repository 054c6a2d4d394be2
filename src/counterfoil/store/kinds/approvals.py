"""Approvals. A command that needs one needs its flow as well: the flow has the lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.errors import UnknownApproval
from counterfoil.domain.records import Approval
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.kind import Phase, PruneStatement, by_flow, of_flow, plain_kind

APPROVAL_COLUMNS = Columns(Approval)


def read_approval(row: Sequence[Any]) -> Approval:
    return APPROVAL_COLUMNS.read(row)


APPROVALS = plain_kind(
    "approvals",
    APPROVAL_COLUMNS,
    "approval_id",
    written=Phase.OTHERS + 3,
    prune=(of_flow("approvals", order=32),),
    empty=(PruneStatement(4, "empty_approvals", by_flow),),
    unknown=UnknownApproval,
    flow_column="flow_id",
)

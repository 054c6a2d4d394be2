"""What the gate knows of steps that agents run, and what callers' keys stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.records import Gate, KeyOwner
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.kind import (
    Kind,
    Load,
    Lock,
    Phase,
    PruneStatement,
    by_flow_and_time,
    filling,
    flow_of,
    of_flow,
    plain_kind,
    putting,
    step_key,
)

GATE_COLUMNS = Columns(Gate)
_GATE = GATE_COLUMNS.writer()


def read_gate(row: Sequence[Any]) -> Gate:
    return GATE_COLUMNS.read(row)


def _key(gate: Gate) -> str:
    return step_key(gate.flow_id, gate.step_id)


GATES: Kind[str, Gate] = Kind(
    name="gates",
    key=_key,
    loads=(
        Load(
            name="gates",
            query="load_gates",
            columns=GATE_COLUMNS.names,
            fill=filling(lambda: GATES, read_gate),
            finds_work="load_gate_work",
            flow_of_key=flow_of,
            flow_column="flow_id",
        ),
    ),
    writes=putting("gates", _GATE),
    written=Phase.OTHERS + 2,
    prune=(of_flow("gates", order=31),),
    writers={"put_gates": _GATE},
)
"""By the key of the step; each is loaded with the work item that it is about."""

KEYS: Kind[str, KeyOwner] = plain_kind(
    "keys",
    Columns(KeyOwner),
    "key_id",
    lock=Lock(5, "lock_keys", "try_lock_keys", "another node gives the same key to a workflow or step"),
    written=Phase.OTHERS + 4,
    prune=(PruneStatement(33, "prune_keys", by_flow_and_time),),
)
"""What callers' keys stand for."""

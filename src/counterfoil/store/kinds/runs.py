"""Run keys: which flows were started with one, and which of them claimed it last."""

from __future__ import annotations

from counterfoil.domain.records import KeyedFlow
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.kind import Kind, Load, Lock, Phase, filling_pairs, nothing_written, of_flow, putting

_COLUMNS = Columns(KeyedFlow)
_WRITER = _COLUMNS.writer()

RUN_KEYS: Kind[str, KeyedFlow] = Kind(
    name="run_keys",
    key=lambda claim: claim.run_key,
    loads=(
        Load(
            name="run_keys",
            query="load_run_keys",
            columns=_COLUMNS.names,
            fill=filling_pairs(lambda: RUN_KEYS, lambda row: _by_key(_COLUMNS.read(row))),
            lock=Lock(9, "lock_run_keys", "try_lock_run_keys", "another node gives the same run key to a flow"),
        ),
    ),
    writes=nothing_written,
)
"""By run key, the last claim on it. What is written are the flows that claimed it: a batch may have several of them."""

KEYED_FLOWS: Kind[str, KeyedFlow] = Kind(
    name="keyed_flows",
    key=lambda claim: claim.flow_id,
    writes=putting("keyed_flows", _WRITER),
    written=Phase.OTHERS + 8,
    prune=(of_flow("keyed_flows", order=36),),
    writers={"put_keyed_flows": _WRITER},
)
"""By flow. The row of a flow is written when the flow starts and when it is redriven, and goes with the flow."""


def _by_key(claim: KeyedFlow) -> tuple[str, KeyedFlow]:
    return claim.run_key, claim

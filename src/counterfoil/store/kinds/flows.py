"""Flows, what they were started with, their run keys, and which of them a batch prunes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.records import Flow, FlowInputs, KeyedFlow
from counterfoil.domain.states import FlowStatus
from counterfoil.store.kinds.columns import Columns, Row, RowWriter
from counterfoil.store.kinds.kind import (
    ChangesOf,
    Kind,
    Load,
    Loaded,
    Lock,
    Phase,
    PruneStatement,
    Unlocked,
    Write,
    by_flow,
    by_flow_and_time,
    filling,
    filling_pairs,
    itself,
    nothing_written,
    of_flow,
    putting,
)

MOVING_FLOWS = frozenset({FlowStatus.ACTIVE, FlowStatus.COMPLETED})

FLOW_COLUMNS = Columns(Flow)
INPUT_COLUMNS = Columns(FlowInputs)


def read_flow(row: Sequence[Any]) -> Flow:
    return FLOW_COLUMNS.read(row)


_INSERTED = FLOW_COLUMNS.writer()
_UPDATED = FLOW_COLUMNS.writer(
    *("flow_id", "status", "open_steps", "error", "finished_at", "deadline_at", "compensation", "parent", "redrives")
)
_MOVED = FLOW_COLUMNS.writer("flow_id", "status", "open_steps", "finished_at", "deadline_at")


def _writes(of: ChangesOf[str, Flow]) -> Iterator[Write]:
    """Flows, and what becomes of the table of those that have not completed."""
    flows = of.records
    new, completed = flows.new, FlowStatus.COMPLETED
    if new:
        begun = [flow for key in sorted(new) if (flow := flows[key]) is not None]
        row = _INSERTED.row
        yield Write("insert_flows", [row(flow) for flow in begun])
        yield Write.following("open_new_flows", sum(flow.status is not completed for flow in begun))
    changed = {key: flow for key, flow in flows.items() if flow is not None and key not in new}
    # One statement for all of them: their locks are taken in one order.
    if all(map(_moves_on, changed.values())):
        yield Write("move_flows", _rows(changed, of, _MOVED))
        yield Write.closing("close_moved_flows", sum(flow.status is completed for flow in changed.values()))
    else:
        yield Write("update_flows", _rows(changed, of, _UPDATED))
        yield Write.closing("close_flows", sum(flow.status is completed for flow in changed.values()))
        yield Write("follow_flows", [()], exact=False, follows=True)


def _moves_on(flow: Flow) -> bool:
    """Whether it goes on or completes, for the first time: it has not failed, and nothing of it was undone."""
    return flow.status in MOVING_FLOWS and not flow.redrives


def _rows(changed: Mapping[str, Flow], of: ChangesOf[str, Flow], writer: RowWriter[Flow]) -> list[Row]:
    """Rows of flows that were there before.

    On a shared store every flow of which anything changes is written, in the order of their ids, so that batches that
    meet in a flow meet there first: the revision rises though the flow's own record stays as it is.
    """
    row, revisions = writer.row, of.revisions
    if revisions is None:
        return [row(flow) for flow in changed.values()]
    unchanged = (None,) * (len(writer.names) - 1)
    return [
        (*(row(changed[key]) if key in changed else (key, *unchanged)), revisions[key])
        for key in sorted(((of.changes.touched() & revisions.keys()) | changed.keys()) - of.records.new)
    ]


FLOWS: Kind[str, Flow] = Kind(
    name="flows",
    key=lambda flow: flow.flow_id,
    unknown=UnknownFlow,
    loads=(
        Load(
            name="flows",
            query="load_flows",
            columns=FLOW_COLUMNS.names,
            fill=filling(lambda: FLOWS, read_flow),
            order=2,
            flow_of_key=itself,
            flow_column="flow_id",
        ),
    ),
    writes=_writes,
    written=Phase.FLOWS,
    follows_others=True,
    prune=(PruneStatement(60, "prune_flows", by_flow, exact=True, follow="forget_flows"),),
    empty=(PruneStatement(9, "empty_flows", by_flow_and_time, exact=True),),
    writers={"insert_flows": _INSERTED, "update_flows": _UPDATED, "move_flows": _MOVED},
)


def _labels(labels: Mapping[str, Mapping[str, str]]) -> list[Row]:
    return [(f"{name}:{value}", flow_id) for flow_id in sorted(labels) for name, value in labels[flow_id].items()]


def _writes_inputs(of: ChangesOf[str, FlowInputs]) -> Iterator[Write]:
    inputs = of.records
    kept = {key: each for key, each in inputs.items() if each is not None}
    row = _INPUTS.row
    yield Write("insert_inputs", [row(each) for each in kept.values()])
    yield Write("insert_labels", _labels({key: each.labels for key, each in kept.items()}))


def _fill_inputs(loaded: Loaded) -> None:
    records = loaded.unit.records(INPUTS)
    for row in loaded.rows:
        inputs = INPUT_COLUMNS.read(row)
        records.add(inputs.flow_id, inputs)


_INPUTS = INPUT_COLUMNS.writer()
INPUTS: Kind[str, FlowInputs] = Kind(
    name="inputs",
    key=lambda inputs: inputs.flow_id,
    loads=(
        Load(
            name="inputs",
            query="load_inputs",
            columns=INPUT_COLUMNS.names,
            fill=_fill_inputs,
            unlocked=Unlocked.LATER,
        ),
    ),
    writes=_writes_inputs,
    written=Phase.FLOWS + 1,
    prune=(
        PruneStatement(20, "prune_labels", lambda pruned: _labels(pruned.flows)),
        PruneStatement(42, "prune_inputs", by_flow),
    ),
    empty=(PruneStatement(3, "empty_inputs", by_flow),),
    writers={"insert_inputs": _INPUTS},
)


@dataclass(frozen=True, slots=True)
class PrunedFlow:
    """A flow that ended long ago and that the batch takes out of the store, wholly or without what it carried.

    A flow that was changed in the same batch is left alone, and one that is pruned takes no change any more: so no row
    is written by two parts of one statement.
    """

    labels: Mapping[str, str] | None
    """Keys of a table, where the flow goes wholly; None: only its payloads go."""


PRUNED: Kind[str, PrunedFlow] = Kind(name="pruned", writes=nothing_written)
"""By flow. What is written follows from what each kind says of pruning (store/unit_of_work/writing.py)."""


KEYED_COLUMNS = Columns(KeyedFlow)
_KEYED = KEYED_COLUMNS.writer()

RUN_KEYS: Kind[str, KeyedFlow] = Kind(
    name="run_keys",
    key=lambda claim: claim.run_key,
    loads=(
        Load(
            name="run_keys",
            query="load_run_keys",
            columns=KEYED_COLUMNS.names,
            fill=filling_pairs(lambda: RUN_KEYS, lambda row: _by_key(KEYED_COLUMNS.read(row))),
            lock=Lock(9, "lock_run_keys", "try_lock_run_keys", "another node gives the same run key to a flow"),
        ),
    ),
    writes=nothing_written,
)
"""By run key, the last claim on it. What is written are the flows that claimed it: a batch may have several of them."""

KEYED_FLOWS: Kind[str, KeyedFlow] = Kind(
    name="keyed_flows",
    key=lambda claim: claim.flow_id,
    writes=putting("keyed_flows", _KEYED),
    written=Phase.OTHERS + 8,
    prune=(of_flow("keyed_flows", order=36),),
    writers={"put_keyed_flows": _KEYED},
)
"""By flow. The row of a flow is written when the flow starts and when it is redriven, and goes with the flow."""


def _by_key(claim: KeyedFlow) -> tuple[str, KeyedFlow]:
    return claim.run_key, claim

"""Steps in flows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterfoil.domain.records import StepRun
from counterfoil.domain.states import StepStatus
from counterfoil.store.kinds.columns import Columns, Row, value
from counterfoil.store.kinds.kind import (
    ChangesOf,
    Kind,
    Load,
    Loaded,
    Phase,
    PruneStatement,
    Unlocked,
    Write,
    by_flow,
    flow_of,
    itself,
    step_key,
)

STEP_COLUMNS = Columns(StepRun)
LOADED_COLUMNS = STEP_COLUMNS.without("outputs")
"""Without what the step gave: see ``StepRun.outputs``."""
COLUMNS_WITH_OUTPUTS = (*LOADED_COLUMNS, "outputs")
_read = STEP_COLUMNS.reader(LOADED_COLUMNS)


def read_step(row: Sequence[Any]) -> StepRun:
    """A step without its outputs, which the row may hold as its last column."""
    return _read(row[: len(LOADED_COLUMNS)])


def read_outputs(row: Sequence[Any]) -> dict[str, Any] | None:
    """What the step of a row gave that also holds this."""
    outputs: dict[str, Any] | None = value(row[len(LOADED_COLUMNS)])
    return outputs


def _fill_open(loaded: Loaded) -> None:
    for row in loaded.rows:
        loaded.unit.add(STEPS, read_step(row))
    loaded.unit.complete.open_flows.update(loaded.keys)


def _fill_with_outputs(loaded: Loaded) -> None:
    for row in loaded.rows:
        step = read_step(row)
        loaded.unit.add(STEPS, step)
        loaded.unit.add_outputs(step.flow_id, step.step_id, read_outputs(row))


def _fill_whole(loaded: Loaded) -> None:
    _fill_with_outputs(loaded)
    loaded.unit.complete.whole_flows.update(loaded.keys)


_INSERTED = STEP_COLUMNS.writer()
_UPDATED = STEP_COLUMNS.writer(*STEP_COLUMNS.without("version", "goal"))
_COUNTED = STEP_COLUMNS.writer(
    "flow_id", "step_id", "status", "open_items", "failed_items", "finished_at", "error", "outputs"
)
_COMPLETED = STEP_COLUMNS.writer("flow_id", "step_id", "finished_at", "outputs")


def _writes(of: ChangesOf[tuple[str, str], StepRun]) -> Iterator[Write]:
    steps = of.records
    new = steps.new
    inserted: list[Row] = []
    completed: list[Row] = []
    counted: list[Row] = []
    others: list[Row] = []
    for key, step in steps.items():
        if step is None:
            continue
        if key in new:
            inserted.append(_INSERTED.row(step))
        elif not _is_counted(step, of.changes.at):
            others.append(_UPDATED.row(step))
        elif step.status is StepStatus.COMPLETED and not (step.open_items or step.failed_items):
            completed.append(_COMPLETED.row(step))
        else:
            counted.append(_COUNTED.row(step))
    yield Write("insert_steps", inserted)
    yield Write("complete_steps", completed)
    yield Write("count_steps", counted)
    yield Write("update_steps", others)


def _is_counted(step: StepRun, at: int) -> bool:
    """Whether the step was begun in another batch, and lets all its items go: only counters and its end change then."""
    return step.started_at is not None and step.started_at < at and step.released is None


STEPS: Kind[tuple[str, str], StepRun] = Kind(
    name="steps",
    key=lambda step: (step.flow_id, step.step_id),
    wanted=lambda key: step_key(*key),
    loads=(
        Load(
            name="flow_steps",
            query="load_steps",
            columns=COLUMNS_WITH_OUTPUTS,
            fill=_fill_with_outputs,
            order=4,
            flow_of_key=flow_of,
            flow_column="flow_id",
            unlocked=Unlocked.LATER,
        ),
        Load(  # flows with all their open work and open steps
            name="open_flows",
            query="load_open_steps",
            columns=LOADED_COLUMNS,
            fill=_fill_open,
            order=0,
            finds_work="load_open_work",
            with_flows=True,
            flow_of_key=itself,
            flow_column="flow_id",
        ),
        Load(  # flows with all their steps and what these gave
            name="whole_flows",
            query="load_whole_steps",
            columns=COLUMNS_WITH_OUTPUTS,
            fill=_fill_whole,
            order=3,
            with_flows=True,
            flow_of_key=itself,
            flow_column="flow_id",
        ),
    ),
    writes=_writes,
    written=Phase.PARTS_OF_FLOWS,
    prune=(PruneStatement(41, "prune_steps", by_flow),),
    empty=(PruneStatement(2, "empty_steps", by_flow),),
    writers={
        "insert_steps": _INSERTED,
        "update_steps": _UPDATED,
        "count_steps": _COUNTED,
        "complete_steps": _COMPLETED,
    },
)

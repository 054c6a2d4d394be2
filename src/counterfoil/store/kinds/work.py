"""Work items, the cancel calls and callbacks about them, how many of a step are active, and when they were sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from counterfoil.domain.callbacks.inbox import Callback
from counterfoil.domain.errors import UnknownWork
from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.records import CancelCall, Flow, StepRun, Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.kinds.columns import JSON, Columns, Row
from counterfoil.store.kinds.flows import FLOW_COLUMNS, FLOWS, read_flow
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
    filling_pairs,
    flow_of,
    nothing_written,
    of_flow,
    plain_kind,
)
from counterfoil.store.kinds.steps import LOADED_COLUMNS, STEPS, read_step

DONE_WORK = frozenset({WorkStatus.SUCCEEDED, WorkStatus.CANCELLED})
"""Of which nothing more will come: what has failed may be redriven."""

WORK_COLUMNS = Columns(Work, {"progress": JSON})
_OF_STEP = LOADED_COLUMNS[2:]
_OF_FLOW = FLOW_COLUMNS.names[1:]
_WORK_END = len(WORK_COLUMNS.names)
_STEP_END = _WORK_END + len(_OF_STEP)
_FLOW_END = _STEP_END + len(_OF_FLOW)
JOINED_COLUMNS = (*WORK_COLUMNS.names, *_OF_STEP, *_OF_FLOW)
"""Of ``load_work``: the item, its step without the ids, its flow without the id. A shared store adds the revision."""


def read_work(row: Sequence[Any]) -> tuple[Work, StepRun, Flow]:
    """One row of ``load_work``: the item, its step in the flow, its flow."""
    work = WORK_COLUMNS.read(row[:_WORK_END])
    step = read_step((work.flow_id, work.step_id, *row[_WORK_END:_STEP_END]))
    return work, step, read_flow((work.flow_id, *row[_STEP_END:_FLOW_END]))


def _fill_work(loaded: Loaded) -> None:
    steps, flows = loaded.unit.records(STEPS), loaded.unit.records(FLOWS)
    for row in loaded.rows:
        work, step, flow = read_work(row)
        loaded.unit.add_work(work)
        steps.add((step.flow_id, step.step_id), step)
        flows.add(flow.flow_id, flow)
    items = loaded.unit.records(WORK)
    for key in loaded.keys:
        items.add(key, None)


def _fill_step_work(loaded: Loaded) -> None:
    loaded.unit.complete.step_work.update(loaded.keys)


_INSERTED = WORK_COLUMNS.writer()
_UPDATED = WORK_COLUMNS.writer(
    *WORK_COLUMNS.without(
        *("flow_id", "step_id", "item", "version", "idempotency_key", "lane", "created_at"),
        *("arguments", "redrive_of", "undoes"),
    )
)
_ENDED = WORK_COLUMNS.writer("work_id", "status", "result", "recorded_at")


def _writes(of: ChangesOf[str, Work]) -> Iterator[Write]:
    """Work items, and what becomes of the table of open ones."""
    made, ended, others = _sorted_out(of)
    if made:
        row = _INSERTED.row
        yield Write("insert_work", [row(item) for item in made])
        yield Write.following("open_new_work", sum(item.status not in DONE_WORK for item in made))
    if ended:
        row = _ENDED.row
        yield Write("end_work", [row(item) for item in ended])
        yield Write.closing("close_ended_work", len(ended))
    if others:
        row = _UPDATED.row
        yield Write("update_work", [row(item) for item in others])
        done = sum(item.status in DONE_WORK for item in others)
        yield Write.following("follow_work", len(others) - done)
        yield Write.closing("close_work", done)


def _sorted_out(of: ChangesOf[str, Work]) -> tuple[list[Work], list[Work], list[Work]]:
    """New items; those that are done, and of which nothing else can have changed; and the others."""
    work, at = of.records, of.changes.at
    new = work.new
    made = [item for key in sorted(new) if (item := work[key]) is not None]
    ended: list[Work] = []
    others: list[Work] = []
    for key, item in work.items():
        if key in new or item is None:
            continue
        if (
            item.status in DONE_WORK
            and (item.sent_at is None or item.sent_at < at)
            and (item.acknowledged_at is None or item.acknowledged_at < at)
            and item.progress is None
            and item.message is None
            and item.error is None
        ):
            ended.append(item)
        else:
            others.append(item)
    return made, ended, others


WORK: Kind[str, Work] = Kind(
    name="work",
    key=lambda work: work.work_id,
    unknown=UnknownWork,
    loads=(
        Load(
            name="work",
            query="load_work",
            columns=JOINED_COLUMNS,
            fill=_fill_work,
            order=1,
            flow_column="flow_id",
            unlocked=Unlocked.AT_FIRST,
        ),
        Load(  # steps in flows with all items that they ever had
            name="step_work", query=None, finds_work="load_step_work", fill=_fill_step_work, flow_of_key=flow_of
        ),
    ),
    writes=_writes,
    written=Phase.PARTS_OF_FLOWS + 1,
    prune=(PruneStatement(40, "prune_work", by_flow, follow="forget_work"),),
    empty=(PruneStatement(1, "empty_work", by_flow),),
    writers={"insert_work": _INSERTED, "update_work": _UPDATED, "end_work": _ENDED},
)

CALLS = plain_kind(
    "calls",
    Columns(CancelCall),
    "call_id",
    lock=Lock(1, "lock_calls"),
    written=Phase.OTHERS + 1,
    prune=(of_flow("calls", order=10),),
)

CALLBACK_COLUMNS = Columns(Callback)

CALLBACKS = plain_kind(
    "callbacks",
    CALLBACK_COLUMNS,
    "callback_id",
    written=Phase.OTHERS + 10,
    prune=(of_flow("callbacks", order=34),),
    empty=(PruneStatement(6, "empty_callbacks", by_flow),),
    unlocked=Unlocked.LATER,
)
"""Callbacks that were not accepted. A record is written once and removed later; in between nothing changes it."""

COUNTING = Lock(4, "lock_steps", "try_lock_steps", "another node counts what is out of the same step")
"""The right to count what is out of a step, or was sent lately, and then to send more."""

ACTIVE: Kind[str, int] = Kind(
    name="active_counts",
    loads=(
        Load(
            name="active_counts",
            query="count_active",
            fill=filling_pairs(lambda: ACTIVE, tuple),
            lock=COUNTING,
        ),
    ),
    absent=0,
    writes=nothing_written,
)
"""How many items of a step are active, over all flows: as loaded, plus those claimed in the batch."""


def read_sent(row: Sequence[Any]) -> tuple[str, SentTimes]:
    """A row of ``load_rates``: the step, and its times."""
    step_id, most, text = row
    return step_id, SentTimes(tuple(accumulate(parse_json(text))), most)


def sent_row(step_id: str, sent: SentTimes) -> Row:
    """A row for ``put_rates``. Times are written as distances, each from the one before: a third of the text."""
    distances = [*sent.times[:1], *(after - before for before, after in pairwise(sent.times))]
    return step_id, sent.most, dump_json(distances).decode()


def _rate_writes(of: ChangesOf[str, SentTimes]) -> Iterator[Write]:
    rates = of.records
    yield Write("put_rates", [sent_row(step_id, sent) for step_id, sent in sorted(rates.items()) if sent is not None])


RATES: Kind[str, SentTimes] = Kind(
    name="rates",
    loads=(
        Load(
            name="rates",
            query="load_rates",
            columns=("step_id", "most", "sent"),
            fill=filling_pairs(lambda: RATES, read_sent),
            lock=COUNTING,
        ),
    ),
    absent=SentTimes(),
    writes=_rate_writes,
    written=Phase.OTHERS,
)
"""When the steps with a rate limit were sent last: one record for each step, under its lock as ``ACTIVE`` is."""

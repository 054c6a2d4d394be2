"""From the changes of a batch to rows, statement by statement: the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from counterfoil.domain.records import Flow, StepRun, StepVersion, Work
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.store import journal
from counterfoil.store.kinds import rows
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.pruning import pruning_writes
from counterfoil.store.unit_of_work.rates import put_sent

Row = tuple[Any, ...]

DONE_WORK = frozenset({WorkStatus.SUCCEEDED, WorkStatus.CANCELLED})
"""Of which nothing more will come: what has failed may be redriven."""
MOVING_FLOWS = frozenset({FlowStatus.ACTIVE, FlowStatus.COMPLETED})
FORGETTING = {"prune_work": "forget_work", "prune_flows": "forget_flows"}


class Write(NamedTuple):
    """A named statement, the rows that it writes, and whether every one of them must count (its guard held).

    ``follows``: it takes its rows from what another one has written, to keep the tables of what is open in step.
    """

    query: str
    rows: list[Row]
    exact: bool = True
    follows: bool = False


def writes_of(changes: Changes, revisions: Mapping[str, int] | None = None) -> Iterator[Write]:
    """What a batch writes, table by table; definitions before what names them. Nothing is written that has no rows.

    ``revisions``, on a store that several nodes share: every flow of which anything changes is written then, flows
    before what belongs to them and in the order of their ids, so that batches that meet in a flow meet there first.
    Such a store also has tables of what is open, which follow what is written.
    """
    shared = revisions is not None
    return (write for write in _all(changes, revisions) if write.rows and (shared or not write.follows))


def _all(changes: Changes, revisions: Mapping[str, int] | None) -> Iterator[Write]:
    if changes.current or changes.plans:
        yield from _definitions(changes)
    yield from _flows(changes, revisions)
    yield from _steps(changes)
    yield from _work(changes)
    if changes.events:
        yield Write("append_journal", journal.pack(changes.events))
    if changes.pruned.ids:
        for query, pruned, exact in pruning_writes(changes.pruned, changes.at):
            yield Write(query, pruned, exact)
            if pruned and query in FORGETTING:
                yield Write(FORGETTING[query], [()], exact=False, follows=True)
    if changes.rates:
        yield Write("put_rates", put_sent(changes.rates))
    if changes.calls:
        yield Write("put_calls", [rows.put_call(call) for call in changes.calls.values() if call is not None])
        forgotten: list[Row] = [(key,) for key, call in changes.calls.items() if call is None]
        yield Write("delete_calls", forgotten, exact=False)
    yield from _guarding(changes)
    if changes.schedules:  # in the order of their ids: two batches that make the same ones meet in the first
        schedules = sorted(changes.schedules.items())
        yield Write("put_schedules", [rows.put_schedule(schedule) for _, schedule in schedules if schedule is not None])
        dropped: list[Row] = [(key,) for key, schedule in schedules if schedule is None]
        yield Write("delete_schedules", dropped, exact=False)


def _definitions(changes: Changes) -> Iterator[Write]:
    if changes.current:
        yield Write("insert_version", [_version(version) for version in changes.versions.values()], exact=False)
        current = [version for version in changes.current.values() if version is not None]
        yield Write("put_step", [(v.step_id, v.version, changes.at, changes.at) for v in current])
        removed: list[Row] = [(step_id,) for step_id, version in changes.current.items() if version is None]
        yield Write("delete_step", removed, exact=False)
        yield Write("raise_register", [(len(changes.current),)])
    yield Write("insert_plans", [rows.inserted_plan(plan) for plan in changes.plans.values()], exact=False)


def _flows(changes: Changes, revisions: Mapping[str, int] | None) -> Iterator[Write]:
    """Flows, and what becomes of the table of those that have not completed."""
    new, flows = changes.new.flows, changes.flows
    completed = FlowStatus.COMPLETED
    if new:
        begun = [flows[key] for key in sorted(new)]
        yield Write("insert_flows", [rows.inserted_flow(flow) for flow in begun])
        yield _following("open_new_flows", sum(flow.status is not completed for flow in begun))
        yield Write("insert_inputs", [rows.inserted_inputs(inputs) for inputs in changes.inputs.values()])
        labels: list[Row] = [(f"{k}:{v}", i.flow_id) for i in changes.inputs.values() for k, v in i.labels.items()]
        yield Write("insert_labels", labels)
    changed = {key: flow for key, flow in flows.items() if key not in new}
    # One statement for all of them: their locks are taken in one order.
    if all(map(_moves_on, changed.values())):
        yield Write("move_flows", _flow_rows(changed, changes, revisions, rows.moved_flow, 4))
        yield _closing("close_moved_flows", sum(flow.status is completed for flow in changed.values()))
    else:
        yield Write("update_flows", _flow_rows(changed, changes, revisions, rows.updated_flow, 8))
        yield _closing("close_flows", sum(flow.status is completed for flow in changed.values()))
        yield Write("follow_flows", [()], exact=False, follows=True)


def _moves_on(flow: Flow) -> bool:
    """Whether it goes on or completes, for the first time: it has not failed, and nothing of it was undone."""
    return flow.status in MOVING_FLOWS and not flow.redrives


def _flow_rows(
    changed: Mapping[str, Flow],
    changes: Changes,
    revisions: Mapping[str, int] | None,
    row: Callable[[Flow], Row],
    columns: int,
) -> list[Row]:
    """Rows of flows that were there before; on a shared store also of those whose own record stays as it is."""
    if revisions is None:
        return [row(flow) for flow in changed.values()]
    untouched = (None,) * columns
    return [
        (*(row(changed[key]) if key in changed else (key, *untouched)), revisions[key])
        for key in sorted(((changes.touched() & revisions.keys()) | changed.keys()) - changes.new.flows)
    ]


def _steps(changes: Changes) -> Iterator[Write]:
    new, steps = changes.new.steps, changes.steps
    if new:
        yield Write("insert_steps", [rows.inserted_step(steps[key]) for key in new])
    completed: list[Row] = []
    counted: list[Row] = []
    others: list[Row] = []
    for key, step in steps.items():
        if key in new:
            continue
        if not _is_counted(step, changes.at):
            others.append(rows.updated_step(step))
        elif step.status is StepStatus.COMPLETED and not (step.open_items or step.failed_items):
            completed.append(rows.completed_step(step))
        else:
            counted.append(rows.counted_step(step))
    yield Write("complete_steps", completed)
    yield Write("count_steps", counted)
    yield Write("update_steps", others)


def _work(changes: Changes) -> Iterator[Write]:
    """Work items, and what becomes of the table of open ones."""
    new, work = changes.new.work, changes.work
    if new:
        made = [work[key] for key in sorted(new)]
        yield Write("insert_work", [rows.inserted_work(item) for item in made])
        yield _following("open_new_work", sum(item.status not in DONE_WORK for item in made))
    ended, others = _ended_and_others(changes)
    if ended:
        yield Write("end_work", [rows.ended_work(item) for item in ended])
        yield _closing("close_ended_work", len(ended))
    if others:
        yield Write("update_work", [rows.updated_work(item) for item in others])
        done = sum(item.status in DONE_WORK for item in others)
        yield _following("follow_work", len(others) - done)
        yield _closing("close_work", done)


def _ended_and_others(changes: Changes) -> tuple[list[Work], list[Work]]:
    """Items that were there before: those that are done, and of which nothing else can have changed; and the others."""
    new, at = changes.new.work, changes.at
    ended: list[Work] = []
    others: list[Work] = []
    for key, item in changes.work.items():
        if key in new:
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
    return ended, others


def _following(query: str, count: int) -> Write:
    """A statement that takes so many rows from what the one before it has written."""
    return Write(query, [()] * count, follows=True)


def _closing(query: str, count: int) -> Write:
    """The same where rows go: one that was gone already is no reason to refuse an end."""
    return Write(query, [()] * count, exact=False, follows=True)


def _guarding(changes: Changes) -> Iterator[Write]:
    """Gates, approvals and keys of flows that were written before; then what guards and what is told."""
    if changes.gates:
        yield Write("put_gates", [rows.put_gate(gate) for _, gate in sorted(changes.gates.items())])
    if changes.approvals:
        yield Write("put_approvals", [rows.put_approval(each) for _, each in sorted(changes.approvals.items())])
    if changes.keys:
        yield Write("put_keys", [astuple(owner) for _, owner in sorted(changes.keys.items())])
    if changes.changes_controls:
        yield Write("put_policies", [rows.put_policy(policy) for _, policy in sorted(changes.policies.items())])
        yield Write("insert_policy_versions", [rows.policy_version(policy) for policy in changes.policy_versions])
        kept = sorted(changes.subscriptions.items())
        yield Write("put_subscriptions", [rows.put_subscription(each) for _, each in kept if each is not None])
        gone: list[Row] = [(key,) for key, each in kept if each is None]
        yield Write("delete_subscriptions", gone, exact=False)
        yield Write("drop_deliveries", gone, exact=False)
        yield Write("raise_controls", [(1,)])
    if changes.deliveries:
        left = {key for key, each in changes.subscriptions.items() if each is None}
        told = sorted(changes.deliveries.items())
        kept_for = [each for _, each in told if each is not None and each.subscription_id not in left]
        yield Write("put_deliveries", [astuple(delivery) for delivery in kept_for])
        taken: list[Row] = [(key,) for key, delivery in told if delivery is None]
        yield Write("delete_deliveries", taken, exact=False)


def _is_counted(step: StepRun, at: int) -> bool:
    """Whether the step was begun in another batch, and lets all its items go: only counters and its end change then."""
    return step.started_at is not None and step.started_at < at and step.released is None


def _version(version: StepVersion) -> Row:
    definition = version.definition.model_dump_json(by_alias=True, exclude_unset=True)
    return (version.version, version.step_id, definition)

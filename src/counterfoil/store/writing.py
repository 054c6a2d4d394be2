"""From the changes of a batch to rows, statement by statement: the same for every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

from counterfoil.domain.model import StepRun, StepVersion
from counterfoil.store import journal, rows
from counterfoil.store.changes import Changes
from counterfoil.store.pruning import pruning_writes
from counterfoil.store.rates import put_sent

Row = tuple[Any, ...]


class Write(NamedTuple):
    """A named statement, the rows that it writes, and whether every one of them must count (its guard held)."""

    query: str
    rows: list[Row]
    exact: bool = True


def writes_of(changes: Changes, revisions: Mapping[str, int] | None = None) -> Iterator[Write]:
    """What a batch writes, table by table; definitions before what names them. Nothing is written that has no rows.

    ``revisions``, on a store that keeps them: every flow of which anything changes is written then, flows before what
    belongs to them and in the order of their ids, so that batches that meet in a flow meet there first.
    """
    return (write for write in _all(changes, revisions) if write.rows)


def _all(changes: Changes, revisions: Mapping[str, int] | None) -> Iterator[Write]:
    new, flows, steps, work = changes.new, changes.flows, changes.steps, changes.work
    if changes.current:
        yield Write("insert_version", [_version(version) for version in changes.versions.values()], exact=False)
        current = [version for version in changes.current.values() if version is not None]
        yield Write("put_step", [(v.step_id, v.version, changes.at, changes.at) for v in current])
        removed: list[Row] = [(step_id,) for step_id, version in changes.current.items() if version is None]
        yield Write("delete_step", removed, exact=False)
        yield Write("raise_register", [(len(changes.current),)])
    yield Write("insert_plans", [rows.inserted_plan(plan) for plan in changes.plans.values()], exact=False)
    if new.flows:
        yield Write("insert_flows", [rows.inserted_flow(flows[key]) for key in sorted(new.flows)])
        yield Write("insert_inputs", [rows.inserted_inputs(inputs) for inputs in changes.inputs.values()])
        labels: list[Row] = [(f"{k}:{v}", i.flow_id) for i in changes.inputs.values() for k, v in i.labels.items()]
        yield Write("insert_labels", labels)
    if revisions is None:
        yield Write("update_flows", [rows.updated_flow(flow) for key, flow in flows.items() if key not in new.flows])
    else:
        touched = sorted(((changes.touched() & revisions.keys()) | flows.keys()) - new.flows)
        yield Write("update_flows", [(*rows.raised_flow(key, flows.get(key)), revisions[key]) for key in touched])
    yield Write("insert_steps", [rows.inserted_step(steps[key]) for key in new.steps])
    changed = [step for key, step in steps.items() if key not in new.steps]
    counted = [step for step in changed if _is_counted(step, changes.at)]
    yield Write("count_steps", [rows.counted_step(step) for step in counted])
    if len(counted) < len(changed):
        others = [step for step in changed if not _is_counted(step, changes.at)]
        yield Write("update_steps", [rows.updated_step(step) for step in others])
    yield Write("insert_work", [rows.inserted_work(work[key]) for key in sorted(new.work)])
    yield Write("update_work", [rows.updated_work(item) for key, item in work.items() if key not in new.work])
    yield Write("append_journal", journal.pack(changes.events))
    for query, pruned, exact in pruning_writes(changes.pruned, changes.at) if changes.pruned.ids else ():
        yield Write(query, pruned, exact)
    yield Write("put_rates", put_sent(changes.rates))
    yield Write("put_calls", [rows.put_call(call) for call in changes.calls.values() if call is not None])
    forgotten: list[Row] = [(key,) for key, call in changes.calls.items() if call is None]
    yield Write("delete_calls", forgotten, exact=False)
    yield from _guarding(changes)
    if changes.schedules:  # in the order of their ids: two batches that make the same ones meet in the first
        schedules = sorted(changes.schedules.items())
        yield Write("put_schedules", [rows.put_schedule(schedule) for _, schedule in schedules if schedule is not None])
        dropped: list[Row] = [(key,) for key, schedule in schedules if schedule is None]
        yield Write("delete_schedules", dropped, exact=False)


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

"""From the rows of the batch loads to the records of a unit: the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from counterfoil.domain.policies.controls import Controls
from counterfoil.domain.policies.policy_set import Policy
from counterfoil.domain.records import KeyOwner, StepVersion
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.subscriptions.definitions import Delivery, Subscription
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.kinds import rows
from counterfoil.store.unit_of_work.rates import read_sent
from counterfoil.store.unit_of_work.read_set import ReadSet, step_key
from counterfoil.store.unit_of_work.unit import UnitOfWork

Rows = Iterable[Any]

LOADS: dict[str, Callable[[ReadSet], set[str]]] = {
    "load_open_steps": lambda needs: needs.open_flows,
    "load_work": lambda needs: needs.work,
    "load_flows": lambda needs: needs.flows,
    "load_whole_steps": lambda needs: needs.whole_flows,
    "load_steps": lambda needs: needs.flow_steps,
    "load_inputs": lambda needs: needs.inputs,
    "load_plans": lambda needs: needs.plans,
    "load_current": lambda needs: needs.steps,
    "load_register": lambda needs: needs.registers,
    "load_versions": lambda needs: needs.versions,
    "load_calls": lambda needs: needs.calls,
    "count_active": lambda needs: needs.active_counts,
    "load_gates": lambda needs: needs.gates,
    "load_approvals": lambda needs: needs.approvals,
    "load_keys": lambda needs: needs.keys,
    "load_controls": lambda needs: needs.controls,
    "load_policies": lambda needs: needs.policies,
    "load_subscriptions": lambda needs: needs.subscriptions,
    "load_deliveries": lambda needs: needs.deliveries,
    "load_schedules": lambda needs: needs.schedules,
    "load_rates": lambda needs: needs.rates,
}
"""Which query loads which of the needs, by their keys."""

KEYS: dict[str, Callable[[ReadSet], set[str]]] = {
    "load_open_work": lambda needs: needs.open_flows,
    "load_step_work": lambda needs: needs.step_work,
    "load_gate_work": lambda needs: needs.gates,
}
"""Queries that come before, and only find more work to load."""


def need_more(needs: ReadSet, found: Iterable[str]) -> None:
    """What ``KEYS`` have found is needed, and so are flows of which everything is."""
    needs.work.update(found)
    needs.flows |= needs.open_flows | needs.whole_flows


def fill(unit: UnitOfWork, needs: ReadSet, loaded: Mapping[str, Rows], defaults: WorkDefaults) -> None:
    """Put what was loaded into the unit of work, by query, and note what does not exist as such."""
    for row in loaded.get("load_work", ()):
        work, step, flow = rows.read_work(row)
        unit.add_work(work.work_id, work)
        unit.add_step_run(step)
        unit.add_flow(flow.flow_id, flow)
    _add_steps(unit, loaded)
    for row in loaded.get("load_flows", ()):
        flow = rows.read_flow(row)
        unit.add_flow(flow.flow_id, flow)
    for row in loaded.get("load_inputs", ()):
        unit.add_inputs(rows.read_inputs(row))
    for _, document in loaded.get("load_plans", ()):
        unit.add_plan(rows.read_plan(document))
    for step_id, version in loaded.get("load_current", ()):
        unit.add_current(step_id, version)
    for version, step_id, definition in loaded.get("load_versions", ()):
        _add_version(unit, version, step_id, definition, defaults)
    _add_register(unit, needs, list(loaded.get("load_register", ())), defaults)
    for row in loaded.get("load_calls", ()):
        call = rows.read_call(row)
        unit.add_call(call.call_id, call)
    for step_id, count in loaded.get("count_active", ()):
        unit.add_active_count(step_id, count)
    for row in loaded.get("load_schedules", ()):
        schedule = rows.read_schedule(row)
        unit.schedules.add(schedule.schedule_id, schedule)
    for row in loaded.get("load_rates", ()):
        unit.rates.add(*read_sent(row))
    _add_guarding(unit, loaded)
    _note_missing(unit, needs)
    unit.know_open(needs.open_flows)
    unit.know_whole(needs.whole_flows)
    unit.know_step_work(needs.step_work)


def _add_guarding(unit: UnitOfWork, loaded: Mapping[str, Rows]) -> None:
    for row in loaded.get("load_gates", ()):
        gate = rows.read_gate(row)
        unit.gates.add(step_key(gate.flow_id, gate.step_id), gate)
    for row in loaded.get("load_approvals", ()):
        approval = rows.read_approval(row)
        unit.approvals.add(approval.approval_id, approval)
    for row in loaded.get("load_keys", ()):
        unit.keys.add(row[0], KeyOwner(*row))
    for row in loaded.get("load_policies", ()):
        policy = rows.read_policy(row)
        unit.kept_policies.add(policy.policy_id, policy)
    for row in loaded.get("load_subscriptions", ()):
        subscription = rows.read_subscription(row)
        unit.subscriptions.add(subscription.subscription_id, subscription)
    for row in loaded.get("load_deliveries", ()):
        unit.deliveries.add(row[0], Delivery(*row))
    _add_controls(unit, list(loaded.get("load_controls", ())))


def _add_controls(unit: UnitOfWork, found: list[Any]) -> None:
    """A row for each policy and subscription, or one with the revision alone: then there are none."""
    if not found:
        return
    policies: dict[str, Policy] = {}
    subscriptions: dict[str, Subscription] = {}
    for _, kind, name, version, definition in found:
        if kind == "policy":
            policies[name] = Policy(name, version, rows.policy_definition(name, definition))
        elif kind == "subscription":
            subscriptions[name] = rows.read_subscription((name, definition, None, 0, 0))
    unit.add_controls(Controls.of(found[0][0], policies, subscriptions))


def _add_steps(unit: UnitOfWork, loaded: Mapping[str, Rows]) -> None:
    for row in loaded.get("load_open_steps", ()):
        unit.add_step_run(rows.read_step(row))
    for query in ("load_steps", "load_whole_steps"):
        for row in loaded.get(query, ()):
            step = rows.read_step(row)
            unit.add_step_run(step)
            unit.add_outputs(step.flow_id, step.step_id, rows.read_outputs(row))


def _add_version(unit: UnitOfWork, version: str, step_id: str, definition: str, defaults: WorkDefaults) -> None:
    if not unit.knows_version(version):
        parsed = StepDefinition.model_validate_json(definition)
        unit.add_version(version, StepVersion.of(step_id, parsed, defaults, version))


def _add_register(unit: UnitOfWork, needs: ReadSet, found: list[Any], defaults: WorkDefaults) -> None:
    """A row for each step, or one with the revision alone: then that is known already, or there are no steps."""
    if not found:
        return
    revision: int = found[0][0]
    versions = [row[2] for row in found if row[2] is not None]
    for _, step_id, version, definition in found:
        if version is not None:
            _add_version(unit, version, step_id, definition, defaults)
    unit.add_register(revision, None if str(revision) in needs.registers else versions)


def _note_missing(unit: UnitOfWork, needs: ReadSet) -> None:
    """What was asked for and not found does not exist: deciding it again would ask in vain."""
    for work_id in needs.work:
        unit.add_work(work_id, None)
    for flow_id in needs.flows:
        unit.add_flow(flow_id, None)
    for step_id in needs.steps:
        unit.add_current(step_id, None)
    for call_id in needs.calls:
        unit.add_call(call_id, None)
    for shelf, keys in (
        (unit.schedules, needs.schedules),
        (unit.gates, needs.gates),
        (unit.approvals, needs.approvals),
        (unit.keys, needs.keys),
        (unit.kept_policies, needs.policies),
        (unit.subscriptions, needs.subscriptions),
        (unit.deliveries, needs.deliveries),
    ):
        for key in keys:
            shelf.add(key, None)
    for step_id in needs.rates:
        unit.rates.add(step_id, SentTimes())

"""From rows to what the doctor looks at: records of whole flows, and findings for rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.store.doctor.effect_rules import key_findings, reservation_problems
from counterfoil.store.doctor.hook_rules import token_findings
from counterfoil.store.doctor.rules import Finding, FlowRecords, check_flow
from counterfoil.store.doctor.run_rules import owner_problems
from counterfoil.store.journal import parse_entry
from counterfoil.store.kinds.approvals import read_approval
from counterfoil.store.kinds.effects import read_reconciliation, read_reservation
from counterfoil.store.kinds.flows import read_flow
from counterfoil.store.kinds.gate import read_gate
from counterfoil.store.kinds.hooks import read_hook
from counterfoil.store.kinds.steps import read_outputs, read_step
from counterfoil.store.kinds.work import read_work

T = TypeVar("T")
Rows = Iterable[Any]
CHUNK = 500
"""Flows that are looked at together: bounds the memory, whatever the size of the database."""


@dataclass
class FlowRows:
    """All rows of some flows, as ``load_flows``, ``doctor_steps``, ``load_work`` and ``doctor_journal`` give them."""

    flows: Rows
    steps: Rows
    work: Rows
    entries: Rows
    gates: Rows = ()
    approvals: Rows = ()
    reconciliations: Rows = ()
    run_keys: Rows = ()
    hooks: Rows = ()
    pruned: Rows = ()
    """Ids of flows whose journal is gone, as ``doctor_pruned`` gives them."""


@dataclass
class Examination:
    """One visit of the doctor: the versions that flows were made from, and what could not be read on the way."""

    defaults: WorkDefaults
    versions: dict[str, StepVersion] = field(default_factory=dict)
    unreadable: list[Finding] = field(default_factory=list)

    def add_versions(self, rows: Rows) -> None:
        for version, step_id, text in rows:
            definition = self._read(step_id, partial(StepDefinition.model_validate_json, text))
            if definition is not None:
                self.versions[version] = StepVersion.of(step_id, definition, self.defaults, version)

    def check(self, rows: FlowRows) -> Iterator[Finding]:
        """Every finding of some flows."""
        for flow_id, records in self._records(rows).items():
            yield from check_flow(flow_id, records, self.versions)

    def check_effects(self, rows: Rows) -> Iterator[Finding]:
        """Every finding of some reservations of tools, as ``doctor_effects`` gives them."""
        for row in rows:
            record = self._read(row[0], partial(read_reservation, row))
            if record is not None:
                for problem in reservation_problems(record):
                    yield Finding("effects", record.effect_id, problem)

    def _records(self, rows: FlowRows) -> dict[str, FlowRecords]:
        flows: dict[str, FlowRecords] = {}
        pruned = set(rows.pruned)
        for row in rows.flows:
            flow = self._read(row[0], partial(read_flow, row))
            if flow is not None:
                flows[flow.flow_id] = FlowRecords(flow, pruned=flow.flow_id in pruned)
        for row in rows.steps:
            step = self._read(f"{row[0]}/{row[1]}", partial(read_step, row))
            if step is not None and step.flow_id in flows:
                step.outputs = self._read(f"{row[0]}/{row[1]}", partial(read_outputs, row))
                flows[step.flow_id].steps[step.step_id] = step
        for row in rows.work:
            found = self._read(row[0], partial(read_work, row))
            if found is not None and found[0].flow_id in flows:
                flows[found[0].flow_id].work[found[0].work_id] = found[0]
        self._add_guarding(flows, rows)
        for flow_id, work_id, at, text in rows.entries:
            for fields in self._read(work_id or flow_id, partial(parse_entry, text)) or ():
                event = self._read(work_id or flow_id, partial(_event, flow_id, work_id, at, fields))
                if event is not None and flow_id in flows:
                    flows[flow_id].events.append(event)
        return flows

    def _add_guarding(self, flows: dict[str, FlowRecords], rows: FlowRows) -> None:
        for row in rows.gates:
            gate = self._read(f"{row[0]}/{row[1]}", partial(read_gate, row))
            if gate is not None and gate.flow_id in flows:
                flows[gate.flow_id].gates[gate.step_id] = gate
        for row in rows.approvals:
            approval = self._read(row[0], partial(read_approval, row))
            if approval is not None and approval.flow_id in flows:
                flows[approval.flow_id].approvals[approval.approval_id] = approval
        for row in rows.reconciliations:
            record = self._read(row[0], partial(read_reconciliation, row))
            if record is not None and record.flow_id in flows:
                flows[record.flow_id].reconciliations[record.work_id] = record
        for flow_id, run_key in rows.run_keys:
            if flow_id in flows:
                flows[flow_id].run_key = run_key
        for row in rows.hooks:
            hook = self._read(row[0], partial(read_hook, row))
            if hook is not None and hook.flow_id in flows:
                flows[hook.flow_id].hooks[hook.hook_id] = hook

    def _read(self, subject: str, reader: Callable[[], T]) -> T | None:
        """What a row says, or None and a finding when that is not what this program writes."""
        try:
            return reader()
        except (ValueError, KeyError) as error:
            self.unreadable.append(Finding("file", subject, f"cannot be read: {type(error).__name__} {error}"))
            return None


def wrong_version(found: int | None, known: int) -> Finding:
    return Finding("schema", f"version {found}", f"this program knows version {known}")


def lost_events(rows: Rows) -> Iterator[Finding]:
    for flow_id, count in rows:
        yield Finding("journal", flow_id, f"{count} entries belong to a flow that is not in the store")


def shared_keys(rows: Rows) -> Iterator[Finding]:
    for subject, problem in key_findings(rows):
        yield Finding("keys", subject, problem)


def run_keys(rows: Rows) -> Iterator[Finding]:
    for subject, problem in owner_problems(rows):
        yield Finding("run_keys", subject, problem)


def owned_tokens(rows: Rows) -> Iterator[Finding]:
    for subject, problem in token_findings(rows):
        yield Finding("hooks", subject, problem)


def wrong_floors(rows: Rows) -> Iterator[Finding]:
    for bucket, fence in rows:
        yield Finding("effects", f"fence floor {bucket}", f"is {fence}, which no forgotten key has")


def _event(flow_id: str, work_id: str | None, at: int, fields: Sequence[Any]) -> Event:
    """One event of an entry; raises ValueError for one that this program never writes."""
    if not isinstance(fields, list):
        raise ValueError(f"an event is a list, not {fields!r}")  # noqa: TRY004 (the row is wrong, not the program)
    kind, step_id, of_work, attempt, data = fields
    if not (step_id is None or isinstance(step_id, str)) or not (attempt is None or isinstance(attempt, int)):
        raise ValueError(f"{kind}: neither step {step_id!r} nor attempt {attempt!r} may be like that")
    if of_work not in (0, 1) or (of_work and work_id is None):
        raise ValueError(f"{kind}: about the work item of its entry, {work_id!r}? It says {of_work!r}")
    return Event(EventType(kind), at, flow_id, step_id, work_id if of_work else None, attempt, data)

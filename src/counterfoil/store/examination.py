"""From rows to what the doctor looks at: records of whole flows, and findings for rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from counterfoil.domain.events import Event, EventType
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.model import StepVersion
from counterfoil.domain.steps import StepDefinition, WorkDefaults
from counterfoil.store.doctor import Finding, FlowRecords, check_flow
from counterfoil.store.rows import read_flow, read_step, read_work

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
    events: Rows


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

    def _records(self, rows: FlowRows) -> dict[str, FlowRecords]:
        flows: dict[str, FlowRecords] = {}
        for row in rows.flows:
            flow = self._read(row[0], partial(read_flow, row))
            if flow is not None:
                flows[flow.flow_id] = FlowRecords(flow)
        for row in rows.steps:
            step = self._read(f"{row[0]}/{row[1]}", partial(read_step, row))
            if step is not None and step.flow_id in flows:
                flows[step.flow_id].steps[step.step_id] = step
        for row in rows.work:
            found = self._read(row[0], partial(read_work, row))
            if found is not None and found[0].flow_id in flows:
                flows[found[0].flow_id].work[found[0].work_id] = found[0]
        for row in rows.events:
            event = self._read(row[4] or row[2], partial(_event, row))
            if event is not None and event.flow_id in flows:
                flows[event.flow_id].events.append(event)
        return flows

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
        yield Finding("journal", flow_id, f"{count} events tell of a flow that the store does not have")


def _event(row: Sequence[Any]) -> Event:
    event_type, at, flow_id, step_id, work_id, attempt, data = row
    return Event(EventType(event_type), at, flow_id, step_id, work_id, attempt, parse_json(data))

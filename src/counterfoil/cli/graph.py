"""A flow as text: its steps in layers, each below the steps that it depends on.

Pure functions of the engine's documents: the same document gives the same lines. No line is wider than the given
width, and nothing depends on colour. Long lists are counted instead of printed.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, cast

from counterfoil.cli.output import error_text, span, when
from counterfoil.cli.waiting import UNKNOWN_HOLDS, waits_for

if TYPE_CHECKING:
    from counterfoil.client.documents import Flow, Plan, StepRun, WorkItem

MARKS = {
    "completed": "✓",
    "failed": "✗",
    "active": "●",
    "pending": "○",
    "skipped": "-",
    "cancelled": "⊘",
}
RAIL = "│"
MOST_LISTED = 3
"""How many failed items and sub-flows of a step are listed; the others are counted."""

_WIDEST_NAME = 40
_WIDEST_STATUS = max(map(len, MARKS))
_INDENT = 4
_DONE = ("succeeded", "failed", "cancelled")
_STATES_IN_ORDER = ("succeeded", "failed", "cancelled", "active", "not_completed", "held", "pending")


def flow_lines(flow: Flow, now: datetime, width: int = 80) -> list[str]:
    """The graph of a flow with the state of each step, and its compensation."""
    plan = cast("Plan | None", flow.get("plan"))  # an older engine sends none
    planned = plan["steps"] if plan else []
    order = [step_id for step_id in planned or flow["steps"] if step_id in flow["steps"]]  # an agent's flow has no plan
    name_width = min(max(map(len, order), default=0), _WIDEST_NAME)
    lines: list[str] = []
    layers = layers_of(order, plan)
    for number, layer in enumerate(layers):
        if number:
            lines.append(RAIL)
        for step_id in layer:
            last = number == len(layers) - 1 and step_id == layer[-1]
            lines += _step_lines(step_id, flow, now, width, name_width, rail=" " if last else RAIL)
    return lines + _compensation_lines(flow, width, name_width)


def layers_of(order: Iterable[str], plan: Plan | None) -> list[list[str]]:
    """The steps by the length of their longest dependency chain; within a layer, in plan order."""
    depth: dict[str, int] = {}
    layers: list[list[str]] = []
    for step_id in order:
        depth[step_id] = 1 + max((depth.get(source, 0) for source in _sources(step_id, plan)), default=0)
        while len(layers) < depth[step_id]:
            layers.append([])
        layers[depth[step_id] - 1].append(step_id)
    return layers


def sources_text(step_id: str, plan: Plan | None) -> str:
    """Which values a step takes from which steps, and which steps it waits for; empty if there are none."""
    if plan is None:
        return ""
    taken = [f"{name} from {' or '.join(steps)}" for name, steps in plan.get("takes", {}).get(step_id, {}).items()]
    parts = [f"takes {', '.join(taken)}"] if taken else []
    wait = plan.get("waits_for", {}).get(step_id)
    if wait is not None:
        many = "all" if wait["any"] == len(wait["of"]) else f"{wait['any']}"
        parts.append(f"waits for {many} of {', '.join(wait['of'])}")
    return "; ".join(parts)


def _sources(step_id: str, plan: Plan | None) -> Iterator[str]:
    if plan is not None:
        for steps in plan.get("takes", {}).get(step_id, {}).values():
            yield from steps
        wait = plan.get("waits_for", {}).get(step_id)
        if wait is not None:
            yield from wait["of"]


# One step ---------------------------------------------------------------------------------------------------------


def _step_lines(step_id: str, flow: Flow, now: datetime, width: int, name_width: int, *, rail: str) -> list[str]:
    run = flow["steps"][step_id]
    items = _present_items(run)
    facts = ", ".join(_facts(run, items, now))
    head = _head(MARKS.get(run["status"], "?"), step_id, run["status"], name_width, width)
    details = []
    if facts and len(head) + 2 + len(facts) <= width:
        head = f"{head:<{name_width + _WIDEST_STATUS + 4}}  {facts}"
    elif facts:
        details.append(facts)
    details += [text for text in (sources_text(step_id, flow.get("plan")), *_details(step_id, run, items)) if text]
    return [head.rstrip()[:width], *_wrapped(details, width, rail)]


def _head(mark: str, name: str, status: str, name_width: int, width: int) -> str:
    longest = width - len(status) - 4
    name = name if len(name) <= longest else f"{name[: longest - 1]}…"
    return f"{mark} {name:<{name_width}}  {status}"


def _wrapped(details: Iterable[str], width: int, rail: str) -> Iterator[str]:
    """Each detail on its own lines, after the rail."""
    for text in details:
        lead, hang = rail.ljust(_INDENT), rail.ljust(_INDENT + 2)
        yield from textwrap.wrap(
            " ".join(text.split()), width, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=False
        )


def _present_items(run: StepRun) -> list[WorkItem]:
    """The last work item in each place; replaced items and compensations are left out."""
    last: dict[int, WorkItem] = {}
    for work in run["work"]:
        place = work.get("item", 0)
        if not work.get("undoes") and (place not in last or _age(work) >= _age(last[place])):
            last[place] = work
    return [last[place] for place in sorted(last)] if run["status"] != "pending" else []


def _present_undoing(run: StepRun) -> list[WorkItem]:
    """The last compensation of each present item; a redriven flow may have compensated other items before."""
    present = {work["work_id"] for work in _present_items(run)}
    last = {work.get("undoes"): work for work in sorted(run["work"], key=_age) if work.get("undoes") in present}
    return list(last.values())


def _age(work: WorkItem) -> tuple[str, str]:
    return (work.get("created_at", ""), work["work_id"])


def _facts(run: StepRun, items: list[WorkItem], now: datetime) -> Iterator[str]:
    """Short facts for the line of the step itself."""
    if run.get("goal"):
        yield "goal"
    if run.get("items", 0) > 1:
        yield f"{sum(work['status'] in _DONE for work in items)} of {run.get('items')} items"
    elif run["status"] == "active" and items:
        yield from _item_facts(items[0], now)
    started, finished, until = run.get("started_at"), run.get("finished_at"), run.get("waits_until")
    if run["status"] == "pending" and until:
        yield f"starts {when(until, now)} at the latest"
    if started and finished and run["status"] in ("completed", "failed"):
        yield f"took {span((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())}"
    redrives = run.get("redrives", 0)
    if redrives:
        yield "redriven once" if redrives == 1 else f"redriven {redrives} times"


def _item_facts(work: WorkItem, now: datetime) -> Iterator[str]:
    if work["attempt"] > 1:
        yield f"attempt {work['attempt']}"
    waits = waits_for(work, now)
    if waits:
        yield waits


def _details(step_id: str, run: StepRun, items: list[WorkItem]) -> Iterator[str]:
    """Details that need their own lines."""
    if run.get("items", 0) > 1:
        yield f"items: {_by_state(items)}"
    yield from _sub_flows(items)
    reason = run.get("reason")
    if reason:
        yield f"reason: {reason}"
    error = run.get("error")
    if error:
        elsewhere = error.get("step_id")
        yield f"because {elsewhere} failed" if elsewhere and elsewhere != step_id else f"error: {error_text(error)}"
        return
    failed = [work for work in items if work["status"] in ("failed", "not_completed") and work["error"]]
    for work in failed[:MOST_LISTED]:
        place = f"item {work.get('item', 0)}" if run.get("items", 0) > 1 else "last attempt"
        yield f"{place}: {error_text(work['error'])}"
    if len(failed) > MOST_LISTED:
        yield f"and {len(failed) - MOST_LISTED} more with errors"
    yield from _unsettled(step_id, items)


def _unsettled(step_id: str, items: Iterable[WorkItem]) -> Iterator[str]:
    """How to go on with items whose outcome is unknown, and that the engine does not repeat."""
    held = [work for work in items if work["status"] == "not_completed" and work["hold"] in UNKNOWN_HOLDS]
    if len(held) == 1:
        yield f"find out whether it had an effect, and settle it: counterfoil reconcile show {held[0]['work_id']}"
    elif held:
        yield f"find out whether {len(held)} items had an effect: counterfoil reconcile list --step {step_id}"


def _by_state(items: Iterable[WorkItem]) -> str:
    count = Counter(work["status"] for work in items)
    return ", ".join(f"{count[status]} {status}" for status in _STATES_IN_ORDER if count[status])


def _sub_flows(items: Iterable[WorkItem]) -> Iterator[str]:
    """The sub-flows of a step, open and failed ones first."""
    calm = ("succeeded", "cancelled")
    found = sorted((work for work in items if work.get("child_flow_id")), key=lambda work: work["status"] in calm)
    for work in found[:MOST_LISTED]:
        yield f"sub-flow {work.get('child_flow_id')}: {work['status']}"
    if len(found) > MOST_LISTED:
        yield f"and {len(found) - MOST_LISTED} more sub-flows"


# Compensation -----------------------------------------------------------------------------------------------------


def _compensation_lines(flow: Flow, width: int, name_width: int) -> list[str]:
    entries = flow.get("compensation") or []
    if not entries:
        return []
    lines = ["", "compensation, in reverse order of completion"]
    for entry in entries:
        lines.append(_head(MARKS.get(entry["status"], "?"), entry["step_id"], entry["status"], name_width, width))
        run = flow["steps"].get(entry["step_id"])
        undoing = _present_undoing(run) if run else []
        if len(undoing) > 1:
            lines += _wrapped([f"items: {_by_state(undoing)}"], width, " ")
        faults = [error_text(work["error"]) for work in undoing if work["error"]]
        lines += _wrapped([f"error: {text}" for text in dict.fromkeys(faults[:MOST_LISTED])], width, " ")
    return lines

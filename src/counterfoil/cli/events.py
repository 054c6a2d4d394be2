"""Journal events as text: one event per line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterfoil.cli.output import compact, error_text, print_line

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Event


_STYLES = {
    "succeeded": "green",
    "completed": "green",
    "compensated": "green",
    "failed": "red",
    "not_compensated": "red",
    "cancelled": "dim red",
    "not_completed": "yellow",
    "undelivered": "yellow",
    "compensating": "yellow",
    "skipped": "dim",
}


_TIME, _KIND = 14, 22
"""The widths of the first two columns."""


def print_event(event: Event) -> None:
    """Print one event of the journal on one line, or on several if the terminal is narrow."""
    print_line(event_line(event), hang=_TIME + _KIND)


def event_line(event: Event) -> Text:
    """One event of the journal on one line."""
    from rich.text import Text

    kind = event["type"]
    subject, _, change = kind.partition("_")
    style = _STYLES.get(change, "")
    line = Text(f"{event['at'][11:23]:<{_TIME}}", style="dim")
    line.append(f"{kind:<{_KIND}}", style=style or ("bold" if subject == "flow" else ""))
    parts = [event["step_id"] or "", f"attempt {event['attempt']}" if event["attempt"] else "", event_note(event)]
    line.append("  ".join(part for part in parts if part), style="")
    return line


def event_note(event: Event) -> str:
    """The most useful parts of an event's data; --json prints all of it."""
    data = event["data"] or {}
    error, outputs, progress = data.get("error"), data.get("outputs"), data.get("progress")
    notes = [
        error_text(error) if isinstance(error, dict) else "",
        compact(outputs, 80) if outputs else "",
        "" if progress is None else f"{progress:.0%}",
        str(data.get("message") or data.get("note") or ""),
        f"next attempt at {data['next_attempt_at'][11:23]}" if data.get("next_attempt_at") else "",
        f"deadline {data['deadline_at'][11:23]}"
        if event["type"] == "work_dispatched" and data.get("deadline_at")
        else "",
        compact(data.get("init"), 80) if event["type"] == "flow_started" else "",
        f"{data['items']} items" if data.get("items", 1) != 1 else "",
        f"sub-flow {data['child_flow_id']}" if data.get("child_flow_id") else "",
        f"compensates {' '.join(data['steps'])}" if event["type"] == "flow_compensating" else "",
        _decision(data) if event["type"] == "gate_decided" else "",
        _about_effect(event["type"], data),
        str(data.get("reason") or ""),
        _reviewed(data["review"]) if isinstance(data.get("review"), dict) else "",
    ]
    return ", ".join(note for note in notes if note)


def _decision(data: dict[str, Any]) -> str:
    """The decision of a gate call, and its caller."""
    return f"{data['decision']}{' (cached)' if data.get('cached') else ''} for {data.get('by')}"


def _about_effect(kind: str, data: dict[str, Any]) -> str:
    """What became known of the effect of an attempt, or whose result a work item takes."""
    if kind == "work_reconciled":
        return f"{data.get('outcome')}, settled by {data.get('by')}"
    if kind == "work_probed":
        return f"status_url: {data.get('state')}"
    if kind in ("dedup_wait", "dedup_hit"):
        return f"{'waits for' if kind == 'dedup_wait' else 'takes'} the result of {data.get('dedup_of')}"
    hold = data.get("hold")
    return f"held for reconciliation ({data.get('cause')})" if hold in ("reconcile", "unsafe_once") else ""


def _reviewed(review: dict[str, Any]) -> str:
    comment = review.get("comment")
    return f"by {review.get('by')}" + (f": {comment}" if comment else "")

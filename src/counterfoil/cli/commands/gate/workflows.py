"""``counterfoil workflow``: the workflows of agents and the states of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from counterfoil.cli.arguments import json_flag, paged, pairs
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import (
    compact,
    error_text,
    is_narrow,
    print_facts,
    print_json,
    print_more,
    print_table,
    status_text,
    when,
)

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import WorkflowStep

STATUSES = ["in_progress", "completed", "failed", "aborted"]


@click.group()
def workflow() -> None:
    """List and show the workflows of agents and their steps."""


@workflow.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only workflows in this state.")
@click.option("--source", help="Only workflows of this source, such as langgraph.")
@click.option("--trace", "trace_id", help="Only workflows of this trace.")
@click.option("-l", "--label", metavar="NAME=VALUE", help="Only workflows with this label.")
@paged()
@connected
def list_workflows(
    connection: EngineConnection,
    status: str | None,
    source: str | None,
    trace_id: str | None,
    label: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List workflows, newest first."""
    wanted = None if label is None else next(iter(pairs([label], "--label").items()))
    page = connection.call(
        lambda client: client.list_workflows(
            status=status, source=source, trace_id=trace_id, label=wanted, cursor=cursor, limit=limit
        )
    )
    if as_json:
        print_json(page)
        return
    rows = [
        (
            item["workflow_id"],
            item["workflow_name"] or "",
            status_text(item["status"]),
            when(item["created_at"]),
            item["started_by"] or "",
            error_text(item["error"]),
        )
        for item in page["workflows"]
    ]
    print_table(("WORKFLOW", "NAME", "STATUS", "STARTED", "BY", "ERROR"), rows, empty="no matching workflow")
    print_more(page)


@workflow.command()
@click.argument("workflow_id")
@json_flag
@connected
def show(connection: EngineConnection, workflow_id: str, as_json: bool) -> None:
    """Show a workflow with its steps, in the order of their first gate calls."""
    item = connection.call(lambda client: client.get_workflow(workflow_id))
    if as_json:
        print_json(item)
        return
    by = f" by {item['started_by']}" if item["started_by"] else ""
    print_facts(
        [
            ("workflow", item["workflow_id"]),
            ("name", item["workflow_name"]),
            ("source", item["source"]),
            ("status", status_text(item["status"])),
            ("started", f"{when(item['created_at'])}{by}"),
            ("ended", when(item["completed_at"]) or None),
            ("trace", item["trace_id"]),
            ("metadata", compact(item["metadata"]) or None),
            ("error", error_text(item["error"]) or None),
        ]
    )
    click.echo()
    columns = ["STEP", "STATE", "CALLS", "DONE", "LAST CALL", "KEY", "NOTE"]
    if is_narrow():
        columns = ["STEP", "STATE", "CALLS", "NOTE"]
    rows = [[cells[name] for name in columns] for cells in map(_cells, item["steps"])]
    print_table(columns, rows, empty="no gate call yet")


def _cells(step: WorkflowStep) -> dict[str, str | Text]:
    return {
        "STEP": step["step_id"],
        "STATE": status_text(_state(step)),
        "CALLS": str(step["gate_count"]),
        "DONE": str(step["completion_count"]),
        "LAST CALL": when(step["last_attempt_at"]),
        "KEY": step["idempotency_key"],
        "NOTE": _note(step),
    }


def _state(step: WorkflowStep) -> str:
    """A step's state as an agent sees it."""
    status = step["work_status"]
    if status == "succeeded":
        return "completed"
    if status == "held":
        return "require_approval"
    if step["decision"] == "block":
        return "block"
    return {"pending": "allow", "active": "running", "not_completed": "gated_not_completed"}.get(status, status)


def _note(step: WorkflowStep) -> str:
    if step["work_status"] == "held":
        return f"approval {step['approval_id']}: {step['reason'] or ''}".rstrip(": ")
    if step["claim"] is not None:
        return f"claimed by {step['claim']['holder']}, expires {when(step['claim']['lease_expires_at'])}"
    if step["work_status"] == "succeeded":
        return when(step["completed_at"])
    return error_text(step["error"])

"""``counterfoil work``: list and redrive work items of all flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
from counterfoil.cli.times import since_option, since_time, until_option
from counterfoil.cli.waiting import hold_sentence, waits_for

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import WorkItem

WORK_STATUSES = ["pending", "held", "active", "not_completed", "succeeded", "failed", "cancelled"]
UNREPORTED = "gated_not_completed"
"""A filter, not a state: allowed steps of agents without a report and without a live claim."""

_TIMES = ("planned_at", "approved_at", "started_at", "acknowledged_at", "finished_at")
_OLDER_NAMES = {"started_at": "sent_at", "finished_at": "ended_at"}
"""What an engine of an earlier version calls these times."""


@click.group(short_help="List and redrive work items.")
def work() -> None:
    """List and show work items of all flows; redrive failed ones."""


@work.command("list")
@click.option("--status", type=click.Choice([*WORK_STATUSES, UNREPORTED]), help="Only work in this state.")
@click.option("--step", "step_id", help="Only work of this step.")
@click.option("--overdue", is_flag=True, help="Only work past its deadline or its next attempt.")
@paged()
@connected
def list_work(
    connection: EngineConnection,
    status: str | None,
    step_id: str | None,
    overdue: bool,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List work items."""
    page = connection.call(
        lambda client: client.work(status=status, step=step_id, overdue=overdue, cursor=cursor, limit=limit)
    )
    if as_json:
        print_json(page)
        return
    columns = ["WORK", "STEP", "STATUS", "ATTEMPT", "WAITS FOR", "CREATED", "FLOW"]
    if is_narrow():
        columns.remove("CREATED")
    rows = [[cells[name] for name in columns] for cells in map(_cells, page["work"])]
    print_table(columns, rows, empty="no matching work item")
    print_more(page)


@work.command()
@click.argument("work_id")
@json_flag
@connected
def show(connection: EngineConnection, work_id: str, as_json: bool) -> None:
    """Show a work item with its attempts."""
    item = connection.call(lambda client: client.work_item(work_id))
    if as_json:
        print_json(item)
        return
    unmeasured = item.copy()
    unmeasured["progress"] = None  # shown on a line of its own
    print_facts(
        [
            ("work", item["work_id"]),
            ("flow", item.get("flow_id")),
            ("step", item.get("step_id")),
            ("redrive of", item.get("redrive_of")),
            ("compensates", item.get("undoes")),
            ("status", status_text(item["status"])),
            ("attempt", str(item["attempt"])),
            ("waits for", waits_for(unmeasured) or None),
            ("why", hold_sentence(item)),
            ("key", item.get("idempotency_key")),
            ("result of", item.get("dedup_of")),
            ("found by", "status_url" if item.get("probed") else None),
            ("progress", None if item["progress"] is None else f"{item['progress']:.0%} {item.get('message') or ''}"),
            ("created", when(item.get("created_at"))),
            ("recorded", when(item.get("recorded_at")) or None),
            ("outputs", compact(item["outputs"]) or None),
            ("error", error_text(item["error"]) or None),
        ]
    )
    click.echo()
    times = [name.removesuffix("_at").upper() for name in _TIMES]
    columns = ("ATTEMPT", "OUTCOME", "DELIVERY", "CAUSE", *times, "ERROR")
    print_table(columns, [_attempt(attempt) for attempt in item.get("attempts") or []], empty="no attempt yet")


@work.command(
    short_help="Redrive failed work: one item, or all that match a filter.",
    epilog="Example: counterfoil work redrive --step charge --error RETRIES_EXHAUSTED --since 2h --dry-run",
)
@click.argument("work_id", required=False)
@click.option("--step", "step_id", help="Only failed work of this step.")
@click.option("--error", "error_code", help="Only work that failed with this error code.")
@since_option("work that failed")
@until_option("work that failed")
@click.option("--label", metavar="NAME=VALUE", help="Only failed work of flows with this label.")
@click.option("--limit", type=click.IntRange(1, 10_000), help="Maximum number of items (default: 1000).")
@click.option("--dry-run", is_flag=True, help="Show what would be redriven, and redrive nothing.")
@json_flag
@connected
def redrive(
    connection: EngineConnection,
    work_id: str | None,
    step_id: str | None,
    error_code: str | None,
    since: str | None,
    until: str | None,
    label: str | None,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replace WORK_ID, or all failed work that matches the options, by new work items.

    Their flows continue from there; completed steps are kept.
    """
    wanted = {"step_id": step_id, "error_code": error_code, "since": since_time(since), "until": since_time(until)}
    filters = {name: value for name, value in wanted.items() if value is not None}
    if label is not None:
        filters["label"] = ":".join(next(iter(pairs([label], "--label").items())))
    if work_id is not None:
        if filters or dry_run or limit is not None:
            raise click.UsageError("give a WORK_ID or a filter, not both")
        _redrive_one(connection, work_id, as_json)
        return
    if not filters:
        raise click.UsageError("give a WORK_ID, or at least one of --step, --error, --since, --until and --label")
    document = connection.call(lambda client: client.redrive_matching(filters, limit=limit, dry_run=dry_run))
    if as_json:
        print_json(document)
        return
    done = "would be redriven" if dry_run else f"matched, {document['redriven']} redriven"
    click.echo(f"{document['matched']} failed work items {done}, in {len(document['flows'])} flows")


def _redrive_one(connection: EngineConnection, work_id: str, as_json: bool) -> None:
    document = connection.call(lambda client: client.redrive_work(work_id))
    if as_json:
        print_json(document)
    else:
        click.echo(f"work item {document['work_id']} replaces {work_id}")


def _cells(item: WorkItem) -> dict[str, str | Text]:
    return {
        "WORK": item["work_id"],
        "STEP": item.get("step_id", ""),
        "STATUS": status_text(item["status"]),
        "ATTEMPT": str(item["attempt"]),
        "WAITS FOR": waits_for(item),
        "CREATED": when(item.get("created_at")),
        "FLOW": item.get("flow_id", ""),
    }


def _attempt(attempt: Mapping[str, Any]) -> list[str]:
    error = attempt.get("error")
    return [
        str(attempt.get("attempt", "")),
        *(str(attempt.get(name) or "") for name in ("outcome", "delivery", "cause")),
        *(str(attempt.get(name) or attempt.get(_OLDER_NAMES.get(name, "")) or "")[11:23] for name in _TIMES),
        error_text(error) if isinstance(error, dict) else str(error or ""),
    ]

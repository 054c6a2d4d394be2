"""``counterfoil work``: work items over all flows, for people who look after them."""

from __future__ import annotations

from typing import Any

import click

from counterfoil.cli.connection import Connection, connected
from counterfoil.cli.flows import waits_for
from counterfoil.cli.output import compact, error_text, print_facts, print_json, print_table, status_text, when

WORK_STATUSES = ["pending", "held", "active", "not_completed", "succeeded", "failed", "cancelled"]


@click.group()
def work() -> None:
    """See what is waiting, for what, and since when."""


@work.command("list")
@click.option("--status", type=click.Choice(WORK_STATUSES))
@click.option("--step", "step_id", help="Only work of this step.")
@click.option("--overdue", is_flag=True, help="Only work past its deadline or its next attempt.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Go on where the last page ended.")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def list_work(
    connection: Connection,
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
    rows = [
        (
            item["work_id"],
            item.get("step_id", ""),
            status_text(item["status"]),
            str(item["attempt"]),
            waits_for(item["status"], item["next_attempt_at"], item["deadline_at"], item["progress"]),
            when(item.get("created_at")),
            item.get("flow_id", ""),
        )
        for item in page["work"]
    ]
    columns = ("WORK", "STEP", "STATUS", "ATTEMPT", "WAITS FOR", "CREATED", "FLOW")
    print_table(columns, rows, empty="no work item fits")
    if page["next_cursor"]:
        click.echo(f"more: --cursor {page['next_cursor']}", err=True)


@work.command()
@click.argument("work_id")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def show(connection: Connection, work_id: str, as_json: bool) -> None:
    """Show a work item with its attempts."""
    item = connection.call(lambda client: client.work_item(work_id))
    if as_json:
        print_json(item)
        return
    print_facts(
        [
            ("work", item["work_id"]),
            ("flow", item.get("flow_id")),
            ("step", item.get("step_id")),
            ("status", status_text(item["status"])),
            ("attempt", str(item["attempt"])),
            ("waits for", waits_for(item["status"], item["next_attempt_at"], item["deadline_at"], None) or None),
            ("progress", None if item["progress"] is None else f"{item['progress']:.0%} {item.get('message') or ''}"),
            ("created", when(item.get("created_at"))),
            ("recorded", when(item.get("recorded_at")) or None),
            ("outputs", compact(item["outputs"]) or None),
            ("error", error_text(item["error"]) or None),
        ]
    )
    click.echo()
    columns = ("ATTEMPT", "SENT", "ACKNOWLEDGED", "ENDED", "OUTCOME", "DELIVERY", "ERROR")
    print_table(columns, [_attempt(attempt) for attempt in item.get("attempts") or []], empty="no attempt yet")


def _attempt(attempt: dict[str, Any]) -> list[str]:
    times = [str(attempt.get(name) or "")[11:23] for name in ("sent_at", "acknowledged_at", "ended_at")]
    error = attempt.get("error")
    return [
        str(attempt.get("attempt", "")),
        *times,
        str(attempt.get("outcome") or ""),
        str(attempt.get("delivery") or ""),
        error_text(error) if isinstance(error, dict) else str(error or ""),
    ]

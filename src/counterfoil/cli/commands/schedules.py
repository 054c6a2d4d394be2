"""``counterfoil schedule``: manage schedules, which start flows by the clock."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from counterfoil.cli.arguments import json_flag, json_object, json_pairs
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import error_text, print_json, print_table, when

if TYPE_CHECKING:
    from counterfoil.client import Client, Schedule

DEFINITION = ("cron", "timezone", "every_ms", "flow", "catch_up", "enabled")
"""The fields of a schedule's definition; the engine computes the others."""


@click.group()
def schedule() -> None:
    """Create, show, pause and delete schedules."""


@schedule.command("list")
@json_flag
@connected
def list_schedules(connection: EngineConnection, as_json: bool) -> None:
    """List the schedules: the next and the last tick of each, and its last error."""
    schedules = connection.call(_all)
    if as_json:
        print_json({"schedules": schedules})
        return
    rows = [
        (item["schedule_id"], _rhythm(item), _next(item), when(item["last_at"]), error_text(item["last_error"]))
        for item in schedules
    ]
    columns = ("SCHEDULE", "TIMES", "NEXT", "LAST", "LAST ERROR")
    print_table(columns, rows, empty="no schedule: `counterfoil schedule put` creates one")


@schedule.command()
@click.argument("schedule_id")
@connected
def show(connection: EngineConnection, schedule_id: str) -> None:
    """Show a schedule with its next ticks, as JSON."""
    print_json(connection.call(lambda client: client.get_schedule(schedule_id)))


@schedule.command(
    short_help="Create or change a schedule.",
    epilog="Example: counterfoil schedule put news --cron '0 6 * * MON-FRI' --timezone Europe/Vienna --goal transcribe",
)
@click.argument("schedule_id")
@click.argument("file", type=click.File("r"), required=False)
@click.option("--cron", help="Cron expression: [second] minute hour day-of-month month day-of-week.")
@click.option("--timezone", help="Time zone of the cron expression (default: UTC).")
@click.option("--every-ms", type=int, help="Interval in milliseconds, instead of --cron.")
@click.option("--goal", "goals", multiple=True, metavar="STEP", help="A goal of the flow; may be repeated.")
@click.option("--init", multiple=True, metavar="NAME=VALUE", help="An input of the flow; may be repeated.")
@click.option("--catch-up", type=click.Choice(["skip", "one", "all"]), help="How to handle missed ticks.")
@json_flag
@connected
def put(
    connection: EngineConnection,
    schedule_id: str,
    file: IO[str] | None,
    cron: str | None,
    timezone: str | None,
    every_ms: int | None,
    goals: tuple[str, ...],
    init: tuple[str, ...],
    catch_up: str | None,
    as_json: bool,
) -> None:
    """Create or change a schedule: from FILE (JSON, - for stdin), from the options, or both."""
    definition = json_object(file.read(), "FILE") if file is not None else {}
    given = {"cron": cron, "timezone": timezone, "every_ms": every_ms, "catch_up": catch_up}
    definition.update({field: value for field, value in given.items() if value is not None})
    flow: dict[str, Any] = {"goals": list(goals)} if goals else {}
    if init:
        flow["init"] = json_pairs(init, "--init")
    if flow:
        definition["flow"] = {**_object(definition.get("flow")), **flow}
    if not definition:
        raise click.UsageError("give a FILE with the definition, or --goal with --cron or --every-ms")
    document = connection.call(lambda client: client.put_schedule(schedule_id, definition))
    if as_json:
        print_json(document)
    else:
        click.echo(f"schedule {schedule_id}: {_rhythm(document)}, next {_next(document)}")


@schedule.command()
@click.argument("schedule_id")
@connected
def pause(connection: EngineConnection, schedule_id: str) -> None:
    """Pause a schedule: it starts nothing until it is resumed."""
    connection.call(lambda client: _enable(client, schedule_id, enabled=False))
    click.echo(f"schedule {schedule_id} is paused")


@schedule.command()
@click.argument("schedule_id")
@connected
def resume(connection: EngineConnection, schedule_id: str) -> None:
    """Resume a schedule; ticks missed during the pause are not caught up."""
    document = connection.call(lambda client: _enable(client, schedule_id, enabled=True))
    click.echo(f"schedule {schedule_id} is resumed, next {_next(document)}")


@schedule.command()
@click.argument("schedule_id")
@connected
def delete(connection: EngineConnection, schedule_id: str) -> None:
    """Delete a schedule. Flows it has started continue."""
    connection.call(lambda client: client.delete_schedule(schedule_id))
    click.echo(f"schedule {schedule_id} is deleted")


async def _all(client: Client) -> list[Schedule]:
    """Every schedule, page by page."""
    page = await client.schedules(limit=1000)
    found = page["schedules"]
    while page["next_cursor"]:
        page = await client.schedules(cursor=page["next_cursor"], limit=1000)
        found += page["schedules"]
    return found


async def _enable(client: Client, schedule_id: str, *, enabled: bool) -> Schedule:
    """PUT the unchanged schedule with another value of enabled."""
    document: dict[str, Any] = {**await client.get_schedule(schedule_id)}
    definition = {name: document[name] for name in DEFINITION}
    return await client.put_schedule(schedule_id, {**definition, "enabled": enabled})


def _rhythm(item: Schedule) -> str:
    return f"every {item['every_ms']} ms" if item["cron"] is None else f"{item['cron']} ({item['timezone']})"


def _next(item: Schedule) -> str:
    return when(item["next_at"]) or ("never" if item["enabled"] else "paused")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

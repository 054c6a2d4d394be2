"""``counterfoil flow``: start flows, look at them, follow them, cancel them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any

import click

from counterfoil.cli.connection import Connection, connected, json_object, json_pairs, pairs
from counterfoil.cli.output import (
    CommandFailed,
    compact,
    error_text,
    print_facts,
    print_json,
    print_table,
    status_text,
    stdout_console,
    when,
)

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Client, Event, Flow, FlowResult
    from counterfoil.client.documents import FlowSummary

FLOW_STATUSES = ["active", "compensating", "completed", "failed", "cancelled"]
OPEN_STATUSES = ("active", "compensating")

_AGO = re.compile(r"^([0-9]+)([smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.group()
def flow() -> None:
    """Start flows, follow them and see how they ended."""


@flow.command(
    short_help="Start a flow and print its id.",
    epilog="Example: counterfoil flow start resize --init image=cat.png --init width=640 --wait 30",
)
@click.argument("goals", nargs=-1, required=True)
@click.option("-i", "--init", multiple=True, metavar="NAME=VALUE", help="An input; JSON where it is JSON, else text.")
@click.option("--init-file", type=click.File("r"), help="All inputs as a JSON object (- for stdin).")
@click.option("--id", "flow_id", help="An id of your own; a second start with it is refused.")
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="A label to find the flow by.")
@click.option("-m", "--metadata", multiple=True, metavar="NAME=VALUE", help="Metadata for the steps.")
@click.option("--wait", type=click.FloatRange(min=0), help="Wait so many seconds for the end, then as `flow result`.")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def start(
    connection: Connection,
    goals: tuple[str, ...],
    init: tuple[str, ...],
    init_file: IO[str] | None,
    flow_id: str | None,
    label: tuple[str, ...],
    metadata: tuple[str, ...],
    wait: float | None,
    as_json: bool,
) -> None:
    """Start a flow towards one or more GOALS (step ids) and print its id."""
    inputs = json_object(init_file.read(), "--init-file") if init_file is not None else {}
    inputs.update(json_pairs(init, "--init"))
    labels, extra = pairs(label, "--label"), json_pairs(metadata, "--metadata")

    async def begin(client: Client) -> tuple[Any, FlowResult | None]:
        started = await client.start_flow(goals, inputs, flow_id=flow_id, labels=labels, metadata=extra)
        return started, None if wait is None else await client.result(started["flow_id"], wait)

    started, result = connection.call(begin)
    if result is not None:
        _finish(result, as_json)
    elif as_json:
        print_json(started)
    else:
        click.echo(started["flow_id"])


@flow.command("list")
@click.option("--status", type=click.Choice(FLOW_STATUSES))
@click.option("--label", metavar="NAME=VALUE", help="Only flows with this label.")
@click.option("--goal", help="Only flows with this goal.")
@click.option("--since", help="Only flows started since a time (2026-11-16T12:00:00Z) or for so long (15m, 2h, 1d).")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", help="Go on where the last page ended.")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def list_flows(
    connection: Connection,
    status: str | None,
    label: str | None,
    goal: str | None,
    since: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List flows, newest first."""
    wanted = next(iter(pairs([label], "--label").items())) if label else None
    page = connection.call(
        lambda client: client.flows(
            status=status, label=wanted, goal=goal, since=_since(since), cursor=cursor, limit=limit
        )
    )
    if as_json:
        print_json(page)
        return
    rows = [
        (item["flow_id"], status_text(item["status"]), " ".join(item["goals"]), when(item["created_at"]), _end(item))
        for item in page["flows"]
    ]
    print_table(("FLOW", "STATUS", "GOALS", "STARTED", "RESULT"), rows, empty="no flow fits")
    if page["next_cursor"]:
        click.echo(f"more: --cursor {page['next_cursor']}", err=True)


@flow.command()
@click.argument("flow_id")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def show(connection: Connection, flow_id: str, as_json: bool) -> None:
    """Show a flow with its steps and their work items."""
    document = connection.call(lambda client: client.flow(flow_id))
    if as_json:
        print_json(document)
        return
    print_facts(
        [
            ("flow", document["flow_id"]),
            ("status", status_text(document["status"])),
            ("goals", " ".join(document["goals"])),
            ("started", when(document["created_at"])),
            ("ended", when(document["finished_at"]) or None),
            ("labels", compact(document["labels"]) or None),
            ("init", compact(document["init"]) or None),
            ("outputs", compact(document["outputs"]) or None),
            ("error", error_text(document["error"]) or None),
        ]
    )
    click.echo()
    columns = ("WORK", "STEP", "STATUS", "ATTEMPT", "WAITS FOR", "RESULT")
    print_table(columns, _work_rows(document), empty="no work item yet")


@flow.command()
@click.argument("flow_id")
@click.option("--limit", type=click.IntRange(1, 1000), default=200, show_default=True)
@click.option("--cursor", help="Go on where the last page ended.")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def events(connection: Connection, flow_id: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """Show a flow's journal, oldest first."""
    page = connection.call(lambda client: client.events(flow_id, cursor=cursor, limit=limit))
    if as_json:
        print_json(page)
        return
    for event in page["events"]:
        stdout_console().print(event_line(event), soft_wrap=True)
    if page["next_cursor"]:
        click.echo(f"more: --cursor {page['next_cursor']}", err=True)


@flow.command(short_help="Follow a flow until it ends.")
@click.argument("flow_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON event a line.")
@connected
def watch(connection: Connection, flow_id: str, as_json: bool) -> None:
    """Follow a flow's journal from its start until it ends; exit code 1 unless it completes."""
    console = stdout_console()

    async def follow(client: Client) -> FlowResult:
        async for event in client.stream(flow_id, after=0):
            if as_json:
                print_json(event, indent=None)
            else:
                console.print(event_line(event), soft_wrap=True)
        return await client.result(flow_id, 0)

    result = connection.call(follow)
    if result["status"] != "completed":
        raise _ended_otherwise(result)


@flow.command(short_help="Wait for a flow's end and print its outputs.")
@click.argument("flow_id")
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait for it.")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def result(connection: Connection, flow_id: str, wait: float, as_json: bool) -> None:
    """Wait for a flow's end and print its outputs (JSON); exit code 1 unless it completes."""
    _finish(connection.call(lambda client: client.result(flow_id, wait)), as_json)


@flow.command(short_help="Cancel a flow.")
@click.argument("flow_id")
@click.option("--json", "as_json", is_flag=True, help="The engine's JSON.")
@connected
def cancel(connection: Connection, flow_id: str, as_json: bool) -> None:
    """Cancel a flow: its open work is cancelled, and late results are refused."""
    document = connection.call(lambda client: client.cancel(flow_id))
    if as_json:
        print_json(document)
    else:
        click.echo(f"flow {flow_id} is {document['status']}")


def event_line(event: Event) -> Text:
    """One event of the journal on one line."""
    from rich.text import Text

    kind = event["type"]
    subject, _, change = kind.partition("_")
    style = {"succeeded": "green", "completed": "green", "failed": "red", "cancelled": "dim red"}.get(
        change, "yellow" if change in ("not_completed", "undelivered") else ""
    )
    line = Text(f"{event['at'][11:23]}  ", style="dim")
    line.append(f"{kind:<20}", style=style or ("bold" if subject == "flow" else ""))
    parts = [event["step_id"] or "", f"attempt {event['attempt']}" if event["attempt"] else "", event_note(event)]
    line.append("  ".join(part for part in parts if part), style="")
    return line


def event_note(event: Event) -> str:
    """What a person wants to know of an event's data; --json has all of it."""
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
    ]
    return ", ".join(note for note in notes if note)


def _finish(result: FlowResult, as_json: bool) -> None:
    if as_json:
        print_json(result)
        if result["status"] != "completed":
            raise click.exceptions.Exit(1)
        return
    if result["status"] != "completed":
        raise _ended_otherwise(result)
    print_json(result.get("outputs") or {})


def _ended_otherwise(result: FlowResult) -> CommandFailed:
    flow_id, status = result["flow_id"], result["status"]
    if status in OPEN_STATUSES:
        return CommandFailed(
            f"flow {flow_id} is still {status}; `counterfoil flow show {flow_id}` says what it waits for"
        )
    reason = error_text(result.get("error"))
    text = f"flow {flow_id} {'was cancelled' if status == 'cancelled' else status}"
    return CommandFailed(
        f"{text}{': ' + reason if reason else ''}; `counterfoil flow events {flow_id}` tells the story"
    )


def _work_rows(document: Flow) -> list[tuple[str | Text, ...]]:
    return [
        (
            item["work_id"],
            step_id,
            status_text(item["status"]),
            str(item["attempt"]),
            waits_for(item["status"], item["next_attempt_at"], item["deadline_at"], item["progress"]),
            error_text(item["error"]) or compact(item["outputs"], 60),
        )
        for step_id, run in document["steps"].items()
        for item in run["work"]
    ]


def waits_for(status: str, next_attempt_at: str | None, deadline_at: str | None, progress: float | None) -> str:
    """What a work item waits for, and until when."""
    if status == "not_completed" and next_attempt_at:
        return f"retry {when(next_attempt_at)}"
    if status == "active" and deadline_at:
        done = "" if progress is None else f"{progress:.0%}, "
        return f"{done}deadline {when(deadline_at)}"
    return {"pending": "its turn", "held": "an approval"}.get(status, "")


def _end(item: FlowSummary) -> str:
    return error_text(item.get("error")) or compact(item.get("outputs"), 60)


def _since(text: str | None) -> str | None:
    """A time as the engine takes it, from one or from a length of time."""
    if text is None:
        return None
    ago = _AGO.match(text)
    if ago:
        moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return text

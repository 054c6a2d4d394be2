"""``counterfoil flow``: start, show, follow, cancel and redrive flows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import click

from counterfoil.cli.arguments import inputs_of, json_flag, json_pairs, paged, pairs, signal_of
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.events import print_event
from counterfoil.cli.graph import MARKS, flow_lines
from counterfoil.cli.output import (
    STATUS_STYLES,
    CommandFailed,
    compact,
    error_text,
    is_narrow,
    print_facts,
    print_json,
    print_more,
    print_table,
    status_text,
    stdout_console,
    text_width,
    when,
)
from counterfoil.cli.times import milliseconds, since_option, since_time
from counterfoil.cli.waiting import waits_for

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Client, Flow, FlowResult, WorkItem
    from counterfoil.client.calls.runs import ConflictStrategy
    from counterfoil.client.documents import FlowSummary

FLOW_STATUSES = ["active", "compensating", "completed", "failed", "cancelled"]
OPEN_STATUSES = ("active", "compensating")
MOST_WORK = 20
"""How many work items are listed with a flow; failed and open ones come first."""

_CALM = ("succeeded", "cancelled")


@click.group()
def flow() -> None:
    """Start, show, follow, cancel and redrive flows."""


@flow.command(
    short_help="Start a flow and print its id.",
    epilog="Example: counterfoil flow start resize --init image=cat.png --init width=640 --wait 30",
)
@click.argument("goals", nargs=-1, required=True)
@click.option(
    "-i",
    "--init",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input; parsed as JSON if possible, otherwise a string.",
)
@click.option("--init-file", type=click.File("r"), help="All inputs as a JSON object (- for stdin).")
@click.option("--id", "flow_id", help="Flow id of your choice; a duplicate is refused.")
@click.option("-l", "--label", multiple=True, metavar="NAME=VALUE", help="A label to find the flow by.")
@click.option("-m", "--metadata", multiple=True, metavar="NAME=VALUE", help="Metadata for the steps.")
@click.option(
    "--init-key",
    multiple=True,
    metavar="STEP=KEY",
    help="An idempotency key for a step, in place of the one that the engine makes.",
)
@click.option("-k", "--idempotency-key", help="Run key: at most one flow with this key is active.")
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "adopt", "signal", "supersede"]),
    help="What happens while another flow owns the run key (default: reject).",
)
@click.option(
    "--retain-key-for",
    help="How long after its end the same start returns this flow: 30s, 15m, 2h, 1d (default: 0).",
)
@click.option("--retain-failed", is_flag=True, help="Retain the run key after a failure or a cancellation, too.")
@click.option(
    "--signal",
    metavar="HOOK=JSON",
    help="A payload for a hook of the flow, or with --on-conflict signal of the flow that owns the run key.",
)
@click.option("--delivery-id", help="A name for the signal: the same one is delivered once.")
@click.option("--deadline", help="Deadline of the flow: 500ms, 30s, 15m, 2h, 1d.")
@click.option(
    "--on-deadline", type=click.Choice(["fail", "cancel"]), help="What happens at the deadline (default: fail)."
)
@click.option("--no-compensate", is_flag=True, help="Do not compensate if the flow fails.")
@click.option("--wait", type=click.FloatRange(min=0), help="Wait up to this many seconds, then print the result.")
@json_flag
@connected
def start(
    connection: EngineConnection,
    goals: tuple[str, ...],
    init: tuple[str, ...],
    init_file: IO[str] | None,
    flow_id: str | None,
    label: tuple[str, ...],
    metadata: tuple[str, ...],
    init_key: tuple[str, ...],
    idempotency_key: str | None,
    on_conflict: str | None,
    retain_key_for: str | None,
    retain_failed: bool,
    signal: str | None,
    delivery_id: str | None,
    deadline: str | None,
    on_deadline: str | None,
    no_compensate: bool,
    wait: float | None,
    as_json: bool,
) -> None:
    """Start a flow towards one or more GOALS (step ids) and print its id."""
    if on_deadline and not deadline:
        raise click.UsageError("--on-deadline needs --deadline")
    if delivery_id and not signal:
        raise click.UsageError("--delivery-id needs --signal")
    sent = signal_of(signal, delivery_id)
    inputs = inputs_of(init, init_file)
    labels, extra = pairs(label, "--label"), json_pairs(metadata, "--metadata")
    init_keys = pairs(init_key, "--init-key")
    deadline_ms = milliseconds(deadline, "--deadline")

    async def begin(client: Client) -> tuple[Any, FlowResult | None]:
        started = await client.start(
            goals,
            inputs,
            flow_id=flow_id,
            idempotency_key=idempotency_key,
            on_conflict=cast("ConflictStrategy | None", on_conflict),
            retain_key_for=retain_key_for,
            retain_failed=retain_failed or None,
            signal=sent,
            labels=labels,
            metadata=extra,
            init_keys=init_keys,
            deadline_ms=deadline_ms,
            on_deadline=cast('Literal["fail", "cancel"] | None', on_deadline),
            compensate=False if no_compensate else None,
        )
        return started, None if wait is None else await client.result(started["flow_id"], wait)

    started, result = connection.call(begin)
    if result is not None:
        _finish(result, as_json)
    elif as_json:
        print_json(started)
    else:
        click.echo(started["flow_id"])
        if note := _of_another_start(started):
            click.echo(note, err=True)


def _of_another_start(started: Any) -> str:
    """What the run key has to do with another flow; empty: nothing."""
    if started.get("reused"):
        signalled = ", and has the signal" if started.get("signalled") else ""
        return f"not started: this flow owns the run key, it is {started['status']}{signalled}"
    superseded = started.get("superseded")
    return f"superseded: flow {superseded} was cancelled" if superseded else ""


@flow.command("list")
@click.option("--status", type=click.Choice(FLOW_STATUSES), help="Only flows in this state.")
@click.option("--label", metavar="NAME=VALUE", help="Only flows with this label.")
@click.option("--goal", help="Only flows with this goal.")
@since_option("flows started")
@click.option("--idempotency-key", help="Only flows with this run key.")
@paged()
@connected
def list_flows(
    connection: EngineConnection,
    status: str | None,
    label: str | None,
    goal: str | None,
    since: str | None,
    idempotency_key: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List flows, newest first."""
    wanted = next(iter(pairs([label], "--label").items())) if label else None
    page = connection.call(
        lambda client: client.flows(
            status=status,
            label=wanted,
            goal=goal,
            since=since_time(since),
            idempotency_key=idempotency_key,
            cursor=cursor,
            limit=limit,
        )
    )
    if as_json:
        print_json(page)
        return
    rows = [
        (item["flow_id"], status_text(item["status"]), " ".join(item["goals"]), when(item["created_at"]), _end(item))
        for item in page["flows"]
    ]
    print_table(("FLOW", "STATUS", "GOALS", "STARTED", "RESULT"), rows, empty="no matching flow")
    print_more(page)


@flow.command(short_help="Show a flow: the graph of its steps, and its work.")
@click.argument("flow_id")
@json_flag
@connected
def show(connection: EngineConnection, flow_id: str, as_json: bool) -> None:
    """Show a flow: the graph of its steps with their states, its compensation and its work items."""
    document = connection.call(lambda client: client.flow(flow_id))
    if as_json:
        print_json(document)
        return
    parent = document.get("parent")
    print_facts(
        [
            ("flow", document["flow_id"]),
            ("status", status_text(document["status"])),
            ("goals", " ".join(document["goals"])),
            ("sub-flow of", f"step {parent['step_id']} of flow {parent['flow_id']}" if parent else None),
            ("run key", document.get("idempotency_key")),
            ("started", when(document["created_at"])),
            ("deadline", when(document.get("deadline_at")) or None),
            ("ended", when(document["finished_at"]) or None),
            ("labels", compact(document["labels"]) or None),
            ("init", compact(document["init"]) or None),
            ("outputs", compact(document["outputs"]) or None),
            ("error", error_text(document["error"]) or None),
        ]
    )
    click.echo()
    for line in flow_lines(document, datetime.now(UTC), text_width()):
        stdout_console().print(_coloured(line), soft_wrap=True)
    click.echo()
    _print_work(document)


@flow.command()
@click.argument("flow_id")
@paged(200)
@connected
def events(connection: EngineConnection, flow_id: str, limit: int, cursor: str | None, as_json: bool) -> None:
    """Show a flow's journal, oldest first."""
    page = connection.call(lambda client: client.events(flow_id, cursor=cursor, limit=limit))
    if as_json:
        print_json(page)
        return
    for event in page["events"]:
        print_event(event)
    print_more(page)


@flow.command(short_help="Follow a flow until it ends.")
@click.argument("flow_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON event per line.")
@connected
def watch(connection: EngineConnection, flow_id: str, as_json: bool) -> None:
    """Follow a flow's journal from its start until it ends; exit code 1 unless it completes."""

    async def follow(client: Client) -> FlowResult:
        async for event in client.stream(flow_id, after=0):
            if as_json:
                print_json(event, indent=None)
            else:
                print_event(event)
        return await client.result(flow_id, 0)

    result = connection.call(follow)
    if result["status"] != "completed":
        raise _ended_otherwise(result)


@flow.command(short_help="Wait for a flow to end and print its outputs.")
@click.argument("flow_id")
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Maximum seconds to wait.")
@json_flag
@connected
def result(connection: EngineConnection, flow_id: str, wait: float, as_json: bool) -> None:
    """Wait for a flow to end and print its outputs (JSON); exit code 1 unless it completes."""
    _finish(connection.call(lambda client: client.result(flow_id, wait)), as_json)


@flow.command(short_help="Cancel a flow.")
@click.argument("flow_id")
@click.option("--compensate", is_flag=True, help="Compensate completed steps that define a compensation.")
@json_flag
@connected
def cancel(connection: EngineConnection, flow_id: str, compensate: bool, as_json: bool) -> None:
    """Cancel a flow: its open work is cancelled, and late results are refused."""
    document = connection.call(lambda client: client.cancel(flow_id, compensate=compensate))
    if as_json:
        print_json(document)
    else:
        click.echo(f"flow {flow_id} is {document['status']}")


@flow.command(short_help="Redrive a failed flow.")
@click.argument("flow_id")
@json_flag
@connected
def redrive(connection: EngineConnection, flow_id: str, as_json: bool) -> None:
    """Redrive a failed flow: failed steps run again; completed steps are kept unless compensated."""
    document = connection.call(lambda client: client.redrive(flow_id))
    if as_json:
        print_json(document)
    else:
        count = len(document["work"])
        items = "1 new work item" if count == 1 else f"{count} new work items"
        click.echo(f"flow {flow_id} is {document['status']} again, with {items}")


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
            f"flow {flow_id} is still {status}; `counterfoil flow show {flow_id}` shows what it is waiting for"
        )
    reason = error_text(result.get("error"))
    text = f"flow {flow_id} {'was cancelled' if status == 'cancelled' else status}"
    return CommandFailed(
        f"{text}{': ' + reason if reason else ''}; `counterfoil flow events {flow_id}` shows its journal"
    )


def _coloured(line: str) -> Text:
    """A line of the graph with its mark and state in colour, if the terminal has colours."""
    from rich.text import Text

    text = Text(line)
    for status, mark in MARKS.items():
        if line.startswith(f"{mark} "):
            text.stylize(STATUS_STYLES[status], 0, 1)
            text.highlight_words([f"  {status}"], STATUS_STYLES[status])
    return text


def _print_work(document: Flow) -> None:
    """Print the work items of a flow, at most MOST_WORK of them."""
    items = [(step_id, item) for step_id, run in document["steps"].items() for item in run["work"]]
    if len(items) > MOST_WORK:
        items.sort(key=lambda pair: pair[1]["status"] in _CALM)
    columns = ("WORK", "STEP", "STATUS", "ATTEMPT", "WAITS FOR", "RESULT")
    shown = len(columns) - is_narrow()  # errors are in the graph already, and outputs above it
    rows = [_work_row(*pair)[:shown] for pair in items[:MOST_WORK]]
    print_table(columns[:shown], rows, empty="no work items")
    if len(items) > MOST_WORK:
        click.echo(f"{len(items) - MOST_WORK} more work items: use --json to see all", err=True)


def _work_row(step_id: str, item: WorkItem) -> tuple[str | Text, ...]:
    return (
        item["work_id"],
        f"{step_id} (compensation)" if item.get("undoes") else step_id,
        status_text(item["status"]),
        str(item["attempt"]),
        waits_for(item),
        error_text(item["error"]) or compact(item["outputs"], 60),
    )


def _end(item: FlowSummary) -> str:
    return error_text(item.get("error")) or compact(item.get("outputs"), 60)

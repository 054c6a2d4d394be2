"""``counterfoil callbacks``: what arrived at webhook, heartbeat and hook URLs, and how it was answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

import click

from counterfoil.cli.arguments import json_flag, paged
from counterfoil.cli.commands.hooks import what_became_of
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import print_facts, print_json, print_more, print_table, status_text, when
from counterfoil.cli.times import since_option, since_time, until_option

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Client
    from counterfoil.client.documents import Callback, CallbackPage

Kind = Literal["completion", "heartbeat", "hook"]
KINDS = ["completion", "heartbeat", "hook"]
MOST_EMPTY_PAGES = 100


@click.group(short_help="List, show and replay callbacks.")
def callbacks() -> None:
    """List, show and replay requests to webhook, heartbeat and hook URLs, accepted or refused."""


@callbacks.command(
    "list", epilog="Example: counterfoil callbacks list --flow FLOW_ID --since 2h --verdict UNKNOWN_RECEIPT"
)
@click.option("--flow", "flow_id", help="Only callbacks about this flow.")
@click.option("--step", "step_id", help="Only callbacks about this step.")
@click.option("--work", "work_id", help="Only callbacks about this work item.")
@click.option("--kind", type=click.Choice(KINDS), help="Only callbacks of this kind.")
@click.option("--verdict", help="Only this verdict: accepted, duplicate, stale, ignored, or an error code.")
@since_option("callbacks")
@until_option("callbacks")
@paged()
@connected
def list_callbacks(
    connection: EngineConnection,
    flow_id: str | None,
    step_id: str | None,
    work_id: str | None,
    kind: str | None,
    verdict: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List callbacks, newest first."""

    async def page_of(client: Client) -> CallbackPage:
        """The next page that is not empty, if there is one within reach."""
        page = await ask(client, cursor)
        for _ in range(MOST_EMPTY_PAGES):
            if page["callbacks"] or page["next_cursor"] is None:
                break
            page = await ask(client, page["next_cursor"])
        return page

    async def ask(client: Client, after: str | None) -> CallbackPage:
        return await client.callbacks(
            flow=flow_id,
            step=step_id,
            work=work_id,
            kind=cast("Kind | None", kind),
            verdict=verdict,
            since=since_time(since),
            until=since_time(until),
            cursor=after,
            limit=limit,
        )

    page = connection.call(page_of)
    if as_json:
        print_json(page)
        return
    columns = ("CALLBACK", "AT", "KIND", "VERDICT", "STATUS", "STEP", "FLOW", "SIZE", "SOURCE")
    print_table(columns, map(_row, page["callbacks"]), empty="no matching callback")
    print_more(page)


@callbacks.command()
@click.argument("callback_id")
@json_flag
@connected
def show(connection: EngineConnection, callback_id: str, as_json: bool) -> None:
    """Show a callback, with its body if the engine keeps bodies."""
    callback = connection.call(lambda client: client.callback(callback_id))
    if as_json:
        print_json(callback)
        return
    print_facts(_facts(callback))
    if callback["body"] is not None:
        click.echo(f"\n{callback['body']}")


@callbacks.command()
@click.argument("callback_id")
@json_flag
@connected
def replay(connection: EngineConnection, callback_id: str, as_json: bool) -> None:
    """Decide about a callback again, now, from its kept body."""
    answer = connection.call(lambda client: client.replay_callback(callback_id))
    if as_json:
        print_json(answer)
        return
    outcome = answer.get("verdict") or what_became_of(answer)
    status = f": {answer['status']}" if "status" in answer else ""
    click.echo(f"{outcome}{status}, step {answer['step_id']} of flow {answer['flow_id']}")


def _row(callback: Callback) -> tuple[str | Text, ...]:
    return (
        callback["callback_id"],
        when(callback["at"]),
        callback["kind"],
        status_text(callback["verdict"]),
        str(callback["status"]),
        callback["step_id"] or "",
        callback["flow_id"] or "",
        "" if callback["size"] is None else str(callback["size"]),
        callback["source"] or "",
    )


def _facts(callback: Callback) -> Iterator[tuple[str, str | Text | None]]:
    yield "callback", callback["callback_id"]
    yield "at", f"{callback['at']}, {when(callback['at'])}"
    yield "kind", callback["kind"]
    yield "verdict", status_text(callback["verdict"])
    yield "status", str(callback["status"])
    yield "flow", callback["flow_id"]
    yield "step", callback["step_id"]
    yield "work", callback["work_id"]
    yield "attempt", None if callback["attempt"] is None else str(callback["attempt"])
    yield "size", None if callback["size"] is None else f"{callback['size']} bytes"
    yield "digest", callback["digest"]
    yield "source", callback["source"]
    yield "trace", callback["trace_id"]

"""``counterfoil hooks``: list and show the hooks that wait, and send them payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from counterfoil.cli.arguments import json_flag, json_value, paged
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import print_facts, print_json, print_more, print_table, status_text, when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.text import Text

    from counterfoil.client import ListedHook


@click.group(short_help="List hooks that wait, and send them payloads.")
def hooks() -> None:
    """List and show the hooks that wait for a payload, and send them one."""


@hooks.command("list")
@click.option("--step", "step_id", help="Only hooks of this step.")
@paged()
@connected
def list_hooks(
    connection: EngineConnection, step_id: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List the hooks that wait, the longest waiting first. Tokens that the engine made are not shown."""
    page = connection.call(lambda client: client.hooks(step=step_id, cursor=cursor, limit=limit))
    if as_json:
        print_json(page)
        return
    columns = ("TOKEN", "STEP", "RECEIVED", "SINCE", "DEADLINE", "FLOW")
    print_table(columns, map(_row, page["hooks"]), empty="no hook waits for a payload")
    print_more(page)


@hooks.command()
@click.argument("token")
@json_flag
@connected
def show(connection: EngineConnection, token: str, as_json: bool) -> None:
    """Show the hook that takes the next payload with TOKEN."""
    found = connection.call(lambda client: client.hook(token))
    if as_json:
        print_json(found)
        return
    facts: list[tuple[str, str | Text | None]] = [
        ("flow", found["flow_id"]),
        ("step", found["step_id"]),
        ("status", status_text(found["status"])),
        ("received", f"{found['received']} of {found['collect']}"),
        ("deadline", when(found["deadline_at"]) or None),
    ]
    print_facts(facts)


@hooks.command(epilog="Example: counterfoil hooks send order:7 '{\"confirmed\": true}' --delivery-id mail-1")
@click.argument("token")
@click.argument("payload", metavar="JSON")
@click.option("--delivery-id", help="The name of this delivery: the same one again is recorded once.")
@json_flag
@connected
def send(connection: EngineConnection, token: str, payload: str, delivery_id: str | None, as_json: bool) -> None:
    """Send a payload, any JSON value, to the hook with TOKEN."""
    value = json_value(payload, "JSON")
    answer = connection.call(lambda client: client.deliver(token, value, delivery_id=delivery_id))
    if as_json:
        print_json(answer)
        return
    click.echo(f"{what_became_of(answer)}: step {answer['step_id']} of flow {answer['flow_id']}")


def what_became_of(answer: Mapping[str, Any]) -> str:
    """What became of a payload, by the answer of the hook."""
    if answer.get("ignored"):
        return "ignored"
    if answer["duplicate"]:
        return "already recorded"
    return "kept until the step starts" if answer.get("buffered") else "delivered"


def _row(hook: ListedHook) -> tuple[str | Text, ...]:
    return (
        hook["token"] or "(made by the engine)",
        hook["step_id"],
        f"{hook['received']} of {hook['collect']}",
        when(hook["registered_at"]),
        when(hook["deadline_at"]) or "",
        hook["flow_id"],
    )

"""``counterfoil step``: the registered steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import click

from counterfoil.cli.arguments import json_flag, json_object, json_pairs
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import print_json, print_table, print_warnings


@click.group()
def step() -> None:
    """Register, show and delete steps."""


@step.command("list")
@json_flag
@connected
def list_steps(connection: EngineConnection, as_json: bool) -> None:
    """List the registered steps."""
    steps = connection.call(lambda client: client.list_steps())
    if as_json:
        print_json({"steps": steps})
        return
    rows = [
        (_id(item), str(item.get("kind", "")), str(item.get("endpoint") or ""), item.get("name") or "")
        for item in steps
    ]
    print_table(
        ("STEP", "KIND", "ENDPOINT", "NAME"), rows, empty="no step is registered: `counterfoil step put` registers one"
    )


@step.command()
@click.argument("step_id")
@connected
def show(connection: EngineConnection, step_id: str) -> None:
    """Show a step's whole definition, as JSON."""
    print_json(connection.call(lambda client: client.get_step(step_id)))


@step.command(
    short_help="Register or change a step.",
    epilog="Example: counterfoil step put resize --endpoint http://127.0.0.1:9000/resize",
)
@click.argument("step_id")
@click.argument("file", type=click.File("r"), required=False)
@click.option("--endpoint", help="URL that the engine calls.")
@click.option(
    "--kind", type=click.Choice(["async", "sync"]), help="async: completed by webhook; sync: by the HTTP response."
)
@click.option("--name", help="Display name.")
@click.option("--work", multiple=True, metavar="NAME=VALUE", help="A work setting, such as max_retries=3.")
@json_flag
@connected
def put(
    connection: EngineConnection,
    step_id: str,
    file: IO[str] | None,
    endpoint: str | None,
    kind: str | None,
    name: str | None,
    work: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register or change a step: from FILE (JSON, - for stdin), from the options, or both."""
    definition = json_object(file.read(), "FILE") if file is not None else {}
    given = {"endpoint": endpoint, "kind": kind, "name": name}
    definition.update({field: value for field, value in given.items() if value is not None})
    if work:
        definition["work"] = {**_object(definition.get("work")), **json_pairs(work, "--work")}
    if not definition:
        raise click.UsageError("give a FILE with the definition, or --endpoint")
    document = connection.call(lambda client: client.put_step(step_id, definition))
    if as_json:
        print_json(document)
    else:
        click.echo(f"step {step_id} is registered")
        print_warnings(document)


@step.command()
@click.argument("step_id")
@connected
def delete(connection: EngineConnection, step_id: str) -> None:
    """Delete a step. Running flows keep their copy of it."""
    connection.call(lambda client: client.delete_step(step_id))
    click.echo(f"step {step_id} is deleted")


def _id(item: Mapping[str, Any]) -> str:
    return str(item.get("step_id", ""))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

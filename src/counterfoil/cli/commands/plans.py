"""``counterfoil plan``: preview the plan of a flow."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

import click

from counterfoil.cli.arguments import inputs_of, json_flag
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.graph import layers_of, sources_text
from counterfoil.cli.output import print_json, text_width

if TYPE_CHECKING:
    from counterfoil.client import Plan


@click.command(
    short_help="Preview the plan of a flow.",
    epilog="Example: counterfoil plan ship --init order=4711",
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
@json_flag
@connected
def plan(
    connection: EngineConnection,
    goals: tuple[str, ...],
    init: tuple[str, ...],
    init_file: IO[str] | None,
    as_json: bool,
) -> None:
    """Show which steps a flow towards GOALS (step ids) would run, in which order and why. Nothing is started."""
    inputs = inputs_of(init, init_file)
    document = connection.call(lambda client: client.plan(goals, inputs))
    if as_json:
        print_json(document)
        return
    for line in plan_lines(document, text_width()):
        click.echo(line)


def plan_lines(plan: Plan, width: int = 80) -> list[str]:
    """The steps in layers, each with its inputs and why it is included; then the excluded steps."""
    names = [*plan["steps"], *plan["excluded"]]
    column = min(max(map(len, names), default=0), 40) + 2
    lines: list[str] = []
    for number, layer in enumerate(layers_of(plan["steps"], plan), start=1):
        for step_id in layer:
            place = f"{number}." if step_id == layer[0] else ""
            told = (plan["included"].get(step_id, ""), sources_text(step_id, plan))
            lines += _entry(f"{place:<4}", step_id, told, column, width)
    given = sorted(name for name, source in plan["inputs"].items() if source == "init")
    if given:
        lines += ["", *textwrap.wrap(f"from init: {', '.join(given)}", width, subsequent_indent="  ")]
    if plan["excluded"]:
        lines += ["", "excluded"]
        for step_id, why in plan["excluded"].items():
            lines += _entry("    ", step_id, (why,), column, width)
    return lines


def _entry(lead: str, name: str, told: Iterable[str], column: int, width: int) -> list[str]:
    """A name, and its notes beside it."""
    room = max(width - len(lead) - column, 20)
    beside = [line for text in told if text for line in textwrap.wrap(text, room, break_on_hyphens=False)]
    if len(name) + 2 > column:
        beside.insert(0, "")
    first, *rest = beside or [""]
    return [
        f"{lead}{name:<{column}}{first}".rstrip()[: max(width, len(lead) + len(name))],
        *(f"{'':<{len(lead) + column}}{line}" for line in rest),
    ]

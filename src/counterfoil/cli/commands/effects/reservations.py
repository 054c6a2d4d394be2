"""``counterfoil effects``: list, show and settle the effects that tools have reserved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

import click

from counterfoil.cli.arguments import json_flag, json_object, json_value, paged
from counterfoil.cli.commands.effects.settling import chosen_outcome, print_choices
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import (
    compact,
    print_facts,
    print_json,
    print_more,
    print_table,
    print_value,
    status_text,
    when,
)

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client.documents import AuditEntry, Effect, EffectSummary

State = Literal["pending", "complete-success", "complete-failed"]

STATES = ["pending", "complete-success", "complete-failed"]
_SHOWN_STATUS = {"pending": "pending", "complete-success": "succeeded", "complete-failed": "failed"}
"""States of work items that are shown in the colour that a state of an effect has."""


@click.group(short_help="List and settle effects that tools have reserved.")
def effects() -> None:
    """List, show and settle the effects that tools have reserved through the effects API."""


@effects.command("list", short_help="List effects by tool and key.")
@click.option("--tool", help="Only effects of this tool.")
@click.option("--state", type=click.Choice(STATES), help="Only effects in this state.")
@paged()
@connected
def list_effects(
    connection: EngineConnection, tool: str | None, state: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List effects by tool and key: their state, holder and fence, and how often their outcome was reused."""
    wanted = cast("State | None", state)
    page = connection.call(lambda client: client.effects(tool=tool, state=wanted, cursor=cursor, limit=limit))
    if as_json:
        print_json(page)
        return
    columns = ("TOOL", "KEY", "STATE", "CLASS", "HOLDER", "FENCE", "SINCE", "HITS")
    print_table(columns, map(_row, page["effects"]), empty="no effect is recorded")
    print_more(page)


@effects.command()
@click.argument("tool")
@click.argument("effect_key", metavar="KEY")
@json_flag
@connected
def show(connection: EngineConnection, tool: str, effect_key: str, as_json: bool) -> None:
    """Show an effect: its reservation or outcome, and its audit."""
    effect = connection.call(lambda client: client.effect(tool, effect_key))
    if as_json:
        print_json(effect)
        return
    print_facts(_facts(effect))
    outcome = effect.get("error") if effect["state"] == "complete-failed" else effect.get("result")
    if effect["state"] != "pending":
        print_value("error" if effect["state"] == "complete-failed" else "result", outcome)
    click.echo("\naudit")
    print_table(("AT", "TYPE", "HOLDER", "NOTE"), map(_audit_row, effect["audit"]), empty="")
    if effect["audit_omitted"]:
        click.echo(f"{effect['audit_omitted']} entries of the middle of the audit are not kept", err=True)
    if effect["lapsed"]:
        print_choices(f"effects settle {shlex.quote(tool)} {shlex.quote(effect_key)}")


@effects.command(
    short_help="Settle a lapsed reservation.",
    epilog='Example: counterfoil effects settle issue_refund order-7 --applied --result \'{"refund_id": "re_1"}\'',
)
@click.argument("tool")
@click.argument("effect_key", metavar="KEY")
@click.option("--applied", is_flag=True, help="The effect happened: it is recorded as a success.")
@click.option("--not-applied", is_flag=True, help="Nothing happened: the key may be reserved again.")
@click.option("--failed", is_flag=True, help="It is recorded as a failure, and never run again under this key.")
@click.option("--result", metavar="JSON", help="With --applied: the result that later callers are given.")
@click.option(
    "--error", metavar="JSON", help="With --failed: the error that later callers are given, as a JSON object."
)
@click.option("--note", metavar="TEXT", help="How it was found out; recorded in the audit.")
@json_flag
@connected
def settle(
    connection: EngineConnection,
    tool: str,
    effect_key: str,
    applied: bool,
    not_applied: bool,
    failed: bool,
    result: str | None,
    error: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    """Settle a reservation that has lapsed. The first settlement wins; the API key identifies the operator."""
    outcome = chosen_outcome(
        applied=applied, not_applied=not_applied, failed=failed, success="--result", result=result, error=error
    )
    found = None if result is None else json_value(result, "--result")
    why = None if error is None else json_object(error, "--error")
    settled = connection.call(
        lambda client: client.settle_effect(tool, effect_key, outcome, result=found, error=why, note=note)
    )
    if as_json:
        print_json(settled)
    elif settled["state"] == "free":
        click.echo("settled: the key may be reserved again")
    else:
        click.echo(f"settled: {settled['state']}")


def _state_text(effect: EffectSummary) -> Text:
    text = status_text(_SHOWN_STATUS.get(effect["state"], effect["state"]))
    text.plain = "lapsed" if effect["lapsed"] else effect["state"]
    return text


def _row(effect: EffectSummary) -> tuple[str | Text, ...]:
    return (
        effect["tool"],
        effect["key"],
        _state_text(effect),
        effect["class"],
        effect["holder"],
        str(effect["fence"]),
        when(effect["recorded_at"] or effect["reserved_at"]),
        str(effect["hits"]),
    )


def _facts(effect: Effect) -> Iterator[tuple[str, str | Text | None]]:
    yield "tool", effect["tool"]
    yield "key", effect["key"]
    yield "state", _state_text(effect)
    yield "class", effect["class"]
    yield "holder", f"{effect['holder']}, fence {effect['fence']}"
    yield "reserved", f"{effect['reserved_at']}, {when(effect['reserved_at'])}"
    if effect["expires_at"] is not None:
        yield "lapsed" if effect["lapsed"] else "lapses", f"{effect['expires_at']}, {when(effect['expires_at'])}"
    if effect["recorded_at"] is not None:
        yield "recorded", f"{effect['recorded_at']}, {when(effect['recorded_at'])}"
        yield "forgotten", when(effect["forget_at"]) or "never"
    yield "arguments", effect["arguments_digest"]
    yield "hits", str(effect["hits"])


def _audit_row(entry: AuditEntry) -> tuple[str, ...]:
    settled = [entry["outcome"], f"by {entry.get('by')}", entry.get("note") or ""] if "outcome" in entry else []
    return entry["at"], entry["type"], entry["holder"], compact(", ".join(filter(None, settled)), 80) if settled else ""

"""``counterfoil reconcile``: list, show and settle work items whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, cast

import click

from counterfoil.cli.arguments import json_flag, json_object, paged
from counterfoil.cli.commands.effects.settling import CHOICES, Outcome, chosen_outcome, print_choices
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
from counterfoil.cli.times import since_option, since_time
from counterfoil.cli.waiting import CAUSES, unknown_outcome

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Reconciliation, SettledOutcome


HOLDS = ["reconcile", "unsafe_once", "irreversible"]


@click.group(short_help="List and settle work items whose outcome is unknown.")
def reconcile() -> None:
    """List, show and settle work items whose outcome is unknown, and that the engine does not repeat by itself."""


@reconcile.command("list", short_help="List the items that wait, and why.")
@click.option("--step", "step_id", help="Only items of this step.")
@click.option(
    "--hold",
    type=click.Choice(HOLDS),
    help="Only items of this effect policy; irreversible: lapsed reservations of tools.",
)
@since_option("items that began to wait")
@paged()
@connected
def list_reconciliations(
    connection: EngineConnection,
    step_id: str | None,
    hold: str | None,
    since: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """List the queue, the longest waiting item first: since when, why, and the last answer of its status_url."""
    kind = cast('Literal["reconcile", "unsafe_once", "irreversible"] | None', hold)
    page = connection.call(
        lambda client: client.reconciliations(
            step=step_id, hold=kind, since=since_time(since), cursor=cursor, limit=limit
        )
    )
    if as_json:
        print_json(page)
        return
    items = page["reconciliations"]
    columns = ("WORK", "STEP", "SINCE", "CAUSE", "LAST PROBE", "HOLD", "STATUS", "ARGUMENTS")
    print_table(columns, map(_row, items), empty="no work item waits for reconciliation")
    if items:
        click.echo("find out what happened, then settle each:", err=True)
        if any(item["work_id"] is not None for item in items):
            click.echo(f"  counterfoil reconcile settle WORK {' | '.join(CHOICES)}", err=True)
        if any(item["work_id"] is None for item in items):
            click.echo(f"  counterfoil effects settle TOOL KEY {' | '.join(CHOICES)}", err=True)
    print_more(page)


@reconcile.command()
@click.argument("work_id")
@json_flag
@connected
def show(connection: EngineConnection, work_id: str, as_json: bool) -> None:
    """Show an item with everything that is needed to find out what happened."""
    item = connection.call(lambda client: client.reconciliation(work_id))
    if as_json:
        print_json(item)
        return
    print_facts(_facts(item))
    print_value("arguments", item["arguments"] or {})
    print_choices(f"reconcile settle {work_id}")


@reconcile.command(
    short_help="Settle an unknown outcome.",
    epilog='Example: counterfoil reconcile settle WORK_ID --applied --outputs \'{"charge_id": "ch_1"}\' --note ledger',
)
@click.argument("work_id")
@click.option("--applied", is_flag=True, help="The effect happened: the item succeeds.")
@click.option(
    "--not-applied",
    is_flag=True,
    help="Nothing happened: the item is sent again, an unsafe_once item after a new approval.",
)
@click.option("--failed", is_flag=True, help="The item fails.")
@click.option("--outputs", metavar="JSON", help="With --applied: the outputs of the step, as a JSON object.")
@click.option("--error", metavar="TEXT", help="With --failed: the error of the item.")
@click.option("--note", metavar="TEXT", help="How it was found out; recorded with the settlement.")
@json_flag
@connected
def settle(
    connection: EngineConnection,
    work_id: str,
    applied: bool,
    not_applied: bool,
    failed: bool,
    outputs: str | None,
    error: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    """Settle an unknown outcome. The first settlement wins; the API key identifies the operator."""
    outcome = chosen_outcome(
        applied=applied, not_applied=not_applied, failed=failed, success="--outputs", result=outputs, error=error
    )
    found = None if outputs is None else json_object(outputs, "--outputs")
    settled = connection.call(lambda client: client.settle(work_id, outcome, outputs=found, error=error, note=note))
    if as_json:
        print_json(settled)
    else:
        click.echo(_settled(outcome, settled))


def _settled(outcome: Outcome, settled: SettledOutcome) -> str:
    work_id, approval_id = settled["work_id"], settled.get("approval_id")
    if settled["status"] == "cancelled":
        return f"recorded: {outcome}; work item {work_id} stays cancelled"
    if approval_id is not None:
        return (
            f"work item {work_id} is sent once more after a new approval\n"
            f"approve: counterfoil approvals approve {approval_id}"
        )
    if outcome == "not_applied":
        return f"work item {work_id} is sent again"
    return f"work item {work_id} {settled['status']}"


def _row(item: Reconciliation) -> tuple[str | Text, ...]:
    """A lapsed reservation has its tool in the place of the step, and its key in that of the arguments."""
    if item["work_id"] is None:
        tool, holder, key = item.get("tool", ""), item.get("holder"), item.get("effect_key", "")
        waits = (when(item["since"]), f"{item['cause']}, {holder}", "", item["hold"], status_text(item["status"]))
        return ("", tool, *waits, compact(key, 60))
    return (
        item["work_id"],
        item["step_id"] or "",
        when(item["since"]),
        item["cause"],
        _last_probe(item) or "",
        item["hold"],
        status_text(item["status"]),
        compact(item["arguments"], 60),
    )


def _last_probe(item: Reconciliation) -> str | None:
    probe = item["last_probe"]
    return None if probe is None else f"{probe['state']}, {when(probe['at'])}"


def _facts(item: Reconciliation) -> Iterator[tuple[str, str | Text | None]]:
    yield "work", item["work_id"]
    yield "flow", item["flow_id"]
    yield "step", f"{item['step_id']}, attempt {item['attempt']}"
    yield "status", status_text(item["status"])
    yield "hold", f"{item['hold']}: {unknown_outcome(item['hold'], item['attempt'])}"
    yield "cause", f"{item['cause']}: {CAUSES.get(item['cause'], 'the outcome is unknown')}"
    yield "since", f"{item['since']}, {when(item['since'])}"
    yield "key", item["idempotency_key"]
    yield "status_url", item["status_url"]
    yield "last probe", _last_probe(item)
    yield "next probe", when(item["next_probe_at"]) or None

"""``counterfoil approvals``: list, show and decide approvals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from counterfoil.cli.arguments import json_flag, paged
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.events import print_event
from counterfoil.cli.output import (
    compact,
    is_narrow,
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

    from counterfoil.client import Approval

STATUSES = ["pending", "approved", "rejected", "expired", "void"]


@click.group(short_help="List and decide pending approvals.")
def approvals() -> None:
    """List approvals, show them, and approve or reject them."""


@approvals.command("list")
@click.option(
    "--status",
    type=click.Choice([*STATUSES, "any"]),
    default="pending",
    show_default=True,
    help="Only approvals in this state.",
)
@click.option("--flow", "flow_id", help="Only approvals of this flow or workflow.")
@paged()
@connected
def list_approvals(
    connection: EngineConnection, status: str, flow_id: str | None, limit: int, cursor: str | None, as_json: bool
) -> None:
    """List approvals, oldest first: the step, the reason and the expiry of each."""
    wanted = None if status == "any" else status
    page = connection.call(lambda client: client.approvals(status=wanted, flow_id=flow_id, cursor=cursor, limit=limit))
    if as_json:
        print_json(page)
        return
    columns = ["APPROVAL", "STEP", "SEVERITY", "REQUESTED", "STATUS", "APPROVALS", "REASON", "ARGUMENTS"]
    if is_narrow():
        columns = ["APPROVAL", "STEP", "STATUS", "REASON"]
    rows = [[cells[name] for name in columns] for cells in map(_cells, page["approvals"])]
    empty = "no approval is pending" if status == "pending" else "no matching approval"
    print_table(columns, rows, empty=empty)
    print_more(page)


@approvals.command()
@click.argument("approval_id")
@json_flag
@connected
def show(connection: EngineConnection, approval_id: str, as_json: bool) -> None:
    """Show an approval with everything a reviewer needs to decide."""
    approval = connection.call(lambda client: client.approval(approval_id))
    if as_json:
        print_json(approval)
        return
    print_facts(_facts(approval))
    print_value("arguments", approval["arguments"] or {})
    history = approval.get("history") or []
    if history:
        click.echo("\nhistory")
    for event in history:
        print_event(event)
    if approval["status"] == "pending":
        click.echo(f"\ndecide: counterfoil approvals approve {approval_id}", err=True)
        click.echo(f"    or: counterfoil approvals reject {approval_id}", err=True)


@approvals.command(short_help="Approve a request.")
@click.argument("approval_id")
@click.option("--comment", help="Comment, recorded with the approval.")
@json_flag
@connected
def approve(connection: EngineConnection, approval_id: str, comment: str | None, as_json: bool) -> None:
    """Approve a request. The API key identifies the reviewer."""
    approval = connection.call(lambda client: client.approve(approval_id, comment))
    if as_json:
        print_json(approval)
        return
    missing = approval["approvals_needed"] - approval["approvals_given"]
    if approval["status"] == "approved":
        click.echo(f"approved: step {approval['step_id']} of {approval['flow_id']} can proceed")
    else:
        click.echo(f"recorded, {_agreed(approval)} approvals: step {approval['step_id']} waits for {missing} more")


@approvals.command(short_help="Reject a request.")
@click.argument("approval_id")
@click.option("--reason", help="Reason, shown to the requester.")
@json_flag
@connected
def reject(connection: EngineConnection, approval_id: str, reason: str | None, as_json: bool) -> None:
    """Reject a request. One rejection is final; other branches of the flow continue."""
    approval = connection.call(lambda client: client.reject(approval_id, reason))
    if as_json:
        print_json(approval)
    else:
        click.echo(f"rejected: step {approval['step_id']} of {approval['flow_id']} is blocked")


def _cells(approval: Approval) -> dict[str, str | Text]:
    return {
        "APPROVAL": approval["approval_id"],
        "STEP": approval["step_id"],
        "SEVERITY": status_text(approval["severity"]),
        "REQUESTED": when(approval["requested_at"]),
        "STATUS": _standing(approval),
        "APPROVALS": _agreed(approval),
        "REASON": approval["reason"] or "",
        "ARGUMENTS": compact(approval["arguments"], 60),
    }


def _standing(approval: Approval) -> Text:
    text = status_text(approval["status"])
    if approval["status"] == "pending":
        text.append(f", expires {when(approval['expires_at'])}")
    return text


def _agreed(approval: Approval) -> str:
    return f"{approval['approvals_given']} of {approval['approvals_needed']}"


def _facts(approval: Approval) -> Iterator[tuple[str, str | Text | None]]:
    yield "approval", approval["approval_id"]
    yield "status", _standing(approval)
    yield "step", f"{approval['step_id']}, attempt {approval['attempt']}"
    yield "flow", approval["flow_id"]
    yield "reason", approval["reason"]
    yield "severity", status_text(approval["severity"])
    yield "policies", ", ".join(policy["policy_id"] for policy in approval["policies"]) or None
    asker = f" by {approval['requester']}" if approval["requester"] else ""
    yield "requested", f"{when(approval['requested_at'])}{asker}"
    yield "decided", when(approval["decided_at"]) or None
    apart = ", not by the requester" if approval["separate_requester"] else ""
    yield "approvals", f"{_agreed(approval)}{apart}"
    for review in approval["reviews"]:
        comment = f": {review['comment']}" if review["comment"] else ""
        yield "", f"{review['verdict']} by {review['by']}, {when(review['at'])}{comment}"

"""``counterfoil dev send``: completes a step, or delivers to its hook, without handling tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from counterfoil.cli.arguments import json_flag, json_object, json_value
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import CommandFailed, print_json

if TYPE_CHECKING:
    from counterfoil.client import Client, Flow, WorkItem

FINAL = frozenset({"succeeded", "failed", "cancelled"})
NO_MESSAGE = "failed by counterfoil dev send"
MOST_SHOWN = 10


@click.command(
    short_help="Complete a step of a flow by hand.",
    epilog='Example: counterfoil dev send FLOW_ID transcribe --outputs \'{"text": "hello"}\'',
)
@click.argument("flow_id", metavar="FLOW")
@click.argument("step_id", metavar="STEP")
@click.option("--outputs", metavar="JSON", help="The step succeeds with these outputs, a JSON object.")
@click.option(
    "--fail",
    metavar="[MESSAGE]",
    is_flag=False,
    flag_value=NO_MESSAGE,
    help="The step fails, with this error if one is given.",
)
@click.option("--retriable", is_flag=True, help="With --fail: the attempt is not completed, and is retried.")
@click.option("--payload", metavar="JSON", help="For a hook: deliver this payload, any JSON value.")
@click.option("--item", type=click.IntRange(0), help="The index of the work item, in a step that fans out.")
@click.option("--work", "work_id", help="The id of the work item.")
@json_flag
@connected
def send(
    connection: EngineConnection,
    flow_id: str,
    step_id: str,
    outputs: str | None,
    fail: str | None,
    retriable: bool,
    payload: str | None,
    item: int | None,
    work_id: str | None,
    as_json: bool,
) -> None:
    """Complete STEP of FLOW, or deliver a payload to its hook, as an operator: no token is needed.

    The engine decides as it does at the webhook. Without --outputs, --fail or --payload the step succeeds without
    outputs.
    """
    if sum(each is not None for each in (outputs, fail, payload)) > 1:
        raise click.UsageError("give one of --outputs, --fail and --payload")
    if retriable and fail is None:
        raise click.UsageError("--retriable needs --fail")
    sent = None if payload is None else json_value(payload, "--payload")
    result = _result(outputs, fail, retriable=retriable)

    async def complete(client: Client) -> Any:
        chosen = work_id or _chosen(await client.flow(flow_id), step_id, item)["work_id"]
        if payload is not None:
            return await client.deliver_to_work(chosen, sent)
        return await client.complete_work(chosen, result)

    answer = connection.call(complete)
    if as_json:
        print_json(answer)
    elif payload is not None:
        click.echo(f"delivered to the hook {answer['step_id']} of flow {answer['flow_id']}")
    else:
        click.echo(f"{answer['verdict']}: {answer['step_id']} of flow {answer['flow_id']} is {answer['status']}")


def _result(outputs: str | None, fail: str | None, *, retriable: bool) -> dict[str, Any]:
    if fail is not None:
        return {"success": False, "error": fail, **({"retriable": True} if retriable else {})}
    return {"success": True, "outputs": json_object(outputs, "--outputs") if outputs is not None else {}}


def _chosen(flow: Flow, step_id: str, item: int | None) -> WorkItem:
    """The work item of the step that is meant: the open one, unless there are several."""
    run = flow["steps"].get(step_id)
    if run is None:
        steps = ", ".join(sorted(flow["steps"])) or "none"
        raise CommandFailed(f"flow {flow['flow_id']} has no step {step_id}; its steps: {steps}")
    items = [each for each in run["work"] if item in (None, each["item"])]
    open_items = [each for each in items if each["status"] not in FINAL]
    candidates = open_items or items[-1:]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        which = "has not started" if item is None else f"has no item {item}"
        raise CommandFailed(f"step {step_id} {which}: its status is {run['status']}")
    shown = ", ".join(f"{each['item']} ({each['status']})" for each in candidates[:MOST_SHOWN])
    more = ", ..." if len(candidates) > MOST_SHOWN else ""
    raise CommandFailed(f"step {step_id} has {len(candidates)} open items: choose one by --item: {shown}{more}")

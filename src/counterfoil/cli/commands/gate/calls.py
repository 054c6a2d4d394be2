"""``counterfoil gate``: make a gate call for a step, as an agent would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from counterfoil.cli.arguments import json_flag, json_object
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import CommandFailed, compact, print_facts, print_json, status_text, when

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import GateAnswer

ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}


@click.command(
    short_help="Ask whether a step may run.",
    epilog="Example: counterfoil gate wf_01a1 charge --idempotency-key invoice-1 --input '{\"amount\": 5}'",
)
@click.argument("workflow_id")
@click.argument("step_id")
@click.option("-k", "--idempotency-key", help="Idempotency key of the step; the first call fixes it.")
@click.option("-i", "--input", "step_input", metavar="JSON", help="Input of the step.")
@click.option("--type", "step_type", help="The type of the step (tool_call).")
@click.option(
    "--reevaluate", is_flag=True, help="Evaluate the policies again instead of returning the recorded decision."
)
@click.option("--claim", type=float, metavar="SECONDS", help="Claim the step exclusively for this long.")
@json_flag
@connected
def gate(
    connection: EngineConnection,
    workflow_id: str,
    step_id: str,
    idempotency_key: str | None,
    step_input: str | None,
    step_type: str | None,
    reevaluate: bool,
    claim: float | None,
    as_json: bool,
) -> None:
    """Ask whether a step may run. It counts as a gate call.

    Exit code 0 means: run it now. It is 1 if the step is blocked, waits for an approval, or is already completed.
    """
    options: Any = {
        "key": idempotency_key,
        "input": None if step_input is None else json_object(step_input, "--input"),
        "step_type": step_type,
        "claim": claim,
        "retry_policy": "reevaluate" if reevaluate else "idempotent",
    }
    answer = connection.call(lambda client: client.gate(workflow_id, step_id, include_prior_output=True, **options))
    if as_json:
        print_json(answer)
    else:
        print_facts(_facts(answer))
    obstacle = _obstacle(answer)
    if obstacle is not None:
        raise CommandFailed(obstacle)


def _obstacle(answer: GateAnswer) -> str | None:
    """Why the step may not run now; None if it may."""
    step_id, approval_id = answer["step_id"], answer["approval_id"]
    if answer["decision"] == "block":
        return f"step {step_id} is blocked; use --reevaluate once the cause is fixed"
    if answer["decision"] == "require_approval":
        return f"step {step_id} waits for an approval; `counterfoil approvals show {approval_id}` shows it"
    if answer["work_status"] == "succeeded":
        return f"step {step_id} is already completed; use its output"
    return None


def _facts(answer: GateAnswer) -> Iterator[tuple[str, str | Text | None]]:
    context, claim = answer["retry_context"], answer["claim"]
    yield "decision", status_text(answer["decision"])
    yield "reason", answer["reason"]
    yield "policies", ", ".join(answer["policy_ids"]) or None
    count = context["gate_count"]
    call = f"the {ORDINALS.get(count, f'{count}th')}"
    yield "call", call if count == 1 else f"{call}; the first was {when(context['first_attempt_at'])}"
    if count > 1:
        before = context["prior_completion_status"].replace("_", " ")
        at = context["prior_completion_at"]
        yield "before", f"{before} {when(at)}" if at else f"{before}; the last decision was {context['last_decision']}"
    yield "output", compact(context["prior_output"]) or None
    if answer["approval_id"]:
        yield "approval", f"{answer['approval_id']} ({answer['approval_status']})"
    if claim is not None:
        yield "claimed", f"by {claim['holder']}, expires {when(claim['lease_expires_at'])}"
    yield "source", answer["decision_source"]

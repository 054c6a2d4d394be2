"""``counterfoil policy``: manage and test the policies evaluated before each attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from counterfoil.cli.arguments import json_flag, json_object, json_pairs, pairs
from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import is_narrow, print_facts, print_json, print_table, print_warnings, status_text, when

if TYPE_CHECKING:
    from rich.text import Text

    from counterfoil.client import Client, Policy, PolicyTested

LONGEST_CELL = 100


@click.group()
def policy() -> None:
    """Create, show, test and delete policies."""


@policy.command("list")
@json_flag
@connected
def list_policies(connection: EngineConnection, as_json: bool) -> None:
    """List the policies: the scope, the condition and the action of each."""
    policies = connection.call(_all)
    if as_json:
        print_json({"policies": policies})
        return
    columns = ["POLICY", "ACTION", "SCOPE", "WHEN", "CHANGED"]
    if is_narrow():
        columns = ["POLICY", "ACTION", "SCOPE", "NAME"]
    rows = [[cells[name] for name in columns] for cells in map(_cells, policies)]
    print_table(columns, rows, empty="no policy: every step is allowed; `counterfoil policy put` creates one")


@policy.command()
@click.argument("policy_id")
@click.option("--versions", is_flag=True, help="List all versions, also of a deleted policy.")
@json_flag
@connected
def show(connection: EngineConnection, policy_id: str, versions: bool, as_json: bool) -> None:
    """Show a policy, or all its versions."""
    if versions:
        earlier = connection.call(lambda client: client.policy_versions(policy_id))
        if as_json:
            print_json({"policy_id": policy_id, "versions": earlier})
        else:
            rows = [_version(item) for item in earlier]
            print_table(("VERSION", "CHANGED", "ACTION", "WHEN"), rows, empty="no versions")
        return
    item = connection.call(lambda client: client.get_policy(policy_id))
    if as_json:
        print_json(item)
        return
    action = item["action"]
    terms = f"{action['approvals']} required within {action['expires_in']}"
    print_facts(
        [
            ("policy", item["policy_id"]),
            ("name", item["name"]),
            ("description", item["description"] or None),
            ("enabled", "yes" if item["enabled"] else "no"),
            ("scope", _about(item)),
            ("when", _condition(item)),
            ("action", status_text(action["type"])),
            ("reason", action["reason"]),
            ("severity", status_text(action["severity"])),
            ("approval", terms if action["type"] == "require_approval" else None),
            ("changed", f"{when(item['updated_at'])} by {item['changed_by']} (version {item['version']})"),
        ]
    )


@policy.command(
    short_help="Create or change policies.",
    epilog="Example: counterfoil policy put config/policies.example.json",
)
@click.argument("file", type=click.File("r"))
@click.option("--id", "policy_id", help="Id of the policy, if FILE holds only one.")
@connected
def put(connection: EngineConnection, file: IO[str], policy_id: str | None) -> None:
    """Put all policies of FILE (JSON, - for stdin): an object with a policy under each id.

    They apply to all later decisions. Other policies are not changed.
    """
    document = json_object(file.read(), "FILE")
    if policy_id is None and "action" in document:
        raise click.UsageError("FILE holds one policy: give its id with --id")
    for name, definition in ({policy_id: document} if policy_id is not None else document).items():
        if not isinstance(definition, dict):
            raise click.BadParameter(f"{name}: must be a policy, as a JSON object", param_hint="FILE")
        item = connection.call(_putting(name, definition))
        click.echo(f"policy {name} is in force, version {item['version']}" + ("" if item["enabled"] else " (disabled)"))
        print_warnings(item)


@policy.command()
@click.argument("policy_id")
@connected
def delete(connection: EngineConnection, policy_id: str) -> None:
    """Delete a policy. Its past decisions remain."""
    connection.call(lambda client: client.delete_policy(policy_id))
    click.echo(f"policy {policy_id} is deleted")


@policy.command(
    short_help="Test a policy; nothing is recorded.",
    epilog="Example: counterfoil policy test --file ask.json --step wire --gate-count 3 --input amount=5000",
)
@click.option("--file", type=click.File("r"), help="A policy (JSON, - for stdin); default: all policies in force.")
@click.option("--id", "policy_id", help="Id of the policy, if the file holds several.")
@click.option("--recorded", nargs=2, metavar="WORKFLOW STEP", help="Test the next gate call of a recorded step.")
@click.option("--step", "step_id", help="Or describe a gate call: its step.")
@click.option("--type", "step_type", help="Type of the step.")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=VALUE", help="Input of the step.")
@click.option("-l", "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label of the flow.")
@click.option("--gate-count", type=click.IntRange(1), help="Number of this gate call (1 = first).")
@click.option("--completions", type=click.IntRange(0), help="Number of completions of the step.")
@click.option("--age", type=click.FloatRange(0), metavar="SECONDS", help="Age of the first gate call.")
@json_flag
@connected
def test(
    connection: EngineConnection,
    /,
    file: IO[str] | None,
    policy_id: str | None,
    recorded: tuple[str, str] | None,
    step_id: str | None,
    as_json: bool,
    **described: Any,
) -> None:
    """Show what a policy, or all policies in force, would decide about a gate call."""
    if (recorded is None) == (step_id is None):
        raise click.UsageError(
            "give either --recorded WORKFLOW STEP, or --step with the options that describe the call"
        )
    definition = None if file is None else _definition(json_object(file.read(), "--file"), policy_id)
    call = None if step_id is None else _call(step_id, **described)
    answer = connection.call(lambda client: client.test_policy(definition, call=call, recorded=recorded))
    if as_json:
        print_json(answer)
    else:
        _print_tested(answer)


def _definition(document: dict[str, Any], policy_id: str | None) -> dict[str, Any]:
    """The only policy of a file, or the one with the given id."""
    if policy_id is None and "action" in document:
        return document
    found = document.get(policy_id or "")
    if not isinstance(found, dict):
        known = ", ".join(document)
        raise click.UsageError(f"--file holds several policies: choose one with --id ({known})")
    return found


def _call(
    step_id: str,
    *,
    step_type: str | None,
    inputs: tuple[str, ...],
    labels: tuple[str, ...],
    gate_count: int | None,
    completions: int | None,
    age: float | None,
) -> dict[str, Any]:
    given = {"gate_count": gate_count, "completion_count": completions, "first_attempt_age_seconds": age}
    call: dict[str, Any] = {
        "step_id": step_id,
        "step_input": json_pairs(inputs, "--input"),
        "labels": pairs(labels, "--label"),
        "attempt": {name: value for name, value in given.items() if value is not None},
    }
    return call if step_type is None else {**call, "step_type": step_type}


def _print_tested(answer: PolicyTested) -> None:
    reason = answer["reason"] or ("no policy matches" if answer["decision"] == "allow" else None)
    print_facts([("decision", status_text(answer["decision"])), ("reason", reason)])
    rows = [
        (match["policy_id"], status_text(match["action"]), match["severity"], _cut(match["reason"] or ""))
        for match in answer["policies_matched"]
    ]
    if rows:
        click.echo()
        print_table(("MATCHED", "ACTION", "SEVERITY", "REASON"), rows, empty="")


async def _all(client: Client) -> list[Policy]:
    """Every policy, page by page."""
    page = await client.list_policies(limit=1000)
    found = page["policies"]
    while page["next_cursor"]:
        page = await client.list_policies(cursor=page["next_cursor"], limit=1000)
        found += page["policies"]
    return found


def _putting(policy_id: str, definition: dict[str, Any]) -> Callable[[Client], Awaitable[Policy]]:
    return lambda client: client.put_policy(policy_id, definition)


def _cells(item: Policy) -> dict[str, str | Text]:
    return {
        "POLICY": item["policy_id"],
        "ACTION": status_text(item["action"]["type"] if item["enabled"] else "disabled"),
        "SCOPE": _about(item),
        "WHEN": _cut(_condition(item)),
        "CHANGED": f"version {item['version']}, {when(item['updated_at'])} by {item['changed_by']}",
        "NAME": item["name"],
    }


def _about(item: Policy) -> str:
    match = item["match"]
    parts = [f"step {match['step_id']}"] if match.get("step_id") else []
    parts += [f"type {match['step_type']}"] if match.get("step_type") else []
    parts += [f"label {name}={value}" for name, value in (match.get("flow_labels") or {}).items()]
    return ", ".join(parts) or "every step"


def _condition(item: Mapping[str, Any]) -> str:
    parts = [_one_condition(condition) for condition in item.get("conditions") or []]
    if item.get("expression"):
        parts.append(item["expression"])
    return " and ".join(parts) or "always"


def _one_condition(condition: dict[str, Any]) -> str:
    words = condition["operator"].replace("_", " ")
    value = condition.get("value")
    return f"{condition['field']} {words}" + ("" if value is None else f" {value}")


def _version(item: Mapping[str, Any]) -> tuple[str, str, Text, str]:
    """One row; the definition of a version holds only the fields that were sent."""
    definition = item["definition"]
    changed = f"{when(item['at'])} by {item['changed_by']}"
    if definition is None:
        return str(item["version"]), changed, status_text("deleted"), ""
    demands = definition["action"]["type"] if definition.get("enabled", True) else "disabled"
    return str(item["version"]), changed, status_text(demands), _cut(_condition(definition))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"

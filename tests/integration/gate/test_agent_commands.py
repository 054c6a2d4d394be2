"""The commands for gates, approvals, policies and workflows, against a real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result
from structlog.testing import capture_logs

from counterfoil.client import Client
from tests.unit.commands import run

if TYPE_CHECKING:
    from tests.running import StartNode

pytestmark = pytest.mark.sqlite_only  # a command cannot tell which store the engine has

OPS, ANN, BOB = (f"secret-of-{name}-0123456789" for name in ("ops", "ann", "bob"))
POLICIES: dict[str, dict[str, Any]] = {
    "wire": {
        "name": "wires need two",
        "match": {"step_id": "wire*", "flow_labels": {"team": "a"}},
        "conditions": [{"field": "step.input.amount", "operator": "greater_than", "value": 1000}],
        "action": {"type": "require_approval", "reason": "a lot of money", "severity": "high", "approvals": 2},
    },
    "drop": {
        "name": "no drops",
        "match": {"step_id": "drop*"},
        "expression": "step.gate_count > 0",
        "action": {"type": "block", "reason": "nobody drops tables"},
    },
}


@pytest.fixture
async def client(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """With an engine in this process: what it logs must not stand between the lines of a command."""
    node = await start_node(api_keys=f"ops:admin:{OPS},ann:reviewer:{ANN},bob:reviewer:{BOB}")
    monkeypatch.setenv("COUNTERFOIL_URL", node.url)
    monkeypatch.setenv("COUNTERFOIL_KEY", OPS)
    with capture_logs():
        async with Client(node.url, OPS) as opened:
            yield opened


@pytest.fixture
async def workflow(client: Client) -> str:
    return (await client.create_workflow("refund", labels={"team": "a"}))["workflow_id"]


async def succeed(*arguments: str) -> str:
    result = await run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def fail(*arguments: str) -> Result:
    """A command that fails with one line that says what to do."""
    result = await run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "; " in result.stderr
    return result


def words(text: str, first: str) -> list[str]:
    """The words of the line that begins so."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [first]]
    return line.split()


async def test_policies_are_put_shown_tried_out_and_deleted(client: Client, tmp_path: Path) -> None:
    assert "every step is allowed" in (await run("policy", "list")).stderr
    many, one = tmp_path / "many.json", tmp_path / "one.json"
    many.write_text(json.dumps(POLICIES))
    one.write_text(json.dumps({**POLICIES["drop"], "enabled": False}))
    assert (await succeed("policy", "put", str(many))).splitlines() == [
        "policy wire is in force, version 1",
        "policy drop is in force, version 1",
    ]
    wrong = await run("policy", "put", str(one))
    assert (wrong.exit_code, "give its id with --id" in wrong.stderr) == (2, True)
    assert await succeed("policy", "put", str(one), "--id", "drop") == "policy drop is in force, version 2 (disabled)\n"

    listed = await succeed("policy", "list")
    assert words(listed, "drop")[1:6] == ["disabled", "step", "drop*", "step.gate_count", ">"]
    assert "step.input.amount greater than 1000" in listed
    shown = await succeed("policy", "show", "wire")
    assert "2 required within 24h" in shown
    assert "step wire*, label team=a" in shown
    assert json.loads(await succeed("policy", "show", "wire", "--json"))["version"] == 1

    described = ["--step", "wire-1", "-i", "amount=2000", "-l", "team=a"]
    assert words(await succeed("policy", "test", *described), "decision") == ["decision", "require_approval"]
    tried = await succeed("policy", "test", "--file", str(many), "--id", "drop", "--step", "drop-1", "--json")
    assert json.loads(tried)["decision"] == "block"
    assert "no policy matches" in await succeed("policy", "test", "--step", "drop-1", "--gate-count", "3")
    assert (await run("policy", "test")).exit_code == 2
    assert (await run("policy", "test", "--file", str(many), "--step", "a")).exit_code == 2

    assert await succeed("policy", "delete", "drop") == "policy drop is deleted\n"
    versions = await succeed("policy", "show", "drop", "--versions")
    assert [line.split()[0] for line in versions.splitlines()[1:]] == ["3", "2", "1"]
    assert "deleted" in words(versions, "3")
    assert "policy list" in (await fail("policy", "show", "drop")).stderr


async def test_a_gate_tells_whether_to_run_a_step_now(client: Client, workflow: str) -> None:
    for policy_id, definition in POLICIES.items():
        await client.put_policy(policy_id, definition)
    charge: Any = ["gate", workflow, "charge", "-k", "invoice-1", "-i", '{"amount": 5}']
    told = await succeed(*charge, "--claim", "60")
    assert words(told, "decision") == ["decision", "allow"]
    assert "ops." in " ".join(words(told, "claimed"))
    assert "another agent is running it" in (await fail(*charge)).stderr
    await client.complete_step(workflow, "charge", {"charge": 7}, key="invoice-1")
    done = await fail(*charge)
    assert "is already completed" in done.stderr
    assert '{"charge": 7}' in done.stdout
    assert "shows it" in (await fail("gate", workflow, "charge")).stderr
    assert "is blocked" in (await fail("gate", workflow, "drop-1")).stderr
    tried = await succeed("policy", "test", "--recorded", workflow, "drop-1")
    assert words(tried, "decision") == ["decision", "block"]
    held = await fail("gate", workflow, "wire-1", "-i", '{"amount": 2000}', "--json")
    assert json.loads(held.stdout)["approval_status"] == "pending"
    assert "waits for an approval" in held.stderr
    assert "approvals list" in (await fail("gate", workflow, "wire-1", "-i", '{"amount": 2000}', "--reevaluate")).stderr
    assert "workflow list" in (await fail("gate", "wf_nobody", "charge")).stderr


async def test_people_see_what_waits_for_them_and_decide_it(client: Client, workflow: str) -> None:
    assert (await run("approvals", "list")).stderr == "no approval is pending\n"
    await client.put_policy("wire", POLICIES["wire"])
    first, second = [
        str((await client.gate(workflow, step, input={"amount": 2000}))["approval_id"]) for step in ("wire-1", "wire-2")
    ]
    listed = await succeed("approvals", "list", "--key", ANN)
    assert words(listed, first)[1:3] == ["wire-1", "high"]
    for told in ("pending, expires in 23 h 59 m", "0 of 2", "a lot of money", '{"amount": 2000}'):
        assert told in listed

    agreed = await succeed("approvals", "approve", first, "--key", ANN, "--comment", "I have called")
    assert agreed == "recorded, 1 of 2 approvals: step wire-1 waits for 1 more\n"
    assert "another reviewer" in (await fail("approvals", "approve", first, "--key", ANN)).stderr
    shown = await run("approvals", "show", first)
    for told in ("requested", "by ops", "approved by ann", "I have called", '"amount": 2000', "approval_requested"):
        assert told in shown.stdout
    assert f"counterfoil approvals approve {first}" in shown.stderr
    agreed = await succeed("approvals", "approve", first, "--key", BOB)
    assert agreed == f"approved: step wire-1 of {workflow} can proceed\n"
    refused = await succeed("approvals", "reject", second, "--reason", "wrong account")
    assert refused == f"rejected: step wire-2 of {workflow} is blocked\n"
    assert "how it was decided" in (await fail("approvals", "reject", second)).stderr
    page = json.loads(await succeed("approvals", "list", "--status", "any", "--json"))
    assert [approval["status"] for approval in page["approvals"]] == ["approved", "rejected"]


async def test_workflows_are_listed_and_shown_with_their_steps(client: Client, workflow: str) -> None:
    await client.put_policy("wire", POLICIES["wire"])
    await client.gate(workflow, "look")
    await client.complete_step(workflow, "look", {})
    await client.gate(workflow, "charge", claim=60, holder="agent-7", key="invoice-1")
    await client.gate(workflow, "mail")
    await client.fail_step(workflow, "mail", "no address")
    await client.gate(workflow, "wire-1", input={"amount": 2000})
    shown = await succeed("workflow", "show", workflow)
    states = {step: words(shown, step)[1] for step in ("look", "charge", "mail", "wire-1")}
    assert states == {
        "look": "completed",
        "charge": "running",
        "mail": "gated_not_completed",
        "wire-1": "require_approval",
    }
    for told in ("by ops", "claimed by agent-7", "invoice-1", "STEP_FAILED: no address", "a lot of money"):
        assert told in shown
    drawn = (await succeed("flow", "show", workflow)).splitlines()
    assert [line.split()[1] for line in drawn if line.startswith(("✓", "●"))] == [*states]
    unreported = await succeed("work", "list", "--status", "gated_not_completed")
    assert "mail" in unreported
    assert "its agent" in unreported
    assert "charge" not in unreported
    await client.fail_workflow(workflow, "enough")
    listed = await succeed("workflow", "list", "--status", "failed", "-l", "team=a")
    assert words(listed, workflow)[1:3] == ["refund", "failed"]
    assert "WORKFLOW_FAILED: enough" in listed
    assert json.loads(await succeed("workflow", "list", "--status", "completed", "--json"))["workflows"] == []
    assert "a new run needs a new workflow" in (await fail("gate", workflow, "charge")).stderr

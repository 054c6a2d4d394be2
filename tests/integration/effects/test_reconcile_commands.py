"""``counterfoil reconcile`` and the client's calls for it, against a real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from counterfoil.client import Client, InvalidInput, NotWaitingForReconciliation, UnknownWork, UnsafeOnceRequiresControl
from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import eventually
from tests.running import StartNode
from tests.unit.commands import run

pytestmark = pytest.mark.sqlite_only  # a command cannot tell which store the engine has

DONE = {"success": True, "outputs": {"charge_id": "ch_2"}}


@pytest.fixture
async def client(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """With an engine in this process: what it logs must not stand between the lines of a command."""
    node = await start_node()
    monkeypatch.setenv("COUNTERFOIL_URL", node.url)
    with capture_logs():
        async with Client(node.url) as opened:
            yield opened


async def command(*arguments: str) -> str:
    result = await run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def in_queue(client: Client, hold: str) -> str:
    """The work id of the only item of the queue."""

    async def look() -> str | None:
        found = (await client.reconciliations())["reconciliations"]
        return found[0]["work_id"] if [item["hold"] for item in found] == [hold] else None

    return await eventually(look, what=f"an item with hold {hold}")


async def approve_next(client: Client) -> str:
    """Give the only approval that is pending; its id."""
    (asked,) = (await client.approvals(status="pending"))["approvals"]
    approval_id = asked["approval_id"]
    assert f"approval {approval_id}" in await command("work", "show", asked["work_id"])
    await command("approvals", "approve", approval_id)
    return approval_id


async def test_an_unsafe_once_charge_is_held_approved_and_sent_once_more(
    client: Client, endpoint: StepEndpoint
) -> None:
    endpoint.answer("/charge", Answer(fault="cut"), Answer(200, DONE))
    step = {"kind": "sync", "endpoint": endpoint.url("/charge"), "effect": {"policy": "unsafe_once"}}
    with pytest.raises(UnsafeOnceRequiresControl):
        await client.put_step("charge", step)
    await client.put_step("charge", {**step, "control": {"approval": {"reason": "money moves"}}})
    await command("flow", "start", "charge", "--id", "order-7", "--init-key", "charge=order-7", "--init", "amount=7")
    await approve_next(client)
    work_id = await in_queue(client, "unsafe_once")
    listed = await command("reconcile", "list", "--step", "charge", "--since", "1h")
    assert listed.splitlines()[1].split()[:2] == [work_id, "charge"]
    assert "connection_lost" in listed
    shown = await command("reconcile", "show", work_id)
    assert "only a new approval sends it again" in shown
    assert "order-7" in shown
    assert "reconciliation" in await command("work", "list", "--status", "not_completed")
    assert f"counterfoil reconcile show {work_id}" in " ".join((await command("flow", "show", "order-7")).split())
    settled = await command("reconcile", "settle", work_id, "--not-applied", "--note", "not in the ledger")
    assert len(endpoint.requests("/charge")) == 1
    assert settled.endswith(f"approve: counterfoil approvals approve {await approve_next(client)}\n")
    assert (await client.result("order-7"))["outputs"] == {"charge_id": "ch_2"}
    assert [sent.headers["Idempotency-Key"] for sent in endpoint.requests("/charge")] == ["order-7", "order-7"]
    rows = (await command("work", "show", work_id)).splitlines()[-2:]
    assert [row.split()[1:3] for row in rows] == [["not_completed", "unknown"], ["succeeded", "delivered"]]
    assert "connection_lost" in rows[0]
    assert "not_applied, settled by local" in await command("flow", "events", "order-7")
    assert "no work item waits" in (await run("reconcile", "list")).stderr


async def test_the_client_settles_and_the_first_settlement_wins(client: Client, endpoint: StepEndpoint) -> None:
    endpoint.answer("/charge", Answer(500))
    attributes = {"charge_id": {"role": "output", "type": "string"}}
    step = {"kind": "sync", "endpoint": endpoint.url("/charge"), "effect": {"policy": "reconcile"}}
    await client.put_step("charge", {**step, "attributes": attributes})
    await client.start_flow(["charge"], flow_id="order-8", init_keys={"charge": "order-8"})
    work_id = await in_queue(client, "reconcile")
    item = await client.reconciliation(work_id)
    assert (item["idempotency_key"], item["cause"], item["last_probe"]) == ("order-8", "server_error", None)
    with pytest.raises(InvalidInput):
        await client.settle(work_id, "applied", outputs={"charge_id": 7})
    refused = await run("reconcile", "settle", work_id, "--applied", "--outputs", '{"charge_id": 7}')
    assert "outputs.charge_id: " in refused.stderr
    outputs = json.dumps({"charge_id": "ch_1"})
    assert await command("reconcile", "settle", work_id, "--applied", "--outputs", outputs) == (
        f"work item {work_id} succeeded\n"
    )
    with pytest.raises(NotWaitingForReconciliation) as late:
        await client.settle(work_id, "failed", error="no")
    assert late.value.details["status"] == "succeeded"
    with pytest.raises(UnknownWork):
        await client.reconciliation("nothing")
    assert (await client.result("order-8"))["outputs"] == {"charge_id": "ch_1"}

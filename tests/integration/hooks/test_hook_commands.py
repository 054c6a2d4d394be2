"""``counterfoil hooks`` and the client's calls for it, what subscribers are told, and what is counted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from counterfoil.client import Client, HookNotFound, InvalidPayload
from counterfoil.testing import MovableClock, StepEndpoint
from tests.integration.hooking import HOOK, order, post, put_hook, waiting
from tests.integration.subscribing import Subscriber
from tests.running import Connect, StartNode
from tests.unit.commands import run
from tests.wire import Api

once = pytest.mark.sqlite_only  # a command cannot tell which store the engine has


@pytest.fixture
async def client(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """With an engine in this process: what it logs must not stand between the lines of a command."""
    node = await start_node()
    monkeypatch.setenv("COUNTERFOIL_URL", node.url)
    with capture_logs():
        async with Client(node.url) as opened:
            await opened.put_step(
                HOOK,
                {
                    "kind": "hook",
                    "hook": {"token": "order:{order_id}", "collect": 2},
                    "attributes": {"order_id": {"role": "required"}, "payloads": {"role": "output"}},
                },
            )
            yield opened


async def command(*arguments: str) -> str:
    result = await run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@once
async def test_hooks_are_listed_shown_and_given_payloads(client: Client) -> None:
    assert "no hook waits for a payload" in (await run("hooks", "list")).output
    flow_id = (await client.start_flow([HOOK], {"order_id": "a/b"}))["flow_id"]
    listed = await command("hooks", "list", "--step", HOOK)
    assert "order:a/b" in listed
    assert "0 of 2" in listed
    assert json.loads(await command("hooks", "list", "--json"))["hooks"][0]["flow_id"] == flow_id
    shown = await command("hooks", "show", "order:a/b")
    assert (flow_id in shown, "waiting" in shown, "0 of 2" in shown) == (True, True, True)
    assert json.loads(await command("hooks", "show", "order:a/b", "--json"))["collect"] == 2
    sent = ("hooks", "send", "order:a/b", '{"n": 1}', "--delivery-id", "d1")
    assert await command(*sent) == f"delivered: step {HOOK} of flow {flow_id}\n"
    assert await command(*sent) == f"already recorded: step {HOOK} of flow {flow_id}\n"
    assert json.loads(await command("hooks", "send", "order:a/b", "null", "--json"))["delivered"] is True
    assert (await client.result(flow_id))["outputs"] == {"payloads": [{"n": 1}, None]}
    refused = await run("hooks", "send", "order:a/b", "1")
    assert (refused.exit_code, "no hook waits" in refused.output) == (1, True)
    assert (await run("hooks", "send", "order:a/b", "{")).exit_code == 2


@once
async def test_the_client_delivers_and_reads(client: Client) -> None:
    with pytest.raises(HookNotFound):
        await client.deliver("order:1", {})
    flow_id = (await client.start_flow([HOOK], {"order_id": "1"}))["flow_id"]
    first = await client.deliver("order:1", {"n": 1}, delivery_id="d1")
    assert first == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": False}
    assert (await client.deliver("order:1", {"n": 1}, delivery_id="d1"))["duplicate"] is True
    hook = await client.hook("order:1")
    assert (hook["received"], hook["status"]) == (1, "waiting")
    page = await client.hooks(step=HOOK, limit=1)
    assert [listed["token"] for listed in page["hooks"]] == ["order:1"]
    await client.put_step("strict", {"kind": "hook", "hook": {"token": "strict"}})
    await client.start_flow(["strict"])
    with pytest.raises(InvalidPayload) as refusal:
        await client.deliver("strict", [])
    assert refusal.value.details["errors"] == [{"place": "payload", "message": "must be an object"}]


async def test_subscribers_are_told(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    subscriber = Subscriber(api, endpoint)
    await subscriber.subscribe("hook.registered", "hook.received", "hook.timed_out")
    await put_hook(api, hook={"collect": 2}, work={"deadline_ms": 60_000})
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", {"secret": "payload"}, "d1")).ok()
    clock.advance(minutes=2)
    await api.final(flow_id)
    messages = {message["type"]: message["data"] for message in [await subscriber.told(number) for number in (1, 2, 3)]}
    assert set(messages) == {"hook.registered", "hook.received", "hook.timed_out"}
    for data in messages.values():
        assert (data["flow_id"], data["step_id"], data["path"]) == (flow_id, HOOK, f"/api/v1/flows/{flow_id}")
        assert "payload" not in str(data)
    assert messages["hook.registered"]["deadline_at"].endswith("Z")
    assert (messages["hook.received"]["received"], messages["hook.received"]["collect"]) == (1, 2)
    assert messages["hook.received"]["delivery_id"] == "d1"
    assert messages["hook.timed_out"]["received"] == 1


async def test_deliveries_are_counted_by_verdict(api: Api) -> None:
    await put_hook(api, hook={"collect": 2})
    flow_id = await order(api)
    await waiting(api, flow_id)
    for token, delivery in (("order:1", "d1"), ("order:1", "d1"), ("order:2", "d1")):
        await post(api, token, 1, delivery)
    text = (await api.get("/metrics")).content.decode()
    assert 'counterfoil_hook_deliveries_total{verdict="delivered"} 1.0' in text
    assert 'counterfoil_hook_deliveries_total{verdict="duplicate"} 1.0' in text
    assert 'counterfoil_hook_deliveries_total{verdict="hook_not_found"} 1.0' in text
    assert "counterfoil_hooks_waiting 1.0" in text

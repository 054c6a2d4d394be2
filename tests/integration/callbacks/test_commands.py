"""``counterfoil callbacks`` and ``counterfoil dev send``, and the client's calls for them, against a real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from counterfoil.client import CallbackNotReplayable, Client, UnknownCallback, WorkNotActive
from counterfoil.testing import Received, StepEndpoint
from tests.integration.hooking import CONFIRMED, ORDER
from tests.running import StartNode
from tests.unit.commands import run

pytestmark = pytest.mark.sqlite_only  # a command cannot tell which store the engine has


@pytest.fixture
async def client(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """With an engine in this process: what it logs must not stand between the lines of a command."""
    node = await start_node(callbacks={"keep_bodies": "refused"}, work={"deadline_ms": 60_000})
    monkeypatch.setenv("COUNTERFOIL_URL", node.url)
    with capture_logs():
        async with Client(node.url) as opened:
            yield opened


async def command(*arguments: str) -> str:
    result = await run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


async def failing(*arguments: str) -> str:
    result = await run(*arguments)
    assert result.exit_code != 0, result.output
    return result.stderr


async def dispatched(client: Client, endpoint: StepEndpoint, **definition: Any) -> tuple[str, Received]:
    await client.put_step("job", {"endpoint": endpoint.url("/job"), **definition})
    flow_id = (await client.start_flow(["job"]))["flow_id"]
    return flow_id, await endpoint.received("/job", len(endpoint.requests("/job")) or 1)


async def test_callbacks_are_listed_shown_and_replayed(client: Client, endpoint: StepEndpoint) -> None:
    assert "no matching callback" in (await run("callbacks", "list")).stderr
    flow_id, received = await dispatched(client, endpoint)
    session = client._live_session()
    async with session.post(received.webhook_url, data=b'{"success": true}', headers={"Content-Type": "text/x"}):
        pass
    listed = await command("callbacks", "list", "--flow", flow_id, "--since", "1h", "--kind", "completion")
    assert "UNSUPPORTED_MEDIA_TYPE" in listed
    assert received.token not in listed
    [found] = json.loads(await command("callbacks", "list", "--verdict", "UNSUPPORTED_MEDIA_TYPE", "--json"))[
        "callbacks"
    ]
    shown = await command("callbacks", "show", found["callback_id"])
    assert "UNSUPPORTED_MEDIA_TYPE" in shown
    assert flow_id in shown
    assert json.loads(await command("callbacks", "show", found["callback_id"], "--json"))["body"] is None
    assert "CALLBACK_NOT_REPLAYABLE" in await failing("callbacks", "replay", found["callback_id"])
    with pytest.raises(CallbackNotReplayable):
        await client.replay_callback(found["callback_id"])
    with pytest.raises(UnknownCallback):
        await client.callback("nothing")
    async with session.post(received.webhook_url, json={"success": "yes"}):
        pass
    assert "INVALID_RESULT" in await failing(
        "callbacks", "replay", (await client.callbacks())["callbacks"][0]["callback_id"]
    )


async def test_a_replay_says_what_became_of_the_payload(client: Client) -> None:
    ignoring = {"map": {"ignore": "payload.type == 'ping'", "outputs": {"confirmed": "payload.ok"}}}
    hook = {"kind": "hook", "hook": {"token": "order:{order_id}"}, "attributes": {**ORDER, **CONFIRMED}}
    await client.put_step("order", {**hook, "accept": ignoring})
    flow_id = (await client.start_flow(["order"], {"order_id": "1"}))["flow_id"]
    told = await command("hooks", "send", "order:1", '{"type": "ping"}')
    assert told == f"ignored: step order of flow {flow_id}\n"
    [ping] = (await client.callbacks(flow=flow_id))["callbacks"]
    assert await command("callbacks", "replay", ping["callback_id"]) == f"ignored, step order of flow {flow_id}\n"


async def test_pages_are_followed(client: Client, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(client, endpoint)
    session = client._live_session()
    for _ in range(5):
        async with session.post(received.webhook_url, json={"success": True}):
            pass
    everything = [each async for each in client.every_callback(limit=2)]
    assert [each["verdict"] for each in everything] == ["ALREADY_SUCCEEDED"] * 4 + ["accepted"]
    first = await run("callbacks", "list", "--limit", "3")
    cursor = first.stderr.split("--cursor ")[1].strip()
    rest = json.loads(await command("callbacks", "list", "--limit", "3", "--cursor", cursor, "--json"))
    assert rest["callbacks"] == everything[3:]


async def test_a_step_is_completed_by_hand(client: Client, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(client, endpoint)
    told = await command("dev", "send", flow_id, "job", "--outputs", '{"text": "hello"}')
    assert told == f"accepted: job of flow {flow_id} is succeeded\n"
    assert (await client.flow(flow_id))["outputs"] == {"text": "hello"}
    assert "ALREADY_SUCCEEDED" in await failing("dev", "send", flow_id, "job", "--outputs", '{"text": "hello"}')
    assert "CONFLICTING_RESULT" in await failing("dev", "send", flow_id, "job")


@pytest.mark.parametrize(
    ("options", "message"), [(["--fail"], "failed by counterfoil dev send"), (["--fail", "no paper"], "no paper")]
)
async def test_a_step_fails_by_hand(client: Client, endpoint: StepEndpoint, options: list[str], message: str) -> None:
    flow_id, _ = await dispatched(client, endpoint)
    answer = json.loads(await command("dev", "send", flow_id, "job", *options, "--json"))
    assert (answer["verdict"], answer["status"]) == ("accepted", "failed")
    [item] = (await client.flow(flow_id))["steps"]["job"]["work"]
    assert item["error"] is not None
    assert item["error"]["message"] == message


async def test_an_attempt_is_given_back_by_hand(client: Client, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(client, endpoint, work={"init_backoff_ms": 60_000})
    assert "is not_completed" in await command("dev", "send", flow_id, "job", "--fail", "later", "--retriable")


async def test_an_item_of_a_fan_out_is_chosen(client: Client, endpoint: StepEndpoint) -> None:
    attributes = {"n": {"role": "required", "type": "array", "for_each": True}}
    await client.put_step("each", {"endpoint": endpoint.url("/each"), "attributes": attributes})
    flow_id = (await client.start_flow(["each"], {"n": [1, 2, 3]}))["flow_id"]
    await endpoint.received("/each", 3)
    assert "choose one by --item: 0 (active), 1 (active), 2 (active)" in await failing("dev", "send", flow_id, "each")
    assert "has no item 7" in await failing("dev", "send", flow_id, "each", "--item", "7")
    await command("dev", "send", flow_id, "each", "--item", "1")
    items = {item["item"]: item for item in (await client.flow(flow_id))["steps"]["each"]["work"]}
    assert items[1]["status"] == "succeeded"
    await command("dev", "send", flow_id, "each", "--work", items[0]["work_id"])
    await command("dev", "send", flow_id, "each")
    assert (await client.flow(flow_id))["status"] == "completed"


async def test_a_payload_is_delivered_to_a_hook_without_its_token(client: Client) -> None:
    for step_id, token in (("mail", None), ("order", "order:{order_id}")):
        definition = {"kind": "hook", "hook": {"token": token}, "attributes": {**ORDER, **CONFIRMED}}
        await client.put_step(step_id, definition)
        flow_id = (await client.start_flow([step_id], {"order_id": "1"}))["flow_id"]
        assert "INVALID_PAYLOAD" in await failing("dev", "send", flow_id, step_id, "--payload", "[1]")
        told = await command("dev", "send", flow_id, step_id, "--payload", '{"confirmed": true}')
        assert told == f"delivered to the hook {step_id} of flow {flow_id}\n"
        assert (await client.flow(flow_id))["outputs"] == {"confirmed": True}
        assert "HOOK_NOT_FOUND" in await failing("dev", "send", flow_id, step_id, "--payload", "{}")


async def test_a_hook_is_completed_by_hand(client: Client) -> None:
    definition = {"kind": "hook", "hook": {"token": "order:{order_id}"}, "attributes": {**ORDER, **CONFIRMED}}
    await client.put_step("order", definition)
    flow_id = (await client.start_flow(["order"], {"order_id": "1"}))["flow_id"]
    await command("dev", "send", flow_id, "order", "--outputs", '{"confirmed": false}')
    assert (await client.flow(flow_id))["outputs"] == {"confirmed": False}
    again = (await client.start_flow(["order"], {"order_id": "1"}))["flow_id"]  # the token is free
    await command("dev", "send", again, "order", "--payload", '{"confirmed": true}')
    assert (await client.flow(again))["outputs"] == {"confirmed": True}


async def test_usage(client: Client, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(client, endpoint)
    send = ("dev", "send", flow_id)
    assert "UNKNOWN_FLOW" in await failing("dev", "send", "nobody", "job")
    assert "has no step other; its steps: job" in await failing(*send, "other")
    assert "give one of" in await failing(*send, "job", "--outputs", "{}", "--fail")
    assert "--retriable needs --fail" in await failing(*send, "job", "--retriable")
    assert "must be a JSON object" in await failing(*send, "job", "--outputs", "[]")
    assert "not JSON" in await failing(*send, "job", "--payload", "{")
    assert "UNKNOWN_WORK" in await failing(*send, "job", "--work", "nothing")
    assert "HOOK_NOT_FOUND" in await failing(*send, "job", "--payload", "{}")
    await client.put_step("outer", {"kind": "flow", "flow": {"goals": ["job"]}})
    outer = (await client.start_flow(["outer"]))["flow_id"]
    [item] = (await client.flow(outer))["steps"]["outer"]["work"]
    with pytest.raises(WorkNotActive):
        await client.complete_work(item["work_id"], {"success": True})
    for arguments in (("--to", "nowhere"), ("--to", "http://127.0.0.1:1", "--name", "No")):
        assert "Invalid value" in await failing("dev", "relay", *arguments)

"""Tokens are credentials: they appear in the dispatch and nowhere else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.by_hand import by_hand
from tests.integration.scenario import PATH, STEP, place_of, webhook_path
from tests.running import Connect, StartNode
from tests.sse import event_stream
from tests.wire import JSON, Api


async def scenario(api: Api, endpoint: StepEndpoint) -> list[Received]:
    """A day in the life: accepted, repeated, conflicting, malformed, cancelled, retried, cut, forged."""
    endpoint.answer("/flaky", Answer(503), Answer(fault="cut"), Answer())
    await api.put_step(STEP, endpoint.url(PATH), cancel_url=endpoint.url("/cancel"))
    await api.put_step("flaky", endpoint.url("/flaky"), work={"init_backoff_ms": 5})
    done, cancelled = await api.start(STEP), await api.start(STEP)
    first, second = await endpoint.received(PATH), await endpoint.received(PATH, 2)
    by_flow = {each.metadata["flow_id"]: each for each in (first, second)}
    finished, dropped = by_flow[done], by_flow[cancelled]
    (await api.post(finished.metadata["heartbeat_url"], {"message": "here"})).ok()
    (await api.get(finished.webhook_url)).ok()
    (await api.request("POST", finished.webhook_url, data=b"{", headers=JSON)).refused(422, "INVALID_RESULT")
    (await api.request("POST", finished.webhook_url, data=b"x" * 2**21, headers=JSON)).refused(413, "PAYLOAD_TOO_LARGE")
    (await api.request("POST", finished.webhook_url, data=b"{}")).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    (await api.request("DELETE", finished.webhook_url)).refused(405, "METHOD_NOT_ALLOWED")
    (await api.get(finished.webhook_url + "/nothing")).refused(404, "NOT_FOUND")
    await api.succeed(finished, a=1)
    for result in ({"success": True, "outputs": {"a": 1}}, {"success": False}):
        assert (await api.complete(finished, result)).status == 400
    (await api.post(f"/api/v1/flows/{cancelled}/cancel")).ok()
    await endpoint.received("/cancel")
    (await api.complete(dropped, {"success": True})).refused(400, "WORK_CANCELLED")
    for forged in (finished.token[:-1] + "_", dropped.token + "x"):
        reply = await api.post(webhook_path(finished, forged), {"success": True})
        reply.refused(404, "UNKNOWN_RECEIPT")
        assert forged not in reply.content.decode()
    header = {"Counterfoil-Receipt": dropped.token}
    (await api.post(f"/webhook/{done}/{STEP}", {"success": True}, **header)).refused(404, "UNKNOWN_RECEIPT")
    flaky = await api.start("flaky")
    third = await endpoint.received("/flaky", 3)
    await api.succeed(third)
    await api.final(flaky)
    return [first, second, third]


async def everything_shown(api: Api) -> str:
    """All that the API shows of the flows, the work, the journal and the metrics."""
    flows = (await api.get("/api/v1/flows")).ok()["flows"]
    works = (await api.get("/api/v1/work")).ok()["work"]
    paths = ["/api/v1/flows", "/api/v1/work", "/api/v1/steps", "/metrics", "/readyz", "/openapi.json"]
    paths += [f"/api/v1/flows/{flow['flow_id']}{part}" for flow in flows for part in ("", "/events", "/result")]
    paths += [f"/api/v1/work/{work['work_id']}" for work in works]
    texts = [(await api.get(path)).content.decode() for path in paths]
    async with event_stream(api.session, f"{api.url}/api/v1/stream", "0") as stream:
        seen = [await stream.next()]
        while sum(sent.event in ("flow_completed", "flow_cancelled") for sent in seen) < 3:
            seen.append(await stream.next())
    texts += [str(sent) for sent in seen]
    return "\n".join(texts)


async def test_no_token_is_shown(api: Api, endpoint: StepEndpoint) -> None:
    """Nothing that can be read over HTTP holds a token; what a process writes is tested with real processes."""
    received = await scenario(api, endpoint)
    shown = await everything_shown(api)
    assert all(each.metadata["flow_id"] in shown for each in received)
    for each in received:
        secret = each.token.rsplit(".", 1)[1]
        assert len(secret) >= 32
        assert not [part for part in (each.token, secret, secret[:16]) if part in shown]


async def words_with_tokens(api: Api, endpoint: StepEndpoint) -> list[Received]:
    """Programs whose texts hold the URL that they were given: in exceptions, logs, echoes and ids."""

    async def echo(received: Received) -> Answer:
        return Answer(body={"success": True, "outputs": {"echo": received.body, received.token: [received.token]}})

    endpoint.answer("/echo", echo)
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 60_000, "max_backoff_ms": 60_000})
    await api.put_step("echo", endpoint.url("/echo"), kind="sync")
    seen: list[Received] = []
    for result in (
        {"success": False, "error": "timed out POST {url}"},
        {"success": False, "error": "{url}", "retriable": True},
        {"success": True, "outputs": {"log": ["{url}", {"{token}": "{token}"}]}},
    ):
        await api.start(STEP)
        received = await endpoint.received(PATH, len(seen) + 1)
        seen.append(received)
        (await api.post(received.metadata["heartbeat_url"], {"message": f"POST {received.webhook_url}"})).ok()
        text = json.dumps(result).replace("{url}", received.webhook_url).replace("{token}", received.token)
        escaped = text.replace(received.token, "".join(f"\\u{ord(letter):04x}" for letter in received.token))
        reply = await api.request("POST", received.webhook_url, data=text.encode(), headers=JSON)
        assert reply.ok()["verdict"] == "accepted"
        again = await api.request("POST", received.webhook_url, data=escaped.encode(), headers=JSON)
        assert again.status == 200 or again.details["same_result"] is True, "it is blanked in a repetition, too"
    await api.final(await api.start("echo", init={"given": seen[0].token}, metadata={"url": seen[0].webhook_url}))
    seen.append(await endpoint.received("/echo"))
    token = seen[0].token
    (await api.request("PUT", f"/api/v1/steps/{token}", json={"endpoint": "http://x"})).refused(400, "BAD_REQUEST")
    workflow = {"workflow_name": token, "metadata": {"token": token}}
    workflow_id = (await api.post("/api/v1/workflows", workflow)).ok(201)["workflow_id"]
    steps = f"/api/v1/workflows/{workflow_id}/steps"
    (await api.post(f"{steps}/{token}/gate", {})).refused(400, "BAD_REQUEST")
    (await api.post(f"{steps}/s/gate", {"step_input": {"url": seen[0].webhook_url}})).ok()
    report = {"output": {"url": seen[0].webhook_url}, "metadata": {"url": seen[0].webhook_url, token: token}}
    assert (await api.post(f"{steps}/s/complete", report)).status == 204
    step = (await api.get(f"{steps}/s")).ok()
    assert "[redacted]" in step["metadata"]["url"]
    assert token not in str(step)
    assert (await api.post(f"/api/v1/workflows/{workflow_id}/fail", {"reason": token})).status < 300
    return seen


async def test_a_token_in_other_programs_words_is_stored_nowhere(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """The reproduction: an error that holds the webhook's URL showed viewers the live token."""
    node = await start_node()
    api = connect(node)
    received = await words_with_tokens(api, endpoint)
    flows = [flow["flow_id"] for flow in (await api.get("/api/v1/flows")).ok()["flows"]]
    workflows = (await api.get("/api/v1/workflows")).content.decode()
    shown = "".join([str(await api.events(flow_id)) + str(await api.flow(flow_id)) for flow_id in flows]) + workflows
    await node.stop()
    place = place_of(node)
    kept = b"".join(path.read_bytes() for path in Path(node.settings.data).rglob("*") if path.is_file())
    if isinstance(place, str):
        tables = [name for (name,) in by_hand(place, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        kept += "".join(str(by_hand(place, f"SELECT * FROM {table}")) for table in tables).encode()
    for each in received:
        work_id, _, signature = each.token.partition(".")
        assert f"{work_id}.[redacted]" in shown
        assert signature not in shown
        assert work_id.encode() in kept
        assert signature.encode() not in kept


@pytest.mark.sqlite_only
async def test_no_token_is_kept_in_a_file(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """A leaked database holds no usable token, and the secret's file is for its owner only."""
    node = await start_node()
    received = await scenario(connect(node), endpoint)
    await node.stop()
    files = [path for path in Path(node.settings.data).rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        for each in received:
            assert each.token.rsplit(".", 1)[1].encode() not in content, path.name
    secrets = [path for path in files if not path.name.startswith("counterfoil.db")]
    assert secrets
    assert {path.stat().st_mode & 0o077 for path in secrets} == {0}


@pytest.mark.postgresql_only
async def test_no_token_is_kept_on_a_server(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """No row of any table holds one. The secret that signs them is there, for all nodes, and in no file of theirs."""
    node = await start_node()
    received = await scenario(connect(node), endpoint)
    await node.stop()
    place = place_of(node)
    tables = [name for (name,) in by_hand(place, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
    content = {table: str(by_hand(place, f"SELECT * FROM {table}")) for table in tables}
    assert all(each.metadata["work_id"] in content["work"] for each in received)
    for each in received:
        secret = each.token.rsplit(".", 1)[1]
        assert not [table for table, text in content.items() if secret in text]
    assert len(by_hand(place, "SELECT secret FROM receipt_secret")) == 1
    assert not [path for path in Path(node.settings.data).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "head",
    [
        "POST /webhook/f/s/{token} HTTP/9.9\r\n\r\n",
        "POST /webhook/f/s/{token} nonsense\r\n\r\n",
        "BAD REQUEST /webhook/f/s/{token} HTTP/1.1\r\n\r\n",
        "POST /webhook/f/s/{token} HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        "POST /webhook/f/s/{token} HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        "POST /webhook/f/s/{token}\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_the_servers_own_error_page_repeats_no_token(api: Api, endpoint: StepEndpoint, head: str) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    await api.start(STEP)
    token = (await endpoint.received(PATH)).token
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.format(token=token).encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    assert token.encode() not in answer
    assert token.rsplit(".", 1)[1].encode() not in answer
    assert b"Traceback" not in answer


async def test_an_endpoint_that_echoes_the_token_does_not_get_it_into_the_journal(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """Answers of endpoints are noted by what is wrong with them, never by their text."""
    api = connect(await start_node())

    async def echo(received: Received) -> Answer:
        return Answer(body="no StepResult: " + received.token)

    async def echo_and_fail(received: Received) -> Answer:
        return Answer(404, body=received.token)

    endpoint.answer("/echo", echo)
    endpoint.answer("/fail", echo_and_fail)
    await api.put_step("echo", endpoint.url("/echo"))
    await api.put_step("fail", endpoint.url("/fail"))
    flows = [await api.start("echo"), await api.start("fail")]
    await api.until_acknowledged(flows[0])
    await api.final(flows[1])
    for received, flow_id in zip(endpoint.all_requests(), flows, strict=True):
        reply = await api.get(f"/api/v1/flows/{received.metadata['flow_id']}/events")
        assert received.token not in reply.content.decode()
        assert received.token not in (await api.get(f"/api/v1/flows/{flow_id}")).content.decode()

"""Pages end for their size, too: nothing is lost between them, and other requests do not wait for them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.scenario import PATH, STEP, run_sync
from tests.running import Connect, Node, StartNode
from tests.sse import event_stream
from tests.wire import Api

PAGE = 50_000
FLOWS = 30


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node(page_bytes=PAGE)


@pytest.fixture
async def api(node: Node, connect: Connect, endpoint: StepEndpoint) -> Api:
    """An engine with flows that gave 20 kB each, which their journal tells several times, and some that gave little."""
    api = connect(node)
    for number in range(FLOWS):
        size = 10 if number % 5 == 0 else 20_000
        endpoint.answer(PATH, Answer(body={"success": True, "outputs": {"text": "é" * (size // 2)}}))
        await api.final(await run_sync(api, endpoint))
    return api


async def pages(api: Api, path: str, name: str, **params: str) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = []
    cursor: str | None = None
    while cursor is not None or not found:
        reply = await api.get(path, **params, **({"cursor": cursor} if cursor else {}))
        assert len(reply.content) < PAGE + 150_000, "one page, and the row with which it ended"
        found.append(reply.ok()[name])
        cursor = reply.body["next_cursor"]
    return found


@pytest.mark.parametrize(("path", "name"), [("/api/v1/work", "work"), ("/api/v1/flows", "flows")])
async def test_lists(api: Api, path: str, name: str) -> None:
    found = await pages(api, path, name, limit="1000")
    if name == "work":
        assert len(found) > FLOWS // 5
    ids = [item["flow_id"] for page in found for item in page]
    assert (len(ids), len(set(ids))) == (FLOWS, FLOWS)
    texts = [len((item["outputs"] or {}).get("text", "")) for page in found for item in page]
    assert sorted(texts) == [5] * (FLOWS // 5) + [10_000] * (FLOWS - FLOWS // 5)


async def test_journals(api: Api) -> None:
    flow_id = (await api.get("/api/v1/flows", limit="3")).ok()["flows"][0]["flow_id"]
    whole = await pages(api, f"/api/v1/flows/{flow_id}/events", "events", limit="1000")
    single = await pages(api, f"/api/v1/flows/{flow_id}/events", "events", limit="1")
    assert [event for page in whole for event in page] == [event for page in single for event in page]


async def test_streams(api: Api) -> None:
    flows = [flow for page in await pages(api, "/api/v1/flows", "flows") for flow in page]
    journal = [event["seq"] for flow in flows for event in await api.events(flow["flow_id"])]
    async with event_stream(api.session, f"{api.url}/api/v1/stream", "0") as stream:
        assert [(await stream.next()).data["seq"] for _ in journal] == sorted(journal)


async def test_many_long_streams_do_not_hold_up_others(api: Api, endpoint: StepEndpoint) -> None:
    """The reproduction: twelve streams of large events kept ``/healthz`` waiting for nearly nine seconds."""
    endpoint.answer(PATH, Answer(body={"success": True, "outputs": {"text": "x" * 900_000}}))
    flow_ids = [await run_sync(api, endpoint) for _ in range(8)]
    journal = 0
    for flow_id in flow_ids:
        await api.final(flow_id)
        journal += len(await api.events(flow_id))

    async def follow() -> None:
        async with event_stream(api.session, f"{api.url}/api/v1/stream", "0") as stream:
            for _ in range(journal):
                await stream.next(within=60)

    following = [asyncio.create_task(follow()) for _ in range(12)]
    longest, looks = 0.0, 0
    while not all(task.done() for task in following):
        began = time.monotonic()
        (await api.get("/healthz")).ok()
        longest, looks = max(longest, time.monotonic() - began), looks + 1
        await asyncio.sleep(0)
    await asyncio.gather(*following)
    assert looks > 5
    assert longest < 2.0


async def test_a_page_has_one_row_at_least(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    api = connect(await start_node(page_bytes=1))
    endpoint.answer(PATH, *[Answer(body={"success": True, "outputs": {"text": "x"}})] * 3)
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    flow_ids = [await api.start(STEP) for _ in range(3)]
    for flow_id in flow_ids:
        await api.final(flow_id)
    for path, name in (("/api/v1/work", "work"), ("/api/v1/flows", "flows"), ("/api/v1/workflows", "workflows")):
        found = await pages(api, path, name)
        assert sum(map(len, found)) == (0 if name == "workflows" else 3)
    assert [
        event["seq"] for page in await pages(api, f"/api/v1/flows/{flow_ids[0]}/events", "events") for event in page
    ]

"""Section 3: looking at flows: shape, list, filters, pages, long poll and journal."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest

from counterfoil.engine.work.heartbeats import BURST
from counterfoil.testing import Answer, StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched, run_sync
from tests.wire import Api, moment

FLOW_FIELDS = {
    "flow_id",
    "status",
    "goals",
    "init",
    "outputs",
    "error",
    "metadata",
    "labels",
    "created_at",
    "finished_at",
    "pruned_at",
    "steps",
}
WORK_FIELDS = {
    "work_id",
    "status",
    "attempt",
    "next_attempt_at",
    "deadline_at",
    "hold",
    "progress",
    "outputs",
    "error",
}


async def test_shape_of_a_running_flow(api: Api, endpoint: StepEndpoint) -> None:
    start = {"init": {"a": 1}, "metadata": {"m": [1]}, "labels": {"team": "x"}}
    flow_id, received = await dispatched(api, endpoint, start=start)
    flow = await api.flow(flow_id)
    assert set(flow) >= FLOW_FIELDS
    assert {name: flow[name] for name in start} == start
    assert (flow["flow_id"], flow["status"], flow["goals"]) == (flow_id, "active", [STEP])
    assert (flow["outputs"], flow["error"], flow["finished_at"]) == ({}, None, None)
    moment(flow["created_at"])
    assert flow["steps"][STEP]["status"] == "active"
    work = flow["steps"][STEP]["work"][0]
    assert set(work) >= WORK_FIELDS
    assert (work["status"], work["attempt"], work["hold"], work["error"]) == ("active", 1, None, None)
    moment(work["deadline_at"])
    assert received.token not in orjson.dumps(flow).decode()


async def test_shape_of_a_completed_flow(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received, a=1)
    await api.final(flow_id)
    flow = await api.flow(flow_id)
    assert (flow["status"], flow["outputs"], flow["error"]) == ("completed", {"a": 1}, None)
    assert moment(flow["finished_at"]) >= moment(flow["created_at"])
    assert flow["steps"][STEP]["status"] == "completed"
    work = flow["steps"][STEP]["work"][0]
    assert (work["status"], work["outputs"], work["deadline_at"]) == ("succeeded", {"a": 1}, None)


async def test_shape_of_a_failed_flow(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, {"success": False, "error": "broken"})).ok()
    flow = await api.flow(flow_id)
    assert (flow["status"], flow["steps"][STEP]["status"]) == ("failed", "failed")
    assert set(flow["error"]) >= {"code", "message"}
    assert "broken" in flow["error"]["message"]


@pytest.mark.parametrize("path", ["", "/result", "/events", "/stream"])
async def test_unknown_flows(api: Api, path: str) -> None:
    (await api.get(f"/api/v1/flows/nobody{path}")).refused(404, "UNKNOWN_FLOW")


# ------------------------------------------------------------------------------------------- list


async def listed(api: Api, **filters: str) -> list[str]:
    return [flow["flow_id"] for flow in (await api.get("/api/v1/flows", **filters)).ok()["flows"]]


async def test_filters(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer("/fail", Answer(400))
    endpoint.answer("/good", Answer(body={"success": True}))
    await api.put_step("fail", endpoint.url("/fail"), kind="sync")
    await api.put_step("good", endpoint.url("/good"), kind="sync")
    await api.put_step("wait", endpoint.url("/wait"))
    for name, goal in (("f1", "fail"), ("f2", "good"), ("f3", "wait"), ("f4", "wait")):
        await api.start(goal, flow_id=name, labels={"team": "a" if name in ("f1", "f3") else "b", "name": name})
    await api.final("f1")
    await api.final("f2")
    (await api.post("/api/v1/flows/f4/cancel")).ok()
    assert await listed(api, status="failed") == ["f1"]
    assert await listed(api, status="completed") == ["f2"]
    assert await listed(api, status="active") == ["f3"]
    assert await listed(api, status="cancelled") == ["f4"]
    assert sorted(await listed(api, label="team:a")) == ["f1", "f3"]
    assert await listed(api, label="team:nobody") == []
    assert await listed(api, label="nothing:a") == []
    assert sorted(await listed(api, goal="wait")) == ["f3", "f4"]
    assert await listed(api, goal="wait", status="active", label="team:a") == ["f3"]
    assert await listed(api, goal="wait", status="active", label="team:b") == []
    assert sorted(await listed(api)) == ["f1", "f2", "f3", "f4"]


async def test_since(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    first = await api.start(STEP)
    while (second := await api.start(STEP)) and await created(api, second) == await created(api, first):
        continue
    assert first in await listed(api, since=await created(api, first))
    later = await listed(api, since=await created(api, second))
    assert second in later
    assert first not in later
    assert await listed(api, since="2099-01-01T00:00:00Z") == []


async def created(api: Api, flow_id: str) -> str:
    return str((await api.flow(flow_id))["created_at"])


@pytest.mark.either_store
@pytest.mark.parametrize(
    "filters",
    [
        {"status": "nonsense"},
        {"label": "no-colon"},
        {"since": "yesterday"},
        {"limit": "0"},
        {"limit": "-1"},
        {"limit": "many"},
        {"limit": "1000000000"},
        {"cursor": "nonsense"},
    ],
)
async def test_wrong_filters_are_refused(api: Api, filters: dict[str, str]) -> None:
    (await api.get("/api/v1/flows", **filters)).refused(422, "INVALID_INPUT")


@pytest.mark.parametrize("filters", [{}, {"status": "active"}, {"label": "k:v"}, {"goal": STEP}])
async def test_pages_show_every_flow_once(api: Api, endpoint: StepEndpoint, filters: dict[str, str]) -> None:
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    flows = {await api.start(STEP, labels={"k": "v"}) for _ in range(23)}
    seen: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        page = (await api.get("/api/v1/flows", limit="5", **filters, **cursor)).ok()
        assert len(page["flows"]) <= 5
        seen += [flow["flow_id"] for flow in page["flows"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == 23
    assert set(seen) == flows


async def test_flows_that_start_while_pages_are_read_do_not_shift_them(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    flows = {await api.start(STEP) for _ in range(12)}
    page = (await api.get("/api/v1/flows", limit="5")).ok()
    seen = [flow["flow_id"] for flow in page["flows"]]
    while page["next_cursor"] is not None:
        await api.start(STEP)
        page = (await api.get("/api/v1/flows", limit="5", cursor=page["next_cursor"])).ok()
        seen += [flow["flow_id"] for flow in page["flows"]]
        assert len(seen) < 50
    assert len(seen) == len(set(seen))
    assert flows <= set(seen)


# ------------------------------------------------------------------------------------------- long poll


async def test_the_result_of_a_final_flow_comes_at_once(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(body={"success": True, "outputs": {"a": 1}}))
    flow_id = await run_sync(api, endpoint)
    await api.final(flow_id)
    for wait in ({}, {"wait": "0"}, {"wait": "30"}):
        body = (await api.get(f"/api/v1/flows/{flow_id}/result", **wait)).ok()
        assert {name: body[name] for name in ("flow_id", "status", "outputs", "error")} == {
            "flow_id": flow_id,
            "status": "completed",
            "outputs": {"a": 1},
            "error": None,
        }


@pytest.mark.parametrize(("wait", "least"), [(None, 0.0), ("0", 0.0), ("1", 1.0)])
async def test_202_when_the_time_is_over(api: Api, endpoint: StepEndpoint, wait: str | None, least: float) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    begun = time.monotonic()
    reply = await api.get(f"/api/v1/flows/{flow_id}/result", **({} if wait is None else {"wait": wait}))
    took = time.monotonic() - begun
    assert reply.ok(202)["status"] == "active"
    assert least <= took < least + 0.9


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_the_poll_ends_as_soon_as_the_flow_does(api: Api, endpoint: StepEndpoint, end: str) -> None:
    flow_id, received = await dispatched(api, endpoint)
    poll = asyncio.ensure_future(api.get(f"/api/v1/flows/{flow_id}/result", wait="20"))
    await asyncio.wait([poll], timeout=0.2)
    assert not poll.done()
    begun = time.monotonic()
    if end == "cancelled":
        (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    else:
        (await api.complete(received, {"success": end == "completed"})).ok()
    assert (await poll).ok()["status"] == end
    assert time.monotonic() - begun < 1


@pytest.mark.either_store
@pytest.mark.parametrize("wait", ["-1", "soon", "nan", "1e9"])
async def test_a_wrong_wait_is_refused(api: Api, endpoint: StepEndpoint, wait: str) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    (await api.get(f"/api/v1/flows/{flow_id}/result", wait=wait)).refused(422, "INVALID_INPUT")


# ------------------------------------------------------------------------------------------- journal


async def test_the_journal_tells_the_whole_story(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(received.metadata["heartbeat_url"], {"progress": 0.5})).ok()
    (await api.complete(received, {"success": False, "retriable": True, "error": "again"})).ok()
    second = await endpoint.received(PATH, 2)
    await api.until_acknowledged(flow_id, 2)
    await api.succeed(second, a=1)
    events = await api.events(flow_id)
    kinds = [event["type"] for event in events]
    assert [kind for kind in kinds if kind.startswith("work")] == [
        "work_created",
        "work_dispatched",
        "work_acknowledged",
        "work_heartbeat",
        "work_not_completed",
        "work_dispatched",
        "work_acknowledged",
        "work_succeeded",
    ]
    assert [kind for kind in kinds if not kind.startswith("work")] == [
        "flow_started",
        "step_started",
        "step_completed",
        "flow_completed",
    ]
    for event in events:
        assert set(event) >= {"seq", "type", "at", "flow_id", "step_id", "work_id", "attempt", "data"}
        assert event["flow_id"] == flow_id
        moment(event["at"])
        if event["type"].startswith("work"):
            assert (event["step_id"], bool(event["work_id"])) == (STEP, True)
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    attempts = [event["attempt"] for event in events if event["type"] == "work_dispatched"]
    assert attempts == [1, 2]


async def test_every_time_on_the_wire_is_rfc_3339(api: Api, endpoint: StepEndpoint) -> None:
    """Fields named ``..._at`` are times with Z or null, in every document and at every depth."""
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(received.metadata["heartbeat_url"], {})).ok()
    (await api.complete(received, {"success": False, "retriable": True, "retry_after": 60})).ok()
    work_id = (await api.work(flow_id))["work_id"]
    documents = [
        await api.flow(flow_id),
        await api.events(flow_id),
        (await api.get("/api/v1/flows")).ok(),
        (await api.get("/api/v1/work")).ok(),
        (await api.get(f"/api/v1/work/{work_id}")).ok(),
        (await api.get(received.webhook_url)).ok(),
        received.body,
    ]

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                if name == "at" or name.endswith("_at"):
                    assert item is None or moment(item).year > 2000, (name, item)
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(documents)


async def test_journal_pages(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    for _ in range(BURST):
        (await api.post(received.metadata["heartbeat_url"], {})).ok()
    whole = (await api.get(f"/api/v1/flows/{flow_id}/events")).ok()["events"]
    assert len(whole) >= 9
    seen: list[dict[str, Any]] = []
    params = {"limit": "4"}
    for _ in range(20):
        page = (await api.get(f"/api/v1/flows/{flow_id}/events", **params)).ok()
        assert len(page["events"]) <= 4
        seen += page["events"]
        if not page["next_cursor"] or not page["events"]:
            break
        params = {"limit": "4", "cursor": str(page["next_cursor"])}
    assert seen == whole
    (await api.get(f"/api/v1/flows/{flow_id}/events", cursor="nonsense")).refused(422, "INVALID_INPUT")


async def test_reading_changes_nothing(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    before = await api.flow(flow_id), await api.events(flow_id)
    work_id = (await api.work(flow_id))["work_id"]
    paths = [
        "/api/v1/flows",
        f"/api/v1/flows/{flow_id}",
        f"/api/v1/flows/{flow_id}/result",
        f"/api/v1/flows/{flow_id}/events",
        "/api/v1/work",
        f"/api/v1/work/{work_id}",
        "/api/v1/steps",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    ]
    for path in paths:
        assert (await api.get(path)).status in (200, 202), path
    (await api.get(received.webhook_url)).ok()
    assert (await api.flow(flow_id), await api.events(flow_id)) == before

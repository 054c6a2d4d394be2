"""Retention over HTTP: what remains of a flow, the answers for a pruned one, and that other flows are unaffected."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.several_nodes import metric, start_many, start_nodes
from tests.running import Connect, Node, StartNode
from tests.sse import event_stream
from tests.wire import Api

HOUR = 3_600_000
DAYS = {"hours": 24 * 31}
PRUNED = 'counterfoil_swept_items_total{sweep="retention"}'
SUCCESS = {"success": True, "outputs": {"a": 1}}


async def gone(api: Api, flow_id: str) -> bool:
    return (await api.get(f"/api/v1/flows/{flow_id}")).status == 404


async def test_after_thirty_days_a_flow_is_gone(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    flow_id, received = await dispatched(
        api, endpoint, start={"flow_id": "mine", "labels": {"k": "v"}}, work={"deadline_ms": 365 * 24 * HOUR}
    )
    waiting = await api.start(STEP)
    await api.succeed(received, a=1)
    work_id = (await api.work(flow_id))["work_id"]
    clock.advance(hours=24 * 29)
    assert (await api.flow(flow_id))["pruned_at"] is None
    clock.advance(hours=24)
    await eventually(lambda: gone(api, flow_id), what="a flow that is gone")
    (await api.get(f"/api/v1/flows/{flow_id}/events")).refused(404, "UNKNOWN_FLOW")
    (await api.get(f"/api/v1/flows/{flow_id}/result")).refused(404, "UNKNOWN_FLOW")
    (await api.get(f"/api/v1/flows/{flow_id}/stream")).refused(404, "UNKNOWN_FLOW")
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).refused(404, "UNKNOWN_FLOW")
    (await api.get(f"/api/v1/work/{work_id}")).refused(404, "UNKNOWN_WORK")
    (await api.complete(received, SUCCESS)).refused(404, "UNKNOWN_RECEIPT")
    (await api.post(f"{received.webhook_url}/heartbeat", {})).refused(404, "UNKNOWN_RECEIPT")
    (await api.get(received.webhook_url)).refused(404, "UNKNOWN_RECEIPT")
    listed = (await api.get("/api/v1/flows")).ok()["flows"]
    assert [flow["flow_id"] for flow in listed] == [waiting], "what has not ended stays, however old"
    assert (await api.get("/api/v1/flows", label="k:v")).ok()["flows"] == []
    assert await api.start(STEP, flow_id="mine") == "mine", "the id is free again"


async def test_payloads_go_before_the_flow(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock, payload_retention_ms=HOUR, retention_ms=24 * HOUR))
    init, metadata = {"name": "secret"}, {"note": "secret"}  # names are the plan's, and stay with it
    flow_id, received = await dispatched(
        api, endpoint, start={"init": init, "metadata": metadata, "labels": {"k": "v"}}
    )
    (await api.complete(received, {**SUCCESS, "outputs": {"given": "secret"}})).ok()
    before = await api.flow(flow_id)
    clock.advance(minutes=61)

    async def pruned() -> dict[str, Any] | None:
        flow = await api.flow(flow_id)
        return flow if flow["pruned_at"] else None

    flow = await eventually(pruned, what="a flow without payloads")
    assert "secret" not in str(flow)
    assert (flow["init"], flow["metadata"], flow["outputs"]) == ({}, {}, {})
    same = ("flow_id", "status", "goals", "labels", "error", "created_at", "finished_at")
    assert {name: flow[name] for name in same} == {name: before[name] for name in same}
    assert (await api.work(flow_id))["status"] == "succeeded"
    assert await api.events(flow_id) == []
    listed = (await api.get("/api/v1/flows", label="k:v")).ok()["flows"]
    assert [(each["flow_id"], each["pruned_at"]) for each in listed] == [(flow_id, flow["pruned_at"])]
    for report in ({**SUCCESS, "outputs": {"given": "secret"}}, {"success": False, "error": "other"}):
        details = (await api.complete(received, report)).refused(400, "ALREADY_SUCCEEDED")
        assert details["same_result"] is None, "it is not known any more"
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).refused(409, "FLOW_FINAL")
    assert (await api.final(flow_id))["outputs"] == {}
    clock.advance(hours=24)
    await eventually(lambda: gone(api, flow_id), what="a flow that is gone")


async def test_for_ever_if_so_wanted(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    node = await start_node(clock, retention_ms=0)
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received)
    clock.advance(hours=24 * 3_650)
    rounds = await metric(api, 'counterfoil_sweeps_total{sweep="retention"}')

    async def swept() -> bool:
        return await metric(api, 'counterfoil_sweeps_total{sweep="retention"}') >= rounds + 2

    await eventually(swept, what="two more rounds")
    assert (await api.flow(flow_id))["pruned_at"] is None


async def test_a_stream_goes_on_with_what_is_there(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Of flows that are gone it tells nothing; of the others all, whatever number the client comes with."""
    clock = MovableClock()
    api = connect(await start_node(clock))
    first, received = await dispatched(api, endpoint)
    seen = (await api.events(first))[0]["seq"]
    await api.succeed(received)
    clock.advance(**DAYS)
    await eventually(lambda: gone(api, first), what="a flow that is gone")
    second, received = await dispatched(api, endpoint)
    await api.succeed(received)
    wanted = [event["seq"] for event in await api.events(second)]
    async with event_stream(api.session, f"{api.url}/api/v1/stream", last_event_id=str(seen)) as stream:
        assert [int(event.id) for event in await stream.until("flow_completed")] == wanted


async def test_rounds_leave_others_their_time(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """They go in rounds of no more than a hundred, each in a commit of its own, and with a pause before the next."""
    clock = MovableClock()
    node = await start_node(clock)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1, "deadline_ms": 365 * 24 * HOUR})
    flows = await start_many(api, STEP, 250)
    for flow_id in flows:
        (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    sizes = watch_prunes(node)
    clock.advance(**DAYS)
    await eventually(lambda: sum(sizes) >= 250, what="flows that are gone")
    assert (sum(sizes), max(sizes)) == (250, 100)
    assert await metric(api, PRUNED) == 250
    assert (await api.get("/api/v1/flows")).ok()["flows"] == []


def watch_prunes(node: Node) -> list[int]:
    """How many flows each commit prunes, from now on."""
    sizes: list[int] = []
    commit = node.engine.engine.commit

    def watch(unit: UnitOfWork, _: GroupCommit) -> None:
        if unit.changes.pruned_flows:
            sizes.append(len(unit.changes.pruned_flows))

    commit._after_commit = (*commit._after_commit, watch)
    return sizes


@pytest.mark.postgresql_only
async def test_all_nodes_prune_together(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """Nothing is pruned twice, nothing is left, and what one node remembers of a flow does no harm at the other."""
    clock = MovableClock()
    nodes = await start_nodes(start_node, 2, clock=clock, payload_retention_ms=HOUR)
    apis = [connect(node) for node in nodes]
    _, received = await dispatched(apis[0], endpoint)
    await apis[0].put_step("other", endpoint.url("/other"), work={"parallelism": 1})
    flows = [each for api in apis for each in await start_many(api, "other", 60)]
    for number, each in enumerate(flows):
        (await apis[number % 2].post(f"/api/v1/flows/{each}/cancel")).ok()
    metadata = received.metadata
    path = f"/webhook/{metadata['flow_id']}/{metadata['step_id']}/{received.token}"
    (await apis[1].post(path, SUCCESS)).ok()
    sizes = [watch_prunes(node) for node in nodes]
    clock.advance(**DAYS)

    async def none_left() -> bool:
        flows: list[Any] = (await apis[0].get("/api/v1/flows")).ok()["flows"]
        return not flows

    await eventually(none_left, within=20, what="no flows")
    wholly = sum(sum(own) for own in sizes)
    assert len(flows) + 1 <= wholly <= 2 * (len(flows) + 1), "each once wholly, and at most once before"
    for api in apis:
        (await api.post(path, SUCCESS)).refused(404, "UNKNOWN_RECEIPT")

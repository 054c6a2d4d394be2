"""Several nodes on one database: any of them takes anything, and together they do nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.databases import NewDatabase
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.several_nodes import (
    ONLY_BY_WORD,
    PROMPT_SECONDS,
    hand,
    metric,
    node_id,
    on,
    senders,
    start_many,
    start_nodes,
    succeed,
)
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

BUSY = {"sweep_interval_ms": 20}
"""Every node looks for due work fifty times a second."""


# ------------------------------------------------------------------------------------------------ anything anywhere


async def test_every_part_of_a_flow_may_go_to_another_node(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    a, b, c = map(connect, await start_nodes(start_node, 3, **ONLY_BY_WORD))
    await a.put_step(STEP, endpoint.url(PATH), work={"deadline_ms": 60_000, "heartbeat_timeout_ms": 30_000})
    flow_id = await b.start(STEP, init={"n": 1})
    received = await endpoint.received(PATH)
    await c.until_acknowledged(flow_id)

    before = (await a.get(on(a, received))).ok()
    beaten = (await a.post(on(a, received, "/heartbeat"), {"progress": 0.5})).ok()
    assert beaten["deadline_at"] > before["deadline_at"]
    assert (await c.work(flow_id))["progress"] == 0.5

    waiting = asyncio.create_task(c.final(flow_id, wait="30"))
    await elapsed(0.1)
    assert not waiting.done()
    await succeed(a, received, n=2)
    result = await asyncio.wait_for(waiting, PROMPT_SECONDS)
    assert (result["status"], result["outputs"]) == ("completed", {"n": 2})

    for api in (a, b, c):
        assert (await api.get(on(api, received))).ok()["status"] == "succeeded"
        repeated = await api.post(on(api, received), {"success": True, "outputs": {"n": 2}})
        assert repeated.refused(400, "ALREADY_SUCCEEDED")["same_result"] is True
        (await api.post(on(api, received), {"success": False})).refused(400, "CONFLICTING_RESULT")
        assert await api.flow(flow_id) == await a.flow(flow_id)
    assert len(endpoint.requests(PATH)) == 1


async def test_a_step_is_known_everywhere_as_soon_as_it_is_registered(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Also another definition of it, and that it is gone: no node goes by what it knew."""
    a, b, c = map(connect, await start_nodes(start_node, 3, **ONLY_BY_WORD))
    for number in range(5):
        await a.put_step(STEP, endpoint.url(f"/{number}"))
        for api in (c, b):
            await api.start(STEP)
        await endpoint.received(f"/{number}", 2)
        assert (await b.get(f"/api/v1/steps/{STEP}")).ok()["endpoint"] == endpoint.url(f"/{number}")
    assert (await c.request("DELETE", f"/api/v1/steps/{STEP}")).status == 204
    (await a.post("/api/v1/flows", {"goals": [STEP]})).refused(404, "UNKNOWN_STEP")


async def test_one_node_cancels_what_another_is_sending(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """The worker is told, and whatever the endpoint answers to the sender then comes too late."""
    a, b = map(connect, await start_nodes(start_node, 2))
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": False, "error": "too late"}, until=release))
    flow_id, received = await dispatched(a, endpoint, acknowledged=False, cancel_url=endpoint.url("/cancel"))
    assert (await b.post(f"/api/v1/flows/{flow_id}/cancel")).ok()["status"] == "cancelled"
    (await a.post(on(a, received), {"success": True})).refused(400, "WORK_CANCELLED")
    assert (await b.post(on(b, received, "/heartbeat"), {})).ok()["cancel_requested"] is True
    await endpoint.received("/cancel")
    await a.until_event(flow_id, "cancel_delivered")
    before = await b.events(flow_id)
    release.set()
    await elapsed(0.3)
    assert await b.events(flow_id) == before
    assert len(endpoint.requests("/cancel")) == 1


async def test_one_flow_of_a_name(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """However many nodes are asked for it at once, one makes it, and it is sent once."""
    apis = [connect(node) for node in await start_nodes(start_node, 3)]
    await apis[0].put_step(STEP, endpoint.url(PATH))
    names = [f"flow-{number}" for number in range(30)]
    replies = await asyncio.gather(
        *(api.post("/api/v1/flows", {"goals": [STEP], "flow_id": name}) for name in names for api in apis * 2)
    )
    assert Counter(reply.status for reply in replies) == {201: len(names), 409: 5 * len(names)}
    assert {reply.code for reply in replies if reply.status == 409} == {"FLOW_EXISTS"}
    await endpoint.received(PATH, len(names))
    await asyncio.gather(*(apis[0].until_acknowledged(name) for name in names))
    sent = Counter(received.metadata["flow_id"] for received in endpoint.requests(PATH))
    assert sent == dict.fromkeys(names, 1)


async def test_the_first_outcome_wins_on_whichever_node(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Contradicting reports to all nodes at once: one is taken, the others learn of it, and it stays."""
    apis = [connect(node) for node in await start_nodes(start_node, 3)]
    await apis[0].put_step(STEP, endpoint.url(PATH))
    flows = await start_many(apis[0], STEP, 20)
    await endpoint.received(PATH, len(flows))

    async def contradict(received: Received) -> None:
        replies = await asyncio.gather(
            *(
                api.post(on(api, received), {"success": True, "outputs": {"n": 3 * turn + place}})
                for turn in range(2)
                for place, api in enumerate(apis)
            )
        )
        taken = [number for number, reply in enumerate(replies) if reply.status == 200]
        assert len(taken) == 1, [reply.content for reply in replies]
        assert {reply.code for reply in replies if reply.status != 200} == {"CONFLICTING_RESULT"}
        for api in apis:
            assert (await api.final(received.metadata["flow_id"]))["outputs"] == {"n": taken[0]}

    await asyncio.gather(*(contradict(received) for received in endpoint.requests(PATH)))


async def test_nodes_without_secrets_of_their_own_share_one(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, new_database: NewDatabase, tmp_path: Path
) -> None:
    """Also when they start together on a database that holds nothing yet: what one has issued is good on the others."""
    store = new_database(empty=True)
    nodes = await asyncio.gather(*(start_node(store=store, data=str(tmp_path / name)) for name in "abc"))
    apis = [connect(node) for node in nodes]
    assert len({node_id(node) for node in nodes}) == 3
    await apis[0].put_step(STEP, endpoint.url(PATH))
    for number, api in enumerate(apis):
        flow_id = await api.start(STEP)
        received = await endpoint.received(PATH, number + 1)
        assert await senders(api, flow_id) == [node_id(nodes[number])]
        other = apis[number - 1]
        await succeed(other, received)
        (await other.get(on(other, received).replace(received.token, received.token[::-1]))).refused(
            404, "UNKNOWN_RECEIPT"
        )


# ------------------------------------------------------------------------------------------------ nothing twice


async def test_a_deadline_runs_out_once(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """All nodes look for it at once, and each attempt that is left is made once.

    An attempt that a slow machine got round to only after its deadline is not sent any more, so none may be missing
    from the journal, and none may arrive twice.
    """
    apis = [connect(node) for node in await start_nodes(start_node, 3, **BUSY)]
    await apis[0].put_step(STEP, endpoint.url(PATH), work={"deadline_ms": 300, "max_retries": 2, "init_backoff_ms": 10})
    flows = [flow_id for api in apis for flow_id in await start_many(api, STEP, 20)]
    for number, flow_id in enumerate(flows):
        assert (await apis[number % 3].final(flow_id))["error"]["code"] == "RETRIES_EXHAUSTED"
        kinds = Counter(await apis[0].event_types(flow_id))
        assert (kinds["work_dispatched"], kinds["work_not_completed"], kinds["work_failed"]) == (3, 2, 1)
    sent = attempts_sent(endpoint)
    assert set(sent) <= {(flow_id, number) for flow_id in flows for number in (1, 2, 3)}
    assert set(sent.values()) == {1}


async def test_what_is_due_again_is_sent_once(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    apis = [connect(node) for node in await start_nodes(start_node, 3, **BUSY)]

    async def third_time(received: Received) -> Answer:
        return Answer(503) if received.metadata["attempt"] < 3 else Answer(body={"success": True})

    endpoint.answer(PATH, third_time)
    await apis[0].put_step(STEP, endpoint.url(PATH), kind="sync", work={"init_backoff_ms": 50})
    flows = [flow_id for api in apis for flow_id in await start_many(api, STEP, 40)]
    assert {(await apis[0].final(flow_id))["status"] for flow_id in flows} == {"completed"}
    assert attempts_sent(endpoint) == {(flow_id, number): 1 for flow_id in flows for number in (1, 2, 3)}


def attempts_sent(endpoint: StepEndpoint) -> Counter[tuple[str, int]]:
    """How often each attempt of each flow has arrived."""
    return Counter((each.metadata["flow_id"], each.metadata["attempt"]) for each in endpoint.requests(PATH))


async def test_a_worker_is_told_once_of_a_cancellation(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    apis = [connect(node) for node in await start_nodes(start_node, 3, **BUSY)]
    await apis[0].put_step(STEP, endpoint.url(PATH), cancel_url=endpoint.url("/cancel"))
    flows = [flow_id for api in apis for flow_id in await start_many(api, STEP, 20)]
    await endpoint.received(PATH, len(flows))
    await asyncio.gather(
        *(api.post(f"/api/v1/flows/{flow_id}/cancel") for flow_id in flows for api in (apis[0], apis[2]))
    )
    for flow_id in flows:
        await apis[1].until_event(flow_id, "cancel_delivered")
    told = Counter(call.body["metadata"]["flow_id"] for call in endpoint.requests("/cancel"))
    assert told == dict.fromkeys(flows, 1)


async def test_what_another_node_has_in_hand_is_not_asked_for_without_pause(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A flow whose row is locked is passed over; the deadline that has run out is found when the lock is gone."""
    [node] = await start_nodes(start_node, 1)
    api = connect(node)
    flow_id, _ = await dispatched(api, endpoint, work={"deadline_ms": 800, "max_retries": 0})
    rounds = 'counterfoil_sweeps_total{sweep="deadlines"}'
    async with hand(node) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM flows WHERE flow_id = $1 FOR UPDATE", flow_id)
        await eventually(lambda: overdue(api), what="work that is overdue")
        before = await metric(api, rounds)
        await elapsed(1.0)
        assert 4 <= await metric(api, rounds) - before <= 40
        assert (await api.work(flow_id))["status"] == "active"
    assert (await api.final(flow_id))["status"] == "failed"


async def overdue(api: Api) -> bool:
    return bool((await api.get("/api/v1/work", overdue="true")).ok()["work"])

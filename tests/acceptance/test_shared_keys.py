"""One key under a hundred concurrent flows: one dispatch and a hundred equal results, also when its sender is killed.

Three nodes on PostgreSQL, one on SQLite. On PostgreSQL the other nodes go on when one is killed; on SQLite it is
started again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import SILENT, doctor_is_content, errors_logged, reconciliations
from tests.acceptance.processes import EngineProcess
from tests.eventually import eventually
from tests.integration.several_nodes import metric, succeed
from tests.wire import Api

FLOWS = 100
STEP = "refund"
PATH = "/refund"
KEY = "refund:order-7"
BY_GIVEN_KEY: tuple[dict[str, Any], dict[str, Any]] = ({"policy": "dedupe"}, {"init_keys": {STEP: KEY}})
BY_SCOPE: tuple[dict[str, Any], dict[str, Any]] = ({"policy": "idempotent", "scope": "global"}, {})
HELD: tuple[dict[str, Any], dict[str, Any]] = ({"policy": "reconcile", "scope": "global"}, {})
SHARED = {"given key": BY_GIVEN_KEY, "global scope": BY_SCOPE}


class Crowd:
    """The nodes of a test, and a hundred flows on them whose one item has the same key."""

    def __init__(self, nodes: list[EngineProcess], client_of: ClientOf, endpoint: StepEndpoint) -> None:
        self.nodes = nodes
        self.endpoint = endpoint
        self.flows: list[str] = []
        self._client_of = client_of

    @property
    def apis(self) -> list[Api]:
        """A client of each node that runs."""
        return [self._client_of(node) for node in self.nodes if node.exit_code is None]

    async def register(self, effect: dict[str, Any]) -> None:
        """Start the nodes, and register the step."""
        await asyncio.gather(*(node.start() for node in self.nodes))
        work = {"ack_timeout_ms": 120_000}
        effect = {**effect, "key": {"keep": ["order"]}}
        await self.apis[0].put_step(STEP, self.endpoint.url(PATH), effect=effect, work=work)

    async def start(self, effect: dict[str, Any], fields: dict[str, Any]) -> None:
        """Start the flows at all nodes at once, and wait until one item is sent and all others wait for it."""
        await self.register(effect)
        self.flows = await asyncio.gather(*(self.start_flow(number, fields) for number in range(FLOWS)))
        await eventually(self._all_wait, within=20.0, what="99 items that wait for a hundredth")
        assert len(self.sent()) == 1

    async def start_flow(self, number: int, fields: dict[str, Any]) -> str:
        """Start one flow at one of the nodes that run; asks the next one while there is no answer."""
        flow_id = f"flow-{number}"
        body = {"goals": [STEP], "flow_id": flow_id, "init": {"order": 7, "note": f"caller {number}"}, **fields}

        async def started() -> bool:
            apis = self.apis
            try:
                reply = await apis[number % len(apis)].post("/api/v1/flows", body)
            except (aiohttp.ClientError, ConnectionError, ZeroDivisionError):  # killed, or not started again yet
                return False
            return reply.status in (201, 409)

        await eventually(started, within=20.0, what="a flow that is started")
        return flow_id

    async def _all_wait(self) -> bool:
        listed = (await self.apis[0].get("/api/v1/work", step=STEP, status="pending", limit="200")).ok()["work"]
        return [item["hold"] for item in listed] == ["dedup"] * (FLOWS - 1) and len(self.sent()) == 1

    def sent(self) -> list[Received]:
        return self.endpoint.requests(PATH)

    async def kill_sender(self) -> None:
        """kill -9 of the node that sent the first attempt."""
        owner = self.sent()[0].webhook_url
        [sender] = [node for node in self.nodes if owner.startswith(node.url)]
        await sender.kill()
        doctor_is_content(sender)
        if len(self.nodes) == 1:
            await sender.start()

    async def check(self, *, attempts: int) -> None:
        """A hundred equal results, of so many attempts of one item under one key."""
        finals = await asyncio.gather(*(self.apis[0].final(flow_id, wait="20") for flow_id in self.flows))
        assert [(final["status"], final["outputs"]) for final in finals] == [("completed", {"refund": "r1"})] * FLOWS
        sent = self.sent()
        assert [received.metadata["attempt"] for received in sent] == list(range(1, attempts + 1))
        assert len({(received.metadata["work_id"], received.headers["Idempotency-Key"]) for received in sent}) == 1
        owner = sent[0].metadata
        for flow_id in self.flows:
            work_id = (await self.apis[0].work(flow_id))["work_id"]
            document = (await self.apis[0].get(f"/api/v1/work/{work_id}")).ok()
            reused = flow_id != owner["flow_id"]
            assert document["dedup_of"] == (owner["work_id"] if reused else None)
            assert len(document["attempts"]) == (0 if reused else attempts)
            assert document["idempotency_key"] == owner["idempotency_key"]

    async def stop(self) -> None:
        for node in self.nodes:
            if node.exit_code is None:
                assert await node.stop() == 0
            assert errors_logged(node) == []
        doctor_is_content(self.nodes[0])


@pytest.fixture
def crowd(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, store_name: str, tmp_path: Path) -> Crowd:
    names = ["one", "two", "three"] if store_name == "postgresql" else ["one"]
    nodes = [new_engine(tmp_path / name, lease_ms="1000") for name in names]
    return Crowd(nodes, client_of, endpoint)


@pytest.mark.parametrize("how", SHARED)
async def test_one_dispatch_and_equal_results(crowd: Crowd, how: str) -> None:
    answered = asyncio.Event()
    crowd.endpoint.answer(PATH, Answer(until=answered))
    await crowd.start(*SHARED[how])
    answered.set()
    if how == "given key":
        assert crowd.sent()[0].headers["Idempotency-Key"] == KEY
    await succeed(crowd.apis[0], crowd.sent()[0], refund="r1")
    await crowd.check(attempts=1)
    hits = [await metric(api, "counterfoil_dedup_hits_total") for api in crowd.apis]
    assert sum(hits) == FLOWS - 1
    later = await crowd.apis[-1].start(STEP, init={"order": 7, "note": "later"}, **SHARED[how][1])
    assert (await crowd.apis[-1].final(later))["outputs"] == {"refund": "r1"}
    assert len(crowd.sent()) == 1, "a later flow within the window takes the recorded result"
    await crowd.stop()


@pytest.mark.parametrize("how", SHARED)
async def test_the_sender_is_killed_after_the_acknowledgement(crowd: Crowd, how: str) -> None:
    """A worker has the attempt: it is not sent again, and its result counts for all."""
    await crowd.start(*SHARED[how])
    await crowd.apis[0].until_acknowledged(crowd.sent()[0].metadata["flow_id"])
    await crowd.kill_sender()
    await succeed(crowd.apis[0], crowd.sent()[0], refund="r1")
    await crowd.check(attempts=1)
    await crowd.stop()


@pytest.mark.parametrize("how", SHARED)
async def test_the_sender_is_killed_before_the_answer(crowd: Crowd, how: str) -> None:
    """The same item is sent again with the same key, and no other one is."""
    crowd.endpoint.answer(PATH, SILENT, Answer())
    await crowd.start(*SHARED[how])
    await crowd.kill_sender()
    await succeed(crowd.apis[0], await crowd.endpoint.received(PATH, 2), refund="r1")
    await crowd.check(attempts=2)
    await crowd.stop()


async def test_the_sender_is_killed_while_flows_are_started(crowd: Crowd) -> None:
    crowd.endpoint.answer(PATH, SILENT, Answer())
    effect, fields = BY_GIVEN_KEY
    await crowd.register(effect)
    starts = [asyncio.create_task(crowd.start_flow(number, fields)) for number in range(FLOWS)]
    await crowd.endpoint.received(PATH)
    await crowd.kill_sender()
    crowd.flows = await asyncio.gather(*starts)
    await succeed(crowd.apis[0], await crowd.endpoint.received(PATH, 2), refund="r1")
    await crowd.check(attempts=2)
    await crowd.stop()


async def test_the_sender_is_killed_where_nothing_may_be_repeated(crowd: Crowd) -> None:
    """One item is in the queue and all others wait for it; what a reconciler finds out counts for all."""
    crowd.endpoint.answer(PATH, SILENT)
    await crowd.start(*HELD)
    owner = crowd.sent()[0].metadata
    await crowd.kill_sender()
    api = crowd.apis[0]
    await api.until_work(owner["flow_id"], "not_completed", hold="reconcile")
    assert [entry["work_id"] for entry in await reconciliations(api)] == [owner["work_id"]]
    body = {"outcome": "applied", "outputs": {"refund": "r1"}}
    (await api.post(f"/api/v1/reconciliations/{owner['work_id']}", body)).ok()
    await crowd.check(attempts=1)
    await crowd.stop()

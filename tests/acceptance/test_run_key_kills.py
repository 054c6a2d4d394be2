"""Admission of flows with a run key while nodes are killed (kill -9): one active flow, before and after every kill.

Three nodes on PostgreSQL, one on SQLite, which is started again. Callers repeat a start that got no answer, as a client
does that cannot know whether it was taken.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import doctor_is_content
from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed
from tests.integration.flows.run_keys import active_at_most_once
from tests.seeds import announce
from tests.wire import Api, Reply

KEY = "order:4711"
STEP = "ship"
PATH = "/ship"
FLOWS = "/api/v1/flows"
KILLS = 4
CALLERS = 8
STARTS_BETWEEN_KILLS = 12


class Callers:
    """Clients that start flows with one key at any node that runs, until each start has an answer."""

    def __init__(self, nodes: list[EngineProcess], client_of: ClientOf, seed: int) -> None:
        self.nodes = nodes
        self.answers: list[Reply] = []
        self._client_of = client_of
        self._random = random.Random(seed)

    def api(self) -> Api:
        running = [node for node in self.nodes if node.exit_code is None]
        return self._client_of(self._random.choice(running or self.nodes))

    async def start(self, on_conflict: str, **fields: Any) -> Reply:
        body = {"goals": [STEP], "idempotency_key": KEY, "on_conflict": on_conflict, **fields}
        while True:
            try:
                reply = await self.api().post(FLOWS, body)
            except (aiohttp.ClientError, ConnectionError, TimeoutError):
                reply = None
            if reply is not None and reply.status != 503:
                self.answers.append(reply)
                return reply
            await elapsed(0.05)

    async def kill_one(self) -> None:
        node = self._random.choice(self.nodes)
        await node.kill()
        doctor_is_content(node)
        await node.start()


@pytest.fixture
def callers(new_engine: NewEngine, client_of: ClientOf, store_name: str, tmp_path: Path) -> Callers:
    names = ["one", "two", "three"] if store_name == "postgresql" else ["one"]
    nodes = [new_engine(tmp_path / name, lease_ms="1000") for name in names]
    return Callers(nodes, client_of, announce())


@pytest.mark.parametrize("on_conflict", ["adopt", "supersede"])
async def test_one_flow_is_active_whatever_is_killed(
    callers: Callers, endpoint: StepEndpoint, on_conflict: str
) -> None:
    await asyncio.gather(*(node.start() for node in callers.nodes))
    await callers.api().put_step(STEP, endpoint.url(PATH))
    rounds = itertools.count()

    async def calls() -> None:
        for _ in range(STARTS_BETWEEN_KILLS):
            await callers.start(on_conflict, labels={"round": str(next(rounds) % 3)})

    for _ in range(KILLS):
        await asyncio.gather(*(calls() for _ in range(CALLERS)), callers.kill_one())
    statuses = Counter(reply.status for reply in callers.answers)
    assert sum(statuses.values()) == KILLS * CALLERS * STARTS_BETWEEN_KILLS
    assert statuses.keys() <= {200, 201}
    api = callers.api()
    flows = await listed(api)
    answered = {reply.body["flow_id"] for reply in callers.answers}
    assert answered <= set(flows), "what was answered is durable"
    if on_conflict == "adopt":
        assert len(flows) == 1, "a start whose answer was lost and that is repeated is still one flow"
        assert {reply.body["flow_id"] for reply in callers.answers} == set(flows)
    events = [event for flow_id in flows for event in await api.events(flow_id)]
    last = active_at_most_once(events)
    assert [flow_id for flow_id, status in flows.items() if status == "active"] == [last]
    for node in callers.nodes:
        assert await node.stop() == 0
    doctor_is_content(callers.nodes[0])


async def listed(api: Api) -> dict[str, str]:
    """All flows of the key, with their states."""
    found: dict[str, str] = {}
    cursor: dict[str, str] = {}
    while True:
        page = (await api.get(FLOWS, key=KEY, limit="1000", **cursor)).ok()
        found |= {flow["flow_id"]: flow["status"] for flow in page["flows"]}
        if not page["next_cursor"]:
            return found
        cursor = {"cursor": page["next_cursor"]}

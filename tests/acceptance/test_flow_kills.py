"""Random flows on nodes that are killed (kill -9) at random: they end as computed, and nothing done is done again.

Five flows for each kill. ``CHAOS_CYCLES`` says how many kills (6 by default, 100 by ``make chaos``), ``TEST_SEED``
repeats a run as far as timing allows.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.acceptance.flow_pool import POOL, definition, expected, outcome
from tests.acceptance.processes import EngineProcess, run_command
from tests.eventually import elapsed
from tests.seeds import announce
from tests.wire import JSON

CYCLES = int(os.environ.get("CHAOS_CYCLES", "6"))
FLOWS_PER_CYCLE = 5
PAUSE_SECONDS = 0.05
ENDED = ("work_succeeded", "work_failed", "work_cancelled")


class Workers:
    """The workers of all steps, and the clients of the nodes: patient ones, who ask the next node until one answers."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: StepEndpoint, seed: int) -> None:
        self.urls: list[str] = []
        self.sent: dict[str, list[tuple[int, str]]] = defaultdict(list)
        """By work item: the attempts that arrived, each with its idempotency key."""
        self.accepted: dict[str, bool] = {}
        self.faults: list[str] = []
        self._session = session
        self._endpoint = endpoint
        self._dice = random.Random(seed)
        self._reports: set[asyncio.Task[None]] = set()

    async def register(self) -> None:
        for step_id in POOL:
            self._endpoint.answer(f"/{step_id}", self._work)
            self._endpoint.answer(f"/{step_id}-undo", self._work)
            body = definition(step_id, self._endpoint.url(f"/{step_id}"))
            status, answer = await self.call("PUT", f"/api/v1/steps/{step_id}", body)
            assert status in (200, 201), answer

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else orjson.dumps(body)
        while True:
            for url in self._dice.sample(self.urls, len(self.urls)):
                try:
                    async with self._session.request(method, url + path, data=data, headers=JSON) as response:
                        content = await response.read()
                except (TimeoutError, aiohttp.ClientError, ConnectionError):
                    continue
                if response.status < 500:
                    return response.status, orjson.loads(content)
                if response.status != 503:
                    self.faults.append(f"{method} {path.partition('/webhook')[0]}: {response.status}")
            await elapsed(PAUSE_SECONDS)

    async def _work(self, received: Received) -> Answer:
        metadata = received.metadata
        work_id, attempt = metadata["work_id"], metadata["attempt"]
        self.sent[work_id].append((attempt, metadata["idempotency_key"]))
        done = {"success": True}
        result = done if metadata.get("compensating") else outcome(metadata["step_id"], received.arguments)
        if "webhook_url" not in metadata:
            return Answer(body=result)
        task = asyncio.create_task(self._report(received, result))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)
        return Answer()

    async def _report(self, received: Received, result: dict[str, Any]) -> None:
        await elapsed(self._dice.random() * 0.3)
        metadata = received.metadata
        path = f"/webhook/{metadata['flow_id']}/{metadata['step_id']}/{received.token}"
        status, answer = await self.call("POST", path, result)
        if status == 200:
            self.accepted[metadata["work_id"]] = result["success"]
        elif status != 400 or answer["error"]["code"] == "CONFLICTING_RESULT":
            self.faults.append(f"report of {metadata['work_id']}: {status} {answer}")

    async def run_flow(self, number: int) -> None:
        """Start a random flow, wait for its end, and compare it with the reference."""
        dice = random.Random(f"{self._dice.random()}-{number}")
        goals = dice.sample(sorted(POOL), dice.choice((1, 1, 2, 3)))
        init = {"n": dice.randrange(1000)}
        flow_id = f"flow-{number}"
        status, answer = await self.call("POST", "/api/v1/flows", {"flow_id": flow_id, "goals": goals, "init": init})
        assert status == 201 or answer["error"]["code"] == "FLOW_EXISTS", answer
        while True:
            status, answer = await self.call("GET", f"/api/v1/flows/{flow_id}/result?wait=1")
            if status == 200:
                break
        wanted, outputs = expected(goals, init)
        assert answer["status"] == wanted, (goals, init, answer)
        if wanted == "completed":
            assert answer["outputs"] == outputs, (goals, init)

    async def idle(self) -> None:
        while self._reports:
            await asyncio.wait(set(self._reports))

    async def abandon(self) -> None:
        for task in self._reports:
            task.cancel()
        await asyncio.gather(*self._reports, return_exceptions=True)


@pytest.mark.chaos
@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_flows_end_as_computed_and_nothing_done_is_done_again(
    new_engine: NewEngine, endpoint: StepEndpoint, store_name: str, tmp_path: Path
) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    names = ["one", "two"] if store_name == "postgresql" else ["one"]
    nodes = [new_engine(tmp_path / name, lease_ms="1000", log_level="warning") for name in names]
    for node in nodes:
        await node.start()
    timeout = aiohttp.ClientTimeout(total=4)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        workers = Workers(session, endpoint, seed)
        workers.urls = [node.url for node in nodes]
        try:
            await workers.register()
            await storm(nodes, workers, random.Random(seed + 1))
            await workers.idle()
            assert workers.faults == []
            await compare(workers)
        finally:
            await workers.abandon()
    for node in nodes:
        assert await node.stop() == 0
    code, output, errors = await run_command("doctor", "--store", nodes[0].store_url)
    assert code == 0, output + errors
    tell(f"{len(workers.sent)} work items sent, {sum(map(len, workers.sent.values()))} dispatches: nothing lost")


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)


async def storm(nodes: list[EngineProcess], workers: Workers, dice: random.Random) -> None:
    """In each cycle some flows begin, and a node is killed while they run."""
    async with asyncio.TaskGroup() as customers:
        for number in range(CYCLES * FLOWS_PER_CYCLE):
            customers.create_task(workers.run_flow(number))
            if number % FLOWS_PER_CYCLE == FLOWS_PER_CYCLE - 1:
                await elapsed(dice.uniform(0.0, 0.7))
                node = dice.choice(nodes)
                await node.kill()
                await node.start()


async def compare(workers: Workers) -> None:
    """What arrived at the workers against the journal: nothing was sent behind an outcome."""
    assert all(len(set(sent)) == len(sent) for sent in workers.sent.values()), "an attempt arrived twice"
    for work_id, sent in workers.sent.items():
        assert len({key for _, key in sent}) == 1, f"{work_id} changed its idempotency key"
    dispatched: dict[str, int] = defaultdict(int)
    ended: dict[str, str] = {}
    for event in [event for flow_id in await all_flows(workers) for event in await journal(workers, flow_id)]:
        work_id = event["work_id"]
        if event["type"] == "work_dispatched":
            assert work_id not in ended, f"{work_id} was sent again, though it has {ended[work_id]}"
            dispatched[work_id] = event["attempt"]
        elif event["type"] in ENDED:
            assert work_id not in ended, f"{work_id} ended twice"
            ended[work_id] = event["type"]
    for work_id, sent in workers.sent.items():
        assert max(attempt for attempt, _ in sent) <= dispatched[work_id], f"{work_id} was sent without an intent"
    for work_id, success in workers.accepted.items():
        assert ended[work_id] == ("work_succeeded" if success else "work_failed")


async def all_flows(workers: Workers) -> list[str]:
    """Every flow, those inside others included."""
    flows: list[str] = []
    cursor = ""
    while True:
        _, page = await workers.call("GET", f"/api/v1/flows?limit=100{cursor}")
        for flow in page["flows"]:
            assert flow["status"] in ("completed", "failed", "cancelled"), flow
            flows.append(flow["flow_id"])
        if page["next_cursor"] is None:
            return flows
        cursor = f"&cursor={page['next_cursor']}"


async def journal(workers: Workers, flow_id: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    cursor = ""
    while True:
        _, page = await workers.call("GET", f"/api/v1/flows/{flow_id}/events?limit=200{cursor}")
        events += page["events"]
        if not page["next_cursor"] or not page["events"]:
            return events
        cursor = f"&cursor={page['next_cursor']}"

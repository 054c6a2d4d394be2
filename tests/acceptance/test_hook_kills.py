"""Payloads for hooks on nodes that are killed (kill -9) at random: each is recorded once, or refused; none is lost.

``CHAOS_CYCLES`` says how many kills (4 by default), ``TEST_SEED`` repeats a run as far as timing allows.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.acceptance.effect_cells import doctor_is_content
from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed
from tests.seeds import announce
from tests.wire import JSON

CYCLES = int(os.environ.get("CHAOS_CYCLES", "4"))
FLOWS_PER_CYCLE = 6
SENDERS = 5
COLLECT = 3
PAUSE_SECONDS = 0.03

CHECK: dict[str, Any] = {
    "kind": "sync",
    "attributes": {"order": {"role": "required"}, "checked": {"role": "output"}},
    "work": {"max_retries": -1, "init_backoff_ms": 20, "max_backoff_ms": 100},
}
HOOK: dict[str, Any] = {
    "kind": "hook",
    "hook": {"token": "order:{order}", "collect": COLLECT},
    "attributes": {"order": {"role": "required"}, "checked": {"role": "required"}, "payloads": {"role": "output"}},
}


class Senders:
    """Patient clients: they ask the next node until one answers, and send the same delivery until they know."""

    def __init__(self, session: aiohttp.ClientSession, seed: int) -> None:
        self.urls: list[str] = []
        self.faults: list[str] = []
        self._session = session
        self._dice = random.Random(seed)

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else orjson.dumps(body)
        while True:
            for url in self._dice.sample(self.urls, len(self.urls)):
                try:
                    request = self._session.request(method, url + path, data=data, headers={**JSON, **headers})
                    async with request as response:
                        content = await response.read()
                except (TimeoutError, aiohttp.ClientError, ConnectionError):
                    continue
                if response.status < 500:
                    return response.status, orjson.loads(content)
                if response.status != 503:
                    self.faults.append(f"{method} {path}: {response.status}")
            await elapsed(PAUSE_SECONDS)

    async def run_flow(self, number: int) -> None:
        """Start a flow, send it more payloads than it takes, from its start to its end, and count."""
        order = f"{number}"
        flow_id = f"flow-{order}"
        start = {"flow_id": flow_id, "goals": ["hook"], "init": {"order": order}}
        if number % 2:  # payloads that come before its hook waits are kept for it
            start["idempotency_key"] = flow_id
        status, answer = await self.call("POST", "/api/v1/flows", start)
        assert status == 201 or answer["error"]["code"] in ("FLOW_EXISTS", "RUN_KEY_CONFLICT"), answer
        ended = asyncio.Event()
        sending = asyncio.gather(*(self._send(order, number, ended) for number in range(SENDERS)))
        outputs = await self._end(flow_id, ended)
        answers = await sending
        recorded = sorted(payload["number"] for payload in outputs["payloads"])
        assert recorded == sorted(number for number, is_taken in enumerate(answers) if is_taken), (outputs, answers)
        assert len(recorded) == COLLECT

    async def _send(self, order: str, number: int, ended: asyncio.Event) -> bool:
        """Whether the delivery was recorded. A refusal before the end of the flow is tried again."""
        await elapsed(self._dice.random() * 0.3)
        while True:
            over = ended.is_set()
            delivery = f"{order}-{number}"
            body = {"number": number}
            status, answer = await self.call("POST", f"/api/v1/hooks/order:{order}", body, **{"webhook-id": delivery})
            if status == 200:
                assert answer["flow_id"] == f"flow-{order}"
                return True
            assert (status, answer["error"]["code"]) == (404, "HOOK_NOT_FOUND"), answer
            if over:
                return False
            await elapsed(PAUSE_SECONDS)

    async def _end(self, flow_id: str, ended: asyncio.Event) -> dict[str, Any]:
        while True:
            status, answer = await self.call("GET", f"/api/v1/flows/{flow_id}/result?wait=1")
            if status == 200:
                ended.set()
                assert answer["status"] == "completed", answer
                outputs: dict[str, Any] = answer["outputs"]
                return outputs


async def storm(nodes: list[EngineProcess], senders: Senders, dice: random.Random) -> None:
    """Kill a node again and again while flows run on all of them."""
    flows: list[asyncio.Task[None]] = []
    for cycle in range(CYCLES):
        flows += [
            asyncio.create_task(senders.run_flow(cycle * FLOWS_PER_CYCLE + number)) for number in range(FLOWS_PER_CYCLE)
        ]
        await elapsed(0.1 + dice.random() * 0.3)
        node = dice.choice(nodes)
        await node.kill()
        if len(nodes) == 1:
            doctor_is_content(node)
        await elapsed(dice.random() * 0.2)
        await node.start()
        senders.urls = [each.url for each in nodes]
    await asyncio.gather(*flows)


@pytest.mark.chaos
@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_no_payload_is_lost_or_recorded_twice(
    new_engine: NewEngine, endpoint: StepEndpoint, store_name: str, tmp_path: Path
) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    names = ["one", "two"] if store_name == "postgresql" else ["one"]
    nodes = [new_engine(tmp_path / name, lease_ms="1000", log_level="warning") for name in names]
    for node in nodes:
        await node.start()
    endpoint.answer("/check", Answer(body={"success": True, "outputs": {"checked": True}}))
    timeout = aiohttp.ClientTimeout(total=4)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        senders = Senders(session, seed)
        senders.urls = [node.url for node in nodes]
        for step_id, definition in (("check", {**CHECK, "endpoint": endpoint.url("/check")}), ("hook", HOOK)):
            status, answer = await senders.call("PUT", f"/api/v1/steps/{step_id}", definition)
            assert status in (200, 201), answer
        await storm(nodes, senders, random.Random(seed + 1))
        assert senders.faults == []
    for node in nodes:
        await node.kill()
    doctor_is_content(nodes[0])

"""Load for an engine that is killed over and over, and a ledger of everything that its clients were told.

Workers and customers behave as the documentation asks of them: 400 and 404 are final, everything else (5xx, no
connection, a connection that breaks) is tried again. What they were told with 200 or 201 must be true for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import elapsed
from tests.wire import JSON

PAUSE_SECONDS = 0.02
LIMITED_RETRIES = 2
MANY_RETRIES = 1000
FINAL = ("completed", "failed", "cancelled")

Key = tuple[str, str]
"""A flow and one of its steps: here each step of a flow has one work item."""


@dataclass
class Ledger:
    """What was said to whom. ``faults`` collects what must never happen."""

    started: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    accepted: dict[Key, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    sync_answers: dict[Key, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    reports: int = 0
    faults: list[str] = field(default_factory=list)

    def accept(self, key: Key, result: dict[str, Any]) -> None:
        """A worker got 200 for a final result."""
        if key in self.accepted and self.accepted[key] != result:
            self.faults.append(f"two results accepted for {key}: {self.accepted[key]} and {result}")
        self.accepted[key] = result

    def dispatched(self, received: Received) -> None:
        key = received.metadata["flow_id"], received.metadata["step_id"]
        attempt = received.metadata["attempt"]
        if self.attempts[key] and attempt <= self.attempts[key][-1]:
            self.faults.append(f"attempt {attempt} of {key} was sent after {self.attempts[key]}")
        self.attempts[key].append(attempt)


class Chaos:
    """Customers who start flows and wait for them, and the workers behind every step."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: StepEndpoint, seed: int) -> None:
        self.ledger = Ledger()
        self.url = ""
        self.patient: list[Received] = []
        self._session = session
        self._endpoint = endpoint
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._number = 0
        endpoint_programmes = {
            "quick": self._quick,
            "eager": self._eager,
            "flaky": self._flaky,
            "silent": self._silent,
            "again": self._again,
            "failing": self._failing,
            "double": self._double,
            "limited": self._limited,
            "sync": self._sync,
            "patient": self._patient,
        }
        for name, programme in endpoint_programmes.items():
            endpoint.answer(f"/{name}", programme)
        self.steps = list(endpoint_programmes)

    # ------------------------------------------------------------------------------------------- requests

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request as a patient client makes it: again, until there is an answer that is not «later»."""
        address = path if path.startswith("http") else self.url + path
        data = None if body is None else orjson.dumps(body)
        while True:
            try:
                async with self._session.request(method, address, data=data, headers=JSON) as response:
                    content = await response.read()
                    if response.status < 500:
                        return response.status, orjson.loads(content)
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                pass
            await elapsed(PAUSE_SECONDS)

    async def register(self) -> None:
        work = {"init_backoff_ms": 30, "max_backoff_ms": 200, "ack_timeout_ms": 2000, "max_retries": MANY_RETRIES}
        special: dict[str, dict[str, Any]] = {
            "silent": {"deadline_ms": 500},
            "limited": {"max_retries": LIMITED_RETRIES},
            "patient": {"deadline_ms": 3_600_000},
        }
        for name in self.steps:
            definition = {
                "kind": "sync" if name == "sync" else "async",
                "endpoint": self._endpoint.url(f"/{name}"),
                "work": {**work, **special.get(name, {})},
            }
            status, answer = await self.call("PUT", f"/api/v1/steps/{name}", definition)
            assert status in (200, 201), answer

    # ------------------------------------------------------------------------------------------- customers

    async def start(self, flow_id: str, goals: list[str]) -> None:
        status, answer = await self.call("POST", "/api/v1/flows", {"flow_id": flow_id, "goals": goals})
        if status == 201 or (status == 409 and answer["error"]["code"] == "FLOW_EXISTS"):
            self.ledger.started.add(flow_id)
        else:
            self.ledger.faults.append(f"start of {flow_id}: {status} {answer}")

    async def customer(self) -> None:
        """Starts one flow after the other and waits for each, until told to stop."""
        while not self._stopping.is_set():
            self._number += 1
            flow_id = f"flow-{self._number}"
            goals = self._random.sample(self.steps[:-1], k=self._random.choice((1, 1, 1, 2)))
            await self.start(flow_id, goals)
            if self._random.random() < 0.05:
                await self._cancel(flow_id)
            await self._follow(flow_id)

    async def _cancel(self, flow_id: str) -> None:
        status, answer = await self.call("POST", f"/api/v1/flows/{flow_id}/cancel", {})
        if status == 200 and answer["status"] == "cancelled":
            self.ledger.cancelled.add(flow_id)
        elif status != 409 or answer["error"]["code"] != "FLOW_FINAL":
            self.ledger.faults.append(f"cancel of {flow_id}: {status} {answer}")

    async def _follow(self, flow_id: str) -> None:
        status = 202
        while status == 202:
            status, answer = await self.call("GET", f"/api/v1/flows/{flow_id}/result?wait=5")
        if status != 200 or answer["status"] not in FINAL:
            self.ledger.faults.append(f"result of {flow_id}: {status} {answer}")
            return
        self.ledger.ended[flow_id] = answer

    def spawn_customers(self, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.customer()) for _ in range(count)]

    def stop(self) -> None:
        """No new flows; what runs goes on to its end."""
        self._stopping.set()

    # ------------------------------------------------------------------------------------------- workers

    def _result(self, received: Received, **fields: Any) -> dict[str, Any]:
        """A result that no other attempt reports."""
        attempt = received.metadata["attempt"]
        return {"success": True, "outputs": {"attempt": attempt, "nonce": self._random.getrandbits(48)}, **fields}

    async def report(self, received: Received, result: dict[str, Any]) -> None:
        """Post a result until it is answered, and write down what was said."""
        status, answer = await self.call("POST", received.webhook_url, result)
        self.ledger.reports += 1
        key = received.metadata["flow_id"], received.metadata["step_id"]
        if status == 200:
            if answer["verdict"] == "accepted" and answer["status"] != "not_completed":
                self.ledger.accept(key, result)
            return
        code = answer["error"]["code"]
        if status == 400 and code in ("ALREADY_SUCCEEDED", "ALREADY_FAILED"):
            self.ledger.accept(key, result)  # an answer was lost: the engine has recorded exactly this
        elif status != 400 or code not in ("CONFLICTING_RESULT", "WORK_CANCELLED"):
            self.ledger.faults.append(f"report on {key}: {status} {answer}")

    def _later(self, received: Received, result: dict[str, Any]) -> None:
        async def work() -> None:
            await elapsed(self._random.random() * 0.1)
            await self.report(received, result)

        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Wait until every worker has had its last answer."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _quick(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        self._later(received, self._result(received))
        return Answer()

    async def _eager(self, received: Received) -> Answer:
        """Reports before it acknowledges: the answer to the dispatch comes last."""
        self.ledger.dispatched(received)
        self._later(received, self._result(received))
        await elapsed(0.1)
        return Answer()

    async def _flaky(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        chance = self._random.random()
        if chance < 0.3:
            return Answer(503)
        if chance < 0.4:
            return Answer(fault="cut")
        self._later(received, self._result(received))
        return Answer()

    async def _silent(self, received: Received) -> Answer:
        """Acknowledges and sometimes forgets: the callback deadline sends it again."""
        self.ledger.dispatched(received)
        if self._random.random() < 0.6:
            self._later(received, self._result(received))
        return Answer()

    async def _again(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        attempt = received.metadata["attempt"]
        if self._random.random() < 0.5:
            report = {"success": False, "error": "not yet", "retriable": True, "attempt": attempt, "retry_after": 0.05}
        else:
            report = self._result(received)
        self._later(received, report)
        return Answer()

    async def _failing(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        error = f"broken {self._random.getrandbits(32)}"
        self._later(received, {"success": False, "error": error})
        return Answer()

    async def _double(self, received: Received) -> Answer:
        """Reports the same result twice and another one besides, all at once."""
        self.ledger.dispatched(received)
        result = self._result(received)
        for each in (result, result, self._result(received)):
            self._later(received, each)
        return Answer()

    async def _limited(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        if self._random.random() < 0.5:
            return Answer(503)
        self._later(received, self._result(received))
        return Answer()

    async def _sync(self, received: Received) -> Answer:
        self.ledger.dispatched(received)
        if self._random.random() < 0.2:
            return Answer(500)
        result = self._result(received)
        self.ledger.sync_answers[received.metadata["flow_id"], "sync"].append(result["outputs"])
        await elapsed(self._random.random() * 0.05)
        return Answer(body=result)

    async def _patient(self, received: Received) -> Answer:
        """Takes its time: it answers when the storm is over."""
        self.ledger.dispatched(received)
        self.patient.append(received)
        return Answer()

"""Load for engines that are killed repeatedly: clients and workers that record every answer.

They behave as the documentation asks of them: 400 and 404 are final, everything else (503, no connection, a connection
that breaks, a node that does not answer) is tried again, at whichever node comes next. What they were told with 200 or
201 must be true for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
from yarl import URL

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.ledger import FINAL, LIMITED_RETRIES, Ledger, key_of
from tests.eventually import elapsed
from tests.wire import JSON

PAUSE_SECONDS = 0.05
PATIENCE_SECONDS = 3.0
"""How long a client waits for an answer before it asks the next node."""
MANY_RETRIES = 1000
SILENCE_MS = 1_500
"""The deadline of work that may be forgotten. It counts from the intent to send: if it were shorter than a busy machine
may take to send, the next attempt could rightly leave before this one."""


@contextlib.asynccontextmanager
async def load(endpoint: StepEndpoint, seed: int) -> AsyncIterator[Chaos]:
    """Customers and workers; none of them outlives the block."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        chaos = Chaos(session, endpoint, seed)
        try:
            yield chaos
        finally:
            await chaos.abandon()


class PatientClient:
    """A client of several nodes that asks again, at any of them, until one has decided its request."""

    def __init__(self, session: aiohttp.ClientSession, seed: int) -> None:
        self.ledger = Ledger()
        self.urls: list[str] = []
        """The nodes: all of them serve all."""
        self.session = session
        self._random = random.Random(seed)

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request as a patient client makes it: again, at any node, until one says more than «later»."""
        data = None if body is None else orjson.dumps(body)
        while True:
            for url in self._random.sample(self.urls, len(self.urls)):
                answer = await self._ask(method, url + path, data)
                if answer is not None:
                    return answer
            await elapsed(PAUSE_SECONDS)

    async def _ask(self, method: str, address: str, data: bytes | None) -> tuple[int, Any] | None:
        """What a node answered; None: another one is to be asked."""
        again = self.ledger.tried_again
        try:
            async with self.session.request(method, address, data=data, headers=JSON) as response:
                content = await response.read()
        except TimeoutError:
            again["no answer"] += 1
        except (aiohttp.ClientError, ConnectionError):
            again["no connection"] += 1
        else:
            if response.status < 500:
                return response.status, orjson.loads(content)
            again[str(response.status)] += 1
            if response.status != 503 or "Retry-After" not in response.headers:
                self.ledger.faults.append(f"{method} {URL(address).path}: {response.status} {content!r}")
        return None


class Chaos(PatientClient):
    """Customers who start flows and wait for them, and the workers behind every step."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: StepEndpoint, seed: int) -> None:
        super().__init__(session, seed)
        self.patient: list[Received] = []
        self._endpoint = endpoint
        self._customers: list[asyncio.Task[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
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
            "slow": self._slow,
            "sync": self._sync,
            "patient": self._patient,
        }
        for name, programme in endpoint_programmes.items():
            endpoint.answer(f"/{name}", programme)
        self.steps = list(endpoint_programmes)

    # ------------------------------------------------------------------------------------------- customers

    async def register(self) -> None:
        work = {"init_backoff_ms": 30, "max_backoff_ms": 200, "ack_timeout_ms": 2000, "max_retries": MANY_RETRIES}
        special: dict[str, dict[str, Any]] = {
            "silent": {"deadline_ms": SILENCE_MS},
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
            status, answer = await self.call("GET", f"/api/v1/flows/{flow_id}/result?wait=1")
        if status != 200 or answer["status"] not in FINAL:
            self.ledger.faults.append(f"result of {flow_id}: {status} {answer}")
            return
        self.ledger.ended[flow_id] = answer

    def open(self, customers: int) -> None:
        """So many customers begin."""
        self._customers += [asyncio.create_task(self.customer()) for _ in range(customers)]

    async def close(self, seconds: float) -> None:
        """No new flows; what runs goes on to its end, for which there is so much time."""
        self._stopping.set()
        async with asyncio.timeout(seconds):
            await asyncio.gather(*self._customers)

    async def abandon(self) -> None:
        """Cancel all customers and workers, whatever is left undone."""
        tasks = [*self._customers, *self._workers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------- workers

    def _result(self, received: Received, **fields: Any) -> dict[str, Any]:
        """A result that no other attempt reports."""
        attempt = received.metadata["attempt"]
        return {"success": True, "outputs": {"attempt": attempt, "nonce": self._random.getrandbits(48)}, **fields}

    async def report(self, received: Received, result: dict[str, Any]) -> None:
        """Post a result until it is answered, and write down what was said."""
        status, answer = await self.call("POST", URL(received.webhook_url).raw_path, result)
        self.ledger.reports += 1
        key = key_of(received)
        if status == 200:
            if answer["verdict"] == "accepted" and answer["status"] != "not_completed":
                self.ledger.accept(key, result)
            return
        code = answer["error"]["code"]
        if status == 400 and code in ("ALREADY_SUCCEEDED", "ALREADY_FAILED"):
            self.ledger.accept(key, result)  # an answer was lost: the engine has recorded exactly this
        elif status != 400 or code not in ("CONFLICTING_RESULT", "WORK_CANCELLED"):
            self.ledger.faults.append(f"report on {key}: {status} {answer}")

    def _later(self, received: Received, result: dict[str, Any], seconds: float = 0.1) -> None:
        async def work() -> None:
            await elapsed(self._random.random() * seconds)
            await self.report(received, result)

        task = asyncio.create_task(work())
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def idle(self, seconds: float) -> None:
        """Wait until every worker has had its last answer."""
        async with asyncio.timeout(seconds):
            while self._workers:
                await asyncio.gather(*self._workers)

    async def wake_the_patient(self) -> None:
        """What was acknowledged and only waited for its callback was not sent again, whatever died meanwhile."""
        received = {each.metadata["flow_id"]: each for each in self.patient}
        for flow_id in sorted(self.ledger.started):
            if not flow_id.startswith("patient-"):
                continue
            assert flow_id in received, f"{flow_id} was never sent"
            status, page = await self.call("GET", f"/api/v1/flows/{flow_id}/events")
            assert status == 200
            kinds = [event["type"] for event in page["events"]]
            assert kinds.count("work_acknowledged") == 1, (flow_id, kinds)
            after = kinds[kinds.index("work_acknowledged") :]
            assert "work_dispatched" not in after, f"{flow_id} was acknowledged and sent again: {kinds}"
            await self.report(received[flow_id], {"success": True, "outputs": {"patience": flow_id}})

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

    async def _slow(self, received: Received) -> Answer:
        """Reports when its node may be gone, and twice, to nodes that know of it by the database alone."""
        self.ledger.dispatched(received)
        result = self._result(received)
        for _ in range(2):
            self._later(received, result, 2.0)
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

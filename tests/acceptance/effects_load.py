"""Load for effects: workers that lose outcomes, reviewers and operators who decide, and an account at the endpoints.

Each endpoint writes down every request that arrives, and whether it may have had an effect: all but those that it
refused with 503. Reviewers and operators use the API alone, as people do, at any node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp
from yarl import URL

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.chaos import PATIENCE_SECONDS, SILENCE_MS, PatientClient
from tests.acceptance.ledger import FINAL
from tests.eventually import elapsed

ORDERS = 12
HELD = ("reconcile", "unsafe_once")
STEPS: dict[str, dict[str, Any]] = {
    "reconcile": {"effect": {"policy": "reconcile"}},
    "once": {"effect": {"policy": "unsafe_once"}, "control": {"approval": {"reason": "money"}}},
    "probed": {"effect": {"policy": "reconcile"}},
    "shared": {"effect": {"policy": "dedupe", "scope": "global", "key": {"keep": ["order"]}}},
    "shared_once": {
        "effect": {"policy": "unsafe_once", "scope": "global", "key": {"keep": ["order"]}},
        "control": {"approval": {}},
    },
}


@contextlib.asynccontextmanager
async def effects_load(endpoint: StepEndpoint, seed: int) -> AsyncIterator[EffectsLoad]:
    """Everything that calls the nodes; none of it outlives the block."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        load = EffectsLoad(session, endpoint, seed)
        try:
            yield load
        finally:
            await load.abandon()


class EffectsLoad(PatientClient):
    """Customers, workers, reviewers and operators, and the endpoints' account of effects."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: StepEndpoint, seed: int) -> None:
        super().__init__(session, seed)
        self.flows: dict[str, str] = {}
        """Each flow, and its only step."""
        self.effects: dict[str, dict[int, bool]] = defaultdict(dict)
        """At the endpoint: of each work item every attempt that arrived, and whether it may have had an effect."""
        self.keys: dict[tuple[str, str], set[str]] = defaultdict(set)
        """At the endpoint: which work items arrived with a key."""
        self.results: dict[str, dict[str, Any]] = {}
        """By work item, the result that its worker reports."""
        self.step_of: dict[str, str] = {}
        self.approved: dict[str, set[str]] = defaultdict(set)
        self.not_applied: dict[str, int] = defaultdict(int)
        self.settled = 0
        self._endpoint = endpoint
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        for name in STEPS:
            endpoint.answer(f"/{name}", self._work)
        endpoint.answer("/status", self._status)

    async def register(self) -> None:
        work = {"init_backoff_ms": 30, "max_backoff_ms": 200, "ack_timeout_ms": 1000, "max_retries": 1000}
        for name, fields in STEPS.items():
            definition = {
                "endpoint": self._endpoint.url(f"/{name}"),
                "work": {**work, "deadline_ms": SILENCE_MS},
                **fields,
            }
            if name == "probed":
                definition["status_url"] = self._endpoint.url("/status")
            status, answer = await self.call("PUT", f"/api/v1/steps/{name}", definition)
            assert status in (200, 201), answer

    # ------------------------------------------------------------------------------------- workers and reviewers

    def open(self, customers: int) -> None:
        """So many customers begin, and a reviewer and an operator at two desks each."""
        desks = (self._customer, self._reviewer, self._operator)
        for desk, count in zip(desks, (customers, 2, 2), strict=True):
            for _ in range(count):
                self.later(desk())

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)  # a failure stays, for ``close`` to find

    async def close(self, seconds: float) -> None:
        """No new flows and no decisions; workers make their last reports."""
        self._stopping.set()
        async with asyncio.timeout(seconds):
            while self._tasks:
                await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _customer(self) -> None:
        while not self._stopping.is_set():
            flow_id, step = f"flow-{len(self.flows)}", self._random.choice(list(STEPS))
            self.flows[flow_id] = step
            init = {"order": self._random.randrange(ORDERS), "note": flow_id}
            status, answer = await self.call(
                "POST", "/api/v1/flows", {"flow_id": flow_id, "goals": [step], "init": init}
            )
            if status != 201 and (status != 409 or answer["error"]["code"] != "FLOW_EXISTS"):
                self.ledger.faults.append(f"start of {flow_id}: {status} {answer}")
            if not step.startswith("shared") and self._random.random() < 0.1:
                await self.call("POST", f"/api/v1/flows/{flow_id}/cancel", {})
            await self.call("GET", f"/api/v1/flows/{flow_id}/result?wait=1")

    async def _reviewer(self) -> None:
        while not self._stopping.is_set():
            await self.review()
            await elapsed(0.05)

    async def _operator(self) -> None:
        """Settles half of what waits: the rest is there when the storm is over."""
        while not self._stopping.is_set():
            for entry in await self.queue():
                if self._random.random() < 0.5:
                    await self.settle(entry)
            await elapsed(0.2)

    # ------------------------------------------------------------------------------------------- people

    async def pages(self, path: str, name: str) -> list[dict[str, Any]]:
        """All entries of a list."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            status, page = await self.call("GET", f"{path}{cursor}")
            assert status == 200, page
            found += page[name]
            if page["next_cursor"] is None:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    async def queue(self) -> list[dict[str, Any]]:
        return await self.pages("/api/v1/reconciliations?limit=100", "reconciliations")

    async def review(self) -> int:
        """Approve whatever is asked; returns how many questions there were."""
        asked = await self.pages("/api/v1/approvals?status=pending&limit=100", "approvals")
        for approval in asked:
            approval_id = approval["approval_id"]
            self.approved[approval["work_id"]].add(approval_id)  # before the answer, which may get lost
            status, answer = await self.call("POST", f"/api/v1/approvals/{approval_id}/approve", {})
            if status != 200 and answer["error"]["code"] not in ("NOT_PENDING", "SAME_REVIEWER"):
                self.ledger.faults.append(f"approval of {approval}: {status} {answer}")
        return len(asked)

    async def settle(self, entry: dict[str, Any]) -> None:
        """Settle an item as the endpoint's own account says."""
        work_id = entry["work_id"]
        if any(self.effects.get(work_id, {}).values()) or self._random.random() < 0.2:
            settlement: dict[str, Any] = {"outcome": "applied", "outputs": {"settled": work_id}, "note": "looked it up"}
            if self._random.random() < 0.2:
                settlement = {"outcome": "failed", "error": "paid back"}
        else:
            settlement = {"outcome": "not_applied"}
            self.not_applied[work_id] += 1  # before the answer, which may get lost
        status, answer = await self.call("POST", f"/api/v1/reconciliations/{work_id}", settlement)
        if status == 200:
            self.settled += 1
        elif status != 409 or answer["error"]["code"] != "NOT_WAITING_FOR_RECONCILIATION":
            self.ledger.faults.append(f"settling {entry}: {status} {answer}")

    # ------------------------------------------------------------------------------------------- workers

    async def _work(self, received: Received) -> Answer:
        """Takes the work and reports, or, while the storm lasts, loses the outcome in one of the ways there are."""
        calm, metadata = self._stopping.is_set(), received.metadata
        chance = 0.5 if calm else self._random.random()
        work_id, attempt = metadata["work_id"], metadata["attempt"]
        if attempt in self.effects[work_id]:
            self.ledger.faults.append(f"attempt {attempt} of {work_id} was sent twice")
        self.effects[work_id][attempt] = chance >= 0.15
        self.step_of[work_id] = metadata["step_id"]
        self.keys[metadata["step_id"], received.headers["Idempotency-Key"]].add(work_id)
        if chance < 0.15:
            return Answer(503)
        if chance < 0.25:
            return Answer(fault="cut")
        if chance < 0.32:
            return Answer(500)
        result = {"success": True, "outputs": {"by": work_id}}
        if chance < 0.85:
            self.results[work_id] = result
            self.later(self._report(received, result, 0.0 if calm else self._random.choice((0.0, 0.05, 0.3, 2.5))))
        return Answer()

    async def _report(self, received: Received, result: dict[str, Any], after: float) -> None:
        await elapsed(after)
        status, answer = await self.call("POST", URL(received.webhook_url).raw_path, result)
        refused = None if status == 200 else answer["error"]["code"]
        known = (None, "ALREADY_SUCCEEDED", "ALREADY_FAILED", "CONFLICTING_RESULT", "WORK_CANCELLED")
        if refused not in known:
            self.ledger.faults.append(f"report on {received.metadata['work_id']}: {status} {answer}")

    async def _status(self, received: Received) -> Answer:
        """What the endpoint knows of an attempt: it has it, or never saw it; or it does not say."""
        if self._random.random() < 0.2:
            return Answer(503)
        key, attempt = received.headers["Idempotency-Key"], int(received.headers["Counterfoil-Attempt"])
        for work_id in self.keys.get(("probed", key), ()):
            if attempt in self.effects[work_id]:
                result = self.results.get(work_id)
                return Answer(body={"state": "unknown"} if result is None else {"state": "done", "result": result})
        return Answer(body={"state": "unknown"})

    # ------------------------------------------------------------------------------------------- at the end

    def check_effects(self) -> None:
        """At the endpoints: what may have been done is not done again without a person's decision."""
        assert self.ledger.faults == []
        for work_id, attempts in self.effects.items():
            effects, step = sum(attempts.values()), self.step_of[work_id]
            if step in ("once", "shared_once"):
                approved = len(self.approved[work_id])
                assert effects <= approved, f"{work_id} of {step}: {attempts}, and {approved} approvals"
            elif step in ("reconcile", "probed"):
                asked_for = self.not_applied[work_id]
                assert effects <= 1 + asked_for, f"{work_id} of {step}: {attempts}, asked for again {asked_for} times"
        for (step, key), work_ids in self.keys.items():
            if step.startswith("shared"):
                assert len(work_ids) == 1, f"{step}: {key} was sent for several work items: {work_ids}"

    async def items(self) -> dict[str, dict[str, Any]]:
        """The work item of every flow, by the flow."""
        found = {}
        for flow_id, step in self.flows.items():
            status, flow = await self.call("GET", f"/api/v1/flows/{flow_id}")
            assert status == 200, (flow_id, flow)
            [found[flow_id]] = flow["steps"][step]["work"]
        return found

    async def waits_for_people(self) -> bool:
        """Whether whatever has not ended is in a queue that people see, or waits for what is."""
        queued = {entry["work_id"] for entry in await self.queue()}
        for work in (await self.items()).values():
            if work["status"] in ("succeeded", "failed", "cancelled") or work["hold"] == "dedup":
                continue
            if work["hold"] in HELD:
                assert work["work_id"] in queued, f"the outcome is unknown, and not in the queue: {work}"
            elif work["status"] != "held":
                return False
        return True

    async def settle_everything(self) -> bool:
        """What people do when the storm is over; True: nothing is left to decide, and every flow has ended."""
        await self.review()
        for entry in await self.queue():
            await self.settle(entry)
        ended = []
        for flow_id in self.flows:
            status, flow = await self.call("GET", f"/api/v1/flows/{flow_id}")
            ended.append(status == 200 and flow["status"] in FINAL)
        return all(ended) and not await self.queue()

    async def check_shared_results(self) -> None:
        """Flows with one order have one result, that of the only item that was sent."""
        items = await self.items()
        by_key: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for work in items.values():
            if work["step_id"].startswith("shared"):
                by_key[work["step_id"], work["idempotency_key"]].append(work)
        assert any(len(works) > 1 for works in by_key.values()), "no two flows had one key"
        for place, works in by_key.items():
            outcomes = {(work["status"], str(work["outputs"]), str(work["error"])) for work in works}
            assert len(outcomes) == 1, f"{place}: {outcomes}"

    def summary(self) -> str:
        effects = sum(sum(attempts.values()) for attempts in self.effects.values())
        sent = sum(map(len, self.effects.values()))
        approvals = sum(map(len, self.approved.values()))
        return (
            f"{len(self.flows)} flows, {sent} dispatches, {effects} that may have had an effect, "
            f"{approvals} approvals, {self.settled} settled by operators"
        )

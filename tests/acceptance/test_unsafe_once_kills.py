"""kill -9 around the dispatch of ``unsafe_once`` work: counted at the endpoint, never twice on one approval.

``CHAOS_CYCLES`` says how many kills the random part makes (3 by default), ``TEST_SEED`` repeats it as far as timing
allows.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.effect_cells import SILENT, doctor_is_content, errors_logged, reconciliations
from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed, eventually
from tests.integration.people import approvals, approve, asked, reject
from tests.integration.several_nodes import succeed
from tests.seeds import announce
from tests.wire import Api

CYCLES = int(os.environ.get("CHAOS_CYCLES", "3"))
FLOWS_PER_CYCLE = 8
CHARGE = "charge"
PATH = "/charge"
WORK = {"max_retries": -1, "init_backoff_ms": 20, "backoff_type": "fixed", "ack_timeout_ms": 1_000}


async def put_charge(api: Api, endpoint: StepEndpoint, **work: Any) -> None:
    await api.put_step(
        CHARGE,
        endpoint.url(PATH),
        effect={"policy": "unsafe_once"},
        control={"approval": {"reason": "look first"}},
        work={**WORK, **work},
    )


async def settle(api: Api, work_id: str, **settlement: Any) -> dict[str, Any]:
    document: dict[str, Any] = (await api.post(f"/api/v1/reconciliations/{work_id}", settlement)).ok()
    return document


async def test_each_approval_sends_it_once(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    """Sent and killed, settled as not applied, approved, sent and killed again; a rejection ends it unsent."""
    engine = new_engine(lease_ms="1000")
    await engine.start()
    api = client_of(engine)
    endpoint.answer(PATH, SILENT)
    await put_charge(api, endpoint, ack_timeout_ms=120_000)
    flow_id = await api.start(CHARGE, init={"amount": 7})
    approval_id = (await asked(api, flow_id))[0]["approval_id"]
    for attempt in (1, 2):
        assert len(endpoint.requests(PATH)) == attempt - 1, "nothing is sent before it is approved"
        (await approve(api, approval_id)).ok()
        await endpoint.received(PATH, attempt)
        await engine.kill()
        doctor_is_content(engine)
        await engine.start()
        work = await api.until_work(flow_id, "not_completed", hold="unsafe_once")
        details = work["error"]["details"]
        assert (work["error"]["code"], details["cause"]) == ("UNSAFE_ONCE_INCOMPLETE", "node_lost")
        [entry] = await reconciliations(api)
        assert (entry["attempt"], details["attempt"], work["attempt"]) == (attempt, attempt, attempt)
        settled = await settle(api, work["work_id"], outcome="not_applied", note="not in the ledger")
        assert settled["status"] == "held"
        assert await reconciliations(api) == []
        approval_id = settled["approval_id"]
    assert [question["approval_id"] for question in await asked(api, flow_id)] == [approval_id]
    (await reject(api, approval_id, "enough")).ok()
    assert (await api.final(flow_id))["status"] == "failed"
    attempts = (await api.get(f"/api/v1/work/{work['work_id']}")).ok()["attempts"]
    assert [each["approved_at"] is not None for each in attempts] == [True, True]
    assert await engine.stop() == 0
    assert [received.metadata["attempt"] for received in endpoint.requests(PATH)] == [1, 2]
    doctor_is_content(engine)
    assert errors_logged(engine) == []


class Charges:
    """The endpoint of the step, which counts what it has taken, and the reviewers and operators around it."""

    def __init__(self, api: Api, endpoint: StepEndpoint, dice: random.Random) -> None:
        self.api = api
        self.flows: list[str] = []
        self.taken: Counter[str] = Counter()
        """By flow: requests that were not refused as retriable."""
        self.latest: dict[str, Received] = {}
        self.calm = False
        self.settled = 0
        self._dice = dice
        endpoint.answer(PATH, self._treat)

    async def _treat(self, received: Received) -> Answer:
        draw = 1.0 if self.calm else self._dice.random()
        if draw < 0.25:
            return Answer(status=503)
        flow_id = received.metadata["flow_id"]
        self.taken[flow_id] += 1
        self.latest[flow_id] = received
        if draw < 0.5:
            return SILENT
        if draw < 0.75:
            await elapsed(self._dice.uniform(0.0, 0.05))
        return Answer()

    async def start(self, count: int) -> None:
        self.flows += await asyncio.gather(*(self.api.start(CHARGE) for _ in range(count)))

    async def pending(self) -> list[str]:
        return [each["approval_id"] for each in await approvals(self.api, status="pending", limit="200")]

    async def approve(self, pending: list[str]) -> None:
        """Give approvals, all at once; an engine that is killed meanwhile leaves some unanswered."""
        replies = [approve(self.api, approval_id) for approval_id in pending]
        for reply in await asyncio.gather(*replies, return_exceptions=True):
            if isinstance(reply, BaseException):
                assert isinstance(reply, aiohttp.ClientError | ConnectionError), reply
            else:
                reply.ok()

    async def settle_queue(self, share: float) -> None:
        """Settle some of the queue as not applied."""
        for entry in await reconciliations(self.api):
            if self._dice.random() < share:
                assert (await settle(self.api, entry["work_id"], outcome="not_applied"))["approval_id"]
                self.settled += 1

    async def all_taken(self) -> bool:
        await self.settle_queue(1.0)
        await self.approve(await self.pending())
        return all(self.taken[flow_id] for flow_id in self.flows)

    async def compare(self) -> None:
        for flow_id in self.flows:
            given = len(await approvals(self.api, status="approved", flow_id=flow_id))
            assert 1 <= self.taken[flow_id] <= given, (flow_id, self.taken[flow_id], given)


@pytest.mark.chaos
@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_never_twice_on_one_approval(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    dice = random.Random(seed)
    engine = new_engine(lease_ms="1000", log_level="warning")
    await engine.start()
    api = client_of(engine)
    charges = Charges(api, endpoint, dice)
    await put_charge(api, endpoint)
    for _ in range(CYCLES):
        await charges.start(FLOWS_PER_CYCLE)
        approving = asyncio.create_task(charges.approve(await charges.pending()))
        await elapsed(dice.uniform(0.0, 0.15))
        await kill_and_start(engine)
        await approving
        await charges.settle_queue(0.7)
    charges.calm = True
    await eventually(charges.all_taken, within=30.0, what="a charge of every flow")
    for flow_id in charges.flows:
        await succeed(api, charges.latest[flow_id])
        assert (await api.final(flow_id))["status"] == "completed"
    await charges.compare()
    assert charges.settled, "some outcomes were unknown"
    assert await reconciliations(api) == []
    assert await engine.stop() == 0
    doctor_is_content(engine)
    assert errors_logged(engine) == []


async def kill_and_start(engine: EngineProcess) -> None:
    await engine.kill()
    doctor_is_content(engine)
    await engine.start()

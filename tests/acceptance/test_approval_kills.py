"""kill -9 around approvals: approved work is sent once, and every answer that a client got stays true.

``CHAOS_CYCLES`` says how many kills the random part makes (2 by default), ``TEST_SEED`` repeats it as far as timing
allows.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

import aiohttp
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.gate_agents import POLICY, Crowd
from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed
from tests.integration.people import approve, asked
from tests.seeds import announce
from tests.wire import Api

CYCLES = int(os.environ.get("CHAOS_CYCLES", "2"))
AGENTS = 12
GUARDED = {"approval": {"reason": "look first"}}


def check_the_dead(engine: EngineProcess, store: dict[str, str]) -> None:
    """A database that a kill left behind keeps every promise: the doctor finds nothing."""
    findings = run_doctor(Settings(data=engine.data, store=store.get("store", "")))
    assert not findings, findings


async def test_a_crash_between_approval_and_dispatch_makes_one_dispatch(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, store_settings: dict[str, str]
) -> None:
    """One step has its only place taken: what was agreed to is surely not sent when the engine dies, and sent later.

    Of another step, with nothing in the way, some was sent before the kill, some was not, and some was about to be.
    """
    engine = new_engine(lease_ms="1000")
    await engine.start()
    api = client_of(engine)
    await api.put_step("narrow", endpoint.url("/narrow"), control=GUARDED, work={"parallelism": 1})
    await api.put_step("wide", endpoint.url("/wide"), control=GUARDED)
    first, second = await api.start("narrow"), await api.start("narrow")
    flows = [await api.start("wide") for _ in range(12)]
    questions = {flow_id: (await asked(api, flow_id))[0]["approval_id"] for flow_id in (first, second, *flows)}
    (await approve(api, questions[first])).ok()
    blocker = await endpoint.received("/narrow")
    await api.until_acknowledged(first)
    replies = await asyncio.gather(*(approve(api, questions[flow_id]) for flow_id in (second, *flows)))
    await engine.kill()
    assert {reply.status for reply in replies} == {200}
    assert len(endpoint.requests("/narrow")) == 1, "the endpoint was not called for it"
    check_the_dead(engine, store_settings)
    await engine.start()
    (await approve(api, questions[second])).refused(409, "NOT_PENDING")
    await api.succeed(blocker)
    received = await endpoint.received("/narrow", 2)
    assert (received.metadata["flow_id"], received.metadata["attempt"]) == (second, 1)
    await api.succeed(received)
    assert (await api.final(second))["status"] == "completed"
    kinds = await api.event_types(second)
    assert [kinds.count(kind) for kind in ("approval_requested", "approval_approved", "work_dispatched")] == [1, 1, 1]
    assert len(endpoint.requests("/narrow")) == 2
    await none_was_sent_twice(api, endpoint, flows)
    assert await engine.stop() == 0
    check_the_dead(engine, store_settings)


async def none_was_sent_twice(api: Api, endpoint: StepEndpoint, flows: list[str]) -> None:
    for flow_id in flows:
        await api.until_acknowledged(flow_id)
    sent = [(each.metadata["flow_id"], each.metadata["attempt"]) for each in endpoint.requests("/wide")]
    assert len(set(sent)) == len(sent), "an attempt arrived twice"
    latest = {each.metadata["flow_id"]: each for each in endpoint.requests("/wide")}
    for flow_id in flows:
        await api.succeed(latest[flow_id])
        assert (await api.event_types(flow_id)).count("approval_requested") == 1


@pytest.mark.chaos
@pytest.mark.timeout(120 + 10 * CYCLES)
async def test_agents_and_reviewers_are_told_nothing_that_is_lost(
    new_engine: NewEngine, store_settings: dict[str, str]
) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    dice = random.Random(seed)
    engine = new_engine(log_level="warning")
    await engine.start()
    timeout = aiohttp.ClientTimeout(total=4)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        crowd = Crowd(session, engine.url, dice)
        status, answer = await crowd.call("PUT", "/api/v1/policies/payments", POLICY)
        assert status == 201, answer
        async with asyncio.TaskGroup() as people:
            for number in range(AGENTS):
                people.create_task(crowd.agent(f"agent-{number}"))
            for _ in range(2):
                people.create_task(crowd.reviewer())
            for _ in range(CYCLES):
                await elapsed(dice.uniform(0.2, 0.5))
                await engine.kill()
                check_the_dead(engine, store_settings)
                await engine.start()
            crowd.close()
        await crowd.compare()
    assert await engine.stop() == 0
    check_the_dead(engine, store_settings)
    tell(f"{sum(crowd.gates_told.values())} gates, {len(crowd.completed)} completions, {len(crowd.verdicts)} verdicts")
    assert crowd.completed
    assert crowd.verdicts


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)

"""The guard of a step where the wire fails: what is repeated, and what is given up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.client import Backoff, Client, ConnectionFailed
from counterfoil.client.errors import CompletionConflictError, Unavailable
from tests.unit.canned_engine import CannedEngine, Reply, error

GATE = "POST /api/v1/workflows/wf/steps/charge/gate"
COMPLETE = "POST /api/v1/workflows/wf/steps/charge/complete"
QUICK = Backoff(tries=3, first=0.01, limit=0.01)


def answer(**context: Any) -> Reply:
    known = {"gate_count": 1, "prior_output_available": False, "prior_output": None, **context}
    return Reply(200, {"decision": "allow", "work_status": "active", "retry_context": known})


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        running.reply(GATE, answer())
        yield running


@pytest.fixture
async def client(engine: CannedEngine) -> AsyncIterator[Client]:
    async with Client(engine.url, timeout=5) as opened:
        yield opened


async def run(client: Client, **options: Any) -> dict[str, Any]:
    async def charge() -> dict[str, Any]:
        return {"charge": 1}

    return await client.run_step("wf", "charge", charge, backoff=QUICK, **options)


async def test_a_lost_answer_to_a_completion_is_asked_for_again(engine: CannedEngine, client: Client) -> None:
    engine.reply(COMPLETE, Reply(cut=True), error(503, "UNAVAILABLE"), Reply(204))
    assert await run(client, key="k") == {"charge": 1}
    reports = [asked.body for asked in engine.asked if asked.path.endswith("/complete")]
    assert reports == [{"output": {"charge": 1}, "idempotency_key": "k"}] * 3


async def test_a_lost_answer_of_the_gate_is_asked_for_by_the_same_holder(engine: CannedEngine, client: Client) -> None:
    """Otherwise the agent would find the step claimed, by itself."""
    engine.reply(GATE, Reply(cut=True), answer())
    engine.reply(COMPLETE, Reply(204))
    await run(client, claim=60)
    first, second = [asked.body["claim"] for asked in engine.asked if "/gate" in asked.path]
    assert first == second
    assert first["holder"]


@pytest.mark.parametrize(
    ("reply", "raised", "tries"),
    [
        (Reply(cut=True), ConnectionFailed, 3),
        (error(503, "UNAVAILABLE"), Unavailable, 3),
        (error(409, "COMPLETION_CONFLICT"), CompletionConflictError, 1),
    ],
)
async def test_a_report_is_given_up_after_some_tries_and_a_refusal_is_final(
    engine: CannedEngine, client: Client, reply: Reply, raised: type[Exception], tries: int
) -> None:
    engine.reply(COMPLETE, reply)
    with pytest.raises(raised):
        await run(client)
    assert sum(asked.path.endswith("/complete") for asked in engine.asked) == tries


async def test_an_unreported_failure_does_not_hide_the_error(engine: CannedEngine, client: Client) -> None:
    engine.reply(COMPLETE, error(409, "WORKFLOW_TERMINAL"))

    async def charge() -> None:
        raise ValueError("no card")

    with pytest.raises(ValueError, match="no card"):
        await client.run_step("wf", "charge", charge, backoff=QUICK)
    (report,) = [asked.body for asked in engine.asked if asked.path.endswith("/complete")]
    assert report == {"success": False, "error": "ValueError: no card", "retriable": True}

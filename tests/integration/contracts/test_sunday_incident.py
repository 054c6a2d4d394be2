"""The Sunday incident: four layers retry one refund over two deploys that kill the agent, and one refund is made."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from counterfoil.client import Client
from tests.acceptance.processes import environment
from tests.integration.contracts.payments import Payments

if TYPE_CHECKING:
    from tests.running import Node

AGENT = Path(__file__).with_name("sunday_agent.py")
RETRIES = {"max_retries": 60, "backoff_type": "fixed", "init_backoff_ms": 100, "ack_timeout_ms": 30_000}
ARGUMENTS = {"payment_id": "p-14000", "amount_minor": 1_400_000}

StartAgent = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_agent(payments: Payments, unused_tcp_port: int) -> AsyncIterator[StartAgent]:
    started: list[Process] = []

    async def start(store: str, *, dies_in_turn: str | None, makes_keys: bool) -> Process:
        settings = {
            "port": unused_tcp_port,
            "payments": payments.url,
            "store": store,
            "dies_in_turn": dies_in_turn,
            "makes_keys": makes_keys,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(AGENT), json.dumps(settings), stdout=PIPE, env=environment()
        )
        started.append(process)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def incident(
    node: Node, payments: Payments, port: int, start_agent: StartAgent, store: str, *, makes_keys: bool
) -> Any:
    """Two agents die after their refund, the third one lives; returns the result of the flow."""
    payments.faults.extend(["cut-after", "cut", 503])  # the first refund is made, and its answer is lost
    async with Client(node.url) as client:
        endpoint = f"http://127.0.0.1:{port}/refund"
        await client.put_step("refund", {"kind": "sync", "endpoint": endpoint, "work": RETRIES})
        first = await start_agent(store, dies_in_turn="2", makes_keys=makes_keys)
        flow = await client.start_flow(["refund"], ARGUMENTS)
        assert await first.wait() == -signal.SIGKILL
        second = await start_agent(store, dies_in_turn="1", makes_keys=makes_keys)
        assert await second.wait() == -signal.SIGKILL
        await start_agent(store, dies_in_turn=None, makes_keys=makes_keys)
        return await client.result(flow["flow_id"], wait=30)


@pytest.fixture(params=["a file", "the engine"])
def dedup_place(request: pytest.FixtureRequest, tmp_path: Path, node: Node) -> str:
    return str(tmp_path / "effects.db") if request.param == "a file" else node.url


async def test_four_layers_retry_with_one_key_and_one_refund_is_made(
    node: Node, payments: Payments, unused_tcp_port: int, start_agent: StartAgent, dedup_place: str
) -> None:
    result = await incident(node, payments, unused_tcp_port, start_agent, dedup_place, makes_keys=False)
    assert (result["status"], result["outputs"]["refund_id"]) == ("completed", "re_1")
    assert payments.paid() == 1
    assert len(payments.keys) == 1
    seen = {
        name: sorted({request.headers[name] for request in payments.requests})
        for name in ("X-Dispatch", "X-Turn", "X-Attempt", "X-Try")
    }
    assert all(len(values) > 1 for values in seen.values()), seen  # each of the four layers has retried


@pytest.mark.sqlite_only
async def test_the_same_with_a_key_made_in_the_wrapper_is_four_refunds(
    node: Node, payments: Payments, unused_tcp_port: int, start_agent: StartAgent, tmp_path: Path
) -> None:
    """What happened on that Sunday: every request is legitimate, has a key of its own, and is paid."""
    store = str(tmp_path / "effects.db")
    result = await incident(node, payments, unused_tcp_port, start_agent, store, makes_keys=True)
    assert result["status"] == "completed"
    assert payments.paid() == 4
    assert len(payments.keys) == 4

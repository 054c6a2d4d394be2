"""The worker kit and the API client against a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from counterfoil.client import Assignment, Backoff, Client, NotCompleted, Receipt, Reporter, StepFailed, Worker
from counterfoil.client.errors import FlowExists, FlowFinal, InvalidStep, Unauthenticated, UnknownFlow, UnreachableGoal
from counterfoil.testing import StepEndpoint
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.running import Node, StartNode

QUICK = Backoff(tries=100, first=0.02, limit=0.1, retry_after_limit=0.1)
Serve = Callable[[Worker], Awaitable[str]]


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url) as opened:
        yield opened


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[TestServer] = []

    async def start(worker: Worker) -> str:
        server = TestServer(worker.app())
        await server.start_server(access_log=None)
        servers.append(server)
        return str(server.make_url("/job"))

    yield start
    for server in servers:
        await server.close()


async def test_a_handler_completes_a_flow(client: Client, serve: Serve) -> None:
    worker = Worker()

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, int]:
        await work.heartbeat(0.5, "half")
        return {"double": 2 * work.arguments["number"]}

    await client.put_step("job", {"endpoint": await serve(worker)})
    started = await client.start_flow(["job"], {"number": 4}, labels={"team": "a"})
    result = await client.result(started["flow_id"])
    assert (result["status"], result["outputs"]) == ("completed", {"double": 8})
    page = await client.flows(label=("team", "a"))
    assert [flow["flow_id"] for flow in page["flows"]] == [started["flow_id"]]
    events = (await client.events(started["flow_id"]))["events"]
    assert [item["type"] async for item in client.stream(started["flow_id"])] == [item["type"] for item in events]
    assert "work_heartbeat" in [item["type"] for item in events]


async def test_a_handler_that_gives_back_is_called_again(client: Client, serve: Serve) -> None:
    worker, attempts = Worker(), []

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, int]:
        attempts.append(work.receipt.attempt)
        if len(attempts) == 1:
            raise NotCompleted("not yet", retry_after=0.05)
        if len(attempts) == 2:
            raise OSError("the disk is full")
        return {"attempts": len(attempts)}

    await client.put_step("job", {"endpoint": await serve(worker)})
    started = await client.start_flow(["job"])
    assert (await client.result(started["flow_id"]))["outputs"] == {"attempts": 3}
    assert attempts == [1, 2, 3]


async def test_a_handler_that_fails_fails_the_flow(client: Client, serve: Serve) -> None:
    worker = Worker()

    @worker.step("/job")
    async def job(work: Assignment) -> None:
        raise StepFailed("the card was declined")

    await client.put_step("job", {"endpoint": await serve(worker)})
    started = await client.start_flow(["job"])
    result = await client.result(started["flow_id"])
    assert result["status"] == "failed"
    item = (await client.flow(started["flow_id"]))["steps"]["job"]["work"][0]
    assert item["error"] is not None
    assert (item["error"]["code"], item["error"]["message"]) == ("STEP_FAILED", "the card was declined")


async def test_the_same_handler_serves_a_sync_step(client: Client, serve: Serve) -> None:
    worker = Worker()

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, int]:
        return {"double": 2 * work.arguments["number"]}

    await client.put_step("job", {"kind": "sync", "endpoint": await serve(worker)})
    started = await client.start_flow(["job"], {"number": 4})
    assert (await client.result(started["flow_id"]))["outputs"] == {"double": 8}


async def test_a_cancelled_flow_stops_its_handler(client: Client, serve: Serve) -> None:
    worker, begun, stopped = Worker(heartbeat_every=0.02), asyncio.Event(), asyncio.Event()

    @worker.step("/job")
    async def job(work: Assignment) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await client.put_step("job", {"endpoint": await serve(worker)})
    started = await client.start_flow(["job"])
    async with asyncio.timeout(10):
        await begun.wait()
        assert (await client.cancel(started["flow_id"]))["status"] == "cancelled"
        await stopped.wait()
    assert (await client.cancel(started["flow_id"]))["status"] == "cancelled"


async def test_a_dispatch_repeated_after_the_deadline_does_not_repeat_the_work(client: Client, serve: Serve) -> None:
    worker, calls, done = Worker(heartbeat_every=None), [], asyncio.Event()

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, int]:
        calls.append(work.receipt.attempt)
        await done.wait()
        return {"attempt": work.receipt.attempt}

    await client.put_step("job", {"endpoint": await serve(worker), "work": {"deadline_ms": 400, "init_backoff_ms": 1}})
    started = await client.start_flow(["job"])

    async def second_attempt() -> bool:
        events = (await client.events(started["flow_id"]))["events"]
        return any(item["type"] == "work_acknowledged" and (item["attempt"] or 0) > 1 for item in events)

    await eventually(second_attempt)
    done.set()
    assert (await client.result(started["flow_id"]))["status"] == "completed"
    assert calls == [1]


async def test_verdicts_tell_duplicates_from_contradictions(
    client: Client, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    await client.put_step("job", {"endpoint": endpoint.url("/job")})
    await client.start_flow(["job"])
    receipt = Receipt.from_request((await endpoint.received("/job")).content)
    reporter = Reporter(session, receipt)
    first, same, other, failed = [
        await reporter.succeed({"a": 1}),
        await reporter.succeed({"a": 1.0}),
        await reporter.succeed({"a": 2}),
        await reporter.fail("after all"),
    ]
    assert (first.outcome, first.status) == ("accepted", "succeeded")
    assert (same.outcome, same.code, same.recorded) == ("duplicate", "ALREADY_SUCCEEDED", True)
    assert [(item.outcome, item.code, item.recorded) for item in (other, failed)] == [
        ("refused", "CONFLICTING_RESULT", False)
    ] * 2
    assert await reporter.heartbeat() is True


async def test_reports_outlast_a_restart_of_the_engine(
    start_node: StartNode, endpoint: StepEndpoint, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    first = await start_node(port=unused_tcp_port)
    async with Client(first.url) as client:
        await client.put_step("job", {"endpoint": endpoint.url("/job")})
        started = await client.start_flow(["job"])
        receipt = Receipt.from_request((await endpoint.received("/job")).content)
        await first.stop()
        tried = asyncio.Event()

        async def sleep(seconds: float) -> None:
            tried.set()
            await asyncio.sleep(min(seconds, 0.05))

        reporting = asyncio.create_task(Reporter(session, receipt, backoff=QUICK, sleep=sleep).succeed({"a": 1}))
        await asyncio.wait_for(tried.wait(), 10)
        await start_node(port=unused_tcp_port)
        verdict = await reporting
        assert verdict.outcome == "accepted"
        assert verdict.deliveries > 1
        assert (await client.result(started["flow_id"]))["outputs"] == {"a": 1}


async def test_a_stream_outlasts_a_restart_of_the_engine(
    start_node: StartNode, endpoint: StepEndpoint, session: aiohttp.ClientSession, unused_tcp_port: int
) -> None:
    first = await start_node(port=unused_tcp_port)
    async with Client(first.url, patience=30) as client:
        await client.put_step("job", {"endpoint": endpoint.url("/job")})
        started = await client.start_flow(["job"])
        seen = []
        async with aclosing(client.stream(started["flow_id"])) as events:
            async for item in events:
                seen.append(item)
                if item["type"] == "work_acknowledged":
                    await first.stop()
                    await start_node(port=unused_tcp_port)
                    receipt = Receipt.from_request((await endpoint.received("/job")).content)
                    await Reporter(session, receipt).succeed()
        assert seen == (await client.events(started["flow_id"]))["events"]
        assert seen[-1]["type"] == "flow_completed"


async def test_signed_reports_are_taken_where_signatures_are_required(start_node: StartNode, serve: Serve) -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    node = await start_node(signing_secret=secret)
    worker = Worker(signing_secret=secret)

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, str]:
        return {"text": "ünïcödé"}

    async with Client(node.url) as client:
        await client.put_step("job", {"endpoint": await serve(worker), "require_signature": True})
        started = await client.start_flow(["job"])
        assert (await client.result(started["flow_id"]))["outputs"] == {"text": "ünïcödé"}


async def test_errors_of_the_engine_have_their_types(client: Client, serve: Serve) -> None:
    with pytest.raises(InvalidStep) as invalid:
        await client.put_step("job", {"endpoint": "nowhere"})
    assert invalid.value.details["errors"][0]["place"] == "endpoint"
    with pytest.raises(UnknownFlow):
        await client.flow("nobody")
    needs = {"number": {"role": "required", "type": "number"}}
    await client.put_step("job", {"kind": "sync", "endpoint": await serve(_echo()), "attributes": needs})
    with pytest.raises(UnreachableGoal):
        await client.start_flow(["job"])
    await client.start_flow(["job"], {"number": 1}, flow_id="mine")
    with pytest.raises(FlowExists):
        await client.start_flow(["job"], {"number": 1}, flow_id="mine")
    await client.result("mine")
    with pytest.raises(FlowFinal):
        await client.cancel("mine")


async def test_a_key_is_needed_where_keys_are_configured(start_node: StartNode) -> None:
    node = await start_node(api_keys="ci:viewer:s3cret-0123456789")
    async with Client(node.url) as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.list_steps()
    async with Client(node.url, "s3cret-0123456789") as known:
        assert await known.list_steps() == []


async def test_work_and_health_are_told(client: Client, endpoint: StepEndpoint) -> None:
    await client.put_step("job", {"endpoint": endpoint.url("/job")})
    await client.start_flow(["job"])
    await endpoint.received("/job")
    page = await client.work(step="job")
    item: Any = await client.work_item(page["work"][0]["work_id"])
    assert (item["step_id"], item["attempt"], len(item["attempts"])) == ("job", 1, 1)
    assert await client.health()
    assert (await client.get_step("job"))["step_id"] == "job"
    await client.delete_step("job")
    assert await client.list_steps() == []


def _echo() -> Worker:
    worker = Worker()

    @worker.step("/job")
    async def job(work: Assignment) -> dict[str, Any]:
        return work.arguments

    return worker

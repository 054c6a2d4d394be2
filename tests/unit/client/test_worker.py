"""The worker kit over real HTTP: the test plays the engine on both sides of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from counterfoil.client import Assignment, Backoff, NotCompleted, StepFailed, Worker
from tests.eventually import eventually
from tests.unit.canned_engine import Asked, CannedEngine, Reply, error

TOKEN = "wk_1.c3VwZXJzZWNyZXQ"
WEBHOOK = f"/webhook/f-1/s/{TOKEN}"
ACCEPTED = Reply(200, {"verdict": "accepted", "status": "succeeded"})
ALIVE = Reply(200, {"deadline_at": "2026-11-16T14:26:10.123Z", "cancel_requested": False})


@pytest.fixture
async def engine() -> AsyncIterator[CannedEngine]:
    async with CannedEngine() as running:
        running.reply(f"POST {WEBHOOK}", ACCEPTED)
        running.reply(f"POST {WEBHOOK}/heartbeat", ALIVE)
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


class Dispatcher:
    """Sends dispatches to a worker as the engine does."""

    def __init__(self, session: aiohttp.ClientSession, worker: TestServer, engine: CannedEngine) -> None:
        self.session, self.worker, self.engine = session, worker, engine

    async def dispatch(self, *, attempt: int = 1, sync: bool = False, **arguments: Any) -> tuple[int, Any]:
        metadata: dict[str, Any] = {
            "flow_id": "f-1",
            "step_id": "s",
            "attempt": attempt,
            "idempotency_key": "k",
            "receipt_token": TOKEN,
        }
        if not sync:
            metadata["webhook_url"] = f"{self.engine.url}{WEBHOOK}"
            metadata["heartbeat_url"] = f"{self.engine.url}{WEBHOOK}/heartbeat"
        return await self.post({"arguments": arguments, "metadata": metadata})

    async def post(self, body: Any) -> tuple[int, Any]:
        async with self.session.post(self.worker.make_url("/s"), json=body) as response:
            return response.status, await response.json()

    def reports(self) -> list[Asked]:
        return [asked for asked in self.engine.asked if asked.path == WEBHOOK]

    def heartbeats(self) -> list[Asked]:
        return [asked for asked in self.engine.asked if asked.path.endswith("/heartbeat")]

    async def report(self, count: int = 1) -> dict[str, Any]:
        found = await eventually(lambda: self.reports()[count - 1 :], what=f"report {count}")
        body: dict[str, Any] = found[0].body
        return body


@pytest.fixture
async def serve(engine: CannedEngine, session: aiohttp.ClientSession) -> AsyncIterator[Any]:
    servers: list[TestServer] = []

    async def start(worker: Worker) -> Dispatcher:
        server = TestServer(worker.app())
        await server.start_server(access_log=None)
        servers.append(server)
        return Dispatcher(session, server, engine)

    yield start
    for server in servers:
        await server.close()


async def test_the_endpoint_answers_before_the_work_is_done(serve: Any) -> None:
    worker, done = Worker(), asyncio.Event()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, int]:
        await done.wait()
        return {"double": 2 * assignment.arguments["number"]}

    engine = await serve(worker)
    assert await engine.dispatch(number=4) == (200, {"success": True})
    assert engine.reports() == []
    done.set()
    assert await engine.report() == {"success": True, "outputs": {"double": 8}, "attempt": 1}


@pytest.mark.parametrize(
    ("raised", "reported"),
    [
        (StepFailed("no such file"), {"success": False, "error": "no such file"}),
        (NotCompleted("busy"), {"success": False, "error": "busy", "retriable": True}),
        (NotCompleted("busy", 30), {"success": False, "error": "busy", "retriable": True, "retry_after": 30}),
        (OSError("disk full"), {"success": False, "error": "OSError: disk full", "retriable": True}),
    ],
)
async def test_what_a_handler_raises_is_how_the_work_ended(
    serve: Any, raised: Exception, reported: dict[str, Any]
) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> Mapping[str, Any]:
        raise raised

    engine = await serve(worker)
    await engine.dispatch()
    assert await engine.report() == {**reported, "attempt": 1}


async def test_outputs_that_are_no_json_fail_the_work(serve: Any) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, Any]:
        return {"thing": object()}

    engine = await serve(worker)
    await engine.dispatch()
    report = await engine.report()
    assert report["error"].startswith("the handler returned outputs that are no JSON object")
    assert "retriable" not in report


async def test_work_over_its_time_limit_is_given_back(serve: Any) -> None:
    worker = Worker()

    @worker.step("/s", time_limit=0.05)
    async def handler(assignment: Assignment) -> None:
        await asyncio.Event().wait()

    engine = await serve(worker)
    await engine.dispatch()
    report = await engine.report()
    assert (report["error"], report["retriable"]) == ("the work took longer than 0.05 s", True)


async def test_a_receipt_is_worked_on_once(serve: Any) -> None:
    worker, calls, done = Worker(), [], asyncio.Event()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, int]:
        calls.append(assignment.receipt.attempt)
        await done.wait()
        return {"a": 1}

    engine = await serve(worker)
    for attempt in (1, 2):
        assert await engine.dispatch(attempt=attempt) == (200, {"success": True})
    done.set()
    assert await engine.report() == {"success": True, "outputs": {"a": 1}, "attempt": 2}
    assert await engine.dispatch(attempt=3) == (200, {"success": True})
    assert await engine.report(2) == {"success": True, "outputs": {"a": 1}, "attempt": 3}
    assert calls == [1]


async def test_work_that_was_given_back_is_done_at_the_next_attempt(serve: Any) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, int]:
        if assignment.receipt.attempt == 1:
            raise NotCompleted("not yet")
        return {"attempt": assignment.receipt.attempt}

    engine = await serve(worker)
    await engine.dispatch()
    assert (await engine.report())["retriable"]
    await eventually(lambda: not worker._running)
    await engine.dispatch(attempt=2)
    assert (await engine.report(2))["outputs"] == {"attempt": 2}


async def test_a_result_that_the_engine_cannot_take_fails_the_work(serve: Any, engine: CannedEngine) -> None:
    engine.reply(f"POST {WEBHOOK}", error(413, "PAYLOAD_TOO_LARGE", "too much"), ACCEPTED)
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, str]:
        return {"large": "x"}

    dispatcher = await serve(worker)
    await dispatcher.dispatch()
    assert (await dispatcher.report(2))["error"] == "the worker's result was refused: PAYLOAD_TOO_LARGE: too much"


async def test_a_result_that_is_not_valid_fails_the_work_with_the_place(serve: Any, engine: CannedEngine) -> None:
    wrong = [{"place": "outputs.n", "message": "must be a number"}]
    engine.reply(f"POST {WEBHOOK}", error(422, "INVALID_RESULT", "not a result", errors=wrong), ACCEPTED)
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, str]:
        return {"n": "x"}

    dispatcher = await serve(worker)
    await dispatcher.dispatch()
    reason = "INVALID_RESULT: not a result (outputs.n: must be a number)"
    assert (await dispatcher.report(2))["error"] == f"the worker's result was refused: {reason}"


async def test_progress_is_repeated_by_the_heartbeats(serve: Any) -> None:
    worker, done = Worker(heartbeat_every=0.01), asyncio.Event()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        assert not await assignment.heartbeat(0.5, "half")
        await done.wait()

    engine = await serve(worker)
    await engine.dispatch()
    beats = await eventually(lambda: engine.heartbeats() if len(engine.heartbeats()) >= 3 else None)
    assert {"progress": 0.5, "message": "half"} in [beat.body for beat in beats]
    done.set()
    assert (await engine.report())["success"]


async def test_cancelled_work_stops_and_reports_nothing(serve: Any, engine: CannedEngine) -> None:
    engine.reply(f"POST {WEBHOOK}/heartbeat", ALIVE, Reply(200, {"deadline_at": None, "cancel_requested": True}))
    worker, stopped = Worker(heartbeat_every=0.01), asyncio.Event()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert assignment.cancel_requested
            stopped.set()

    dispatcher = await serve(worker)
    await dispatcher.dispatch()
    async with asyncio.timeout(5):
        await stopped.wait()
    await eventually(lambda: not worker._running)
    assert dispatcher.reports() == []


async def test_a_heartbeat_that_fails_does_not_stop_the_work(serve: Any, engine: CannedEngine) -> None:
    engine.reply(f"POST {WEBHOOK}/heartbeat", error(422, "INVALID_RESULT"))
    worker, done = Worker(heartbeat_every=0.01), asyncio.Event()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        await done.wait()

    dispatcher = await serve(worker)
    await dispatcher.dispatch()
    await eventually(lambda: len(dispatcher.heartbeats()) >= 2)
    done.set()
    assert (await dispatcher.report())["success"]


async def test_the_answer_of_a_sync_step_is_its_result(serve: Any) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, int]:
        if assignment.arguments["number"] < 0:
            raise StepFailed("negative")
        return {"root": int(assignment.arguments["number"] ** 0.5)}

    engine = await serve(worker)
    assert await engine.dispatch(sync=True, number=9) == (200, {"success": True, "outputs": {"root": 3}})
    assert await engine.dispatch(sync=True, number=-1) == (200, {"success": False, "error": "negative"})
    assert engine.reports() == []


async def test_what_is_no_dispatch_gets_400(serve: Any) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        return None

    engine = await serve(worker)
    assert await engine.post({"hello": "unit"}) == (400, {"success": False, "error": "the body has no metadata"})


async def test_a_worker_that_stops_gives_its_work_back(serve: Any) -> None:
    worker = Worker(grace=0.05)

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        await asyncio.Event().wait()

    engine = await serve(worker)
    await engine.dispatch()
    await engine.worker.close()
    assert await engine.report() == {
        "success": False,
        "error": "the worker is stopping",
        "retriable": True,
        "attempt": 1,
    }


async def test_a_report_that_cannot_be_delivered_is_logged_without_its_token(
    serve: Any, engine: CannedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.reply(f"POST {WEBHOOK}", Reply(503))
    worker = Worker(backoff=Backoff(tries=2, first=0.01))

    @worker.step("/s")
    async def handler(assignment: Assignment) -> None:
        return None

    await (await serve(worker)).dispatch()
    await eventually(lambda: "gave up after 2 deliveries" in caplog.text)
    assert TOKEN not in caplog.text


async def test_steps_can_be_mounted_beside_other_routes(session: aiohttp.ClientSession) -> None:
    worker = Worker()

    @worker.step("/s")
    async def handler(assignment: Assignment) -> dict[str, bool]:
        return {"mounted": True}

    steps = web.Application()
    worker.mount(steps)
    app = web.Application()
    app.add_subapp("/steps", steps)
    metadata = {"flow_id": "f", "step_id": "s", "attempt": 1, "idempotency_key": "k"}
    async with (
        TestServer(app) as server,
        session.post(server.make_url("/steps/s"), json={"arguments": {}, "metadata": metadata}) as response,
    ):
        assert await response.json() == {"success": True, "outputs": {"mounted": True}}

"""The workers in TypeScript, Go and bash, against a real engine with a signing secret: the same tests for each."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
import pytest
import pytest_asyncio

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import QUICK
from tests.acceptance.language_workers import EXAMPLES, LANGUAGES, Language, LanguageWorker, documented_command
from tests.acceptance.processes import EngineProcess, environment
from tests.eventually import eventually
from tests.wire import JSON, Api, sign, signature_headers

SECRET = "whsec_YSBzZWNyZXQgb2YgdGhlc2UgdGVzdHMgb25seQ=="
OTHER_SECRET = "whsec_YW5vdGhlciBzZWNyZXQsIHdoaWNoIG5ldmVyIGZpdHM="
IMAGE = {"image": "cat.png"}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),  # the engine and the workers live as long as the module
    pytest.mark.sqlite_only,  # a worker cannot tell which store the engine has
]


def in_each_language(what: str) -> pytest.MarkDecorator:
    """Run a test with each worker; ``what`` says in the table of clients what it shows."""
    cases = [
        pytest.param(language, id=language.name, marks=pytest.mark.client(language.client, what))
        for language in LANGUAGES
    ]
    return pytest.mark.parametrize("language", cases, indirect=True, scope="module")


# ------------------------------------------------------------------------------------------------ what runs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineProcess]:
    process = EngineProcess(tmp_path_factory.mktemp("engine") / "data", {**QUICK, "signing_secret": SECRET})
    await process.start()
    yield process
    assert await process.stop() == 0
    assert "Traceback" not in process.output()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(engine: EngineProcess) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as session:
        yield Api(session, engine.url)


@pytest_asyncio.fixture(loop_scope="module")
async def endpoint() -> AsyncIterator[StepEndpoint]:
    async with StepEndpoint() as served:
        yield served


@pytest.fixture(scope="module")
def language(request: pytest.FixtureRequest) -> Language:
    chosen: Language = request.param
    return chosen


@pytest.fixture(scope="module")
def command(language: Language, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How the worker is started. What must be compiled is compiled once."""
    return language.prepare(tmp_path_factory.mktemp(language.name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(
    language: Language, command: list[str], tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Any
) -> AsyncIterator[LanguageWorker]:
    """The worker that most tests share."""
    started = LanguageWorker(language, command, tmp_path_factory.mktemp("log"), unused_tcp_port_factory())
    await started.start(SECRET)
    yield started
    assert await started.stop() == 0, started.logged()
    assert "/webhook/" not in "".join(started.logged()), "the log holds receipts"


@pytest_asyncio.fixture(loop_scope="module")
async def own_worker(
    language: Language, command: list[str], tmp_path: Path, unused_tcp_port: int
) -> AsyncIterator[LanguageWorker]:
    """A worker of one test, not started yet."""
    own = LanguageWorker(language, command, tmp_path, unused_tcp_port)
    yield own
    own.kill()


@pytest.fixture
def step(worker: LanguageWorker) -> str:
    return f"thumbnail-{worker.language.name}"


async def start(api: Api, step: str, endpoint: str, **init: Any) -> str:
    """Register the step, for signed reports only, and start a flow with it."""
    await api.put_step(step, endpoint, require_signature=True, work={"max_retries": 3, "init_backoff_ms": 20})
    return await api.start(step, init=init)


# ------------------------------------------------------------------------------------------------ with the engine


@in_each_language("signed dispatch, heartbeats, signed report")
async def test_work_is_done_with_heartbeats(api: Api, worker: LanguageWorker, step: str) -> None:
    flow_id = await start(api, step, worker.endpoint, **IMAGE, seconds=1)
    result = await api.final(flow_id)
    assert (result["status"], result["outputs"]) == ("completed", {"thumbnail": "small-cat.png"})
    beats = [event["data"] for event in await api.events(flow_id) if event["type"] == "work_heartbeat"]
    assert beats
    await worker.until_logged(flow_id, "reported: accepted")


@in_each_language("failure reported")
async def test_a_failure_is_reported(api: Api, worker: LanguageWorker, step: str) -> None:
    flow_id = await start(api, step, worker.endpoint, image=None)
    result = await api.final(flow_id)
    assert result["status"] == "failed"
    assert "there is no image" in orjson.dumps(result["error"]).decode()


@in_each_language("not completed, retried after retry_after")
async def test_busy_work_is_given_back_and_tried_again(api: Api, worker: LanguageWorker, step: str) -> None:
    flow_id = await start(api, step, worker.endpoint, **IMAGE, busy=True, seconds=0)
    assert (await api.final(flow_id))["status"] == "completed"
    assert (await api.work(flow_id))["attempt"] == 2


@in_each_language("cancellation learnt from a heartbeat")
async def test_a_cancellation_is_noticed(api: Api, worker: LanguageWorker, step: str) -> None:
    """In the second attempt: the report of the first one must not be taken for one of the second."""
    flow_id = await start(api, step, worker.endpoint, **IMAGE, busy=True, seconds=50)

    async def beats_in_second_attempt() -> bool:
        beats = [event for event in await api.events(flow_id) if event["type"] == "work_heartbeat"]
        return any(beat["attempt"] == 2 for beat in beats)

    await eventually(beats_in_second_attempt, what="a heartbeat of the second attempt")
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    await worker.until_logged(flow_id, "cancelled")
    reports = [line for line in worker.logged(flow_id) if line.startswith("report")]
    assert reports == ["reported: accepted"]  # of the first attempt
    assert worker.logged(flow_id).count("started") == 2


@in_each_language("engine killed and restarted before the report")
async def test_a_report_outlives_a_restart_of_the_engine(
    api: Api, engine: EngineProcess, worker: LanguageWorker, step: str
) -> None:
    flow_id = await start(api, step, worker.endpoint, **IMAGE, seconds=0.5)
    await api.until_acknowledged(flow_id)
    await engine.kill()
    await worker.until_logged(flow_id, "delivery 1 failed")
    await engine.start()
    result = await api.final(flow_id, wait="25")
    assert (result["status"], result["outputs"]) == ("completed", {"thumbnail": "small-cat.png"})
    assert (await api.work(flow_id))["attempt"] == 1


@in_each_language("the same dispatch three times, worked on once")
async def test_a_dispatch_that_comes_again_is_not_worked_on_again(
    api: Api, worker: LanguageWorker, step: str, endpoint: StepEndpoint
) -> None:
    """A real dispatch, caught on its way and delivered to the worker three times."""
    flow_id = await start(api, step, endpoint.url("/caught"), **IMAGE, seconds=0.8)
    caught = await endpoint.received("/caught")
    headers = {
        name: value for name, value in caught.headers.items() if name.lower().startswith(("webhook-", "content"))
    }

    async def deliver() -> None:
        async with api.session.post(worker.endpoint, data=caught.content, headers=headers) as response:
            assert response.status == 200

    await deliver()
    await worker.until_logged(flow_id, "started")
    await deliver()
    assert (await api.final(flow_id))["status"] == "completed"
    await worker.until_logged(flow_id, "reported: accepted")
    await deliver()
    await worker.until_logged(flow_id, "report refused: ALREADY_SUCCEEDED")
    assert worker.logged(flow_id).count("started") == 1
    assert worker.logged(flow_id).count("already running") == 1


# ------------------------------------------------------------------------------------------------ signatures


@in_each_language("missing, wrong and old signatures refused with 401")
async def test_a_bad_signature_is_refused(api: Api, worker: LanguageWorker, endpoint: StepEndpoint) -> None:
    body = dispatch(endpoint, "refused")
    now = time.time()
    good = signature_headers(SECRET, body)
    refused: list[dict[str, str]] = [
        {},
        {**good, "webhook-signature": ""},
        {**good, "webhook-signature": "v1,"},
        {**good, "webhook-signature": good["webhook-signature"][:-8]},
        {**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v2,")},
        {**good, "webhook-id": "another"},
        {**good, "webhook-timestamp": str(int(now) - 1)},
        {**good, "webhook-timestamp": "now"},
        signature_headers(OTHER_SECRET, body),
        signature_headers(SECRET, body + b" "),
        signature_headers(SECRET, body, at=now - 330),
        signature_headers(SECRET, body, at=now + 330),
    ]
    for headers in refused:
        assert await posted(api, worker, body, headers) == 401, headers
    assert endpoint.all_requests() == []
    assert worker.logged("refused") == []


@in_each_language("several signatures, one of them right")
async def test_one_good_signature_of_several_is_enough(
    api: Api, worker: LanguageWorker, endpoint: StepEndpoint
) -> None:
    body = dispatch(endpoint, "several", seconds=0)
    headers = signature_headers(SECRET, body)
    bad = sign(OTHER_SECRET, headers["webhook-id"], headers["webhook-timestamp"], body)
    headers["webhook-signature"] = f"{bad} v1a,unknown {headers['webhook-signature']}"
    assert await posted(api, worker, body, headers) == 200
    assert (await endpoint.received("/webhook/several")).body["success"] is True


@in_each_language("requests that are no dispatch refused with 4xx")
async def test_other_requests_are_refused(api: Api, worker: LanguageWorker) -> None:
    for body in (b"", b"no JSON", b"[]", b"{}", b'{"arguments": {}, "metadata": {}}'):
        assert await posted(api, worker, body, signature_headers(SECRET, body)) == 400, body
    async with api.session.get(worker.endpoint) as response:
        assert response.status == 405
    async with api.session.post(f"{worker.url}/elsewhere", data=b"{}") as response:
        assert response.status == 404


# ------------------------------------------------------------------------------------------------ rules of reporting


@in_each_language("retries after a lost connection, 503 with Retry-After, 429")
async def test_a_report_is_retried(api: Api, worker: LanguageWorker, endpoint: StepEndpoint) -> None:
    """The same result each time, signed anew, not before Retry-After and with growing pauses."""
    busy = Answer(status=503, headers={"Retry-After": "1"}, body={"error": {"code": "UNAVAILABLE"}})
    accepted = Answer(body={"verdict": "accepted"})
    endpoint.answer("/webhook/retried", Answer(fault="cut"), busy, Answer(status=429, body="<p>a proxy</p>"), accepted)
    await send(api, worker, dispatch(endpoint, "retried", seconds=0))
    reports = [await endpoint.received("/webhook/retried", number) for number in (1, 2, 3, 4)]
    await worker.until_logged("retried", "reported: accepted")
    assert {report.content for report in reports} == {reports[0].content}
    assert reports[0].body == {"success": True, "outputs": {"thumbnail": "small-cat.png"}, "attempt": 1}
    assert len({report.headers["webhook-id"] for report in reports}) == 4
    for report in reports:
        signed = (report.headers["webhook-id"], report.headers["webhook-timestamp"], report.content)
        assert report.headers["webhook-signature"] == sign(SECRET, *signed)
    pauses = [later.at - earlier.at for earlier, later in pairwise(reports)]
    for pause, least in zip(pauses, (0.25, 1.0, 1.0), strict=True):
        assert least - 0.01 <= pause < least + 8, pauses
    assert len(endpoint.requests("/webhook/retried")) == 4


@in_each_language("404 and 400 are final, 422 becomes a failure")
async def test_a_refusal_is_final(api: Api, worker: LanguageWorker, endpoint: StepEndpoint) -> None:
    refusals = {
        "f-404": (404, "UNKNOWN_RECEIPT"),
        "f-400": (400, "CONFLICTING_RESULT"),
        "f-401": (401, "INVALID_SIGNATURE"),
        "f-302": (302, "HTTP 302"),
    }
    for flow_id, (status, code) in refusals.items():
        body = None if code.startswith("HTTP") else {"error": {"code": code, "message": "no", "details": {}}}
        endpoint.answer(f"/webhook/{flow_id}", Answer(status=status, body=body, headers={"Location": "/elsewhere"}))
        await send(api, worker, dispatch(endpoint, flow_id, seconds=0))
    invalid = Answer(status=422, body={"error": {"code": "INVALID_RESULT", "message": "no", "details": {}}})
    endpoint.answer("/webhook/f-422", invalid, Answer(body={"verdict": "accepted"}))
    await send(api, worker, dispatch(endpoint, "f-422", seconds=0))
    for flow_id, (_, code) in refusals.items():
        await worker.until_logged(flow_id, f"report refused: {code}")
    await worker.until_logged("f-422", "reported: accepted")
    failure = (await endpoint.received("/webhook/f-422", 2)).body
    assert failure == {"success": False, "error": "the result was refused: INVALID_RESULT", "attempt": 1}
    assert [len(endpoint.requests(f"/webhook/{flow_id}")) for flow_id in refusals] == [1, 1, 1, 1]
    assert endpoint.requests("/elsewhere") == []


@in_each_language("heartbeats that fail do not stop the work, a 404 does")
async def test_only_an_answer_of_the_engine_stops_the_work(
    api: Api, worker: LanguageWorker, endpoint: StepEndpoint
) -> None:
    async def cancel_after_progress(heartbeat: Received) -> Answer:
        return Answer(body={"deadline_at": None, "cancel_requested": (heartbeat.body.get("progress") or 0) > 0})

    unknown = Answer(status=404, body={"error": {"code": "UNKNOWN_RECEIPT", "message": "no", "details": {}}})
    page = Answer(body="<p>a proxy</p>", headers={"Content-Type": "text/html"})
    lost = (page, Answer(), Answer(fault="cut"), Answer(status=503))
    endpoint.answer("/webhook/beaten/heartbeat", *lost, cancel_after_progress)
    endpoint.answer("/webhook/unknown/heartbeat", unknown)
    await send(api, worker, dispatch(endpoint, "beaten", seconds=6))
    await send(api, worker, dispatch(endpoint, "unknown", seconds=50))
    await worker.until_logged("unknown", "cancelled")
    await worker.until_logged("beaten", "cancelled")
    assert len(endpoint.requests("/webhook/beaten/heartbeat")) > len(lost)
    assert endpoint.requests("/webhook/beaten") == endpoint.requests("/webhook/unknown") == []


@in_each_language("next attempt dispatched before the report is answered")
async def test_an_attempt_that_overtakes_the_answer_is_worked_on(
    api: Api, worker: LanguageWorker, endpoint: StepEndpoint
) -> None:
    """The work was given back, and its next attempt arrives while the worker still waits for the engine's answer."""
    answered = asyncio.Event()
    given_back = Answer(body={"verdict": "accepted", "status": "not_completed"}, until=answered)
    endpoint.answer("/webhook/overtaken", given_back, Answer(body={"verdict": "accepted"}))
    arguments = {"seconds": 0, "busy": True}
    await send(api, worker, dispatch(endpoint, "overtaken", **arguments))
    assert (await endpoint.received("/webhook/overtaken")).body["retriable"] is True
    await send(api, worker, dispatch(endpoint, "overtaken", attempt=2, **arguments))
    await worker.until_logged("overtaken", "already running")
    answered.set()
    second = (await endpoint.received("/webhook/overtaken", 2)).body
    assert second == {"success": True, "outputs": {"thumbnail": "small-cat.png"}, "attempt": 2}


# ------------------------------------------------------------------------------------------------ start and stop


@in_each_language("SIGTERM: running work is finished and reported")
async def test_running_work_is_finished_before_the_worker_stops(api: Api, own_worker: LanguageWorker) -> None:
    await own_worker.start(SECRET)
    flow_id = await start(api, f"stopping-{own_worker.language.name}", own_worker.endpoint, **IMAGE, seconds=2)
    await api.until_event(flow_id, "work_heartbeat")
    own_worker.terminate()
    assert await own_worker.wait() == 0, own_worker.logged()
    assert (await api.final(flow_id))["status"] == "completed"
    logged = [line.partition(": ")[2] or line for line in own_worker.logged()]
    assert logged[-1] == "reported: accepted", logged
    assert any("stopping" in line for line in own_worker.logged()[:-1])


@in_each_language("SIGTERM: no new work is accepted")
async def test_a_worker_that_stops_accepts_no_work(
    api: Api, own_worker: LanguageWorker, endpoint: StepEndpoint
) -> None:
    """Its work can only end once the test has seen that new connections are refused."""
    refused = asyncio.Event()
    endpoint.answer("/webhook/last", Answer(body={"verdict": "accepted"}, until=refused))
    await own_worker.start(SECRET)
    await send(api, own_worker, dispatch(endpoint, "last", seconds=0))
    await endpoint.received("/webhook/last")
    own_worker.terminate()

    async def refuses() -> bool:
        return not await own_worker.accepts()

    await eventually(refuses, what="no new connection accepted")
    refused.set()
    assert await own_worker.wait() == 0, own_worker.logged()
    await own_worker.until_logged("last", "reported: accepted")


@in_each_language("wrong settings refused at the start")
async def test_wrong_settings_stop_the_start(own_worker: LanguageWorker) -> None:
    for secret in ("whsec_no base64", "c2VjcmV0", "whsec_", f"{SECRET},{SECRET}"):
        await own_worker.spawn(secret)
        assert await own_worker.wait() == 1
        assert "COUNTERFOIL_SIGNING_SECRET must be whsec_ followed by base64" in own_worker.logged()[-1]
    for seconds in ("0", "-1", "soon"):
        await own_worker.spawn("", heartbeat_seconds=seconds)
        assert await own_worker.wait() == 1
        assert "HEARTBEAT_SECONDS must be a positive number" in own_worker.logged()[-1]


@in_each_language("started as documented, without a secret")
async def test_the_documented_commands_work(
    engine: EngineProcess, command: list[str], tmp_path: Path, unused_tcp_port: int
) -> None:
    """The block of the page, pasted into a shell, and a flow by start_flow.sh."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    extra = {"PORT": str(unused_tcp_port), "TMPDIR": str(tmp_path)}
    urls = {"COUNTERFOIL_URL": engine.url, "WORKER_URL": f"http://127.0.0.1:{unused_tcp_port}"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        shell = await asyncio.create_subprocess_exec(
            *("bash", "-c", documented_command(command)),
            stdout=output,
            stderr=output,
            cwd=tmp_path,
            env=environment(extra),
            start_new_session=True,  # a group of its own, so that its children can be ended with it
        )
    try:
        await eventually(lambda: "listening on" in log.read_text(), within=40, what="the worker listening")
        flow = await asyncio.create_subprocess_exec(
            *("examples/start_flow.sh", '{"image": "cat.png", "seconds": 0.1}'),
            stdout=PIPE,
            cwd=tmp_path,
            env=environment(urls),
        )
        printed, _ = await asyncio.wait_for(flow.communicate(), 40)
        assert orjson.loads(printed.splitlines()[-1])["outputs"] == {"thumbnail": "small-cat.png"}, log.read_text()
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        await asyncio.wait_for(shell.wait(), 20)


# ------------------------------------------------------------------------------------------------ dispatches by hand


def dispatch(reports_to: StepEndpoint, flow_id: str, *, attempt: int = 1, **arguments: Any) -> bytes:
    """A dispatch whose reports go to an endpoint of the test, which answers as no healthy engine does."""
    webhook_url = reports_to.url(f"/webhook/{flow_id}")
    metadata = {
        "flow_id": flow_id,
        "step_id": "thumbnail",
        "receipt_token": f"receipt of {webhook_url}",
        "webhook_url": webhook_url,
        "heartbeat_url": f"{webhook_url}/heartbeat",
        "attempt": attempt,
        "idempotency_key": flow_id,
    }
    return orjson.dumps({"arguments": {**IMAGE, **arguments}, "metadata": metadata})


async def posted(api: Api, worker: LanguageWorker, body: bytes, headers: dict[str, str]) -> int:
    """The status with which the worker answers."""
    async with api.session.post(worker.endpoint, data=body, headers={**JSON, **headers}) as response:
        return response.status


async def send(api: Api, worker: LanguageWorker, body: bytes) -> None:
    assert await posted(api, worker, body, signature_headers(SECRET, body, message_id=uuid4().hex)) == 200

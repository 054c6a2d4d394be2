"""Section 2: what each answer of an endpoint means, for async and for sync steps, row by row."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import elapsed
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api, seconds_from_now

LONG = {"init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
KINDS = pytest.mark.parametrize("kind", ["async", "sync"])


async def run(api: Api, endpoint: StepEndpoint, kind: str, *answers: Answer, **definition: Any) -> str:
    """Start a flow whose step is answered so."""
    endpoint.answer(PATH, *answers)
    work = {**LONG, **definition.pop("work", {})}
    await api.put_step(STEP, endpoint.url(PATH), kind=kind, work=work, **definition)
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    return flow_id


async def not_completed(api: Api, flow_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The work item once it is not completed, and the data of its journal event."""
    work = await api.until_work(flow_id, "not_completed", attempt=1)
    event = await api.until_event(flow_id, "work_not_completed")
    data: dict[str, Any] = event["data"]
    assert (await api.flow(flow_id))["status"] == "active"
    return work, data


# ------------------------------------------------------------------------------------------- 2xx, success


@pytest.mark.either_store
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("body", [None, {"success": True}, {"success": True, "outputs": {"too": "early"}}, "  \n"])
async def test_async_2xx_acknowledges(api: Api, endpoint: StepEndpoint, status: int, body: Any) -> None:
    """The endpoint took it; its outputs are none yet, and the webhook is waited for."""
    if status == 204 and body is not None:
        body = None
    flow_id = await run(api, endpoint, "async", Answer(status, body))
    await api.until_acknowledged(flow_id)
    work = await api.work(flow_id)
    assert (work["status"], work["attempt"], work["outputs"]) == ("active", 1, None) or work["outputs"] == {}
    assert (await api.flow(flow_id))["status"] == "active"
    await api.succeed((await endpoint.received(PATH)), real=1)
    assert (await api.final(flow_id))["outputs"] == {"real": 1}


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_sync_2xx_with_success_succeeds(api: Api, endpoint: StepEndpoint, status: int) -> None:
    flow_id = await run(api, endpoint, "sync", Answer(status, {"success": True, "outputs": {"a": [1, "é"]}}))
    final = await api.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {"a": [1, "é"]})
    assert (await api.work(flow_id))["status"] == "succeeded"


@pytest.mark.parametrize("answer", [Answer(200), Answer(204), Answer(200, {"success": True}), Answer(202, "")])
async def test_sync_2xx_without_outputs_succeeds_with_none(api: Api, endpoint: StepEndpoint, answer: Answer) -> None:
    flow_id = await run(api, endpoint, "sync", answer)
    final = await api.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {})


@KINDS
async def test_a_result_is_json_whatever_its_media_type(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    answer = Answer(200, '{"success": false, "error": "x"}', {"Content-Type": "text/plain"})
    assert (await api.final(await run(api, endpoint, kind, answer)))["status"] == "failed"


# ------------------------------------------------------------------------------------------- 2xx, no success


@KINDS
async def test_2xx_with_success_false_fails(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    flow_id = await run(api, endpoint, kind, Answer(200, {"success": False, "error": "cannot"}))
    assert (await api.final(flow_id))["status"] == "failed"
    work = await api.work(flow_id)
    assert (work["status"], work["error"]["code"], work["error"]["message"]) == ("failed", "STEP_FAILED", "cannot")
    assert len(endpoint.requests(PATH)) == 1


@KINDS
async def test_2xx_with_success_false_and_retriable_is_not_completed(
    api: Api, endpoint: StepEndpoint, kind: str
) -> None:
    answer = Answer(200, {"success": False, "error": "busy", "retriable": True, "retry_after": 120})
    work, _ = await not_completed(api, await run(api, endpoint, kind, answer))
    assert work["error"]["message"] == "busy"
    assert 110 < seconds_from_now(work["next_attempt_at"]) <= 120.5


NO_STEP_RESULT = [
    Answer(200, "OK"),
    Answer(202, "<html>accepted</html>", {"Content-Type": "text/html"}),
    Answer(200, {"status": "queued"}),
    Answer(200, []),
    Answer(200, "null"),
    Answer(200, {"success": "yes"}),
    Answer(200, {"success": True, "outputs": [1]}),
    Answer(200, b"\xff\xfe\x00"),
    Answer(200, b'{"success": true, "outputs": {"a": NaN}}'),
]


@pytest.mark.either_store
@pytest.mark.parametrize("answer", NO_STEP_RESULT)
async def test_async_2xx_with_another_body_acknowledges_and_is_noted(
    api: Api, endpoint: StepEndpoint, answer: Answer
) -> None:
    flow_id = await run(api, endpoint, "async", answer)
    event = await api.until_event(flow_id, "work_acknowledged")
    assert event["data"]["note"]
    assert (await api.work(flow_id))["status"] == "active"
    await api.succeed(await endpoint.received(PATH))
    assert (await api.final(flow_id))["status"] == "completed"


async def test_an_ordinary_acknowledgement_has_no_note(api: Api, endpoint: StepEndpoint) -> None:
    flow_id = await run(api, endpoint, "async", Answer(200, {"success": True}))
    assert not (await api.until_event(flow_id, "work_acknowledged"))["data"].get("note")


@pytest.mark.either_store
@pytest.mark.parametrize("answer", NO_STEP_RESULT)
async def test_sync_2xx_with_another_body_fails(api: Api, endpoint: StepEndpoint, answer: Answer) -> None:
    flow_id = await run(api, endpoint, "sync", answer)
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.work(flow_id))["error"]["code"] == "INVALID_RESPONSE"
    assert len(endpoint.requests(PATH)) == 1


async def test_a_response_is_read_up_to_a_limit_only(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(max_response_bytes=10_000))
    big = Answer(200, {"success": True, "outputs": {"a": "x" * 20_000}})
    flow_id = await run(api, endpoint, "sync", big)
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.work(flow_id))["error"]["code"] == "INVALID_RESPONSE"
    flow_id = await run(api, endpoint, "async", big)
    assert (await api.until_event(flow_id, "work_acknowledged"))["data"]["note"]


async def test_sync_outputs_of_another_type_than_declared(api: Api, endpoint: StepEndpoint) -> None:
    flow_id = await run(
        api,
        endpoint,
        "sync",
        Answer(200, {"success": True, "outputs": {"n": "five"}}),
        attributes={"n": {"role": "output", "type": "number"}},
    )
    final = await api.final(flow_id)
    assert final["status"] == "failed"
    assert "INVALID_OUTPUT" in orjson.dumps(final["error"]).decode()


# ------------------------------------------------------------------------------------------- not now


@pytest.mark.either_store
@KINDS
@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 507, 599])
async def test_not_now(api: Api, endpoint: StepEndpoint, kind: str, status: int) -> None:
    """408, 425, 429 and every 5xx: not completed, waiting for the next attempt."""
    work, data = await not_completed(api, await run(api, endpoint, kind, Answer(status, "busy")))
    assert 50 < seconds_from_now(work["next_attempt_at"]) <= 60.5
    assert data["delivery"] == "answered"
    assert str(status) in work["error"]["message"]


@pytest.mark.either_store
@KINDS
@pytest.mark.parametrize("status", [429, 503, 408, 500])
async def test_retry_after_in_seconds(api: Api, endpoint: StepEndpoint, kind: str, status: int) -> None:
    flow_id = await run(api, endpoint, kind, Answer(status, headers={"Retry-After": "300"}))
    work, _ = await not_completed(api, flow_id)
    assert 290 < seconds_from_now(work["next_attempt_at"]) <= 300.5


@KINDS
async def test_retry_after_as_a_date(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=400), usegmt=True)
    work, _ = await not_completed(api, await run(api, endpoint, kind, Answer(503, headers={"Retry-After": date})))
    assert 390 < seconds_from_now(work["next_attempt_at"]) <= 400.5


@pytest.mark.either_store
@pytest.mark.parametrize("value", ["5", "0", "soon", "-20", "", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT", "9" * 5000])
async def test_a_shorter_past_or_meaningless_retry_after(api: Api, endpoint: StepEndpoint, value: str) -> None:
    """The backoff stands (or the limit of one hour, for a number without end)."""
    work, _ = await not_completed(api, await run(api, endpoint, "async", Answer(503, headers={"Retry-After": value})))
    wait = seconds_from_now(work["next_attempt_at"])
    assert 50 < wait <= 60.5 or (len(value) > 100 and 3500 < wait <= 3600.5)


async def test_retry_after_is_limited(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    api = connect(await start_node(retry_after_limit_ms=120_000))
    work, _ = await not_completed(api, await run(api, endpoint, "async", Answer(503, headers={"Retry-After": "9000"})))
    assert 110 < seconds_from_now(work["next_attempt_at"]) <= 120.5


@KINDS
async def test_it_recovers(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    """Two bad answers, then a good one: three attempts, one outcome."""
    good = Answer(200, {"success": True, "outputs": {"n": 3}} if kind == "sync" else None)
    answers = (Answer(503), Answer(fault="cut"), good)
    flow_id = await run(api, endpoint, kind, *answers, work={"init_backoff_ms": 5})
    third = await endpoint.received(PATH, 3)
    if kind == "async":
        await api.succeed(third, n=3)
    assert (await api.final(flow_id))["outputs"] == {"n": 3}
    assert (await api.work(flow_id))["attempt"] == 3


# ------------------------------------------------------------------------------------------- no


@pytest.mark.either_store
@KINDS
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 418, 422, 451, 499])
async def test_other_4xx_fail(api: Api, endpoint: StepEndpoint, kind: str, status: int) -> None:
    flow_id = await run(api, endpoint, kind, Answer(status, "no", {"Retry-After": "1"}))
    assert (await api.final(flow_id))["status"] == "failed"
    work = await api.work(flow_id)
    assert (work["status"], work["attempt"], work["next_attempt_at"]) == ("failed", 1, None)
    assert str(status) in work["error"]["message"]


@pytest.mark.either_store
@KINDS
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
async def test_redirects_are_not_followed(api: Api, endpoint: StepEndpoint, kind: str, status: int) -> None:
    headers = {"Location": endpoint.url("/elsewhere")}
    flow_id = await run(api, endpoint, kind, Answer(status, headers=headers))
    assert (await api.final(flow_id))["status"] == "failed"
    assert endpoint.requests("/elsewhere") == []
    assert len(endpoint.requests(PATH)) == 1


# ------------------------------------------------------------------------------------------- no answer


def closed_port() -> int:
    """A loopback port at which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@KINDS
@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "nobody-is-here.invalid"])
async def test_refused_or_unresolved_is_not_delivered(api: Api, kind: str, host: str) -> None:
    await api.put_step(STEP, f"http://{host.format(port=closed_port())}/", kind=kind, work=LONG)
    flow_id = await api.start(STEP)
    work, data = await not_completed(api, flow_id)
    assert data["delivery"] == "not_delivered"
    assert 50 < seconds_from_now(work["next_attempt_at"]) <= 60.5


@KINDS
@pytest.mark.parametrize("fault", ["silent", "cut"])
async def test_a_timeout_or_a_lost_connection_is_an_unknown_outcome(
    api: Api, endpoint: StepEndpoint, kind: str, fault: Any
) -> None:
    flow_id = await run(api, endpoint, kind, Answer(fault=fault), work={"ack_timeout_ms": 150})
    work, data = await not_completed(api, flow_id)
    assert data["delivery"] == "unknown"
    assert 50 < seconds_from_now(work["next_attempt_at"]) <= 60.5
    assert work["attempt"] == 1


async def test_a_sync_answer_that_breaks_off_is_an_unknown_outcome(api: Api, endpoint: StepEndpoint) -> None:
    flow_id = await run(api, endpoint, "sync", Answer(200, {"success": True}, fault="cut_body"))
    _, data = await not_completed(api, flow_id)
    assert data["delivery"] == "unknown"


@KINDS
async def test_without_retries_no_answer_fails(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    flow_id = await run(api, endpoint, kind, Answer(fault="cut"), work={"max_retries": 0})
    assert (await api.final(flow_id))["status"] == "failed"
    await elapsed(0.25)
    assert len(endpoint.requests(PATH)) == 1


async def test_the_acknowledgement_timeout_of_a_sync_step_is_for_the_whole_answer(
    api: Api, endpoint: StepEndpoint
) -> None:
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": True, "outputs": {"n": 1}}, until=release))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work={"ack_timeout_ms": 3000})
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    assert (await api.work(flow_id))["status"] == "active"
    release.set()
    assert (await api.final(flow_id))["outputs"] == {"n": 1}


async def test_an_address_that_may_not_be_called(api: Api) -> None:
    """Metadata services are out of reach by default, and trying again would not help."""
    await api.put_step(STEP, "http://169.254.169.254/latest/meta-data/", work=LONG)
    flow_id = await api.start(STEP)
    assert (await api.final(flow_id))["status"] == "failed"

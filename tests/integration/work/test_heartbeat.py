"""Section 1: heartbeats, and the GET that only looks."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest

from counterfoil.domain.work.results import MAX_ERROR, MAX_MESSAGE
from counterfoil.engine.work.heartbeats import BURST
from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import eventually
from tests.integration.scenario import PATH, STEP, dispatched, webhook_path
from tests.running import Connect, StartNode
from tests.wire import JSON, Api, moment, seconds_from_now, signature_headers

pytestmark = pytest.mark.both_paths

AGAIN = {"success": False, "retriable": True, "error": "again", "retry_after": 60}


async def test_it_extends_the_deadline(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, work={"deadline_ms": 60_000})
    before = moment((await api.work(flow_id))["deadline_at"])
    assert moment(received.metadata["deadline_at"]) <= before

    async def later() -> bool:
        body = (await api.post(received.metadata["heartbeat_url"], {"progress": 0.4, "message": "reading"})).ok()
        assert body["cancel_requested"] is False
        assert 58 < seconds_from_now(body["deadline_at"]) <= 60.5
        return moment(body["deadline_at"]) > before

    await eventually(later)
    work = await api.work(flow_id)
    assert moment(work["deadline_at"]) > before
    assert work["progress"] == 0.4
    document = (await api.get(f"/api/v1/work/{work['work_id']}")).ok()
    assert (document["progress"], document["message"]) == (0.4, "reading")


@pytest.mark.parametrize("body", [{}, {"progress": 0}, {"progress": 1}, {"message": "x"}, {"unknown": True}])
async def test_progress_and_message_are_optional(api: Api, endpoint: StepEndpoint, body: dict[str, Any]) -> None:
    _, received = await dispatched(api, endpoint)
    document = (await api.post(received.metadata["heartbeat_url"], body)).ok()
    assert set(document) >= {"deadline_at", "cancel_requested"}


async def test_a_heartbeat_without_progress_keeps_the_last_one(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(received.metadata["heartbeat_url"], {"progress": 0.7})).ok()
    (await api.post(received.metadata["heartbeat_url"], {})).ok()
    assert (await api.work(flow_id))["progress"] == 0.7


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"{", ""),
        (b"[]", ""),
        (b'{"progress": "half"}', "progress"),
        (b'{"progress": 1.5}', "progress"),
        (b'{"progress": -0.1}', "progress"),
        (b'{"progress": true}', "progress"),
        (b'{"message": 5}', "message"),
        (b'{"message": "a\\u0000b"}', "message"),  # no store can promise to keep it
    ],
)
async def test_a_wrong_heartbeat_is_refused(api: Api, endpoint: StepEndpoint, content: bytes, place: str) -> None:
    _, received = await dispatched(api, endpoint)
    reply = await api.request("POST", received.metadata["heartbeat_url"], data=content, headers=JSON)
    assert reply.status == 422
    assert place in orjson.dumps(reply.details["errors"]).decode()


async def test_on_a_cancelled_item_it_tells_the_worker(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    before = await api.events(flow_id)
    body = (await api.post(received.metadata["heartbeat_url"], {"progress": 0.5})).ok()
    assert body["cancel_requested"] is True
    assert body["deadline_at"] is None
    assert await api.events(flow_id) == before


@pytest.mark.parametrize(("success", "code"), [(True, "ALREADY_SUCCEEDED"), (False, "ALREADY_FAILED")])
async def test_it_is_refused_when_the_outcome_is_recorded(
    api: Api, endpoint: StepEndpoint, success: bool, code: str
) -> None:
    flow_id, received = await dispatched(api, endpoint)
    recorded = (await api.complete(received, {"success": success})).ok()
    before = await api.events(flow_id)
    details = (await api.post(received.metadata["heartbeat_url"], {})).refused(400, code)
    assert details["status"] == recorded["status"]
    assert details["recorded_at"] == recorded["recorded_at"]
    assert await api.events(flow_id) == before


async def test_before_the_acknowledgement_it_counts(api: Api, endpoint: StepEndpoint) -> None:
    """A worker may be quicker than the answer of the endpoint that called it: its heartbeat proves the delivery."""
    replied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def beat_first(received: Any) -> Answer:
        replied.set_result(await api.post(received.metadata["heartbeat_url"], {"progress": 0.1}))
        return Answer()

    endpoint.answer(PATH, beat_first)
    flow_id, received = await dispatched(api, endpoint, acknowledged=False)
    event = await api.until_event(flow_id, "work_heartbeat")
    assert event["data"]["taken"] is True
    assert (await replied).ok()["cancel_requested"] is False
    work = await api.work(flow_id)
    assert (work["status"], work["progress"], work["acknowledged_at"]) == ("active", 0.1, event["at"])
    (attempt,) = (await api.get(f"/api/v1/work/{work['work_id']}")).ok()["attempts"]
    assert (attempt["delivery"], attempt["acknowledged_at"]) == ("delivered", event["at"])
    await api.succeed(received)


async def test_while_not_completed_it_is_no_error(api: Api, endpoint: StepEndpoint) -> None:
    """A worker whose attempt was given up goes on: its result is still welcome, so its sign of life is too."""
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, AGAIN)).ok()
    body = (await api.post(received.metadata["heartbeat_url"], {"progress": 0.5})).ok()
    assert body["cancel_requested"] is False
    assert (await api.work(flow_id))["status"] == "not_completed"


async def test_heartbeats_with_the_token_of_another_step_are_unknown(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    (await api.post(f"/webhook/other/{STEP}/{received.token}/heartbeat", {})).refused(404, "UNKNOWN_RECEIPT")


@pytest.mark.parametrize("state", ["active", "not_completed", "succeeded", "failed", "cancelled"])
async def test_get_shows_every_state_and_changes_nothing(api: Api, endpoint: StepEndpoint, state: str) -> None:
    flow_id, received = await dispatched(api, endpoint)
    if state == "cancelled":
        (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    elif state != "active":
        results = {"succeeded": {"success": True}, "failed": {"success": False}, "not_completed": AGAIN}
        (await api.complete(received, results[state])).ok()
    await eventually(lambda: _settled(api, flow_id, state))
    before = await api.flow(flow_id), await api.events(flow_id)
    bodies = [(await api.get(received.webhook_url)).ok() for _ in range(3)]
    body = bodies[0]
    assert bodies[1:] == [body, body]
    assert set(body) >= {"status", "attempt", "deadline_at", "recorded_at", "cancel_requested"}
    assert (body["status"], body["attempt"]) == (state, 1)
    assert body["cancel_requested"] is (state == "cancelled")
    assert (body["deadline_at"] is not None) == (state == "active")
    assert (body["recorded_at"] is not None) == (state in ("succeeded", "failed", "cancelled"))
    assert received.token not in orjson.dumps(body).decode()
    assert (await api.flow(flow_id), await api.events(flow_id)) == before


async def _settled(api: Api, flow_id: str, state: str) -> bool:
    return bool((await api.work(flow_id))["status"] == state)


async def test_get_with_the_header_form(api: Api, endpoint: StepEndpoint) -> None:
    """What works with the token in the URL and only looks, is not changed by how it is asked."""
    flow_id, received = await dispatched(api, endpoint)
    assert (await api.get(webhook_path(received))).ok()["status"] == "active"
    assert (await api.get(webhook_path(received))).headers["Content-Type"].startswith("application/json")
    (await api.get(f"/webhook/{flow_id}/{STEP}/nonsense")).refused(404, "UNKNOWN_RECEIPT")


# ------------------------------------------------------------------------------------------------ torrents


async def test_a_long_message_is_cut_with_a_mark(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(received.metadata["heartbeat_url"], {"message": "x" * 500_000})).ok()
    document = (await api.get(f"/api/v1/work/{(await api.work(flow_id))['work_id']}")).ok()
    assert len(document["message"]) == MAX_MESSAGE
    assert document["message"].endswith("x… [cut: 500000 characters]")


async def test_a_long_error_is_cut_with_a_mark_and_a_repetition_is_known(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    result = {"success": False, "error": "é" * 300_000}
    assert (await api.complete(received, result)).ok()["status"] == "failed"
    assert (await api.complete(received, result)).refused(400, "ALREADY_FAILED")["same_result"] is True
    message = (await api.work(flow_id))["error"]["message"]
    assert len(message) == MAX_ERROR
    assert message.endswith("é… [cut: 300000 characters]")


async def test_the_last_of_many_counts_and_the_journal_keeps_a_few(api: Api, endpoint: StepEndpoint) -> None:
    """The fixture lets the doctor look at the database afterwards: it holds more than the journal tells."""
    flow_id, received = await dispatched(api, endpoint, work={"deadline_ms": 60_000})
    url = received.metadata["heartbeat_url"]
    before = moment((await api.work(flow_id))["deadline_at"])
    for number in range(100):
        answer = (await api.post(url, {"progress": number / 100, "message": f"part {number}"})).ok()
    replies = await asyncio.gather(*(api.post(url, {"message": "the end", "progress": 1}) for _ in range(50)))
    assert {reply.status for reply in replies} == {200}
    work = await api.work(flow_id)
    document = (await api.get(f"/api/v1/work/{work['work_id']}")).ok()
    assert (document["progress"], document["message"]) == (1, "the end")
    assert moment(document["deadline_at"]) >= moment(answer["deadline_at"]) > before
    assert BURST <= (await api.event_types(flow_id)).count("work_heartbeat") <= BURST + 2
    await api.succeed(received)
    assert (await api.final(flow_id))["status"] == "completed"


# ------------------------------------------------------------------------------------------------ signatures


async def test_where_results_are_signed_heartbeats_are(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    secret, other = (f"whsec_{base64.b64encode(letter * 24).decode()}" for letter in (b"a", b"b"))
    api = connect(await start_node(signing_secret=secret))
    flow_id, received = await dispatched(api, endpoint, require_signature=True)
    url = received.metadata["heartbeat_url"]
    content = b'{"progress": 0.5}'
    for headers in ({}, signature_headers(other, content), signature_headers(secret, b"{}")):
        reply = await api.request("POST", url, data=content, headers={**JSON, **headers})
        reply.refused(401, "INVALID_SIGNATURE")
    (await api.post(url)).refused(401, "INVALID_SIGNATURE")
    assert (await api.work(flow_id))["progress"] is None
    (await api.request("POST", url, data=content, headers={**JSON, **signature_headers(secret, content)})).ok()
    (await api.request("POST", url, headers=signature_headers(secret, b""))).ok()
    assert (await api.work(flow_id))["progress"] == 0.5

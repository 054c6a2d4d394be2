"""Section 1 of the wire contract: the completion webhook's table, row by row, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched, webhook_path
from tests.wire import Api, moment, seconds_from_now

pytestmark = pytest.mark.both_paths

SUCCESS = {"success": True, "outputs": {"text": "hello", "n": 1}}
FAILURE = {"success": False, "error": "no such file"}
NOT_COMPLETED = {"success": False, "error": "rate limited upstream", "retriable": True, "retry_after": 30}


@pytest.mark.parametrize(
    ("result", "status", "flow_status"),
    [(SUCCESS, "succeeded", "completed"), (FAILURE, "failed", "failed"), (NOT_COMPLETED, "not_completed", "active")],
)
async def test_accepted(
    api: Api, endpoint: StepEndpoint, result: dict[str, Any], status: str, flow_status: str
) -> None:
    """The first result is accepted with 200 and says what became of the work."""
    flow_id, received = await dispatched(api, endpoint)
    body = (await api.complete(received, result)).ok()
    assert {name: body[name] for name in ("verdict", "status", "flow_id", "step_id")} == {
        "verdict": "accepted",
        "status": status,
        "flow_id": flow_id,
        "step_id": STEP,
    }
    assert abs(seconds_from_now(body["recorded_at"])) < 10
    flow = await api.flow(flow_id)
    assert flow["status"] == flow_status
    assert (await api.work(flow_id))["status"] == status


async def test_a_success_without_outputs_is_a_success(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    assert (await api.complete(received, {"success": True})).ok()["status"] == "succeeded"
    assert (await api.final(flow_id))["outputs"] == {}


async def test_a_failure_shows_the_workers_error(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, FAILURE)).ok()
    error = (await api.work(flow_id))["error"]
    assert (error["code"], error["message"]) == ("STEP_FAILED", "no such file")
    assert (await api.final(flow_id))["error"] is not None


async def test_a_long_error_is_taken(api: Api, endpoint: StepEndpoint) -> None:
    """A worker that reports a whole stack trace has its failure recorded: only the body's size is limited."""
    flow_id, received = await dispatched(api, endpoint)
    report = {"success": False, "error": "broken\n" + "  at line 1\n" * 20_000}
    assert (await api.complete(received, report)).ok()["status"] == "failed"
    assert (await api.work(flow_id))["error"]["message"].startswith("broken")
    assert (await api.complete(received, report)).refused(400, "ALREADY_FAILED")["same_result"] is True


@pytest.mark.parametrize("retriable", [False, None])
async def test_a_failure_that_is_not_retriable_is_final(
    api: Api, endpoint: StepEndpoint, retriable: bool | None
) -> None:
    flow_id, received = await dispatched(api, endpoint)
    body = (await api.complete(received, {**FAILURE, "retriable": retriable, "retry_after": 1})).ok()
    assert body["status"] == "failed"
    assert (await api.final(flow_id))["status"] == "failed"


@pytest.mark.parametrize(
    ("result", "code", "status"), [(SUCCESS, "ALREADY_SUCCEEDED", "succeeded"), (FAILURE, "ALREADY_FAILED", "failed")]
)
async def test_the_same_result_again(
    api: Api, endpoint: StepEndpoint, result: dict[str, Any], code: str, status: str
) -> None:
    """A repeat is refused with 400, says that it is the same, and changes nothing."""
    flow_id, received = await dispatched(api, endpoint)
    first = (await api.complete(received, result)).ok()
    events = await api.events(flow_id)
    for _ in range(3):
        details = (await api.complete(received, result)).refused(400, code)
        assert details["same_result"] is True
        assert details["status"] == status
        assert details["recorded_at"] == first["recorded_at"]
    assert await api.events(flow_id) == events


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SUCCESS, {"success": True, "outputs": {"text": "other"}}),
        (SUCCESS, {"success": True}),
        (SUCCESS, FAILURE),
        (SUCCESS, {"success": False, "error": "late", "retriable": True}),
        (FAILURE, SUCCESS),
        (FAILURE, {"success": False, "error": "another message"}),
        (FAILURE, {"success": False}),
    ],
)
async def test_another_result(api: Api, endpoint: StepEndpoint, first: dict[str, Any], second: dict[str, Any]) -> None:
    """The first outcome is final: another one is refused as a conflict and changes nothing."""
    flow_id, received = await dispatched(api, endpoint)
    recorded = (await api.complete(received, first)).ok()
    before = await api.flow(flow_id), await api.events(flow_id)
    details = (await api.complete(received, second)).refused(400, "CONFLICTING_RESULT")
    assert details["same_result"] is False
    assert details["status"] == recorded["status"]
    assert details["recorded_at"] == recorded["recorded_at"]
    assert (await api.flow(flow_id), await api.events(flow_id)) == before


@pytest.mark.parametrize("result", [SUCCESS, FAILURE, NOT_COMPLETED])
async def test_cancelled(api: Api, endpoint: StepEndpoint, result: dict[str, Any]) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    details = (await api.complete(received, result)).refused(400, "WORK_CANCELLED")
    assert details["status"] == "cancelled"
    moment(details["recorded_at"])
    assert (await api.work(flow_id))["status"] == "cancelled"


async def test_unknown_forged_and_foreign_tokens_get_one_answer(api: Api, endpoint: StepEndpoint) -> None:
    """Unknown, forged, mistyped, of another flow or of another step: a caller cannot tell which it was."""
    await api.put_step("other", endpoint.url("/other"))
    flow_id, received = await dispatched(api, endpoint)
    other_flow, other = await dispatched(api, endpoint)
    other_step = await api.start("other")
    of_other_step = await endpoint.received("/other")
    work_id, mac = received.token.rsplit(".", 1)
    flipped = ("B" if mac[0] == "A" else "A") + mac[1:]
    never_existed = "0" * len(work_id)
    paths = [
        webhook_path(received, "nonsense"),
        webhook_path(received, "x" * 2000),
        webhook_path(received, work_id),
        webhook_path(received, f"{work_id}."),
        webhook_path(received, f"{work_id}.{flipped}"),
        webhook_path(received, f"{never_existed}.{mac}"),
        webhook_path(received, "%F0%9F%92%A9"),
        webhook_path(received, other.token),
        webhook_path(received, of_other_step.token),
        f"/webhook/{other_flow}/{STEP}/{received.token}",
        f"/webhook/{flow_id}/other/{received.token}",
        f"/webhook/{other_step}/other/{received.token}",
        f"/webhook/no-such-flow/{STEP}/{received.token}",
        f"/webhook/{flow_id}/no-such-step/{received.token}",
    ]
    replies = [await api.post(path, SUCCESS) for path in paths]
    assert [(path, reply.status) for path, reply in zip(paths, replies, strict=True)] == [(path, 404) for path in paths]
    assert replies[0].code == "UNKNOWN_RECEIPT"
    assert len({reply.content for reply in replies}) == 1
    for reply in replies:
        assert received.token not in reply.content.decode()
    assert (await api.work(flow_id))["status"] == "active"
    assert (await api.succeed(received))["status"] == "succeeded"
    assert (await api.succeed(other))["status"] == "succeeded"


async def test_foreign_tokens_are_unknown_to_get_heartbeat_and_header_form_too(
    api: Api, endpoint: StepEndpoint
) -> None:
    flow_id, received = await dispatched(api, endpoint)
    path = webhook_path(received, received.token[:-1] + ("A" if received.token[-1] != "A" else "B"))
    bad = received.token + "x"
    replies = [
        await api.get(path),
        await api.post(path + "/heartbeat", {}),
        await api.post(f"/webhook/{flow_id}/{STEP}", SUCCESS, **{"Counterfoil-Receipt": bad}),
        await api.post(f"/webhook/{flow_id}/{STEP}", SUCCESS),
    ]
    for reply in replies:
        reply.refused(404, "UNKNOWN_RECEIPT")


async def test_header_form(api: Api, endpoint: StepEndpoint) -> None:
    """The token may come in a header instead of the URL, with the same answers."""
    flow_id, received = await dispatched(api, endpoint)
    path = f"/webhook/{flow_id}/{STEP}"
    headers = {"Counterfoil-Receipt": received.token}
    assert (await api.post(path, SUCCESS, **headers)).ok()["verdict"] == "accepted"
    assert (await api.post(path, SUCCESS, **headers)).refused(400, "ALREADY_SUCCEEDED")["same_result"] is True
    (await api.complete(received, FAILURE)).refused(400, "CONFLICTING_RESULT")
    assert (await api.final(flow_id))["outputs"] == SUCCESS["outputs"]


async def test_the_receipt_is_the_same_in_every_attempt(api: Api, endpoint: StepEndpoint) -> None:
    """One token for all attempts, and a final result counts whichever attempt it is from."""
    flow_id, first = await dispatched(api, endpoint)
    report = {"success": False, "retriable": True, "error": "again", "attempt": 1}
    assert (await api.complete(first, report)).ok()["status"] == "not_completed"
    second = await endpoint.received(PATH, 2)
    assert second.token == first.token
    assert second.metadata["attempt"] == 2
    assert (await api.complete(first, {**SUCCESS, "attempt": 1})).ok()["verdict"] == "accepted"
    assert (await api.final(flow_id))["outputs"] == SUCCESS["outputs"]

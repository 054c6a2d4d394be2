"""Section 1 and 2 together: a completion before, during or after the acknowledgement; nothing downgrades it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import elapsed
from tests.integration.scenario import PATH, STEP, dispatched
from tests.wire import Api, Reply

pytestmark = pytest.mark.both_paths

SUCCESS = {"success": True, "outputs": {"who": "worker"}}
AGAIN = {"success": False, "retriable": True, "error": "again", "retry_after": 60}

LATER_ANSWERS = {
    "acknowledged": Answer(),
    "acknowledged with a result": Answer(body={"success": True, "outputs": {"who": "endpoint"}}),
    "says failed": Answer(body={"success": False, "error": "from the endpoint"}),
    "says not completed": Answer(body={"success": False, "error": "from the endpoint", "retriable": True}),
    "500": Answer(status=500),
    "503 with Retry-After": Answer(status=503, headers={"Retry-After": "1"}),
    "404": Answer(status=404),
    "302": Answer(status=302, headers={"Location": "/elsewhere"}),
    "cut": Answer(fault="cut"),
}


async def complete_first(
    api: Api, endpoint: StepEndpoint, answer: Answer, result: dict[str, Any], **work: Any
) -> tuple[str, Reply]:
    """The worker reports before the endpoint answers the dispatch."""
    told: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def programme(received: Received) -> Answer:
        told.set_result(await api.complete(received, result))
        return answer

    endpoint.answer(PATH, programme)
    await api.put_step(STEP, endpoint.url(PATH), work=work)
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    await api.final(flow_id)
    return flow_id, await told


@pytest.mark.parametrize("later", LATER_ANSWERS)
async def test_an_outcome_before_the_answer_stands(api: Api, endpoint: StepEndpoint, later: str) -> None:
    """Whatever the endpoint answers afterwards, the recorded outcome does not change and nothing is sent again."""
    flow_id, reply = await complete_first(api, endpoint, LATER_ANSWERS[later], SUCCESS)
    assert reply.ok()["verdict"] == "accepted"
    await elapsed(0.15)  # the answer to the dispatch arrives in this time, and must change nothing
    flow, work = await api.flow(flow_id), await api.work(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"who": "worker"})
    assert (work["status"], work["attempt"], work["next_attempt_at"]) == ("succeeded", 1, None)
    assert len(endpoint.requests(PATH)) == 1
    assert (await api.event_types(flow_id)).count("work_succeeded") == 1


@pytest.mark.parametrize("later", ["acknowledged", "500", "cut"])
async def test_a_failure_before_the_answer_stands(api: Api, endpoint: StepEndpoint, later: str) -> None:
    flow_id, reply = await complete_first(api, endpoint, LATER_ANSWERS[later], {"success": False, "error": "worker"})
    assert reply.ok()["status"] == "failed"
    await elapsed(0.15)
    work = await api.work(flow_id)
    assert (work["status"], work["error"]["message"]) == ("failed", "worker")
    assert len(endpoint.requests(PATH)) == 1


async def test_an_outcome_during_a_dispatch_that_then_times_out_stands(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, reply = await complete_first(api, endpoint, Answer(fault="silent"), SUCCESS, ack_timeout_ms=100)
    assert reply.ok()["verdict"] == "accepted"
    await elapsed(0.4)  # longer than the acknowledgement timeout and a sweep
    work = await api.work(flow_id)
    assert (work["status"], work["attempt"]) == ("succeeded", 1)
    assert len(endpoint.requests(PATH)) == 1


@pytest.mark.parametrize("later", ["acknowledged", "acknowledged with a result", "500", "404", "cut"])
async def test_not_completed_before_the_answer_keeps_its_next_attempt(
    api: Api, endpoint: StepEndpoint, later: str
) -> None:
    """The worker gave the attempt back; the answer to the dispatch itself comes too late to say anything."""
    release = asyncio.Event()
    answer = LATER_ANSWERS[later]
    endpoint.answer(PATH, Answer(answer.status, answer.body, answer.headers, release, answer.fault))
    flow_id, received = await dispatched(api, endpoint, acknowledged=False)
    (await api.complete(received, AGAIN)).ok()
    before = await api.work(flow_id)
    assert before["status"] == "not_completed"
    release.set()
    await elapsed(0.15)
    after = await api.work(flow_id)
    assert {**after, "error": None} == {**before, "error": None}
    (await api.complete(received, SUCCESS)).ok()


async def test_after_the_acknowledgement(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received, who="worker")
    assert (await api.final(flow_id))["outputs"] == {"who": "worker"}


@pytest.mark.parametrize("answer", [Answer(status=503, headers={"Retry-After": "60"}), Answer(fault="cut")])
@pytest.mark.parametrize("result", [SUCCESS, {"success": False, "error": "really"}])
async def test_a_completion_while_not_completed(
    api: Api, endpoint: StepEndpoint, answer: Answer, result: dict[str, Any]
) -> None:
    """The endpoint failed to answer, but its worker had begun: its result is good, and nothing is sent again."""
    endpoint.answer(PATH, answer)
    flow_id, received = await dispatched(
        api, endpoint, acknowledged=False, work={"init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    )
    await api.until_work(flow_id, "not_completed")
    body = (await api.complete(received, result)).ok()
    assert (body["verdict"], body["status"]) == ("accepted", "succeeded" if result["success"] else "failed")
    await api.final(flow_id)
    assert (await api.work(flow_id))["next_attempt_at"] is None
    await elapsed(0.3)
    assert len(endpoint.requests(PATH)) == 1


async def test_two_attempts_one_outcome(api: Api, endpoint: StepEndpoint) -> None:
    """The worker of attempt 1 and that of attempt 2 both finish: the first accepted result wins."""
    flow_id, first = await dispatched(api, endpoint)
    (await api.complete(first, {**AGAIN, "retry_after": 0})).ok()
    second = await endpoint.received(PATH, 2)
    results = [{"success": True, "outputs": {"who": who}} for who in ("first", "second")]
    replies = await asyncio.gather(api.complete(first, results[0]), api.complete(second, results[1]))
    winner = [reply.status for reply in replies].index(200)
    replies[1 - winner].refused(400, "CONFLICTING_RESULT")
    assert (await api.final(flow_id))["outputs"] == results[winner]["outputs"]


async def test_fifty_different_results_at_once(api: Api, endpoint: StepEndpoint) -> None:
    """Exactly one is accepted, and it is the one that is shown."""
    flow_id, received = await dispatched(api, endpoint)
    results = [{"success": number % 3 != 0, "outputs": {"n": number}, "error": None} for number in range(50)]
    replies = await asyncio.gather(*(api.complete(received, result) for result in results))
    accepted = [number for number, reply in enumerate(replies) if reply.status == 200]
    assert len(accepted) == 1
    for number, reply in enumerate(replies):
        if number != accepted[0]:
            assert reply.refused(400, "CONFLICTING_RESULT")["same_result"] is False
    final = await api.final(flow_id)
    assert final["status"] == ("completed" if results[accepted[0]]["success"] else "failed")
    if final["status"] == "completed":
        assert final["outputs"] == {"n": accepted[0]}
    outcomes = [kind for kind in await api.event_types(flow_id) if kind in ("work_succeeded", "work_failed")]
    assert len(outcomes) == 1


async def test_fifty_equal_results_at_once(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    replies = await asyncio.gather(*(api.complete(received, SUCCESS) for _ in range(50)))
    assert sorted(reply.status for reply in replies) == [200] + [400] * 49
    for reply in replies:
        if reply.status != 200:
            assert reply.refused(400, "ALREADY_SUCCEEDED")["same_result"] is True
    assert (await api.final(flow_id))["outputs"] == {"who": "worker"}


async def test_cancel_and_completion_at_once(api: Api, endpoint: StepEndpoint) -> None:
    """Either may win; what the two callers are told agrees with what is recorded."""
    for number in range(10):
        flow_id, received = await dispatched(api, endpoint)
        calls = [api.post(f"/api/v1/flows/{flow_id}/cancel"), api.complete(received, SUCCESS)]
        if number % 2:
            calls.reverse()
        replies = await asyncio.gather(*calls)
        cancel, completion = replies if number % 2 == 0 else replies[::-1]
        status = (await api.final(flow_id))["status"]
        if completion.status == 200:
            assert (status, cancel.status) == ("completed", 409)
        else:
            completion.refused(400, "WORK_CANCELLED")
            assert (status, cancel.status) == ("cancelled", 200)


@pytest.mark.parametrize("later", ["acknowledged", "500", "503 with Retry-After", "cut"])
async def test_a_late_answer_to_an_older_attempt_says_nothing_about_the_newer_one(
    api: Api, endpoint: StepEndpoint, later: str
) -> None:
    """Attempt 1 hangs until its deadline, attempt 2 is under way: only then attempt 1 is answered."""
    release = asyncio.Event()
    answer = LATER_ANSWERS[later]
    endpoint.answer(PATH, Answer(answer.status, answer.body, answer.headers, release, answer.fault), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"deadline_ms": 1000, "ack_timeout_ms": 20_000})
    flow_id = await api.start(STEP)
    second = await endpoint.received(PATH, 2)
    assert second.metadata["attempt"] == 2
    await api.until_acknowledged(flow_id)
    (await api.post(second.metadata["heartbeat_url"], {})).ok()
    before = await api.events(flow_id)
    release.set()
    await elapsed(0.15)
    work = await api.work(flow_id)
    assert (work["status"], work["attempt"]) == ("active", 2)
    new = [event for event in await api.events(flow_id) if event not in before]
    assert not [event for event in new if event["type"] in ("work_not_completed", "work_acknowledged")]
    await api.succeed(second)
    assert (await api.final(flow_id))["status"] == "completed"

"""Section 1: reports of work that is not completed, their attempts, duplicates and delays."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, dispatched
from tests.running import Connect, StartNode
from tests.wire import Api, seconds_from_now

pytestmark = pytest.mark.both_paths

AGAIN = {"success": False, "error": "rate limited upstream", "retriable": True}


async def test_it_is_a_visible_state_with_a_next_attempt(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    body = (await api.complete(received, {**AGAIN, "retry_after": 30})).ok()
    assert (body["verdict"], body["status"]) == ("accepted", "not_completed")
    work = await api.work(flow_id)
    assert work["status"] == "not_completed"
    assert 28 < seconds_from_now(work["next_attempt_at"]) <= 30.5
    assert work["error"]["message"] == "rate limited upstream"
    assert (await api.flow(flow_id))["status"] == "active"


async def test_it_is_sent_again_with_the_next_attempt(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, AGAIN)).ok()
    second = await endpoint.received(PATH, 2)
    assert second.metadata["attempt"] == 2
    assert second.metadata["idempotency_key"] == received.metadata["idempotency_key"]
    await api.succeed(second, a=1)
    assert (await api.final(flow_id))["status"] == "completed"


@pytest.mark.parametrize(("retry_after", "at_least"), [(0.4, 0.4), (0, 0.0), (1, 1.0)])
async def test_retry_after_is_kept(api: Api, endpoint: StepEndpoint, retry_after: float, at_least: float) -> None:
    """Not earlier than retry_after seconds."""
    _, received = await dispatched(api, endpoint, work={"init_backoff_ms": 0})
    reply = await api.complete(received, {**AGAIN, "retry_after": retry_after})
    reply.ok()
    second = await endpoint.received(PATH, 2)
    assert second.at - received.at >= at_least - 0.002
    assert second.at - received.at < at_least + 0.9


async def test_the_backoff_wins_over_a_shorter_retry_after(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, work={"init_backoff_ms": 50_000, "max_backoff_ms": 50_000})
    (await api.complete(received, {**AGAIN, "retry_after": 5})).ok()
    assert 45 < seconds_from_now((await api.work(flow_id))["next_attempt_at"]) <= 50.5


async def test_a_longer_retry_after_wins_over_the_backoffs_cap(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, work={"max_backoff_ms": 1000})
    (await api.complete(received, {**AGAIN, "retry_after": 600})).ok()
    assert 590 < seconds_from_now((await api.work(flow_id))["next_attempt_at"]) <= 600.5


async def test_retry_after_is_limited_by_a_setting(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(retry_after_limit_ms=60_000))
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, {**AGAIN, "retry_after": 7200})).ok()
    assert 50 < seconds_from_now((await api.work(flow_id))["next_attempt_at"]) <= 60.5


async def test_retry_after_is_limited_to_an_hour_by_default(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, {**AGAIN, "retry_after": 7200})).ok()
    assert 3500 < seconds_from_now((await api.work(flow_id))["next_attempt_at"]) <= 3600.5


@pytest.mark.parametrize("attempt", [{}, {"attempt": 1}])
async def test_the_same_report_again_is_a_duplicate(api: Api, endpoint: StepEndpoint, attempt: dict[str, Any]) -> None:
    """It answers 200 and does not move the next attempt."""
    flow_id, received = await dispatched(api, endpoint)
    report = {**AGAIN, **attempt, "retry_after": 30}
    (await api.complete(received, report)).ok()
    before = await api.work(flow_id), await api.events(flow_id)
    again = (await api.complete(received, {**report, "retry_after": 90})).ok()
    assert (again["verdict"], again["status"]) == ("duplicate", "not_completed")
    assert (await api.work(flow_id), await api.events(flow_id)) == before


async def test_a_report_of_an_older_attempt_is_stale(api: Api, endpoint: StepEndpoint) -> None:
    """While a newer attempt runs it changes nothing and answers 200."""
    flow_id, first = await dispatched(api, endpoint)
    (await api.complete(first, {**AGAIN, "attempt": 1})).ok()
    second = await endpoint.received(PATH, 2)
    await api.until_acknowledged(flow_id, 2)
    before = await api.work(flow_id), await api.events(flow_id)
    stale = (await api.complete(first, {**AGAIN, "attempt": 1})).ok()
    assert stale["verdict"] == "stale"
    assert (await api.work(flow_id), await api.events(flow_id)) == before
    fresh = (await api.complete(second, {**AGAIN, "attempt": 2, "retry_after": 60})).ok()
    assert (fresh["verdict"], fresh["status"]) == ("accepted", "not_completed")


async def test_a_report_without_an_attempt_is_about_the_running_one(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, first = await dispatched(api, endpoint)
    (await api.complete(first, AGAIN)).ok()
    second = await endpoint.received(PATH, 2)
    await api.until_acknowledged(flow_id, 2)
    assert (await api.complete(second, {**AGAIN, "retry_after": 60})).ok()["verdict"] == "accepted"
    assert (await api.work(flow_id))["attempt"] == 2


async def test_a_final_failure_of_an_older_attempt_counts(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, first = await dispatched(api, endpoint)
    (await api.complete(first, {**AGAIN, "attempt": 1})).ok()
    await endpoint.received(PATH, 2)
    body = (await api.complete(first, {"success": False, "error": "lost for ever", "attempt": 1})).ok()
    assert (body["verdict"], body["status"]) == ("accepted", "failed")
    assert (await api.final(flow_id))["status"] == "failed"


async def test_when_no_retry_is_left_it_fails(api: Api, endpoint: StepEndpoint) -> None:
    """The answer's status says failed, and the same report again finds the failure recorded."""
    flow_id, received = await dispatched(api, endpoint, work={"max_retries": 0})
    body = (await api.complete(received, AGAIN)).ok()
    assert (body["verdict"], body["status"]) == ("accepted", "failed")
    assert (await api.final(flow_id))["status"] == "failed"
    work = await api.work(flow_id)
    assert (work["status"], work["next_attempt_at"]) == ("failed", None)
    details = (await api.complete(received, AGAIN)).refused(400, "ALREADY_FAILED")
    assert details["same_result"] is True
    (await api.complete(received, {"success": True})).refused(400, "CONFLICTING_RESULT")


@pytest.mark.parametrize("max_retries", [0, 1, 3])
async def test_n_retries_are_n_plus_one_attempts(api: Api, endpoint: StepEndpoint, max_retries: int) -> None:
    await api.put_step("job", endpoint.url(PATH), work={"max_retries": max_retries, "init_backoff_ms": 1})
    flow_id = await api.start("job")
    statuses = []
    for attempt in range(1, max_retries + 2):
        received = await endpoint.received(PATH, attempt)
        assert received.metadata["attempt"] == attempt
        assert received.metadata["max_attempts"] == max_retries + 1
        statuses.append((await api.complete(received, {**AGAIN, "attempt": attempt})).ok()["status"])
    assert statuses == ["not_completed"] * max_retries + ["failed"]
    assert (await api.final(flow_id))["status"] == "failed"
    assert len(endpoint.requests(PATH)) == max_retries + 1


async def test_minus_one_retries_without_end(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("job", endpoint.url(PATH), work={"max_retries": -1, "init_backoff_ms": 0})
    flow_id = await api.start("job")
    for attempt in range(1, 13):
        received = await endpoint.received(PATH, attempt)
        assert (await api.complete(received, {**AGAIN, "attempt": attempt})).ok()["status"] == "not_completed"
    await api.succeed(await endpoint.received(PATH, 13))
    assert (await api.final(flow_id))["status"] == "completed"


async def test_a_retry_after_beyond_all_measure_is_limited_too(api: Api, endpoint: StepEndpoint) -> None:
    """The setting limits it; a report is not refused because a number upstream was large."""
    flow_id, received = await dispatched(api, endpoint)
    assert (await api.complete(received, {**AGAIN, "retry_after": 10**9})).ok()["status"] == "not_completed"
    assert 3500 < seconds_from_now((await api.work(flow_id))["next_attempt_at"]) <= 3600.5

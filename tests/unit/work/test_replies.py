"""The table of the wire contract (section Dispatch), row by row, for both kinds of step."""

from __future__ import annotations

from typing import Literal

import pytest

from counterfoil.domain.effects.policies import Cause
from counterfoil.domain.work.replies import (
    Acknowledged,
    AttemptNotCompleted,
    Failed,
    Reply,
    ReplyCode,
    Reported,
    SendOutcome,
    classify,
)
from counterfoil.domain.work.results import StepResult

Kind = Literal["async", "sync"]
both_kinds = pytest.mark.parametrize("kind", ["async", "sync"])


def answered(status: int, body: bytes = b"", retry_after_ms: int | None = None, *, truncated: bool = False) -> Reply:
    return Reply(SendOutcome.ANSWERED, status, retry_after_ms, body, truncated)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
@pytest.mark.parametrize("body", [b"", b"  ", b"\r\n\t"])
def test_an_empty_answer_acknowledges_async_work_and_completes_sync_work(status: int, body: bytes) -> None:
    assert classify(answered(status, body), "async") == Acknowledged()
    assert classify(answered(status, body), "sync") == Reported(StepResult(success=True))


def test_success_is_only_an_acknowledgement_of_async_work_and_the_result_of_sync_work() -> None:
    reply = answered(200, b'{"success": true, "outputs": {"text": "hello"}}')
    assert classify(reply, "async") == Acknowledged(note="")
    assert classify(reply, "sync") == Reported(StepResult(success=True, outputs={"text": "hello"}))


@both_kinds
def test_a_failure_in_the_answer_is_the_result(kind: Kind) -> None:
    outcome = classify(answered(200, b'{"success": false, "error": "no such voice"}'), kind)
    assert outcome == Reported(StepResult(success=False, error="no such voice"))
    assert isinstance(outcome, Reported)
    assert not outcome.result.not_completed


@both_kinds
def test_a_retriable_failure_in_the_answer_gives_the_attempt_back(kind: Kind) -> None:
    outcome = classify(answered(202, b'{"success": false, "retriable": true, "retry_after": 30}'), kind)
    assert isinstance(outcome, Reported)
    assert outcome.result.not_completed
    assert outcome.result.retry_after == 30


NO_STEP_RESULT = {
    "text": (b"accepted", "not JSON"),
    "half of it": (b'{"success": tr', "not JSON"),
    "another object": (b'{"status": "queued"}', "success"),
    "a list": (b"[]", "not a StepResult"),
    "success as text": (b'{"success": "true"}', "success"),
    "outputs as list": (b'{"success": true, "outputs": []}', "outputs"),
    "infinite": (b'{"success": true, "outputs": {"n": 1e999}}', "not JSON"),
    "no UTF-8": (b'"\xff\xfe"', "not JSON"),
}


@pytest.mark.parametrize(("body", "why"), NO_STEP_RESULT.values(), ids=NO_STEP_RESULT.keys())
def test_a_body_that_is_no_step_result(body: bytes, why: str) -> None:
    noted = classify(answered(200, body), "async")
    assert isinstance(noted, Acknowledged)
    assert why in noted.note
    failed = classify(answered(200, body), "sync")
    assert isinstance(failed, Failed)
    assert failed.code == "INVALID_RESPONSE"
    assert why in failed.message


def test_what_an_endpoint_echoes_is_not_repeated() -> None:
    """An endpoint may send the dispatch back, receipt token and all."""
    body = b'{"metadata": {"receipt_token": "w1.s3cr3t"}, "outputs": "w1.s3cr3t", "success": "w1.s3cr3t"}'
    noted = classify(answered(200, body), "async")
    failed = classify(answered(200, b"w1.s3cr3t"), "sync")
    assert isinstance(noted, Acknowledged)
    assert isinstance(failed, Failed)
    assert "s3cr3t" not in noted.note + failed.message


def test_a_truncated_body_is_never_read_as_a_result() -> None:
    reply = answered(200, b'{"success": false}', truncated=True)
    noted = classify(reply, "async")
    assert isinstance(noted, Acknowledged)
    assert "18 bytes" in noted.note
    failed = classify(reply, "sync")
    assert isinstance(failed, Failed)
    assert failed.code == "INVALID_RESPONSE"


@both_kinds
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_not_now(status: int, kind: Kind) -> None:
    outcome = classify(answered(status, b'{"success": true}', 7000), kind)
    cause = None if status in (425, 429, 503) else Cause.SERVER_ERROR  # these alone say that nothing was taken
    assert outcome == AttemptNotCompleted(
        ReplyCode.ENDPOINT_UNAVAILABLE, f"the endpoint answered {status}", SendOutcome.ANSWERED, 7000, cause
    )


@both_kinds
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 424, 426, 428, 431, 451, 499])
def test_a_rejection_is_final_whatever_its_body_says(status: int, kind: Kind) -> None:
    outcome = classify(answered(status, b'{"success": true}', 7000), kind)
    assert outcome == Failed(ReplyCode.ENDPOINT_REJECTED, f"the endpoint answered {status}")


@both_kinds
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
def test_a_redirect_is_final(status: int, kind: Kind) -> None:
    outcome = classify(answered(status), kind)
    assert isinstance(outcome, Failed)
    assert outcome.code == "ENDPOINT_REDIRECT"
    assert str(status) in outcome.message


@both_kinds
@pytest.mark.parametrize("status", [101, 600, 999])
def test_a_status_that_http_does_not_have_is_final(status: int, kind: Kind) -> None:
    outcome = classify(answered(status), kind)
    assert isinstance(outcome, Failed)
    assert outcome.code == "INVALID_RESPONSE"


@both_kinds
def test_not_delivered_and_unknown_are_told_apart(kind: Kind) -> None:
    refused = classify(Reply(SendOutcome.NOT_DELIVERED, error="cannot connect"), kind)
    assert refused == AttemptNotCompleted(ReplyCode.NOT_DELIVERED, "cannot connect", SendOutcome.NOT_DELIVERED)
    silent = classify(Reply(SendOutcome.UNKNOWN, error="no answer"), kind)
    code, unknown = ReplyCode.UNKNOWN_OUTCOME, SendOutcome.UNKNOWN
    assert silent == AttemptNotCompleted(code, "no answer", unknown, cause=Cause.CONNECTION_LOST)
    slow = classify(Reply(SendOutcome.UNKNOWN, error="no answer", timed_out=True), kind)
    assert slow == AttemptNotCompleted(code, "no answer", unknown, cause=Cause.ACK_TIMEOUT)


@both_kinds
def test_what_can_never_be_sent_fails_for_good(kind: Kind) -> None:
    denied = Reply(SendOutcome.NOT_DELIVERED, error="not allowed", denied=True, permanent=True)
    assert classify(denied, kind) == Failed(ReplyCode.EGRESS_DENIED, "not allowed")
    unusable = Reply(SendOutcome.NOT_DELIVERED, error="not a URL", permanent=True)
    assert classify(unusable, kind) == Failed(ReplyCode.INVALID_ENDPOINT, "not a URL")

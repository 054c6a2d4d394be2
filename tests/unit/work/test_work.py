"""Decisions about one work item: every branch, as a pure function of state, event and time."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.errors import (
    AlreadyFailed,
    AlreadySucceeded,
    ConflictingResult,
    Refused,
    WorkCancelled,
    WorkNotActive,
)
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.steps.checks import NO_FINDINGS
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.decisions import (
    SYNC_GRACE_MS,
    RetryRules,
    Verdict,
    acknowledge,
    beat,
    cancel,
    dispatch,
    fail,
    give_back,
    report,
)
from counterfoil.domain.work.results import Heartbeat, StepResult
from tests.store.records import NOW, RETRY, step_version, work_item

LATER = NOW + 500
SUCCESS = StepResult(success=True, outputs={"a": 1})
FAILURE = StepResult(success=False, error="broken")
BACK = StepResult(success=False, error="not now", retriable=True)
TYPED = {"attributes": {"text": {"role": "output", "type": "string"}}}


def reported(item: Work, result: StepResult, **fields: Any) -> tuple[Verdict, list[Event]]:
    return report(item, result, step_version(**fields), RETRY, LATER, NO_FINDINGS)


def only(events: list[Event]) -> Event:
    [event] = events
    assert (event.flow_id, event.step_id, event.work_id, event.at) == ("flow", "step", "work", LATER)
    return event


# Dispatch ------------------------------------------------------------------------------------------------------------


def test_an_async_attempt_has_a_deadline_for_its_callback() -> None:
    event = dispatch(work_item(WorkStatus.PENDING), step_version(), "node", LATER)
    assert (event.type, event.attempt, event.at) == (EventType.WORK_DISPATCHED, 1, LATER)
    assert event.data == {
        "owner": "node",
        "ack_deadline_at": LATER + 2_000,
        "deadline_at": LATER + 60_000,
        "due_at": LATER + 60_000,
    }


@pytest.mark.parametrize(("timeout", "wait"), [(5_000, 5_000), (90_000, 60_000)])
def test_the_first_heartbeat_is_due_no_later_than_the_callback(timeout: int, wait: int) -> None:
    step = step_version(work={"heartbeat_timeout_ms": timeout})
    assert dispatch(work_item(WorkStatus.PENDING), step, "node", LATER).data["deadline_at"] == LATER + wait


def test_a_sync_attempt_is_lost_only_after_its_call_has_ended() -> None:
    event = dispatch(work_item(WorkStatus.PENDING), step_version(kind="sync"), "node", LATER)
    assert event.data["deadline_at"] is None
    assert event.data["due_at"] == LATER + 2_000 + SYNC_GRACE_MS


def test_every_dispatch_is_the_next_attempt() -> None:
    assert dispatch(work_item(WorkStatus.NOT_COMPLETED, attempt=2), step_version(), "node", LATER).attempt == 3


def test_deciding_changes_nothing() -> None:
    work = work_item(WorkStatus.PENDING)
    dispatch(work, step_version(), "node", LATER)
    assert work == work_item(WorkStatus.PENDING)


# Acknowledgement -----------------------------------------------------------------------------------------------------


def test_an_acknowledgement_notes_what_was_odd_about_it() -> None:
    assert acknowledge(work_item(), LATER, 202, None).data == {"http_status": 202}
    assert acknowledge(work_item(), LATER, 200, "not JSON").data == {"http_status": 200, "note": "not JSON"}


# Reports that are refused --------------------------------------------------------------------------------------------

ENDED = {
    "succeeded": work_item(WorkStatus.SUCCEEDED, result=SUCCESS.reported()),
    "failed": work_item(WorkStatus.FAILED, result=FAILURE.reported()),
    "failed by the engine": work_item(WorkStatus.FAILED, result=None),
}


@pytest.mark.parametrize(
    ("before", "result", "refusal", "same"),
    [
        ("succeeded", SUCCESS, AlreadySucceeded, True),
        ("succeeded", StepResult(success=True, outputs={"a": 1.0}, retry_after=3, attempt=9), AlreadySucceeded, True),
        ("succeeded", StepResult(success=True, outputs={"a": 2}), ConflictingResult, False),
        ("succeeded", StepResult(success=True, outputs={"a": True}), ConflictingResult, False),
        ("succeeded", FAILURE, ConflictingResult, False),
        ("succeeded", BACK, ConflictingResult, False),
        ("failed", FAILURE, AlreadyFailed, True),
        ("failed", StepResult(success=False, error="broken", outputs={}), AlreadyFailed, True),
        ("failed", StepResult(success=False, error="other"), ConflictingResult, False),
        ("failed", StepResult(success=False), ConflictingResult, False),
        ("failed", SUCCESS, ConflictingResult, False),
        ("failed by the engine", FAILURE, ConflictingResult, False),
        ("failed by the engine", SUCCESS, ConflictingResult, False),
    ],
)
def test_what_has_ended_refuses_and_says_whether_it_knew(
    before: str, result: StepResult, refusal: type[Refused], same: bool
) -> None:
    work = ENDED[before]
    with pytest.raises(refusal) as caught:
        reported(work, result)
    assert type(caught.value) is refusal
    assert caught.value.details == {"status": work.status, "recorded_at": rfc3339(NOW), "same_result": same}


@pytest.mark.parametrize("result", [SUCCESS, FAILURE, BACK])
def test_cancelled_work_wants_no_result(result: StepResult) -> None:
    with pytest.raises(WorkCancelled) as caught:
        reported(work_item(WorkStatus.CANCELLED), result, duplicate_status=200)
    assert caught.value.details == {"status": "cancelled", "recorded_at": rfc3339(NOW)}


@pytest.mark.parametrize("status", [WorkStatus.PENDING, WorkStatus.HELD])
@pytest.mark.parametrize("result", [SUCCESS, FAILURE, BACK])
def test_work_that_was_never_sent_has_nothing_to_report(status: WorkStatus, result: StepResult) -> None:
    with pytest.raises(WorkNotActive) as caught:
        reported(work_item(status, attempt=0), result)
    assert caught.value.details == {"status": status, "recorded_at": None}


def test_a_step_may_tolerate_identical_repeats_only() -> None:
    assert reported(ENDED["succeeded"], SUCCESS, duplicate_status=200) == (Verdict.DUPLICATE, [])
    assert reported(ENDED["failed"], FAILURE, duplicate_status=200) == (Verdict.DUPLICATE, [])
    with pytest.raises(ConflictingResult):
        reported(ENDED["succeeded"], FAILURE, duplicate_status=200)


# Reports that count --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [WorkStatus.ACTIVE, WorkStatus.NOT_COMPLETED, WorkStatus.HELD])
def test_the_first_result_counts_whichever_attempt_it_is_from(status: WorkStatus) -> None:
    result = StepResult(success=True, outputs={"a": 1}, attempt=1)
    verdict, events = reported(work_item(status, attempt=3), result)
    event = only(events)
    assert (verdict, event.type, event.attempt) == (Verdict.ACCEPTED, EventType.WORK_SUCCEEDED, 3)
    assert event.data == {"result": SUCCESS.reported(), "via": "webhook"}


@pytest.mark.parametrize(
    ("result", "message"),
    [(FAILURE, "broken"), (StepResult(success=False), "the step failed without an error message")],
)
def test_a_failure_is_final(result: StepResult, message: str) -> None:
    verdict, events = reported(work_item(), result)
    event = only(events)
    assert (verdict, event.type) == (Verdict.ACCEPTED, EventType.WORK_FAILED)
    assert event.data["error"] == {"code": "STEP_FAILED", "message": message}
    assert event.data["result"] == result.reported()


def test_a_success_that_is_called_retriable_is_a_success() -> None:
    _, events = reported(work_item(), StepResult(success=True, retriable=True))
    assert only(events).type is EventType.WORK_SUCCEEDED


@pytest.mark.parametrize(
    ("outputs", "message"),
    [({"text": 5}, "text must be of type string"), ({}, "text is missing"), (None, "text is missing")],
)
def test_outputs_that_break_their_types_are_a_failure(outputs: dict[str, Any] | None, message: str) -> None:
    verdict, events = reported(work_item(), StepResult(success=True, outputs=outputs), **TYPED)
    event = only(events)
    assert (verdict, event.type) == (Verdict.ACCEPTED, EventType.WORK_FAILED)
    error = event.data["error"]
    assert (error["code"], error["attribute"], error["message"]) == ("INVALID_OUTPUT", "text", message)
    assert event.data["result"]["success"] is True, "what was said is kept as it was said"


def test_outputs_of_their_types_are_a_success() -> None:
    _, events = reported(work_item(), StepResult(success=True, outputs={"text": "x", "more": 1}), **TYPED)
    assert only(events).type is EventType.WORK_SUCCEEDED


# The attempt given back ----------------------------------------------------------------------------------------------


def test_work_given_back_waits_for_its_next_attempt() -> None:
    verdict, events = reported(work_item(), BACK)
    event = only(events)
    assert (verdict, event.type) == (Verdict.ACCEPTED, EventType.WORK_NOT_COMPLETED)
    assert event.data == {
        "error": {"code": "NOT_COMPLETED", "message": "not now"},
        "delivery": "answered",
        "next_attempt_at": LATER + 1_000,
        "via": "webhook",
    }


@pytest.mark.parametrize(("wish", "delay"), [(0, 1_000), (0.4, 1_000), (2.5, 2_500), (1e6, 3_600_000)])
def test_a_longer_wish_wins_up_to_the_limit(wish: float, delay: int) -> None:
    result = StepResult(success=False, retriable=True, retry_after=wish)
    _, events = reported(work_item(), result)
    assert only(events).data["next_attempt_at"] == LATER + delay


def test_the_last_attempt_given_back_is_the_end() -> None:
    verdict, events = reported(work_item(attempt=3), BACK)
    event = only(events)
    assert (verdict, event.type) == (Verdict.ACCEPTED, EventType.WORK_FAILED)
    assert event.data["error"] == {
        "code": "RETRIES_EXHAUSTED",
        "message": "gave up after 3 attempts: not now",
        "cause": {"code": "NOT_COMPLETED", "message": "not now"},
    }
    assert event.data["result"] == BACK.reported(), "so that the same report again is known as the same"


def test_without_retries_one_attempt_is_all() -> None:
    _, events = reported(work_item(), BACK, work={"max_retries": 0})
    assert only(events).data["error"]["message"] == "gave up after 1 attempt: not now"


def test_with_unlimited_retries_no_attempt_is_the_last() -> None:
    _, events = reported(work_item(attempt=100_000), BACK, work={"max_retries": -1})
    assert only(events).type is EventType.WORK_NOT_COMPLETED


def test_a_report_of_an_older_attempt_does_not_end_the_newer_one() -> None:
    older = BACK.model_copy(update={"attempt": 1})
    assert reported(work_item(attempt=2), older) == (Verdict.STALE, [])


@pytest.mark.parametrize("attempt", [None, 2, 3])
def test_a_report_of_this_attempt_ends_it(attempt: int | None) -> None:
    verdict, events = reported(work_item(attempt=2), BACK.model_copy(update={"attempt": attempt}))
    assert (verdict, only(events).type) == (Verdict.ACCEPTED, EventType.WORK_NOT_COMPLETED)


def test_an_answer_is_of_the_attempt_that_it_answers_whatever_it_says() -> None:
    older = BACK.model_copy(update={"attempt": 1})
    verdict, events = report(work_item(attempt=2), older, step_version(), RETRY, LATER, NO_FINDINGS, via="response")
    assert (verdict, only(events).type) == (Verdict.ACCEPTED, EventType.WORK_NOT_COMPLETED)


def test_the_same_report_again_does_not_move_the_next_attempt() -> None:
    work = work_item(WorkStatus.NOT_COMPLETED, error={"code": "NOT_COMPLETED", "message": "not now"})
    wish = BACK.model_copy(update={"retry_after": 500})
    assert reported(work, wish) == (Verdict.DUPLICATE, [])


def test_work_without_a_next_attempt_is_not_given_one_by_a_report() -> None:
    assert reported(work_item(WorkStatus.HELD), BACK) == (Verdict.DUPLICATE, [])


@pytest.mark.parametrize(
    ("due_at", "wish", "limit", "expected"),
    [
        (LATER + 10_000, None, 3_600_000, LATER + 10_000),
        (LATER + 10_000, 2, 3_600_000, LATER + 10_000),
        (LATER + 10_000, 30, 3_600_000, LATER + 30_000),
        (LATER + 10_000, 30, 20_000, LATER + 20_000),
    ],
)
def test_when_the_engine_gave_up_first_only_the_pause_is_news(
    due_at: int, wish: float | None, limit: int, expected: int
) -> None:
    work = work_item(WorkStatus.NOT_COMPLETED, due_at=due_at, error={"code": "UNKNOWN_OUTCOME", "message": "x"})
    result = BACK.model_copy(update={"retry_after": wish})
    verdict, events = report(work, result, step_version(), RetryRules(0.0, limit), LATER, NO_FINDINGS)
    event = only(events)
    assert (verdict, event.type) == (Verdict.ACCEPTED, EventType.WORK_POSTPONED)
    assert event.data["next_attempt_at"] == expected
    assert event.data["error"] == {"code": "NOT_COMPLETED", "message": "not now"}


def test_a_report_without_a_reason_is_given_one() -> None:
    _, events = reported(work_item(), StepResult(success=False, retriable=True))
    assert only(events).data["error"]["message"] == "the worker reported the work as not completed"


# The engine's own decisions ------------------------------------------------------------------------------------------


def test_what_the_engine_gives_back_says_how_much_is_known() -> None:
    event = give_back(
        work_item(), step_version(), RETRY, LATER, code="X", message="m", delivery="unknown", retry_after_ms=9_000
    )
    assert (event.type, event.data["delivery"], event.data["via"]) == (
        EventType.WORK_NOT_COMPLETED,
        "unknown",
        "engine",
    )
    assert event.data["next_attempt_at"] == LATER + 9_000


def test_what_the_engine_gives_up_has_no_result_of_a_worker() -> None:
    event = give_back(work_item(attempt=3), step_version(), RETRY, LATER, code="X", message="m", delivery="unknown")
    assert (event.type, event.data["delivery"]) == (EventType.WORK_FAILED, "unknown")
    assert "result" not in event.data


def test_an_endpoint_may_rule_out_success() -> None:
    event = fail(work_item(), LATER, "ENDPOINT_REJECTED", "the endpoint answered 400", "response")
    assert (event.type, event.data["error"]["code"]) == (EventType.WORK_FAILED, "ENDPOINT_REJECTED")
    assert "result" not in event.data


def test_a_cancellation_says_why() -> None:
    event = cancel(work_item(), LATER, "the flow failed")
    assert (event.type, event.data) == (EventType.WORK_CANCELLED, {"reason": "the flow failed"})


# Heartbeats ----------------------------------------------------------------------------------------------------------


def beats(item: Work, heartbeat: Heartbeat | None = None, **fields: Any) -> list[Event]:
    return beat(item, heartbeat or Heartbeat(progress=0.5, message="m"), step_version(**fields), LATER)


def test_a_heartbeat_extends_the_deadline() -> None:
    event = only(beats(work_item()))
    assert event.data == {"progress": 0.5, "message": "m", "deadline_at": LATER + 60_000, "taken": True}


def test_a_heartbeat_extends_by_the_heartbeat_timeout_where_there_is_one() -> None:
    work = work_item(deadline_at=LATER + 100)
    event = only(beats(work, work={"heartbeat_timeout_ms": 5_000}))
    assert event.data["deadline_at"] == LATER + 5_000


def test_a_heartbeat_buys_no_more_time_than_a_dispatch() -> None:
    work = work_item(deadline_at=LATER + 100)
    assert only(beats(work, work={"heartbeat_timeout_ms": 90_000})).data["deadline_at"] == LATER + 60_000


def test_a_heartbeat_never_shortens_the_deadline() -> None:
    work = work_item(deadline_at=LATER + 90_000)
    assert only(beats(work)).data["deadline_at"] == LATER + 90_000


@pytest.mark.parametrize("work", [work_item(WorkStatus.NOT_COMPLETED), work_item(deadline_at=None)])
def test_a_heartbeat_without_a_deadline_is_only_noted(work: Work) -> None:
    assert only(beats(work)).data["deadline_at"] is None


def test_cancelled_work_is_not_refused_a_heartbeat() -> None:
    assert beats(work_item(WorkStatus.CANCELLED)) == []


@pytest.mark.parametrize(
    ("work", "refusal"),
    [
        (ENDED["succeeded"], AlreadySucceeded),
        (ENDED["failed"], AlreadyFailed),
        (work_item(WorkStatus.PENDING), WorkNotActive),
    ],
)
def test_a_heartbeat_is_refused_when_the_item_is_not_active(work: Work, refusal: type[Refused]) -> None:
    with pytest.raises(refusal) as caught:
        beats(work, duplicate_status=200)
    assert "same_result" not in caught.value.details

"""What workers report: what is taken, what is refused, and what counts as the same."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.work.results import Heartbeat, StepResult, same_result


def test_the_three_forms() -> None:
    done = StepResult.model_validate({"success": True, "outputs": {"key": "value"}})
    assert (done.success, done.outputs, done.not_completed) == (True, {"key": "value"}, False)
    broken = StepResult.model_validate({"success": False, "error": "message"})
    assert (broken.success, broken.error, broken.not_completed) == (False, "message", False)
    later = StepResult.model_validate({"success": False, "error": "busy", "retriable": True, "retry_after": 30})
    assert (later.retry_after, later.not_completed) == (30, True)


def test_a_success_is_never_given_back() -> None:
    assert not StepResult(success=True, retriable=True).not_completed
    assert not StepResult(success=False, retriable=False).not_completed


def test_unknown_fields_are_ignored() -> None:
    assert StepResult.model_validate({"success": True, "took_ms": 5}) == StepResult(success=True)


@pytest.mark.parametrize(
    ("report", "place"),
    [
        ({}, "success"),
        ({"success": None}, "success"),
        ({"success": 1}, "success"),
        ({"success": "true"}, "success"),
        ({"success": True, "outputs": []}, "outputs"),
        ({"success": True, "outputs": "text"}, "outputs"),
        ({"success": False, "error": {"message": "x"}}, "error"),
        ({"success": False, "retriable": "yes"}, "retriable"),
        ({"success": False, "retriable": 1}, "retriable"),
        ({"success": False, "retry_after": -1}, "retry_after"),
        ({"success": False, "retry_after": "30"}, "retry_after"),
        ({"success": False, "retry_after": True}, "retry_after"),
        ({"success": False, "retry_after": float("inf")}, "retry_after"),
        ({"success": False, "attempt": 0}, "attempt"),
        ({"success": False, "attempt": 1.0}, "attempt"),
        ({"success": False, "attempt": True}, "attempt"),
    ],
)
def test_what_is_no_step_result_says_where(report: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        StepResult.model_validate(report)
    assert [error["loc"] for error in refusal.value.errors()] == [(place,)]


@pytest.mark.parametrize("value", [None, [], "text", 1, True])
def test_only_an_object_is_a_step_result(value: Any) -> None:
    with pytest.raises(ValidationError):
        StepResult.model_validate(value)


def test_absent_and_empty_are_the_same_when_compared() -> None:
    recorded = StepResult(success=True).reported()
    assert recorded == {"success": True, "outputs": {}, "error": None}
    assert same_result(recorded, StepResult(success=True, outputs={}))
    assert same_result(recorded, StepResult(success=True, outputs=None, error=None))
    assert not same_result(recorded, StepResult(success=True, error=""))


def test_only_success_outputs_and_error_are_compared() -> None:
    recorded = StepResult(success=False, error="no").reported()
    assert same_result(recorded, StepResult(success=False, error="no", attempt=3, retry_after=1, retriable=False))
    assert not same_result(recorded, StepResult(success=False, error="No"))
    assert not same_result(recorded, StepResult(success=True, error="no"))


def test_outputs_are_compared_as_canonical_json() -> None:
    recorded = StepResult(success=True, outputs={"a": 1, "b": {"x": 1.0}}).reported()
    assert same_result(recorded, StepResult(success=True, outputs={"b": {"x": 1}, "a": 1.0}))
    assert not same_result(recorded, StepResult(success=True, outputs={"a": True, "b": {"x": 1}}))


def test_nothing_recorded_is_the_same_as_no_report() -> None:
    assert not same_result(None, StepResult(success=True))


def test_what_was_pruned_cannot_be_compared() -> None:
    recorded = {"success": True, "outputs": {}, "error": None, "pruned": True}
    assert same_result(recorded, StepResult(success=True)) is None
    assert same_result(recorded, StepResult(success=False)) is None


def test_heartbeats() -> None:
    assert Heartbeat.model_validate({}) == Heartbeat(progress=None, message=None)
    assert Heartbeat.model_validate({"progress": 1, "message": "almost", "more": 1}).progress == 1
    for wrong in ({"progress": 1.1}, {"progress": -0.1}, {"progress": "0.5"}, {"progress": True}, {"message": 5}):
        with pytest.raises(ValidationError) as refusal:
            Heartbeat.model_validate(wrong)
        assert [error["loc"] for error in refusal.value.errors()] == [tuple(wrong)]

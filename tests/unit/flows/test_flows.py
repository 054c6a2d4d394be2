"""Flow starts: what is taken, what each step is given, and what a flow gets from its steps."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.errors import InvalidInput, UnreachableGoal
from counterfoil.domain.flows.launch import check_inputs
from counterfoil.domain.flows.planning import make_plan
from counterfoil.domain.flows.requests import (
    StartFlow,
    arguments_for,
    declared_outputs,
    invalid_inputs,
    invalid_outputs,
)
from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.checks import NO_FINDINGS, Inspection
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.steps.register import Register


def step(**attributes: dict[str, Any]) -> StepDefinition:
    return StepDefinition.model_validate({"endpoint": "http://worker/", "attributes": attributes})


def start(steps: dict[str, StepDefinition], init: dict[str, Any]) -> None:
    """Plan for all of these steps and check what they are started with, as a start does."""
    register = Register(1, (StepVersion.of(step_id, each, WorkDefaults()) for step_id, each in steps.items()))
    check_inputs(register, make_plan(register, steps, init), init, 10, NO_FINDINGS)


PLAIN = step()
TRANSCRIBE = step(
    audio_url={"role": "required", "type": "string"},
    language={"role": "optional", "type": "string", "default": "en"},
    hint={"role": "optional", "type": "string"},
    mode={"role": "const", "value": "fast"},
    text={"role": "output", "type": "string"},
    words={"role": "output", "type": "number"},
)


def test_goals_are_enough() -> None:
    start = StartFlow.model_validate({"goals": ["transcribe"]})
    assert (start.flow_id, start.goals, start.init, start.metadata, start.labels) == (None, ["transcribe"], {}, {}, {})


def test_the_body_of_the_contract_is_taken() -> None:
    start = StartFlow.model_validate(
        {
            "flow_id": "order:17_a.b~c-d",
            "goals": ["a", "b"],
            "init": {"x": [1]},
            "metadata": {"tenant": 5},
            "labels": {"team": "a:b"},
            "idempotency_key": "order-17",
            "on_conflict": "reject",
            "retain_key_for": "24h",
        }
    )
    assert start.init == {"x": [1]}
    assert start.labels == {"team": "a:b"}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"goals": []}, ("goals",)),
        ({"goals": "transcribe"}, ("goals",)),
        ({"goals": ["a/b"]}, ("goals", 0)),
        ({"goals": ["a", ""]}, ("goals", 1)),
        ({"goals": ["a\n"]}, ("goals", 0)),
        ({"goals": ["a"] * 65}, ("goals",)),
        ({"flow_id": "a/b"}, ("flow_id",)),
        ({"flow_id": "-a"}, ("flow_id",)),
        ({"flow_id": "a\n"}, ("flow_id",)),
        ({"flow_id": "x" * 201}, ("flow_id",)),
        ({"flow_id": ""}, ("flow_id",)),
        ({"init": []}, ("init",)),
        ({"metadata": "x"}, ("metadata",)),
        ({"labels": {"team": 1}}, ("labels", "team")),
        ({"labels": {"team": "a\nb"}}, ("labels", "team")),
        ({"labels": {"te:am": "x"}}, ("labels", "te:am", "[key]")),
        ({"idempotency_key": ""}, ("idempotency_key",)),
        ({"idempotency_key": "k" * 256}, ("idempotency_key",)),
        ({"idempotency_key": "line\nfeed"}, ("idempotency_key",)),
        ({"idempotency_key": 7}, ("idempotency_key",)),
        ({"idempotency_key": "k", "retain_failed": "yes"}, ("retain_failed",)),
        ({"init_keys": {"step": ""}}, ("init_keys", "step")),
        ({"init_keys": {"step": "k" * 256}}, ("init_keys", "step")),
        ({"init_keys": {"step": "caf\u00e9"}}, ("init_keys", "step")),
        ({"init_keys": {"step": "line\nfeed"}}, ("init_keys", "step")),
        ({"init_keys": {"step": 7}}, ("init_keys", "step")),
        ({"on_conflict": "replace"}, ("on_conflict",)),
        ({"deadline_ms": 0}, ("deadline_ms",)),
        ({"deadline_ms": "5"}, ("deadline_ms",)),
        ({"on_deadline": "ignore"}, ("on_deadline",)),
        ({"compensate": "no"}, ("compensate",)),
        ({"goal": "a"}, ("goal",)),
    ],
)
def test_a_refusal_says_its_place(fields: dict[str, Any], place: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refusal:
        StartFlow.model_validate({"goals": ["a"], **fields})
    assert [error["loc"] for error in refusal.value.errors()] == [place]


def test_a_flow_remembers_how_it_is_to_end_where_that_is_not_as_usual() -> None:
    assert StartFlow(goals=["a"]).options() == {}
    assert StartFlow(goals=["a"], on_deadline="cancel").options() == {}, "without a deadline it says nothing"
    start = StartFlow.model_validate({"goals": ["a"], "deadline_ms": 5, "on_deadline": "cancel", "compensate": False})
    assert start.options() == {"deadline_ms": 5, "on_deadline": "cancel", "compensate": False}
    assert StartFlow(goals=["a"], deadline_ms=5).options() == {"deadline_ms": 5, "on_deadline": "fail"}


def test_a_step_without_attributes_takes_all_of_init() -> None:
    assert arguments_for(PLAIN, {"a": 1, "b": None}) == {"a": 1, "b": None}


def test_arguments_come_from_init_defaults_and_constants() -> None:
    given = {"audio_url": "u", "mode": "slow", "text": "t", "other": 1}
    assert arguments_for(TRANSCRIBE, given) == {"audio_url": "u", "language": "en", "hint": None, "mode": "fast"}
    assert arguments_for(TRANSCRIBE, {"audio_url": "u", "language": "de"})["language"] == "de"


def test_missing_inputs_are_all_named() -> None:
    other = step(x={"role": "required"})
    with pytest.raises(UnreachableGoal, match="transcribe needs audio_url, other needs x") as refusal:
        start({"transcribe": TRANSCRIBE, "other": other, "plain": PLAIN}, {"language": "de"})
    assert refusal.value.code == "UNREACHABLE_GOAL"
    assert [(item["step_id"], item["attribute"]) for item in refusal.value.details["missing"]] == [
        ("transcribe", "audio_url"),
        ("other", "x"),
    ]


def test_values_of_the_wrong_type_are_all_named() -> None:
    with pytest.raises(InvalidInput) as refusal:
        start({"transcribe": TRANSCRIBE}, {"audio_url": 1, "language": None, "mode": 5, "text": 5})
    assert refusal.value.code == "INVALID_INPUT"
    assert refusal.value.details["errors"] == [
        {"place": "init.audio_url", "message": "must be of type string, for step transcribe"},
        {"place": "init.language", "message": "must be of type string, for step transcribe"},
    ]


def test_a_value_is_checked_for_every_step_that_takes_it() -> None:
    takers = {"a": step(x={"role": "required", "type": "number"}), "b": step(x={"role": "optional", "type": "object"})}
    with pytest.raises(InvalidInput) as refusal:
        start(takers, {"x": "5"})
    assert [error["message"] for error in refusal.value.details["errors"]] == [
        "must be of type number, for step a",
        "must be of type object, for step b",
    ]


@pytest.mark.parametrize(
    ("mode", "init", "message"),
    [
        ("product", {"x": 1, "y": [1]}, "must be an array, because the step fans out over it, for step s"),
        ("product", {"x": ["1"], "y": []}, "element 0 must be of type number, for step s"),
        ("product", {"x": [1] * 4, "y": [1] * 3}, "12 items exceed the limit of 10, for step s"),
        ("zip", {"x": [1], "y": []}, "zipped arrays must have the same length: x has 1, y has 0, for step s"),
    ],
)
def test_what_cannot_be_fanned_out_over_is_refused_at_the_start(mode: str, init: dict[str, Any], message: str) -> None:
    fanned = {"role": "required", "type": "number", "for_each": True}
    definition = {"endpoint": "http://worker/", "attributes": {"x": fanned, "y": fanned}, "fan_out": {"mode": mode}}
    with pytest.raises(InvalidInput) as refusal:
        start({"s": StepDefinition.model_validate(definition)}, init)
    assert refusal.value.details["errors"] == [{"place": "init.x", "message": message}]


def test_inputs_that_fit_are_taken() -> None:
    start({"transcribe": TRANSCRIBE, "plain": PLAIN}, {"audio_url": "u", "anything": object()})
    start({"s": step(x={"role": "required"})}, {"x": None})


def test_of_the_values_of_a_flow_those_that_a_step_does_not_take_are_told() -> None:
    values = {"audio_url": 5, "hint": True, "mode": 5, "text": 5, "other": 5}
    assert invalid_inputs(TRANSCRIBE, values, Inspection(NO_FINDINGS)) == [
        ("audio_url", "must be of type string"),
        ("hint", "must be of type string"),
    ]
    assert invalid_inputs(TRANSCRIBE, {}, Inspection(NO_FINDINGS)) == [], "what is missing is a matter of the plan"


def test_declared_outputs_must_be_there_and_of_their_type() -> None:
    assert invalid_outputs(TRANSCRIBE, {"text": "t", "words": 2, "more": True}, NO_FINDINGS) == []
    assert invalid_outputs(TRANSCRIBE, {"text": None}, NO_FINDINGS) == [
        {"attribute": "text", "message": "must be of type string"},
        {"attribute": "words", "message": "is missing"},
    ]
    assert invalid_outputs(TRANSCRIBE, {"text": "t", "words": True}, NO_FINDINGS) == [
        {"attribute": "words", "message": "must be of type number"}
    ]
    assert invalid_outputs(PLAIN, {}, NO_FINDINGS) == []


def test_a_flow_gets_what_its_steps_declare_or_everything() -> None:
    assert declared_outputs(TRANSCRIBE, {"text": "t", "secret": 1}) == {"text": "t"}
    assert declared_outputs(PLAIN, {"anything": 1}) == {"anything": 1}
    assert declared_outputs(step(a={"role": "required"}), {"anything": 1}) == {}

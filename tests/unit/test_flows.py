"""Flow starts: what is taken, what each step is given, and what a flow gets from its steps."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.errors import InvalidInput, UnreachableGoal
from counterfoil.domain.flows import StartFlow, arguments_for, check_inputs, flow_outputs, invalid_outputs
from counterfoil.domain.steps import StepDefinition


def step(**attributes: dict[str, Any]) -> StepDefinition:
    return StepDefinition.model_validate({"endpoint": "http://worker/", "attributes": attributes})


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
            "idempotency_key": None,
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
        ({"idempotency_key": "k"}, ("idempotency_key",)),
        ({"deadline_ms": 5}, ("deadline_ms",)),
        ({"goal": "a"}, ("goal",)),
    ],
)
def test_a_refusal_says_its_place(fields: dict[str, Any], place: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refusal:
        StartFlow.model_validate({"goals": ["a"], **fields})
    assert [error["loc"] for error in refusal.value.errors()] == [place]


def test_a_step_without_attributes_takes_all_of_init() -> None:
    assert arguments_for(PLAIN, {"a": 1, "b": None}) == {"a": 1, "b": None}


def test_arguments_come_from_init_defaults_and_constants() -> None:
    given = {"audio_url": "u", "mode": "slow", "text": "t", "other": 1}
    assert arguments_for(TRANSCRIBE, given) == {"audio_url": "u", "language": "en", "hint": None, "mode": "fast"}
    assert arguments_for(TRANSCRIBE, {"audio_url": "u", "language": "de"})["language"] == "de"


def test_missing_inputs_are_all_named() -> None:
    other = step(x={"role": "required"})
    with pytest.raises(UnreachableGoal, match="transcribe needs audio_url, other needs x") as refusal:
        check_inputs({"transcribe": TRANSCRIBE, "other": other, "plain": PLAIN}, {"language": "de"})
    assert refusal.value.code == "UNREACHABLE_GOAL"
    assert [(item["step_id"], item["attribute"]) for item in refusal.value.details["missing"]] == [
        ("transcribe", "audio_url"),
        ("other", "x"),
    ]


def test_values_of_the_wrong_type_are_all_named() -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_inputs({"transcribe": TRANSCRIBE}, {"audio_url": 1, "language": None, "mode": 5, "text": 5})
    assert refusal.value.code == "INVALID_INPUT"
    assert [error["place"] for error in refusal.value.details["errors"]] == ["init.audio_url", "init.language"]


def test_inputs_that_fit_are_taken() -> None:
    check_inputs({"transcribe": TRANSCRIBE, "plain": PLAIN}, {"audio_url": "u", "anything": object()})
    check_inputs({"s": step(x={"role": "required"})}, {"x": None})


def test_declared_outputs_must_be_there_and_of_their_type() -> None:
    assert invalid_outputs(TRANSCRIBE, {"text": "t", "words": 2, "more": True}) == []
    assert invalid_outputs(TRANSCRIBE, {"text": None}) == [
        {"attribute": "text", "message": "is not of type string"},
        {"attribute": "words", "message": "is missing"},
    ]
    assert invalid_outputs(TRANSCRIBE, {"text": "t", "words": True}) == [
        {"attribute": "words", "message": "is not of type number"}
    ]
    assert invalid_outputs(PLAIN, {}) == []


def test_a_flow_gets_what_its_steps_declare_or_everything() -> None:
    assert flow_outputs(TRANSCRIBE, {"text": "t", "secret": 1}) == {"text": "t"}
    assert flow_outputs(PLAIN, {"anything": 1}) == {"anything": 1}
    assert flow_outputs(step(a={"role": "required"}), {"anything": 1}) == {}

"""Step definitions: what is taken, what is inherited, and that every refusal names its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.steps.attributes import YEAR_MS, ValueType, has_type
from counterfoil.domain.steps.definitions import RateLimit, StepDefinition, WorkConfig, WorkDefaults

URL = "http://worker:9000/transcribe"

FULL: dict[str, Any] = {
    "kind": "async",
    "name": "Transcribe",
    "endpoint": URL,
    "attributes": {
        "audio_url": {"role": "required", "type": "string"},
        "language": {"role": "optional", "type": "string", "default": "en"},
        "mode": {"role": "const", "value": "fast"},
        "text": {"role": "output", "type": "string"},
    },
    "work": {
        "max_retries": 5,
        "backoff_type": "exponential",
        "init_backoff_ms": 1000,
        "max_backoff_ms": 60000,
        "jitter": True,
        "ack_timeout_ms": 30000,
        "deadline_ms": 3600000,
        "heartbeat_timeout_ms": None,
        "parallelism": None,
    },
    "effect": {"policy": "idempotent", "key": {"keep": None, "strip": ["reason"]}, "scope": "flow", "window": "24h"},
    "control": {"approval": None},
    "predicate": None,
    "compensate": None,
    "status_url": None,
    "cancel_url": None,
    "duplicate_status": 400,
    "require_signature": False,
    "labels": {},
}


def step(**fields: Any) -> StepDefinition:
    return StepDefinition.model_validate({"endpoint": URL, **fields})


def test_the_example_of_the_contract_is_taken_and_given_back_as_it_is() -> None:
    definition = StepDefinition.model_validate(FULL)
    assert definition.model_dump(mode="json", by_alias=True, exclude_unset=True) == FULL
    assert (set(definition.inputs), set(definition.outputs)) == ({"audio_url", "language", "mode"}, {"text"})
    assert (definition.required, definition.fans_out) == (("audio_url",), False)


PLANNED: dict[str, Any] = {
    "endpoint": URL,
    "attributes": {
        "page": {"role": "required", "type": "string", "for_each": True, "schema": {"minLength": 1}},
        "zoom": {"role": "optional", "type": "number", "default": 1, "timeout_ms": 500},
        "text": {"role": "output", "type": "string", "priority": 3},
    },
    "predicate": "inputs.zoom > 0.0",
    "fan_out": {"mode": "zip", "parallelism": 4, "on_failure": "collect", "max_items": 50},
    "wait_for": {"any": 1, "of": ["a", "b"]},
    "compensate": {"endpoint": "http://worker:9000/undo", "kind": "async", "work": {"max_retries": 1}},
}
INNER: dict[str, Any] = {
    "kind": "flow",
    "flow": {"goals": ["child"], "inputs": {"theirs": "mine"}, "outputs": {"text": "said"}},
    "attributes": {"mine": {"role": "required"}, "text": {"role": "output"}},
}


@pytest.mark.parametrize("fields", [PLANNED, INNER], ids=["planned", "inner flow"])
def test_what_flows_are_planned_with_is_taken_and_given_back_as_it_is(fields: dict[str, Any]) -> None:
    definition = StepDefinition.model_validate(fields)
    assert definition.model_dump(mode="json", by_alias=True, exclude_unset=True) == fields


def test_a_step_that_fans_out_says_over_what_and_when_it_fails() -> None:
    definition = StepDefinition.model_validate(PLANNED)
    assert (definition.fanned_out, definition.fans_out, definition.fail_fast) == (("page",), True, False)
    assert step().fail_fast


def test_what_undoes_a_step_is_a_step_of_its_own() -> None:
    undoing = step(compensate=PLANNED["compensate"], require_signature=True, duplicate_status=200).undoing()
    assert (undoing.endpoint, undoing.kind, undoing.work.max_retries) == ("http://worker:9000/undo", "async", 1)
    assert (undoing.require_signature, undoing.duplicate_status, undoing.compensate) == (True, 200, None)
    assert step(compensate={"endpoint": URL}).undoing().kind == "sync"


def test_an_endpoint_is_enough() -> None:
    definition = step()
    assert (definition.kind, definition.duplicate_status, definition.require_signature) == ("async", 400, False)
    assert definition.work.resolve(WorkDefaults()) == WorkDefaults()


A_REQUIRED = {"role": "required"}

REFUSALS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "kind": ({"kind": "cron"}, ("kind",)),
    "name": ({"name": "x" * 257}, ("name",)),
    "unknown field": ({"colour": "red"}, ("colour",)),
    "no scheme": ({"endpoint": "worker:9000/x"}, ("endpoint",)),
    "other scheme": ({"endpoint": "ftp://worker/x"}, ("endpoint",)),
    "no host": ({"endpoint": "http:///x"}, ("endpoint",)),
    "no port": ({"endpoint": "http://worker:99999/x"}, ("endpoint",)),
    "bracket": ({"endpoint": "http://[::1/x"}, ("endpoint",)),
    "space": ({"endpoint": "http://worker/a b"}, ("endpoint",)),
    "newline": ({"endpoint": "http://worker/a\n"}, ("endpoint",)),
    "delete": ({"endpoint": "http://worker/a\x7f"}, ("endpoint",)),
    "umlaut": ({"endpoint": "http://wörker/"}, ("endpoint",)),
    "long": ({"endpoint": "http://worker/" + "x" * 2048}, ("endpoint",)),
    "cancel_url": ({"cancel_url": "javascript:alert(1)"}, ("cancel_url",)),
    "predicate": ({"predicate": {"any": 1}}, ("predicate",)),
    "predicate of nothing": ({"predicate": ""}, ("predicate",)),
    "compensate": ({"compensate": {"endpoint": "ftp://worker/"}}, ("compensate", "endpoint")),
    "compensate without endpoint": ({"compensate": {}}, ("compensate", "endpoint")),
    "compensate as flow": ({"compensate": {"endpoint": URL, "kind": "flow"}}, ("compensate", "kind")),
    "fan-out mode": ({"fan_out": {"mode": "sum"}}, ("fan_out", "mode")),
    "fan-out parallelism": ({"fan_out": {"parallelism": 0}}, ("fan_out", "parallelism")),
    "fan-out on_failure": ({"fan_out": {"on_failure": "ignore"}}, ("fan_out", "on_failure")),
    "fan-out max_items": ({"fan_out": {"max_items": 1_000_001}}, ("fan_out", "max_items")),
    "wait for no step": ({"wait_for": {"of": []}}, ("wait_for", "of")),
    "wait for none": ({"wait_for": {"any": 0, "of": ["a"]}}, ("wait_for", "any")),
    "wait for more than there are": ({"wait_for": {"any": 2, "of": ["a"]}}, ("wait_for",)),
    "wait twice for one": ({"wait_for": {"of": ["a", "a"]}}, ("wait_for",)),
    "flow's goals": ({"kind": "flow", "endpoint": None, "flow": {"goals": []}}, ("flow", "goals")),
    "status_url": ({"status_url": "ftp://worker"}, ("status_url",)),
    "control": ({"control": {"policy": "p"}}, ("control", "policy")),
    "approval without reviewers": ({"control": {"approval": {"approvals": 0}}}, ("control", "approval", "approvals")),
    "approval in no time": ({"control": {"approval": {"expires_in": "0h"}}}, ("control", "approval", "expires_in")),
    "approval's severity": ({"control": {"approval": {"severity": "mild"}}}, ("control", "approval", "severity")),
    "approval's field": ({"control": {"approval": {"reviewer": "me"}}}, ("control", "approval", "reviewer")),
    "role": ({"attributes": {"a": {"role": "input"}}}, ("attributes", "a", "role")),
    "type": ({"attributes": {"a": {"role": "required", "type": "text"}}}, ("attributes", "a", "type")),
    "attribute without role": ({"attributes": {"a": {}}}, ("attributes", "a", "role")),
    "attribute's field": ({"attributes": {"a": {"role": "output", "x": 1}}}, ("attributes", "a", "x")),
    "for_each": ({"attributes": {"a": {"role": "required", "for_each": 1}}}, ("attributes", "a", "for_each")),
    "schema": ({"attributes": {"a": {"role": "required", "schema": {"type": 1}}}}, ("attributes", "a", "schema")),
    "timeout_ms": ({"attributes": {"a": {"role": "optional", "timeout_ms": -1}}}, ("attributes", "a", "timeout_ms")),
    "priority": ({"attributes": {"a": {"role": "output", "priority": "1"}}}, ("attributes", "a", "priority")),
    "attribute without name": ({"attributes": {"": A_REQUIRED}}, ("attributes", "", "[key]")),
    "too many attributes": ({"attributes": {str(n): A_REQUIRED for n in range(257)}}, ("attributes",)),
    "max_retries": ({"work": {"max_retries": -2}}, ("work", "max_retries")),
    "max_retries as text": ({"work": {"max_retries": "3"}}, ("work", "max_retries")),
    "max_retries as bool": ({"work": {"max_retries": True}}, ("work", "max_retries")),
    "backoff_type": ({"work": {"backoff_type": "random"}}, ("work", "backoff_type")),
    "init_backoff_ms": ({"work": {"init_backoff_ms": -1}}, ("work", "init_backoff_ms")),
    "max_backoff_ms": ({"work": {"max_backoff_ms": YEAR_MS + 1}}, ("work", "max_backoff_ms")),
    "jitter": ({"work": {"jitter": "no"}}, ("work", "jitter")),
    "ack_timeout_ms": ({"work": {"ack_timeout_ms": 0}}, ("work", "ack_timeout_ms")),
    "deadline_ms": ({"work": {"deadline_ms": 0}}, ("work", "deadline_ms")),
    "heartbeat_timeout_ms": ({"work": {"heartbeat_timeout_ms": 1.5}}, ("work", "heartbeat_timeout_ms")),
    "parallelism": ({"work": {"parallelism": 0}}, ("work", "parallelism")),
    "rate_limit": ({"work": {"rate_limit": 5}}, ("work", "rate_limit")),
    "rate_limit without a time": ({"work": {"rate_limit": {"count": 5}}}, ("work", "rate_limit", "per_ms")),
    "rate_limit of none": ({"work": {"rate_limit": {"count": 0, "per_ms": 1}}}, ("work", "rate_limit", "count")),
    "rate_limit of too many": (
        {"work": {"rate_limit": {"count": 10_001, "per_ms": 1}}},
        ("work", "rate_limit", "count"),
    ),
    "rate_limit in no time": ({"work": {"rate_limit": {"count": 1, "per_ms": 0}}}, ("work", "rate_limit", "per_ms")),
    "rate_limit in too long a time": (
        {"work": {"rate_limit": {"count": 1, "per_ms": 86_400_001}}},
        ("work", "rate_limit", "per_ms"),
    ),
    "rate_limit with more": (
        {"work": {"rate_limit": {"count": 1, "per_ms": 1, "burst": 2}}},
        ("work", "rate_limit", "burst"),
    ),
    "work's field": ({"work": {"retries": 5}}, ("work", "retries")),
    "policy": ({"effect": {"policy": "magic"}}, ("effect", "policy")),
    "downstream window": ({"effect": {"window": "7d", "downstream_window": "24h"}}, ("effect",)),
    "downstream window of the default": ({"effect": {"policy": "reconcile", "downstream_window": "6d"}}, ("effect",)),
    "downstream window of ever": ({"effect": {"window": "forever", "downstream_window": "9000d"}}, ("effect",)),
    "scope": ({"effect": {"scope": "galaxy"}}, ("effect", "scope")),
    "window": ({"effect": {"window": "a day"}}, ("effect", "window")),
    "window of nothing": ({"effect": {"window": "0h"}}, ("effect", "window")),
    "window and more": ({"effect": {"window": "24h\n"}}, ("effect", "window")),
    "keep and strip": ({"effect": {"key": {"keep": ["a"], "strip": ["b"]}}}, ("effect", "key")),
    "duplicate_status": ({"duplicate_status": 202}, ("duplicate_status",)),
    "require_signature": ({"require_signature": "yes"}, ("require_signature",)),
    "labels": ({"labels": {"team": 5}}, ("labels", "team")),
}


@pytest.mark.parametrize(("fields", "place"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_says_its_place(fields: dict[str, Any], place: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as refusal:
        step(**fields)
    assert [error["loc"] for error in refusal.value.errors()] == [place]


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as refusal:
        StepDefinition.model_validate({"kind": "x", "endpoint": "y", "work": {"max_retries": -2}})
    assert [error["loc"] for error in refusal.value.errors()] == [("kind",), ("endpoint",), ("work", "max_retries")]


@pytest.mark.parametrize(
    ("attribute", "field"),
    [
        ({"role": "required", "default": 1}, "default"),
        ({"role": "output", "default": None}, "default"),
        ({"role": "optional", "value": 1}, "value"),
        ({"role": "const"}, "value"),
        ({"role": "const", "type": "number", "value": "1"}, "value"),
        ({"role": "optional", "type": "boolean", "default": 0}, "default"),
        ({"role": "optional", "schema": {"minimum": 3}, "default": 2}, "default"),
        ({"role": "const", "schema": {"minimum": 3}, "value": 2}, "value"),
        ({"role": "required", "timeout_ms": 5}, "timeout_ms"),
        ({"role": "output", "for_each": True}, "for_each"),
        ({"role": "const", "value": [1], "for_each": True}, "for_each"),
        ({"role": "optional", "for_each": True}, "default"),
        ({"role": "optional", "for_each": True, "default": 5}, "default"),
        ({"role": "optional", "for_each": True, "type": "number", "default": ["5"]}, "default"),
    ],
)
def test_an_attribute_that_does_not_fit_its_role_names_the_field(attribute: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        step(attributes={"a": attribute})
    (error,) = refusal.value.errors()
    assert error["loc"] == ("attributes", "a")
    assert error["msg"].startswith(f"Value error, {field}: ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"flow": {"goals": ["a"]}}, "flow"),
        ({"kind": "flow", "endpoint": None}, "flow"),
        ({**INNER, "endpoint": URL}, "endpoint"),
        ({**INNER, "endpoint": None, "flow": {**INNER["flow"], "inputs": {"x": "text"}}}, "flow.inputs"),
        ({**INNER, "endpoint": None, "flow": {**INNER["flow"], "outputs": {"mine": "x"}}}, "flow.outputs"),
        ({**INNER, "endpoint": None, "flow": {"goals": ["a"]}}, "flow.outputs"),
        ({"predicate": "inputs."}, "predicate"),
        ({"predicate": "inputs.b > 1", "attributes": {"a": A_REQUIRED}}, "predicate"),
    ],
)
def test_a_step_whose_parts_do_not_fit_names_the_part(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        step(**fields)
    (error,) = refusal.value.errors()
    assert (error["loc"], error["msg"].partition(": ")[0]) == ((), f"Value error, {field}")


def test_a_const_may_be_null_and_an_optional_may_have_no_default() -> None:
    attributes = step(attributes={"a": {"role": "const", "value": None}, "b": {"role": "optional", "type": "string"}})
    assert attributes.attributes["a"].value is None
    assert attributes.attributes["b"].default is None


def test_a_key_can_only_keep_what_the_step_takes() -> None:
    attributes = {"a": A_REQUIRED, "text": {"role": "output"}}
    assert step(attributes=attributes, effect={"key": {"keep": ["a"]}}).effect.key.keep == ["a"]
    with pytest.raises(ValidationError, match=r"effect\.key\.keep: the step takes no b, text"):
        step(attributes=attributes, effect={"key": {"keep": ["text", "a", "b"]}})
    assert step(effect={"key": {"keep": ["anything"]}}).effect.key.keep == ["anything"]


@pytest.mark.parametrize("window", ["1s", "15m", "24h", "999999d", "forever"])
def test_windows(window: str) -> None:
    assert step(effect={"window": window}).effect.window == window


@pytest.mark.parametrize(
    "url", [URL, "https://w", "HTTP://W/", "http://10.0.0.1:80/x?y=1&z=%20", "http://[::1]:9000/", "http://u:p@w/"]
)
def test_endpoints_that_are_taken(url: str) -> None:
    assert step(endpoint=url, cancel_url=url).endpoint == url


def test_work_is_inherited_field_by_field() -> None:
    defaults = WorkDefaults(max_retries=9, init_backoff_ms=7, heartbeat_timeout_ms=50, parallelism=4)
    own = WorkConfig(init_backoff_ms=70, max_retries=None)
    assert own.resolve(defaults) == defaults.model_copy(update={"init_backoff_ms": 70})


def test_an_explicit_null_switches_off_what_can_be_off() -> None:
    defaults = WorkDefaults(heartbeat_timeout_ms=50, parallelism=4, rate_limit=RateLimit(count=1, per_ms=9))
    assert WorkConfig().resolve(defaults).rate_limit == RateLimit(count=1, per_ms=9)
    off = WorkConfig(heartbeat_timeout_ms=None, parallelism=None, rate_limit=None, ack_timeout_ms=None)
    resolved = off.resolve(defaults)
    assert (resolved.heartbeat_timeout_ms, resolved.parallelism, resolved.rate_limit) == (None, None, None)
    assert resolved.ack_timeout_ms == defaults.ack_timeout_ms


def test_zero_and_false_are_values_of_their_own() -> None:
    work = WorkConfig(max_retries=0, init_backoff_ms=0, jitter=False).resolve(WorkDefaults())
    assert (work.max_retries, work.init_backoff_ms, work.jitter) == (0, 0, False)


@pytest.mark.parametrize(("max_retries", "attempts"), [(0, 1), (5, 6), (-1, None)])
def test_max_attempts(max_retries: int, attempts: int | None) -> None:
    assert WorkDefaults(max_retries=max_retries).max_attempts == attempts


VALUES: list[tuple[Any, ValueType | None]] = [
    ("", "string"),
    (0, "number"),
    (0.5, "number"),
    (10**40, "number"),
    (True, "boolean"),
    ({}, "object"),
    ([], "array"),
    (None, None),
]
TYPES: tuple[ValueType, ...] = ("string", "number", "boolean", "object", "array", "any")


@pytest.mark.parametrize(("value", "own"), VALUES, ids=repr)
@pytest.mark.parametrize("wanted", TYPES)
def test_a_value_has_its_own_type_and_any(value: Any, own: ValueType | None, wanted: ValueType) -> None:
    assert has_type(value, wanted) == (wanted in (own, "any"))

"""``accept`` in a definition: what is refused, and where."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.places import place_errors
from counterfoil.domain.steps.definitions import StepDefinition
from tests.vendors import STANDARD, VENDORS

SECRET = "setting:it"
TEXT = {"text": {"role": "output", "type": "string"}}


def step(accept: Any, **more: Any) -> StepDefinition:
    return StepDefinition.model_validate({"endpoint": "http://vendor.example/", "accept": accept, **more})


def faults(accept: Any, **more: Any) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        step(accept, **more)
    return [(fault["place"], fault["message"]) for fault in place_errors(caught.value)]


def hmac_rule(**fields: Any) -> dict[str, Any]:
    return {"signature": {"scheme": "hmac", "secret": SECRET, "header": "X-Signed", **fields}}


def test_the_example_of_the_contract() -> None:
    accept: dict[str, Any] = {
        "signature": {
            "scheme": "hmac",
            "secret": "setting:stripe",
            "header": "Stripe-Signature",
            "format": "t={timestamp},v1={signature}",
            "timestamp_header": None,
            "signed": "{timestamp}.{body}",
            "algorithm": "sha256",
            "encoding": "hex",
            "tolerance_seconds": 300,
        },
        "map": {
            "ignore": "payload.type == 'ping'",
            "success": "payload.status == 'completed'",
            "outputs": {"text": "payload.result.text"},
            "error": "payload.error.message",
            "retriable": "false",
        },
        "answer": {"accepted": 200, "duplicate": 200, "ignored": 200},
    }
    definition = step(accept, attributes=TEXT)
    assert definition.accept is not None
    shown = definition.model_dump(mode="json")["accept"]
    assert shown == {**accept, "signature": {**accept["signature"], "preset": None, "challenge": None}}
    assert step(shown).accept == definition.accept, "what is shown can be put back"


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.preset)
def test_what_is_shown_of_a_preset_can_be_put_back(vendor: Any) -> None:
    definition = step({"signature": {"preset": vendor.preset, "secret": SECRET}})
    assert step(definition.model_dump(mode="json")["accept"]).accept == definition.accept


@pytest.mark.parametrize(
    "secret",
    ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "stripe", "setting:", "setting:Stripe", "setting:a b", "env:x", ""],
)
def test_a_secret_is_a_reference(secret: str) -> None:
    [(place, message)] = faults({"signature": {"preset": "stripe", "secret": secret}})
    assert place == "accept.signature.secret"
    assert "must be setting:<name>" in message
    assert not secret or secret == "setting:" or secret not in message


@pytest.mark.parametrize(
    ("accept", "place"),
    [
        ({"signature": {"preset": "stripe"}}, "accept.signature.secret"),
        ({"signature": {"preset": "paypal", "secret": SECRET}}, "accept.signature.preset"),
        ({"signature": {"secret": SECRET}}, "accept.signature.scheme"),
        ({"signature": {"scheme": "rsa", "secret": SECRET}}, "accept.signature.scheme"),
        ({"signature": {"preset": "stripe", "scheme": "hmac", "secret": SECRET}}, "accept.signature.scheme"),
        ({"signature": {"preset": "github", "secret": SECRET, "header": "X"}}, "accept.signature.header"),
        (
            {"signature": {"preset": "github", "secret": SECRET, "tolerance_seconds": 5}},
            "accept.signature.tolerance_seconds",
        ),
        ({"signature": {"scheme": "hmac", "secret": SECRET}}, "accept.signature.header"),
        (hmac_rule(header="a b"), "accept.signature.header"),
        (hmac_rule(header=""), "accept.signature.header"),
        (hmac_rule(timestamp_header="ä"), "accept.signature.timestamp_header"),
        (hmac_rule(format="v1={sig}"), "accept.signature.format"),
        (hmac_rule(signed="{timestamp}"), "accept.signature.signed"),
        (hmac_rule(signed="{timestamp}.{body}"), "accept.signature.signed"),
        (hmac_rule(timestamp_header="X-Time"), "accept.signature.signed"),
        (hmac_rule(format="t={timestamp},s={signature}"), "accept.signature.signed"),
        (
            hmac_rule(format="t={timestamp},s={signature}", signed="{timestamp}{body}", timestamp_header="X-Time"),
            "accept.signature.timestamp_header",
        ),
        (hmac_rule(algorithm="md5"), "accept.signature.algorithm"),
        (hmac_rule(encoding="ascii"), "accept.signature.encoding"),
        (hmac_rule(tolerance_seconds=0), "accept.signature.tolerance_seconds"),
        (hmac_rule(tolerance_seconds="300"), "accept.signature.tolerance_seconds"),
        (hmac_rule(salt="x"), "accept.signature.salt"),
        (hmac_rule(challenge="payload."), "accept.signature.challenge"),
        (hmac_rule(challenge="payload.a == 1"), "accept.signature.challenge"),
        (hmac_rule(challenge="body"), "accept.signature.challenge"),
        ({"map": {"success": "payload.a +"}}, "accept.map.success"),
        ({"map": {"success": "'yes'"}}, "accept.map.success"),
        ({"map": {"success": ""}}, "accept.map.success"),
        ({"map": {"success": True}}, "accept.map.success"),
        ({"map": {"ignore": "body.type == 'ping'"}}, "accept.map.ignore"),
        ({"map": {"error": "1"}}, "accept.map.error"),
        ({"map": {"retriable": "'x'"}}, "accept.map.retriable"),
        ({"map": {"outputs": {"text": "payload.("}}}, "accept.map.outputs.text"),
        ({"map": {"outputs": {"text": "b'bytes'"}}}, "accept.map.outputs.text"),
        ({"map": {"outputs": {"text": 5}}}, "accept.map.outputs.text"),
        ({"map": {"outputs": "payload.a == 1"}}, "accept.map.outputs"),
        ({"map": {"outputs": []}}, "accept.map.outputs"),
        ({"map": {"outputs": "x" * 5000}}, "accept.map.outputs"),
        ({"map": {"then": "x"}}, "accept.map.then"),
        ({"answer": {"accepted": 199}}, "accept.answer.accepted"),
        ({"answer": {"duplicate": 302}}, "accept.answer.duplicate"),
        ({"answer": {"ignored": 400}}, "accept.answer.ignored"),
        ({"answer": {"ignored": True}}, "accept.answer.ignored"),
        ({"sign": {}}, "accept.sign"),
        ([], "accept"),
    ],
)
def test_each_fault_has_its_place(accept: Any, place: str) -> None:
    assert [found for found, _ in faults(accept)] == [place]


@pytest.mark.parametrize(
    ("outputs", "place", "message"),
    [
        ({"text": "1"}, "accept.map.outputs.text", "must be of type string, and evaluates to number"),
        ({"text": "null"}, "accept.map.outputs.text", "must be of type string, and evaluates to null"),
        ({"text": "['a']"}, "accept.map.outputs.text", "must be of type string, and evaluates to array"),
        ({}, "accept.map.outputs", "nothing is mapped to text"),
        (None, "accept.map.outputs", "nothing is mapped to text"),
        ({"text": "payload.a", "other": "1"}, "accept.map.outputs", "the step gives no other"),
    ],
)
def test_outputs_are_those_that_the_step_declares(outputs: Any, place: str, message: str) -> None:
    assert faults({"map": {"outputs": outputs}}, attributes=TEXT) == [(place, message)]


@pytest.mark.parametrize(
    "outputs", [{"text": "'a'"}, {"text": "payload.a"}, {"text": "string(payload.a)"}, "payload", "{'text': 1}"]
)
def test_outputs_that_may_be_right(outputs: Any) -> None:
    step({"map": {"outputs": outputs}}, attributes=TEXT)


def test_only_steps_that_end_by_a_callback_accept_one() -> None:
    assert faults({}, kind="sync")[0][0] == "accept"


def test_one_of_two_signatures() -> None:
    both = {"signature": {"preset": "stripe", "secret": SECRET}}
    assert faults(both, require_signature=True)[0][0] == "require_signature"
    step({"map": {}}, require_signature=True)  # a map alone says nothing of signatures


def test_a_hook_has_no_reports_that_could_be_signed() -> None:
    """A hook with ``require_signature`` would take payloads without a signature, against what its author expects."""
    hook: dict[str, Any] = {"kind": "hook", "endpoint": None, "hook": {}}
    step(None, **hook)
    [(place, message)] = faults(None, require_signature=True, **hook)
    assert (place, "accept.signature" in message) == ("require_signature", True)


def test_the_compensation_of_a_step_reports_as_workers_do() -> None:
    definition = step({"map": {}}, compensate={"endpoint": "http://vendor.example/refund", "kind": "async"})
    assert definition.undoing().accept is None


def test_a_definition_without_accept_keeps_its_version() -> None:
    assert "accept" not in step(None).model_dump(exclude_unset=True, exclude_none=True)
    assert StepDefinition(endpoint="http://a/").repeat_status == 400
    assert step({}).repeat_status == 200


def test_the_secret_must_be_configured() -> None:
    accept = Accept.model_validate({"signature": {"preset": "standard-webhooks", "secret": SECRET}})
    assert accept.signature is not None
    problem = accept.signature.check.problem_of_secret
    assert problem(Secrets()) == "the settings have no secret it; configured: none"
    assert problem(Secrets({"b": ["x"], "a": ["y"]})) == "the settings have no secret it; configured: a, b"
    assert problem(Secrets({"it": [STANDARD.secret]})) is None
    unreadable = problem(Secrets({"it": [STANDARD.secret, "not base64 at all!"]}))
    assert unreadable == "the secret it is not whsec_ followed by base64, as its scheme requires"

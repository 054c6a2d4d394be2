"""Maps: what a payload means, and that a payload which cannot be read is refused with the place."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.callbacks.accept import Accept
from counterfoil.domain.callbacks.mapping import Ignored, readable_headers
from counterfoil.domain.callbacks.reading import read_callback
from counterfoil.domain.callbacks.secrets import Secrets
from counterfoil.domain.errors import InvalidPayload, InvalidResult
from counterfoil.domain.expressions.values import MAX_RESULT
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.work.results import StepResult

MAP = {
    "ignore": "payload.type == 'ping'",
    "success": "payload.status == 'completed'",
    "outputs": {"text": "payload.result.text", "words": "payload.result.words"},
    "error": "payload.error.message",
    "retriable": "payload.error.code == 'busy'",
}
DONE = {"type": "job", "status": "completed", "result": {"text": "hello", "words": 1}}
TOKEN = "0123456789abcdef0123456789abcdef." + "x" * 43


def read(given: Any, payload: Any, headers: dict[str, str] | None = None) -> Ignored | StepResult:
    body = payload if isinstance(payload, bytes) else dump_json(payload)
    return read_callback(Accept.model_validate({"map": given}), headers or {}, body, Secrets(), 0)


def outputs(expression: Any, payload: Any, headers: dict[str, str] | None = None) -> Any:
    result = read({"outputs": expression}, payload, headers)
    assert isinstance(result, StepResult)
    assert result.success
    return result.outputs


def refused(given: Any, payload: Any) -> tuple[str, str]:
    with pytest.raises(InvalidPayload) as caught:
        read(given, payload)
    [error] = caught.value.details["errors"]
    return error["place"], error["message"]


def test_a_success() -> None:
    assert read(MAP, DONE) == StepResult(success=True, outputs={"text": "hello", "words": 1})


def test_a_failure_needs_no_outputs() -> None:
    payload = {"type": "job", "status": "failed", "error": {"message": "no audio", "code": "bad"}}
    assert read(MAP, payload) == StepResult(success=False, error="no audio", retriable=False)


def test_a_failure_that_is_worth_another_attempt() -> None:
    payload = {"type": "job", "status": "failed", "error": {"message": "later", "code": "busy"}}
    result = read(MAP, payload)
    assert isinstance(result, StepResult)
    assert result.not_completed


def test_what_is_ignored_needs_nothing_else() -> None:
    assert read(MAP, {"type": "ping"}) == Ignored()


def test_a_map_without_expressions_takes_every_payload_as_a_success() -> None:
    assert read({}, {"anything": [1, 2]}) == StepResult(success=True, outputs={})


def test_without_a_map_the_payload_is_a_step_result() -> None:
    accept = Accept()
    result = read_callback(accept, {}, b'{"success": true, "outputs": {"a": 1}}', Secrets(), 0)
    assert result == StepResult(success=True, outputs={"a": 1})
    for body in (b"{}", b"[]", b"not json", b'{"success": "yes"}'):
        with pytest.raises(InvalidResult) as caught:
            read_callback(accept, {}, body, Secrets(), 0)
        assert caught.value.details["errors"]


def test_headers_have_lower_case_names() -> None:
    headers = {"X-GitHub-Event": "push", "x-two": "a", "X-Two": "b"}
    assert outputs({"event": "headers['x-github-event']"}, {}, headers) == {"event": "push"}
    assert readable_headers(headers) == {"x-github-event": "push", "x-two": "a, b"}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"ignore": "headers['x-a'] == 'b' || payload.x == 'x-b'"}, {"x-a"}),
        (
            {"success": "has(headers.date)", "error": "headers['x-b']", "retriable": "headers.host == ''"},
            {"date", "x-b"},
        ),
        ({"outputs": {"a": "headers['x-a']", "b": "headers['cookie']"}}, {"x-a"}),
        ({"outputs": "headers"}, {"x-a", "x-b", "date"}),
        ({"ignore": "'x-a' in headers"}, {"x-a", "x-b", "date"}),
        ({"outputs": {"a": "payload.a"}}, set()),
        ({}, set()),
    ],
)
def test_the_headers_that_a_map_reads(given: Any, names: set[str]) -> None:
    headers = {"X-A": "1", "X-B": "2", "Date": "3", "Cookie": "secret", "Authorization": "secret"}
    read = Accept.model_validate({"map": given}).map
    assert read is not None
    assert set(read.headers_read(headers)) == names


def test_no_expression_reads_a_credential() -> None:
    headers = {"Authorization": "Bearer s", "Cookie": "s", "Counterfoil-Receipt": TOKEN, "Proxy-Authorization": "s"}
    assert outputs("{'all': headers}", {}, headers) == {"all": {}}


def test_a_header_that_is_no_text_is_not_in_the_way() -> None:
    assert outputs({"it": "payload.a"}, {"a": 1}, {"X-Odd": "\udcff"}) == {"it": 1}
    assert outputs({"odd": "headers['x-odd']"}, {}, {"X-Odd": "a\udcff"}) == {"odd": "a?"}


def test_one_expression_may_give_all_outputs() -> None:
    assert outputs("payload.data", {"data": {"a": [1, 2.5, None, True, {"b": "c"}]}}) == {
        "a": [1, 2.5, None, True, {"b": "c"}]
    }
    assert outputs(
        "{'id': payload.id, 'tags': payload.tags.filter(t, t != 'x')}", {"id": 2**63, "tags": ["x", "y"]}
    ) == {
        "id": 2**63,
        "tags": ["y"],
    }


@pytest.mark.parametrize(
    ("given", "payload", "place", "message"),
    [
        (MAP, {}, "ignore", "there is no value type"),
        (MAP, [], "ignore", ""),
        (MAP, "text", "ignore", ""),
        (MAP, None, "ignore", ""),
        (MAP, {"type": "job"}, "success", "there is no value status"),
        (MAP, {"type": "job", "status": "completed"}, "outputs.text", "there is no value result"),
        (MAP, {"type": "job", "status": "failed", "error": {"message": 5, "code": ""}}, "error", "not a string"),
        (MAP, {"type": "job", "status": "failed"}, "error", "there is no value error"),
        (MAP, {"type": "job", "status": "failed", "error": {"message": ""}}, "retriable", "there is no value code"),
        ({"success": "payload.ok"}, {"ok": "yes"}, "success", "neither true nor false"),
        ({"outputs": "payload.data"}, {"data": [1]}, "outputs", "not an object"),
        ({"outputs": {"a": "payload.n / 0"}}, {"n": 1}, "outputs.a", "divides by zero"),
        ({"outputs": {"a": "1.0 / double(payload.n)"}}, {"n": 0}, "outputs.a", "out of range"),
        ({"outputs": {"a": "payload.n"}}, b'{"n": "a\\u0000b"}', "outputs.a", "NUL"),
        ({"outputs": {"a": "payload.n"}}, {"n": 2**70}, "outputs.a", "64 bits"),
        ({"outputs": {"a": "timestamp(payload.n)"}}, {"n": "2026-01-01T00:00:00Z"}, "", ""),
    ],
)
def test_a_payload_that_cannot_be_read(given: Any, payload: Any, place: str, message: str) -> None:
    if not place:
        with pytest.raises(ValueError, match="must evaluate to a value that JSON has"):
            Accept.model_validate({"map": given})
        return
    assert refused(given, payload)[0] == f"accept.map.{place}"
    assert message in refused(given, payload)[1]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a": NaN}', b"payload=%7B%7D", b"[" * 5000])
def test_a_body_that_is_not_json(body: bytes) -> None:
    place, message = refused(MAP, body)
    assert place == "body"
    assert message


def test_what_is_not_read_may_be_odd() -> None:
    payload = {"it": 1, "odd": {"n": 2**80, "text": "\0"}}
    assert outputs({"it": "payload.it"}, payload) == {"it": 1}


def test_a_value_that_is_secret_is_never_repeated() -> None:
    for expression in (
        "int(payload.s)",
        "payload.s + 1",
        "timestamp(payload.s) > timestamp(payload.s)",
        "{}[payload.s]",
    ):
        try:
            _, message = refused({"outputs": {"a": expression}}, {"s": "the secret"})
        except ValueError:
            continue
        assert "the secret" not in message


def test_the_outputs_cannot_be_many_times_the_payload() -> None:
    copies = "[" + ",".join(["payload"] * 200) + "]"
    large = {"text": "x" * (MAX_RESULT // 20)}
    assert refused({"outputs": {"a": copies}}, large) == (
        "accept.map.outputs.a",
        "the inputs are too large for this expression",
    )
    assert len(outputs({"a": copies}, {"text": "x"})["a"]) == 200


def test_outputs_that_are_nested_too_deep() -> None:
    deep: Any = "x"
    for _ in range(98):
        deep = [deep]
    assert outputs({"a": "payload"}, deep)
    place, message = refused({"outputs": {"a": "[[[[payload]]]]"}}, deep)
    assert (place, "nested too deeply" in message) == ("accept.map.outputs", True)


def test_no_receipt_is_ever_stored() -> None:
    """Not from the payload, not from a header, and not put together from two halves."""
    halves = {"a": TOKEN[:40], "b": TOKEN[40:], "whole": f"http://engine/webhook/f/s/{TOKEN}"}
    found = outputs(
        {"one": "payload.a + payload.b", "two": "payload.whole", "three": "headers.referer"}, halves, {"Referer": TOKEN}
    )
    assert not re.search("x{43}", str(found))
    failed = read({"success": "false", "error": "payload.a + payload.b"}, halves)
    assert isinstance(failed, StepResult)
    assert "x" * 43 not in str(failed.error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "status", "result", "error", "text", "words", "code", "message", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(payload=JSON)
def test_any_payload_is_read_or_refused_with_a_place(payload: Any) -> None:
    try:
        result = read(MAP, payload)
    except InvalidPayload as refusal:
        [error] = refusal.details["errors"]
        assert error["place"] == "body" or error["place"].startswith("accept.map.")
        assert error["message"]
    else:
        assert isinstance(result, Ignored | StepResult)


@given(body=st.binary(max_size=64) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for given_map in (MAP, {}, {"outputs": "payload"}):
        with contextlib.suppress(InvalidPayload):
            read(given_map, body)

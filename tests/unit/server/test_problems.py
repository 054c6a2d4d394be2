from __future__ import annotations

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from counterfoil.domain.errors import (
    AlreadySucceeded,
    BadRequest,
    Conflict,
    ConflictingEffect,
    ConflictingResult,
    CounterfoilError,
    Forbidden,
    InternalError,
    Invalid,
    InvalidSignature,
    MethodNotAllowed,
    PayloadTooLarge,
    Refused,
    Unauthenticated,
    Unavailable,
    Unknown,
    UnknownFlow,
    UnsupportedMediaType,
    error_types,
)
from counterfoil.server.answers import json_response, json_text
from counterfoil.server.problems import STATUSES, answer_for, problem_response, status_of


def code_of(response: web.StreamResponse) -> str:
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    error = orjson.loads(response.body)["error"]
    assert set(error) == {"code", "message", "details"}
    return str(error["code"])


@pytest.mark.parametrize("error", list(error_types()), ids=lambda error: error.code)
def test_every_error_has_a_status_and_something_to_say(error: type[CounterfoilError]) -> None:
    assert 400 <= status_of(error) < 600
    assert error.default_message


def test_an_error_outside_of_the_table_has_no_status() -> None:
    with pytest.raises(KeyError):
        status_of(CounterfoilError)


@pytest.mark.parametrize(
    ("family", "status"),
    [
        (Refused, 400),
        (BadRequest, 400),
        (Unauthenticated, 401),
        (InvalidSignature, 401),
        (Forbidden, 403),
        (Unknown, 404),
        (MethodNotAllowed, 405),
        (Conflict, 409),
        (PayloadTooLarge, 413),
        (UnsupportedMediaType, 415),
        (Invalid, 422),
        (InternalError, 500),
        (Unavailable, 503),
    ],
)
def test_statuses_are_those_of_the_contract(family: type[CounterfoilError], status: int) -> None:
    assert STATUSES[family] == status


def test_only_the_state_machine_and_malformed_http_answer_400() -> None:
    for error in error_types():
        refused = issubclass(error, Refused | BadRequest) and error is not ConflictingEffect
        assert (status_of(error) == 400) == refused, error


def test_a_conflict_of_the_effects_api_is_409_though_its_code_is_that_of_a_refused_report() -> None:
    assert (status_of(ConflictingEffect), status_of(ConflictingResult)) == (409, 400)
    assert ConflictingEffect.code == ConflictingResult.code


def test_a_problem_is_the_envelope_with_its_details() -> None:
    response = problem_response(AlreadySucceeded(status="succeeded", same_result=True))
    assert response.status == 400
    assert response.content_type == "application/json"
    assert isinstance(response.body, bytes)
    assert orjson.loads(response.body)["error"] == {
        "code": "ALREADY_SUCCEEDED",
        "message": AlreadySucceeded.default_message,
        "details": {"status": "succeeded", "same_result": True},
    }


def test_answers_are_neither_cached_nor_sniffed() -> None:
    for response in (json_response({}), problem_response(UnknownFlow())):
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_headers_that_http_wants() -> None:
    assert problem_response(Unauthenticated()).headers.getall("WWW-Authenticate")[0].startswith("Bearer ")
    assert problem_response(Unauthenticated()).headers.getall("WWW-Authenticate")[1].startswith("Basic ")
    assert "WWW-Authenticate" not in problem_response(InvalidSignature()).headers
    assert problem_response(MethodNotAllowed(allowed=["POST", "GET"])).headers["Allow"] == "GET, POST"
    assert problem_response(Unavailable()).headers["Retry-After"] == "1"
    assert problem_response(Unavailable(retry_after=7)).headers["Retry-After"] == "7"


def test_headers_of_one_answer_do_not_show_in_another() -> None:
    problem_response(Unauthenticated())
    assert "WWW-Authenticate" not in json_response({}).headers


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (UnknownFlow(), 404, "UNKNOWN_FLOW"),
        (web.HTTPNotFound(), 404, "NOT_FOUND"),
        (web.HTTPMethodNotAllowed("PATCH", ["GET"]), 405, "METHOD_NOT_ALLOWED"),
        (web.HTTPRequestEntityTooLarge(1), 413, "PAYLOAD_TOO_LARGE"),
        (web.HTTPExpectationFailed(text="repeats what was sent"), 400, "BAD_REQUEST"),
        (web.HTTPBadGateway(), 500, "INTERNAL"),
        (RuntimeError("inner workings"), 500, "INTERNAL"),
        (TimeoutError(), 500, "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_whatever_is_raised_has_an_answer(raised: Exception, status: int, code: str) -> None:
    response = answer_for(raised, make_mocked_request("GET", "/webhook/flow/step/token"))
    assert (response.status, code_of(response)) == (status, code)


def test_an_answer_repeats_neither_the_path_nor_the_fault() -> None:
    for raised in (web.HTTPNotFound(), RuntimeError("inner workings"), web.HTTPExpectationFailed(text="sent")):
        response = answer_for(raised, make_mocked_request("GET", "/webhook/flow/step/token.secret"))
        assert isinstance(response, web.Response)
        assert isinstance(response.body, bytes)
        assert not any(word in response.body for word in (b"token.secret", b"inner workings", b"sent"))


def test_integers_keep_every_digit() -> None:
    amount = 2**200
    assert orjson.loads(json_text({"small": 1, "yes": True})) == {"small": 1, "yes": True}
    assert json_text({"amounts": [amount, True, {"x": (amount,)}]}) == (
        f'{{"amounts":[{amount},true,{{"x":[{amount}]}}]}}'.encode()
    )

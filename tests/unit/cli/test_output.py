from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import pytest

from counterfoil.cli.arguments import json_object, json_pairs, pairs
from counterfoil.cli.output import compact, error_text, failure, print_table, span, when
from counterfoil.client import ApiError, ConnectionFailed
from counterfoil.client.refusals import api_error

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2 s"),
        (42, "42 s"),
        (60, "1 m"),
        (61, "1 m 1 s"),
        (3_600, "1 h"),
        (9_000, "2 h 30 m"),
        (86_400 * 3 + 7_200, "3 d 2 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_times_are_told_from_now() -> None:
    assert when("2026-11-16T11:58:00.000Z", NOW) == "2 m ago"
    assert when("2026-11-16T12:00:30.000Z", NOW) == "in 30 s"
    assert when(None) == ""
    assert when("tomorrow") == "tomorrow"


def test_values_are_cut_to_one_line() -> None:
    assert compact({}) == ""
    assert compact({"a": "ü"}) == '{"a": "ü"}'
    assert len(compact({"a": "x" * 500}, 60)) == 60


def test_errors_of_work_are_readable() -> None:
    assert error_text({"code": "STEP_FAILED", "message": "no"}) == "STEP_FAILED: no"
    assert error_text(None) == ""


def answered(status: int, code: str, message: str, retry_after: float | None = None, **details: Any) -> ApiError:
    return api_error(status, {"error": {"code": code, "message": message, "details": details}}, retry_after=retry_after)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            answered(404, "UNKNOWN_FLOW", "no flow has this id"),
            "UNKNOWN_FLOW: no flow has this id; `counterfoil flow list` lists the flows",
        ),
        (
            answered(422, "INVALID_STEP", "not valid", errors=[{"place": "work.max_retries", "message": "-2"}]),
            "INVALID_STEP: not valid (work.max_retries: -2); correct the named fields and put the step again",
        ),
        (
            answered(503, "UNAVAILABLE", "not now", retry_after=7),
            "UNAVAILABLE: not now; try again in 7 s",
        ),
        (answered(400, "SOMETHING_NEW", "well"), "SOMETHING_NEW: well"),
        (ConnectionFailed("no engine answers at http://e"), "no engine answers at http://e"),
    ],
)
def test_an_error_is_one_line_with_its_code_and_what_to_do(error: Any, line: str) -> None:
    assert failure(error).message == line


def test_an_error_of_several_lines_is_shown_on_one(capsys: pytest.CaptureFixture[str]) -> None:
    failure(ConnectionFailed("one\n two")).show()
    assert capsys.readouterr().err == "error: one two\n"


def test_ids_are_not_cut_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("FLOW", "RESULT"), [("f" * 200, "r" * 150)], empty="nothing")
    assert "f" * 200 in capsys.readouterr().out


def test_an_empty_table_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("FLOW",), [], empty="no matching flow")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no matching flow\n")


def test_pairs_are_json_where_they_are_json() -> None:
    given = ("n=1", "list=[1,2]", "text=hello", 'quoted="1"', "sum=a=b", "empty=")
    assert json_pairs(given, "--init") == {
        "n": 1,
        "list": [1, 2],
        "text": "hello",
        "quoted": "1",
        "sum": "a=b",
        "empty": "",
    }
    assert pairs(("n=1",), "--label") == {"n": "1"}


@pytest.mark.parametrize("text", ["n", "=1"])
def test_a_pair_needs_a_name_and_an_equals_sign(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not NAME=VALUE"):
        pairs((text,), "--init")


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_file_must_hold_a_json_object(text: str) -> None:
    with pytest.raises(click.BadParameter):
        json_object(text, "FILE")

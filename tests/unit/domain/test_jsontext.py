"""JSON at the door: strict, exact, and refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.canonical import canonical_json
from counterfoil.domain.jsontext import MAX_DEPTH, JsonError, accept_json, dump_json, is_ordinary, parse_json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_is_written_is_read_back_exactly(value: Any) -> None:
    again = parse_json(dump_json(value))
    assert again == value
    assert repr(again) == repr(value)  # 1 and 1.0 and True are equal to Python


def test_every_digit_of_an_integer_is_kept() -> None:
    assert parse_json(b"12345678901234567890123456789") == 12345678901234567890123456789
    assert dump_json(12345678901234567890123456789) == b"12345678901234567890123456789"


def test_text_is_written_as_it_is_and_compactly() -> None:
    assert dump_json({"é": [1, "\U0001f600"]}) == '{"é":[1,"\U0001f600"]}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b'{"a": 1} x',
        b"{'a': 1}",
        b"01",
        b"+1",
        b".5",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b'"\\ud800"',
        b'"a\nb"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"[" * 10_000,
        b'{"a":' * 10_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(JsonError):
        accept_json(text)


OUT_OF_RANGE = [
    "1e309",
    "-1e309",
    "1E+0400",
    "9" * 5000,
    "9" * 309,
    "9" * 250 + "e99",
    "9" * 299 + "." + "9" * 20 + "e15",
    "-" + "9" * 211 + "E98",
]


@pytest.mark.parametrize("number", OUT_OF_RANGE, ids=lambda number: number[:4] + ".." + number[-4:])
def test_a_number_that_no_double_can_hold_is_refused_wherever_it_stands(number: str) -> None:
    for text in (number, f"[{number}]", f'{{"a": [{{"b": {number}}}]}}'):
        with pytest.raises(JsonError, match="range"):
            accept_json(text)


@given(digits=st.integers(1, 330), exponent=st.integers(0, 400), sign=st.sampled_from(["", "-"]))
def test_no_number_becomes_infinite(digits: int, exponent: int, sign: str) -> None:
    """Whatever is let in can be compared as canonical JSON."""
    text = f"{sign}{'7' * digits}e{exponent}"
    if abs(float(text)) == float("inf"):
        with pytest.raises(JsonError):
            accept_json(text)
    else:
        assert canonical_json(accept_json(text)) == canonical_json(json.loads(text))


def test_large_numbers_within_the_range_are_kept() -> None:
    assert accept_json(b"1.7976931348623157e308") == 1.7976931348623157e308
    assert accept_json(b"9" * 300) == int("9" * 300)
    assert accept_json(b"1e-400") == 0.0


def test_long_rows_of_digits_in_text_are_nobodys_business() -> None:
    assert accept_json('{"card": "' + "9" * 400 + '"}') == {"card": "9" * 400}


def test_text_with_a_lone_surrogate_is_refused_as_json() -> None:
    with pytest.raises(JsonError):
        accept_json('"\ud800"')


def test_the_refusal_names_the_place() -> None:
    with pytest.raises(JsonError, match="line 2 column 7"):
        accept_json(b'{\n  "a" 1}')


# ------------------------------------------------------------------------------------------------ depth


def nested(depth: int, kind: str) -> bytes:
    return b"[" * depth + b"]" * depth if kind == "arrays" else b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


@pytest.mark.parametrize("kind", ["arrays", "objects"])
def test_what_is_nested_deeper_than_the_limit_is_refused_at_the_door(kind: str) -> None:
    assert accept_json(nested(MAX_DEPTH, kind)) is not None
    for depth in (MAX_DEPTH + 1, 199, 201, 100_000):
        with pytest.raises(JsonError, match="nested too deeply: 100 levels"):
            accept_json(nested(depth, kind))


def test_many_values_side_by_side_are_not_deep() -> None:
    assert accept_json(b"[" + b"[[]]," * 1000 + b"[]]")[-1] == []


@pytest.mark.parametrize("kind", ["arrays", "objects"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 200, 210, 500])
def test_what_is_stored_is_read_however_deep_it_is(kind: str, depth: int) -> None:
    assert json.dumps(parse_json(nested(depth, kind)), separators=(",", ":")).encode() == nested(depth, kind)


@given(json_values)
def test_what_is_ordinary_needs_no_more_than_plain_parsing(value: Any) -> None:
    text = dump_json(value)
    if is_ordinary(text):
        assert accept_json(text) == json.loads(text)


@pytest.mark.parametrize(
    "text", [b"NaN", b"-Infinity", b"1e400", b"9" * 400, b"[" * 101 + b"]" * 101], ids=lambda text: repr(text[:8])
)
def test_what_needs_a_strict_reading_is_not_ordinary(text: bytes) -> None:
    assert not is_ordinary(text)
    with pytest.raises(JsonError):
        accept_json(text)

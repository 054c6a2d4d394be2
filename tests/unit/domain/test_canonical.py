"""Canonical JSON: the examples of RFC 8785, and what is the same."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.canonical import canonical_json, digest, same_json
from counterfoil.domain.jsontext import parse_json

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_the_example_of_section_3_2_2() -> None:
    text = r"""{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]}"""
    assert canonical_json(parse_json(text)).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_the_example_of_section_3_2_3_sorts_by_utf_16() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    assert list(parse_json(canonical_json(value)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_the_numbers_of_appendix_b(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(number) == text.encode()


def test_integers_beyond_a_double_are_rounded_to_one() -> None:
    assert canonical_json([2**53 - 1, 2**53, -(2**53), 2**53 + 1, 10**21]) == (
        b"[9007199254740991,9007199254740992,-9007199254740992,9007199254740992,1e+21]"
    )
    assert canonical_json({"a": [{"b": 2**64, "c": True}]}) == b'{"a":[{"b":18446744073709552000,"c":true}]}'


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, 1.0), (0.0, -0.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (10**21, 1e21), ("é", "\u00e9"), ([], [])],
)
def test_same(left: Any, right: Any) -> None:
    assert same_json(left, right)
    assert digest(left) == digest(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (0, False), (None, {}), ("1", 1), ([1, 2], [2, 1]), ({"a": None}, {}), ("é", "e\u0301"), (1, 1.5)],
)
def test_not_the_same(left: Any, right: Any) -> None:
    assert not same_json(left, right)
    assert digest(left) != digest(right)


def test_the_digest_is_sha_256_in_hexadecimal() -> None:
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@given(json_values)
def test_reading_the_canonical_text_back_changes_nothing(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(parse_json(text)) == text
    assert same_json(value, parse_json(text))

"""The templates of a signature: which are refused, and that reading a header never raises."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.callbacks.templates import parse_format, parse_signed

FORMATS = [
    "{signature}",
    "sha256={signature}",
    "t={timestamp},v1={signature}",
    "v1,{signature}",
    "s:{signature}; t:{timestamp}",
]


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("{signature}", "abc", {"signature": ["abc"]}),
        ("{signature}", "abc, def", {"signature": ["abc", "def"]}),
        ("sha256={signature}", "sha256=abc", {"signature": ["abc"]}),
        ("sha256={signature}", "sha1=abc", {"signature": []}),
        ("sha256={signature}", "sha256=", {"signature": []}),
        ("t={timestamp},v1={signature}", "t=5,v1=a,v1=b,v0=c", {"timestamp": ["5"], "signature": ["a", "b"]}),
        ("t={timestamp},v1={signature}", "v1=a ,  t=5", {"timestamp": ["5"], "signature": ["a"]}),
        ("t={timestamp},v1={signature}", "", {"timestamp": [], "signature": []}),
        ("v1,{signature}", "v1,a+/= v2,b v1,c", {"signature": ["a+/=", "c"]}),
        ("t,{timestamp} v,{signature}", "v,x t,7", {"timestamp": ["7"], "signature": ["x"]}),
    ],
)
def test_fields_are_found_in_any_order_among_others(text: str, value: str, expected: dict[str, list[str]]) -> None:
    assert parse_format(text).read(value) == expected


@pytest.mark.parametrize(
    "text",
    [
        "v1=",
        "{timestamp}",
        "{signature}{signature}",
        "v1={signature},v2={signature}",
        "t={timestamp},u={timestamp},v1={signature}",
        "v1={Signature}",
        "{}",
        "v1={signature}=",
        "v1={signature",
        "v1}={signature}",
        "t={timestamp}v1={signature}",
        "a b={signature}",
        " v1={signature}",
        "{timestamp},v1={signature}",
        "v1={timestamp},v1={signature}",
        "v={timestamp},v1={body}",
    ],
)
def test_a_format_that_says_too_little_or_too_much(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|brace"):
        parse_format(text)


@pytest.mark.parametrize(
    "text", ["", "{timestamp}", "{body}{body}", "{signature}{body}", "{header:}{body}", "{header:a b}{body}", "{body"]
)
def test_a_signed_text_without_the_body_or_with_something_unknown(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|may|brace"):
        parse_signed(text)


def test_the_signed_text_is_exact_to_the_byte() -> None:
    signed = parse_signed("v0:{timestamp}:{body}:{header:X-Id}é")
    values = {"timestamp": b"5", "body": b"\xff\x00{body}", "header:x-id": b"{timestamp}"}
    assert signed.fill(values) == b"v0:5:\xff\x00{body}:{timestamp}" + "é".encode()
    assert signed.headers == ["x-id"]


@given(text=st.text(max_size=80))
def test_any_template_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_format, parse_signed):
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize("text", FORMATS)
@given(value=st.text(max_size=200))
def test_reading_a_header_never_raises(text: str, value: str) -> None:
    for values in parse_format(text).read(value).values():
        assert all(found and found in value for found in values)

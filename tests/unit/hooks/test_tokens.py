"""Tokens of hooks: what a template gives, and made tokens that cannot be forged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from counterfoil.domain.hooks.tokens import (
    MAX_TOKEN,
    Template,
    Token,
    TokenRefused,
    given,
    has_made_form,
    hook_id,
    made,
    made_token,
    read_made,
    token_problem,
)
from counterfoil.domain.redaction import REDACTED, without_receipts
from counterfoil.domain.work.receipts import Receipts

RECEIPTS = Receipts([b"first", b"second"])
MADE = made_token(RECEIPTS, "flow", "step", 0)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plain", []),
        ("{a}", ["a"]),
        ("{a}:{b}{a}", ["a", "b", "a"]),
        ("{{a}}", []),
        ("{{{a}}}", ["a"]),
        ("{a b-c}", ["a b-c"]),
    ],
)
def test_a_template_names_inputs(text: str, names: list[str]) -> None:
    assert Template(text).names == names


@pytest.mark.parametrize("text", ["{", "}", "a}b", "{a", "{}", "{a{b}}", "{{a}", "a}}}"])
def test_braces_must_match(text: str) -> None:
    with pytest.raises(ValueError, match=r"each \{ needs"):
        Template(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ä/ö", "ä/ö"),
        (7, "7"),
        (1.0, "1"),
        (0.5, "0.5"),
        (1e21, "1e+21"),
        (True, "true"),
        (False, "false"),
        (2**60, None),
    ],
)
def test_a_value_is_written_as_canonical_json(value: Any, text: str | None) -> None:
    token = Template("x{a}").token({"a": value})
    assert token.text is not None
    assert text is None or token.text == f"x{text}"
    assert token == given(token.text)


@pytest.mark.parametrize("value", [None, [], {}, ["a"]])
def test_a_value_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(TokenRefused, match="a must be a string"):
        Template("{a}").token({"a": value})


@pytest.mark.parametrize("text", ["", "x" * (MAX_TOKEN + 1), "a\0b", ".", "..", MADE, f"see {MADE}!", "\ud800"])
def test_some_texts_can_be_no_token(text: str) -> None:
    assert token_problem(text) is not None
    with pytest.raises(TokenRefused):
        Template("{a}").token({"a": text})


@pytest.mark.parametrize("text", ["x", "x" * MAX_TOKEN, "😀" * MAX_TOKEN, "\n", "...", " ", "a/b?c#d%"])
def test_any_other_text_can(text: str) -> None:
    assert token_problem(text) is None


@drawn(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.text(max_size=40))
def test_different_texts_are_different_tokens(first: str, second: str) -> None:
    if first != second and token_problem(second) is None:
        assert given(first).token_id != given(second).token_id


def test_a_made_token_is_of_its_flow_step_and_item() -> None:
    places = [("flow", "step", 0), ("flow", "step", 1), ("flow", "steps", 0), ("flo", "wstep", 0), ("flow2", "step", 0)]
    tokens = [made_token(RECEIPTS, *place) for place in places]
    assert len(set(tokens)) == len(tokens)
    for place, token in zip(places, tokens, strict=True):
        assert has_made_form(token)
        assert read_made(RECEIPTS, token) == made(*place)
        assert made(*place).text is None


def test_secrets_can_be_rotated() -> None:
    older, newer = Receipts([b"second"]), Receipts([b"third", b"second"])
    token = made_token(older, "flow", "step", 0)
    assert read_made(newer, token) == made("flow", "step", 0)
    assert made_token(newer, "flow", "step", 0) != token
    assert read_made(Receipts([b"third"]), token) is None


@drawn(st.integers(0, len(MADE) - 1), st.sampled_from("0123456789abcdefABCDEF-_.~ "))
def test_a_token_with_another_character_is_forged(place: int, character: str) -> None:
    forged = MADE[:place] + character + MADE[place + 1 :]
    assert (read_made(RECEIPTS, forged) is None) == (forged != MADE)


def test_a_receipt_is_no_made_token_and_a_made_token_no_receipt() -> None:
    receipt = RECEIPTS.issue("flow", "step", MADE.partition(".")[0])
    assert read_made(RECEIPTS, receipt) is None
    assert RECEIPTS.work_id_of("flow", "step", MADE) is None


def test_a_made_token_is_blanked_like_a_receipt() -> None:
    address, _, signature = MADE.partition(".")
    assert without_receipts(f"http://engine/api/v1/hooks/{MADE}") == f"http://engine/api/v1/hooks/{address}.{REDACTED}"
    assert signature not in made("flow", "step", 0).token_id


def test_ids_of_hooks_tell_flow_step_item_and_run_apart() -> None:
    ids = {hook_id("a", "b", 1, 0), hook_id("a", "b", 11, 0), hook_id("a", "b", 1, 10), hook_id("a", "b.1", 1, 0)}
    assert len(ids) == 4


def test_a_token_names_itself() -> None:
    assert given("order:1") == Token(given("order:1").token_id, "order:1")
    assert "order" not in given("order:1").token_id

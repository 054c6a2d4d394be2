from __future__ import annotations

import time

import pytest

from counterfoil.domain.expressions.patterns import MAX_PATTERN, MAX_TEXT, compile_glob, compile_regex, is_glob


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("abc", "xabcx", True),
        ("^abc$", "xabcx", False),
        ("(?i)ABC", "xabcx", True),
        (r"^\d{3}-\d+$", "123-4", True),
        (r"^\d{3}-\d+$", "123-4\n", False),
        ("ü+", "üü", True),
        ("a|b", "c", False),
    ],
)
def test_a_regular_expression_is_searched_for(pattern: str, text: str, expected: bool) -> None:
    assert compile_regex(pattern)(text) is expected


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a", "a{2,1}", r"(a)\1", "(?=a)b", "(?<!a)b", "(a{1000}){1000}", "a" * (MAX_PATTERN + 1), "\ud800"],
)
def test_what_is_malformed_or_cannot_be_matched_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|at most"):
        compile_regex(pattern)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){20}x", "(x+x+)+y", "(a|a?)+b"])
def test_no_pattern_backtracks(pattern: str) -> None:
    found = compile_regex(pattern)
    started = time.perf_counter()
    assert not found("a" * 20_000 + "!")
    assert time.perf_counter() - started < 1


def test_a_text_that_is_too_long_or_no_unicode_has_no_answer() -> None:
    found = compile_regex("a")
    assert found("a" * MAX_TEXT)
    with pytest.raises(ValueError, match="more than"):
        found("a" * (MAX_TEXT + 1))
    with pytest.raises(ValueError, match="surrogate"):
        found("\ud800")


def test_compiled_expressions_are_kept_and_not_without_bound() -> None:
    assert compile_regex("kept") is compile_regex("kept")
    assert compile_regex.cache_info().maxsize == 1024


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("transfer", ["transfer"], ["Transfer", "transfer1", "xtransfer", ""]),
        ("transfer*", ["transfer", "transfer-1", "transfer\n"], ["Transfer", "xtransfer"]),
        ("*transfer", ["transfer", "a-transfer"], ["transfer-1"]),
        ("*", ["", "a", "a\nb"], []),
        ("**", ["", "a"], []),
        ("a*c", ["ac", "abc", "acc"], ["a", "c", "aca"]),
        ("a*b*c", ["abc", "a-b-c", "abbc"], ["acb", "ac"]),
        ("*b*", ["b", "abc"], ["ac"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc"]),
        ("?*", ["a", "ab"], [""]),
        ("a[bc]", ["a[bc]"], ["ab"]),
        ("a.b+(c)|$", ["a.b+(c)|$"], ["axb+(c)|$"]),
        ("aa*aa", ["aaaa", "aabaa"], ["aaa"]),
        (r"a\*", [r"a\ "], ["a*"]),
    ],
)
def test_globs(pattern: str, fits: list[str], does_not: list[str]) -> None:
    matches = compile_glob(pattern)
    assert [text for text in fits if not matches(text)] == []
    assert [text for text in does_not if matches(text)] == []


def test_no_glob_backtracks() -> None:
    started = time.perf_counter()
    assert not compile_glob("*a" * 100 + "b")("a" * 5_000)
    assert not compile_glob("*a?" * 80 + "b*c")("a" * 5_000)
    assert time.perf_counter() - started < 1


def test_which_patterns_are_globs() -> None:
    assert [text for text in ("a", "a*", "?", "[a]", "") if is_glob(text)] == ["a*", "?"]

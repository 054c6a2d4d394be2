from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from counterfoil.domain.expressions.predicates import MAX_DEPTH, MAX_TEXT, Predicate, PredicateFailed

TYPES = {
    "amount": "number",
    "title": "string",
    "flag": "boolean",
    "order": "object",
    "items": "array",
    "thing": "any",
    "order-id": "string",
}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        ("inputs.amount > 100", {"amount": 150}, True),
        ("inputs.amount > 100", {"amount": 150.5}, True),
        ("inputs.amount > 99.5", {"amount": 150}, True),
        ("inputs.amount > 99.5", {"amount": 150.5}, True),
        ("inputs.amount > 99.5", {"amount": 99}, False),
        ("inputs.amount > 100 && inputs.amount < 200.5", {"amount": 150}, True),
        ("inputs.amount == 150", {"amount": 150.0}, True),
        ("inputs.amount > -3", {"amount": -2}, True),
        ("inputs.amount in [1, 2]", {"amount": 2}, True),
        ("inputs.amount in [1.5, 2.5]", {"amount": 1.5}, True),
        ("inputs.amount == null", {"amount": None}, True),
        ("inputs.amount == 9007199254740993", {"amount": 9007199254740992}, False),
        ("inputs.amount > 9223372036854775807", {"amount": 2**63}, True),
        ("double(inputs.amount) * 2.0 > 3.5", {"amount": 2}, True),
        ("int(inputs.amount) % 2 == 0", {"amount": 4.0}, True),
        ('inputs.title == "a"', {"title": "a"}, True),
        ("inputs.title == null", {"title": None}, True),
        ('inputs.title.matches("^a+$")', {"title": "aaa"}, True),
        ('inputs.title == "ü😀"', {"title": "ü😀"}, True),
        ('"ü😀" != inputs.title', {"title": "ü😀"}, False),
        ("size(inputs.title) == 1", {"title": "😀"}, True),
        ('timestamp(inputs.title) < timestamp("2030-01-01T00:00:00Z")', {"title": "2026-11-17T08:00:00Z"}, True),
        ('inputs.items.all(i, i.matches("^[a-z]+$"))', {"items": ["a", "b"]}, True),
        ("inputs.flag", {"flag": True}, True),
        ("!inputs.flag", {"flag": True}, False),
        ("inputs.flag ? inputs.amount > 3 : false", {"flag": False}, False),
        ("has(inputs.title)", {}, False),
        ("has(inputs.title)", {"title": "a"}, True),
        ("has(inputs.amount) && inputs.amount > 3", {}, False),
        ('inputs["title"] == "a"', {"title": "a"}, True),
        ('inputs["order-id"] == "x"', {"order-id": "x"}, True),
        ('inputs.`order-id` == "x"', {"order-id": "x"}, True),
        ('inputs . title == "a"', {"title": "a"}, True),
        ('"amount" in inputs', {"amount": 1}, True),
        ("size(inputs) == 2", {"amount": 1, "title": "a"}, True),
        ("inputs.order == null || inputs.order.total > 3", {"order": {"total": 4}}, True),
        ("inputs.order == null || inputs.order.total > 3", {"order": None}, True),
        ("has(inputs.order.total)", {"order": {}}, False),
        ("inputs.items != null && size(inputs.items) > 0", {"items": [1]}, True),
        ("inputs.items[0] == 1", {"items": [1]}, True),
        ("inputs.items.exists(i, i > 3)", {"items": [1, 2.5, 4]}, True),
        ("inputs.items.all(i, i.ok)", {"items": [{"ok": True}, {"ok": False}]}, False),
        ("inputs.items.exists_one(i, i in ['a', 'b'])", {"items": ["a", "c"]}, True),
        ("inputs.items.filter(i, i.ok).size() == 1", {"items": [{"ok": True}, {"ok": False}]}, True),
        ("inputs.items.all(i, i.sku in inputs.order.known)", {"items": [{"sku": 1}], "order": {"known": [1]}}, True),
        ("inputs.thing", {"thing": True}, True),
        ("true", {}, True),
    ],
)
def test_holds(text: str, inputs: dict[str, Any], expected: bool) -> None:
    assert Predicate.compile(text, TYPES).holds(inputs) is expected
    assert Predicate.compile(text, {}).holds(inputs) is expected


def test_a_step_without_attributes_takes_any_field() -> None:
    predicate = Predicate.compile('inputs.whatever.it == "is"', {})
    assert predicate.holds({"whatever": {"it": "is"}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: Syntax error"),
        ("inputs.amount >", "line 1, column 16: Syntax error"),
        ("true\n&& )", "line 2, column 4: Syntax error"),
        ("foo == 1", "undeclared reference to 'foo'"),
        ("nope(inputs.title)", "undeclared reference to 'nope'"),
        ("inputs.nope == 1", "the step takes no nope"),
        ("has(inputs.nope)", "the step takes no nope"),
        ('inputs["nope"] == 1', "the step takes no nope"),
        ("inputs.items.all(i, i == inputs.nope)", "the step takes no nope"),
        ("inputs.title > 3", r"'_>_' applied to '\(string, int\)'"),
        ("inputs.title.x == 3", "'string' cannot be the operand of a select"),
        ('inputs.amount > "a"', r"'_>_' applied to '\(number, string\)'"),
        ('inputs.amount > 1 && inputs.amount < 2.5 && inputs.amount == "a"', r"\(number, string\)"),
        ("inputs.amount == inputs.title", r"\(number, string\)"),
        ("inputs.amount && true", r"'_&&_' applied to '\(number, bool\)'"),
        ('inputs.amount.startsWith("a")', "startsWith"),
        ("inputs.flag > 1", r"\(boolean, int\)"),
        ("inputs.order > 3", r"\(map\(string, dyn\), int\)"),
        ("inputs.items == 3", r"\(list\(dyn\), int\)"),
        ('1 + "a" == 2', r"\(int, string\)"),
        ("inputs.amount + 2.5 > 99", r"\(double, int\)"),
        ("3", "must evaluate to true or false, not int"),
        ("inputs", "must evaluate to true or false, not map"),
        ("inputs.title", "must evaluate to true or false, not string"),
        ("inputs.amount", "must evaluate to true or false, not int"),
        ("inputs.order", "must evaluate to true or false, not map"),
        ("inputs.items", "must evaluate to true or false, not list"),
        ("true\0", "NUL"),
        ('inputs.title == "\ud800"', "surrogates"),
        ("true" + " " * MAX_TEXT, "at most 4096 characters"),
        ("(" * 100 + "true" + ")" * 100, "nested too deeply"),
        ("[" * 1000 + "]" * 1000 + " == []", "nested too deeply"),
        ("inputs" + ".a" * 1000 + " == 1", "nested too deeply"),
        (" + ".join("1" * 1000) + " > 1", "nested too deeply"),
        ("inputs.items.map(i, i + 1) == [2]", r"map\(\) is not available"),
        ("inputs.items.map(i, i > 1, i.x) == [2]", r"map\(\) is not available"),
        ("inputs.title.matches(inputs.title)", "must be a literal"),
        ('matches("a", "a" + "b")', "must be a literal"),
        (r'inputs.title.matches("\\pL{0,90}")', "Unicode"),
        (r'inputs.title.matches(r"\P{Greek}")', "Unicode"),
        ('inputs.items.all(i, i.matches("a{0,900}"))', "one matches"),
        ('inputs.items.all(i, i.matches("' + "[^a]" * 20 + '"))', "one matches"),
        ('inputs.items.all(i, i.matches("a") || i.matches("b"))', "one matches"),
        ("[1].all(inputs, inputs > 0)", "rename"),
        ("[1].all(a, [[a, a]].all(b, b == b))", "only constants"),
        ('[1].all(a, {"a": a}.a == 1)', "only constants"),
        ("[1].all(a, [-a] == [1])", "only constants"),
        ("[1].all(a, [a + a].all(b, b > 0))", "only constants"),
    ],
)
def test_refuses_at_registration(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        Predicate.compile(text, TYPES)
    assert "\n" not in str(refused.value)
    assert "_0000" not in str(refused.value)


def test_the_longest_text_is_allowed() -> None:
    text = "true".ljust(MAX_TEXT)
    assert Predicate.compile(text, {}).text == text


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        ("inputs.amount > 100", {"amount": None}, "has the wrong type for: _>_"),
        ("inputs.amount > 100", {"amount": "secret"}, "has the wrong type for"),
        ("inputs.amount > 100", {}, "there is no value amount"),
        ("inputs.order[inputs.title] == 1", {"order": {}, "title": "secret"}, "no value with that key"),
        ("inputs.amount * 2 > 99", {"amount": 150.5}, "has the wrong type for"),
        ("inputs.amount > 100", {"amount": 2**70}, "more than 64 bits"),
        ("inputs.amount > 100", {"amount": -(2**63) - 1}, "more than 64 bits"),
        ("inputs.amount > 100", {"amount": 10**5000}, "more than 64 bits"),
        ("inputs.amount + 9223372036854775807 > 0", {"amount": 5}, "out of range"),
        ("int(inputs.amount) > 0", {"amount": 1e300}, "out of range"),
        ("inputs.amount / 0 == 1", {"amount": 5}, "divides by zero"),
        ("inputs.amount % 0 == 1", {"amount": 5}, "divides by zero"),
        ("inputs.items[3] == 1", {"items": [1]}, "index is out of range"),
        ('inputs.title == "admin"', {"title": "admin\0secret"}, "NUL"),
        ("inputs.order.a == 1", {"order": {"a\0secret": 1}}, "NUL"),
        ('inputs.title == "a"', {"title": "\ud800"}, "surrogate"),
        ("timestamp(inputs.title) == timestamp(0)", {"title": "secret"}, "not a timestamp"),
        ("duration(inputs.title) == duration('1s')", {"title": "secret"}, "not a duration"),
        ("timestamp(0).getFullYear(inputs.title) == 1", {"title": "../secret"}, "time zone"),
        ('inputs.title.matches("(")', {"title": "secret"}, "regular expression"),
        ("int(inputs.title) == 1", {"title": "secret"}, "cannot be converted"),
        ("inputs.thing", {"thing": 3}, "evaluated to a value of type int"),
        ("inputs.thing", {"thing": None}, "evaluated to a value of type null"),
        ("inputs.thing == 1", {"thing": (1,)}, "not JSON: tuple"),
        ("inputs.thing == 1", {"thing": object()}, "not JSON: object"),
        ("inputs.thing == 1", {"thing": {1: 1}}, "not a string"),
    ],
)
def test_fails_with_a_message_without_the_value(text: str, inputs: dict[str, Any], message: str) -> None:
    predicate = Predicate.compile(text, TYPES)
    with pytest.raises(PredicateFailed, match=message) as failed:
        predicate.holds(inputs)
    assert "secret" not in str(failed.value)


def test_inputs_that_are_not_read_do_not_matter() -> None:
    predicate = Predicate.compile("inputs.amount > 1", TYPES)
    assert predicate.holds({"amount": 2, "thing": nested(100_000), "title": "\0", "order": {"a": 2**70}})


def test_depth_is_limited_where_it_is_read() -> None:
    predicate = Predicate.compile("inputs.a == inputs.b", {})
    fits = MAX_DEPTH - 2
    assert predicate.holds({"a": nested(fits), "b": nested(fits)})
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested(fits + 1), nested(100_000), circle):
        with pytest.raises(PredicateFailed, match="nested too deeply"):
            predicate.holds({"a": value, "b": value})


BOMBS = [
    "inputs.x.all(a, inputs.x.all(b, inputs.x.all(c, inputs.x.all(d, a + b + c + d >= 0))))",
    "inputs.x.all(a, inputs.x == inputs.x)",
    "inputs.x.all(a, " + " && ".join(["inputs.x == inputs.x"] * 100) + ")",
    "inputs.x.all(a, !(-1 in inputs.x))",
    "inputs.x.all(a, size(inputs.x + inputs.x) > 0)",
    "inputs.x.all(a, size(inputs.s + inputs.s + inputs.s) > 0)",
    "inputs.x.filter(a, a >= 0).size() > 0",
    "inputs.x.filter(a, a >= 0).filter(a, inputs.x.filter(b, b == a).size() > 0).size() > 0",
    "inputs.x.all(a, " * 20 + "true" + ")" * 20,
    "[inputs.x].all(a, inputs.x.all(b, a == a))",
    "inputs.x.exists(i, i < 0)",
    'inputs.s.matches("^(a+)+$")',
    "inputs.x.all(a, inputs.s.matches('(a*)*b'))",
    " && ".join(["inputs.x == inputs.x"] * 150),
]


@pytest.mark.parametrize("size", [100, 1_000, 9_000, 1_000_000])
@pytest.mark.parametrize("text", BOMBS)
def test_whatever_is_asked_of_whatever_list_ends(text: str, size: int) -> None:
    predicate = Predicate.compile(text, {"x": "array", "s": "string"})
    with suppress(PredicateFailed):
        predicate.holds({"x": list(range(size)), "s": "a" * size + "!"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs.x.exists(i, i < 0)", "more than 10000 elements"),
        ("inputs.x.all(a, inputs.x == inputs.x)", "too large"),
        ("inputs.x.filter(a, a > 0).size() > 0", "too large"),
    ],
)
def test_too_much_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(PredicateFailed, match=message):
        Predicate.compile(text, {}).holds({"x": list(range(100_000))})


def test_large_lists_are_fine_where_each_element_is_looked_at_once() -> None:
    items = [{"sku": f"sku-{number}", "price": number, "ok": True} for number in range(9_000)]
    assert Predicate.compile("inputs.items.all(i, i.ok && i.price >= 0)", TYPES).holds({"items": items})
    some = {"items": items[:1_000]}
    assert Predicate.compile("inputs.items.filter(i, i.ok).size() == 1000", TYPES).holds(some)
    assert Predicate.compile("5 in inputs.items", TYPES).holds({"items": list(range(1_000_000))})


def test_many_uses_of_numbers_are_checked_in_time() -> None:
    mixed = " || ".join(["inputs.amount > 1", "inputs.amount > 1.5"] * 90)
    assert Predicate.compile(mixed, TYPES).holds({"amount": 2})


def test_one_predicate_may_be_asked_from_several_threads() -> None:
    predicate = Predicate.compile("inputs.items.exists(i, i == inputs.amount)", TYPES)

    def ask(number: int) -> bool:
        return predicate.holds({"items": [1, 2, 3], "amount": number % 5})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(4_000)))
    assert answers == [number % 5 in (1, 2, 3) for number in range(4_000)]


def test_the_library_is_loaded_at_the_first_compile_only() -> None:
    program = (
        "import sys, counterfoil.domain.expressions.predicates as p\n"
        "assert not any(name.startswith('cel_expr') for name in sys.modules)\n"
        "p.Predicate.compile('true', {})\n"
        "assert 'cel_expr_python' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)

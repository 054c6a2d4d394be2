"""Idempotency keys of random arguments: the form of the JSON text does not count, and every value that is kept does.

The arguments are read from JSON text as the engine reads a request, in every form that the text can have.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import unicodedata
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from counterfoil.domain.canonical import same_json
from counterfoil.domain.effects.keys import dedup_id, idempotency_key
from counterfoil.domain.jsontext import accept_json
from counterfoil.domain.steps.definitions import StepDefinition
from tests.store.records import definition

pytestmark = pytest.mark.timeout(300)

MANY = settings(max_examples=300)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
    max_leaves=8,
)
NAMES = ("amount", "order", "reason", "trace", "ein Wort", "\u00e9")
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)
RULES = st.sampled_from([{}, {"strip": ["reason", "trace"]}, {"keep": ["amount", "order"]}, {"keep": []}])
SCOPES = st.sampled_from(["flow", "global"])


def step(rule: dict[str, Any] | None = None, scope: str = "flow", **fields: Any) -> StepDefinition:
    return definition(effect={"policy": "dedupe", "key": rule or {}, "scope": scope}, **fields)


def key(arguments: Any, rule: dict[str, Any] | None = None, scope: str = "flow") -> str:
    return idempotency_key("flow", 0, "charge", step(rule, scope), arguments)


def counts(name: str, rule: dict[str, Any]) -> bool:
    """Whether an argument is part of the key."""
    return name in rule["keep"] if "keep" in rule else name not in rule.get("strip", ())


# ------------------------------------------------------------------------------------------ one value, many texts


def number_text(value: float, draw: random.Random) -> str:
    """A JSON number of exactly this value, in one of its forms."""
    forms = [repr(value), f"{value!r}".replace("e", "E")]
    if abs(value) < 1e21 and value == int(value):
        digits = str(int(value))
        forms += [digits, f"{digits}.0", f"{digits}.000", f"{digits}e0", f"{digits}E+00"]
        forms += [f"{digits}0e-1"] if int(value) else ["-0", "0e7"]
    forms = [form for form in forms if float(form) == value]
    return draw.choice(forms)


def string_text(value: str, draw: random.Random) -> str:
    """A JSON string of exactly this value: each character as it is, or escaped."""
    return '"' + "".join(_character(character, draw) for character in value) + '"'


def _character(character: str, draw: random.Random) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "/": "\\/"}
    units = character.encode("utf-16-be").hex()
    escaped = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    forms = [escaped, escaped.upper().replace("\\U", "\\u")]
    if character in short:
        forms.append(short[character])
    if character >= " " and character not in '"\\':
        forms.append(character)
    return draw.choice(forms)


def text_of(value: Any, draw: random.Random) -> str:
    """One of the JSON texts of a value: any order of names, form of numbers, escapes and spaces."""
    space = draw.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        names = list(value)
        draw.shuffle(names)
        members = [f"{string_text(name, draw)}{space}:{space}{text_of(value[name], draw)}" for name in names]
        return "{" + space + f"{space},".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + space + ",".join(text_of(item, draw) for item in value) + space + "]"
    if isinstance(value, str):
        return string_text(value, draw)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_text(value, draw)
    return json.dumps(value)


@MANY
@given(arguments=ARGUMENTS, rule=RULES, scope=SCOPES, draws=st.tuples(st.integers(0, 999), st.integers(0, 999)))
def test_the_form_of_the_text_does_not_change_the_key(
    arguments: dict[str, Any], rule: dict[str, Any], scope: str, draws: tuple[int, int]
) -> None:
    texts = [text_of(arguments, random.Random(draw)) for draw in draws]
    read = [accept_json(text.encode()) for text in texts]
    assert key(read[0], rule, scope) == key(read[1], rule, scope) == key(arguments, rule, scope)


@pytest.mark.parametrize("forms", [["1", "1.0", "1e0", "10E-1", "0.1e1"], ["-0", "0", "0.0"], ["1e21", "1.0E+21"]])
def test_number_forms(forms: list[str]) -> None:
    assert len({key(accept_json(f'{{"amount": {form}}}')) for form in forms}) == 1


@MANY
@given(text=TEXTS, around=TEXTS)
def test_composed_and_decomposed_characters_are_different_keys(text: str, around: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, f"{text}\u00e9{around}") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert key({"amount": composed}) != key({"amount": decomposed})
    assert key({composed: 1}) != key({decomposed: 1})


# ---------------------------------------------------------------------------------------------- which values count


@MANY
@given(arguments=ARGUMENTS, name=st.sampled_from(NAMES), value=VALUES, rule=RULES, scope=SCOPES)
def test_a_kept_argument_always_counts_and_a_stripped_one_never(
    arguments: dict[str, Any], name: str, value: Any, rule: dict[str, Any], scope: str
) -> None:
    changed = {**arguments, name: value}
    removed = {each: arguments[each] for each in arguments if each != name}
    before = copy.deepcopy(arguments)
    for other in (changed, removed):
        differs = counts(name, rule) and not same_json(arguments, other)
        assert (key(arguments, rule, scope) != key(other, rule, scope)) is differs
    assert arguments == before


@MANY
@given(number=st.integers(2**53, 2**70), sign=st.sampled_from([1, -1]), name=st.sampled_from(["amount", "order"]))
def test_every_digit_of_a_large_integer_counts(number: int, sign: int, name: str) -> None:
    """Ids of 64 bits come as JSON numbers: two of them are never one business action."""
    keys = {key({name: sign * (number + more)}, {"keep": [name]}, "global") for more in range(3)}
    assert len(keys) == 3


@MANY
@given(arguments=ARGUMENTS, rule=RULES, flows=st.lists(TEXTS, min_size=2, max_size=2, unique=True))
def test_scopes(arguments: dict[str, Any], rule: dict[str, Any], flows: list[str]) -> None:
    places = [(flows[0], 0), (flows[0], 1), (flows[1], 0), (flows[1], 1)]
    for scope, different in (("flow", 4), ("global", 1)):
        keys = {idempotency_key(flow, item, "charge", step(rule, scope), arguments) for flow, item in places}
        assert len(keys) == different


@MANY
@given(arguments=ARGUMENTS, others=ARGUMENTS)
def test_two_steps_never_share_a_key(arguments: dict[str, Any], others: dict[str, Any]) -> None:
    keys = [idempotency_key("f", 0, "charge", step(None, "global"), arguments)]
    keys.append(idempotency_key("f", 0, "refund", step(None, "global"), others))
    assert keys[0] != keys[1]


# ------------------------------------------------------------------------------------------------------ given keys

GIVEN = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30)
STEP_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,8}", fullmatch=True)


@MANY
@given(given_key=GIVEN, item=st.integers(0, 10_000), arguments=ARGUMENTS, flow_id=TEXTS, scope=SCOPES)
def test_a_given_key_is_sent_as_it_is_and_numbered_in_a_fan_out(
    given_key: str, item: int, arguments: dict[str, Any], flow_id: str, scope: str
) -> None:
    fan_out = {"attributes": {"order": {"role": "required", "type": "array", "for_each": True}}}
    one = idempotency_key(flow_id, item, "charge", step(None, scope), arguments, given=given_key)
    each = idempotency_key(flow_id, item, "charge", step(None, scope, **fan_out), arguments, given=given_key)
    assert (one, each) == (given_key, f"{given_key}:{item}")


@MANY
@given(steps=st.tuples(STEP_IDS, STEP_IDS), keys=st.tuples(GIVEN, GIVEN))
def test_a_record_belongs_to_one_step_and_one_key(steps: tuple[str, str], keys: tuple[str, str]) -> None:
    assume(len(set(zip(steps, keys, strict=True))) == 2)
    assert dedup_id(steps[0], keys[0]) != dedup_id(steps[1], keys[1])
    assert dedup_id(steps[0], keys[0]) == dedup_id(steps[0], keys[0])


# ------------------------------------------------------------------------------------------------ another process

ELSEWHERE = """
import sys, orjson
from counterfoil.domain.effects.keys import dedup_id, idempotency_key
from counterfoil.domain.jsontext import accept_json
from counterfoil.domain.steps.definitions import StepDefinition
for line in sys.stdin.buffer:
    case = accept_json(line)
    step = StepDefinition.model_validate(case["definition"])
    key = idempotency_key(case["flow_id"], case["item"], "charge", step, case["arguments"])
    print(key, dedup_id("charge", key))
"""


@settings(max_examples=1)
@given(cases=st.lists(st.tuples(ARGUMENTS, RULES, SCOPES, st.integers(0, 99)), min_size=60, max_size=60))
def test_every_process_makes_the_same_key(
    cases: list[tuple[dict[str, Any], dict[str, Any], str, int]],
) -> None:
    lines, expected = [], []
    for arguments, rule, scope, item in cases:
        document = step(rule, scope)
        made = idempotency_key("flow-1", item, "charge", document, arguments)
        expected.append(f"{made} {dedup_id('charge', made)}")
        backwards = dict(reversed(arguments.items()))
        described = document.model_dump(mode="json", by_alias=True, exclude_unset=True)
        case = {"definition": described, "flow_id": "flow-1", "item": item, "arguments": backwards}
        lines.append(orjson.dumps(case))
    for seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"}
        told = subprocess.run(
            [sys.executable, "-c", ELSEWHERE], input=b"\n".join(lines), env=environment, capture_output=True, check=True
        )
        assert told.stdout.decode().splitlines() == expected

"""The fuzzer's bodies have a bounded size, whatever is drawn: a long text in a list of lists once took all memory."""

from __future__ import annotations

import random
from typing import Any

from tests.acceptance.fuzzing.grammar import MOST_REPEATED, repeated
from tests.acceptance.fuzzing.jsontexts import BODY_LIMIT, render

LONG = "y" * 2 * BODY_LIMIT


def test_a_list_that_is_repeated_stays_short() -> None:
    short: Any = {"a": 1}
    long: Any = LONG
    for times in (300, 300, 300):
        short, long = repeated(short, times), repeated(long, times)
        assert len(render(short)) <= 2 * MOST_REPEATED
        assert len(render(long)) <= 2 * MOST_REPEATED
    assert len(repeated(1, 65)) == 65


def test_a_change_of_one_element_is_not_one_of_all() -> None:
    made = repeated(repeated({"a": 1}, 300), 300)
    random.Random(0).choice(made)[0]["a"] = LONG
    assert len(render(made)) <= 2 * MOST_REPEATED + len(LONG)

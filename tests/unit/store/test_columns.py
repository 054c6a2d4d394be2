"""JSON in columns: whichever way it is written, it is read back as it was."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.jsontext import parse_json
from counterfoil.store.kinds.rows import text, value, written


@pytest.mark.parametrize(
    "kept",
    [{"a": [1, 2.5, None, True, "é\U0001f600"]}, 2**63, -(2**63), 2**64, 10**30, {"deep": {"n": [10**30]}}, 1e300, ""],
    ids=repr,
)
def test_what_a_column_holds_is_read_back_exactly(kept: Any) -> None:
    again = value(text(kept))
    assert again == kept
    assert repr(again) == repr(kept)


def test_what_a_request_may_just_be_deep_enough_for_can_be_written() -> None:
    deep: list[Any] = []
    for _ in range(199):
        deep = [deep]
    assert parse_json(written(deep)) == deep
    assert written([[[deep]]]) == "[" * 203 + "]" * 203


def test_nothing_is_null() -> None:
    assert text(None) is None
    assert value(None) is None

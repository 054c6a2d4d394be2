"""Idempotency keys: the same for the same work, another for other work, and nothing else counts."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.effects.keys import idempotency_key
from tests.store.records import definition

ARGUMENTS = {"amount": 5, "reason": "late", "to": {"name": "Ada"}}


def key(arguments: dict[str, Any] | None = None, flow_id: str = "flow", item: int = 0, **rule: Any) -> str:
    step = definition(effect={"key": rule}) if rule else definition()
    return idempotency_key(flow_id, item, "step", step, ARGUMENTS if arguments is None else arguments)


def test_it_is_a_digest_and_stays_what_it_is() -> None:
    assert key() == key()
    assert len(key()) == 64
    assert set(key()) <= set("0123456789abcdef")


def test_the_order_and_the_form_of_the_arguments_do_not_count() -> None:
    assert key({"to": {"name": "Ada"}, "reason": "late", "amount": 5.0}) == key()


@pytest.mark.parametrize("other", [{"amount": 6}, {**ARGUMENTS, "more": None}, {}])
def test_other_arguments_give_another_key(other: dict[str, Any]) -> None:
    assert key(other) != key()


def test_flow_item_and_step_count() -> None:
    keys = {
        key(),
        key(flow_id="flow-2"),
        key(item=1),
        idempotency_key("flow", 0, "step-2", definition(), ARGUMENTS),
    }
    assert len(keys) == 4


def test_flow_and_item_cannot_be_confused() -> None:
    assert idempotency_key("flow1", 0, "s", definition(), {}) != idempotency_key("flow", 10, "s", definition(), {})


def test_what_is_stripped_does_not_count() -> None:
    assert key(strip=["reason"]) == key({**ARGUMENTS, "reason": "another"}, strip=["reason"])
    assert key(strip=["reason"]) != key({**ARGUMENTS, "amount": 6}, strip=["reason"])


def test_only_what_is_kept_counts() -> None:
    assert key(keep=["amount"]) == key({"amount": 5, "reason": "another"}, keep=["amount"])
    assert key(keep=["amount"]) != key({"amount": 6}, keep=["amount"])
    assert key(keep=[]) == key({}, keep=[])


def test_what_is_kept_may_be_absent() -> None:
    assert key({"reason": "late"}, keep=["amount"]) == key({}, keep=["amount"])


def test_stripping_nothing_is_the_same_as_no_rule() -> None:
    assert key(strip=[]) == key()


def test_what_was_undone_is_done_under_another_key() -> None:
    keys = [idempotency_key("flow", 0, "step", definition(), ARGUMENTS, undone=times) for times in range(3)]
    assert len(set(keys)) == 3
    assert keys[0] == key()

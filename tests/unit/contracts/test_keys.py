"""Which arguments are one action: kept fields count, stripped ones do not, and the form of a value never does."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, SecretStr

from counterfoil.contracts import NotInKey
from counterfoil.contracts.keys import arguments_digest, counted_arguments, derived_key, holds_a_key
from counterfoil.domain.effects.key_digests import key_digest
from counterfoil.domain.effects.keys import idempotency_key
from tests.acceptance.processes import environment
from tests.store.records import definition


class Line(BaseModel):
    sku: str
    note: Annotated[str, NotInKey()] = ""


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")

    order_id: str = "o"
    amount: Decimal = Decimal(1)
    number: int | float = 1
    at: datetime | None = None
    tags: set[str] = set()
    lines: list[Line] = []
    values: dict[str, Any] = {}
    card: SecretStr = SecretStr("4111")
    reason: Annotated[str, NotInKey()] = ""


def key(**fields: Any) -> str:
    return derived_key("c", "s", "t", counted_arguments(Order(**fields), None, None))


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "written anew"},
        {"order_id": "o"},
        {"amount": "1.00"},
        {"amount": Decimal("1e0")},
        {"number": 1.0},
    ],
    ids=str,
)
def test_what_does_not_change_the_action_does_not_change_the_key(fields: dict[str, Any]) -> None:
    assert key(**fields) == key()


@pytest.mark.parametrize(
    "fields",
    [
        {"order_id": "p"},
        {"amount": "1.01"},
        {"amount": "100"},
        {"number": 2**63},
        {"number": 2**63 + 1},
        {"number": 10**400},
        {"tags": {"a"}},
        {"lines": [{"sku": "x"}]},
        {"values": {"é": 1}},
        {"values": {"e\u0301": 1}},
        {"card": "4112"},
        {"at": "2026-11-18T12:00:00Z"},
        {"extra": 1},
    ],
    ids=str,
)
def test_what_changes_the_action_changes_the_key(fields: dict[str, Any]) -> None:
    assert key(**fields) != key()


def test_integers_beyond_a_double_stay_apart() -> None:
    assert key(number=2**63) != key(number=2**63 + 1)
    assert arguments_digest({"n": 2**63}) != arguments_digest({"n": 2**63 + 1})


def test_nested_marks_and_times_and_orders() -> None:
    assert key(lines=[{"sku": "x", "note": "a"}]) == key(lines=[{"sku": "x", "note": "b"}])
    noon = datetime(2026, 11, 18, 12, tzinfo=UTC)
    assert key(at=noon) == key(at=noon.astimezone(timezone(timedelta(hours=5))))
    assert key(values={"a": 1, "b": 2}) == key(values={"b": 2.0, "a": 1})
    assert key(values={"id": UUID(int=1)}) == key(values={"id": str(UUID(int=1))})


def test_keep_and_strip_by_name() -> None:
    order = Order(order_id="o", number=5)
    assert counted_arguments(order, ["order_id"], None) == {"order_id": "o"}
    assert "number" not in counted_arguments(order, None, ["number"])


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_sets_are_in_one_order(tags: list[str]) -> None:
    assert key(tags=tags) == key(tags=["a", "b", "c", "d", "e"])


def test_a_key_is_the_same_in_another_process() -> None:
    """Strings of sets are hashed differently in each process."""
    program = (
        "from tests.unit.contracts.test_keys import key; "
        "print(key(tags=['a', 'b', 'c', 'd'], values={'z': {'q', 'r', 's'}}))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**environment(), "PYTHONPATH": "src:.", "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.none()),
    )
)
def test_the_canonical_form_is_that_of_the_engine(arguments: dict[str, Any]) -> None:
    """The engine's key of a work item and the key of a contract differ in their retry boundary only."""
    theirs = idempotency_key("f", 0, "s", definition(), arguments)
    assert theirs == key_digest([["f", 0], "s"], arguments)
    assert derived_key("c", "s", "t", arguments) == key_digest(["c", "s", "t"], arguments)


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ({"idempotency_key": "x"}, True),
        ({"Idempotency-Key": "x"}, True),
        ({"idempotencyKey": "x"}, True),
        ({"a": [{"IDEMPOTENCY KEY": 1}]}, True),
        ({"key": "x", "primary_key": 1, "idempotency": True}, False),
        ([], False),
    ],
)
def test_keys_in_arguments_are_found(value: Any, held: bool) -> None:
    assert holds_a_key(value) is held

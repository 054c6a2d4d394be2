"""Columns: JSON is read back as it was written, and rows have the columns that the SQL of both stores names."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import pytest

from counterfoil.domain.jsontext import parse_json
from counterfoil.store.kinds.approvals import APPROVAL_COLUMNS
from counterfoil.store.kinds.columns import Columns, text, value, written
from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.effects import LISTED_RESERVATION, RECONCILIATION_COLUMNS, RESERVATION_COLUMNS
from counterfoil.store.kinds.gate import GATE_COLUMNS
from counterfoil.store.kinds.hooks import HOOK_COLUMNS
from counterfoil.store.kinds.policies import POLICY_COLUMNS
from counterfoil.store.kinds.schedules import SCHEDULE_COLUMNS
from counterfoil.store.kinds.steps import COLUMNS_WITH_OUTPUTS
from counterfoil.store.kinds.subscriptions import DELIVERY_COLUMNS, SUBSCRIPTION_COLUMNS
from counterfoil.store.kinds.work import CALLBACK_COLUMNS, WORK_COLUMNS
from counterfoil.store.queries import load_queries
from tests.store.backends import QUERY_PACKAGES
from tests.store.records import work_item


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


# ------------------------------------------------------------------------------------------------ rows and the SQL

BACKENDS = sorted(QUERY_PACKAGES)
LOADS = {load.query: load.columns for load in KINDS.loads.values() if load.query is not None and load.columns}
WRITES = {query: writer.names for kind in KINDS for query, writer in kind.writers.items()}
READS: dict[str, tuple[str, ...]] = {
    "accepted_callbacks": CALLBACK_COLUMNS.names,
    "doctor_approvals": APPROVAL_COLUMNS.names,
    "doctor_effects": RESERVATION_COLUMNS.names,
    "doctor_gates": GATE_COLUMNS.names,
    "doctor_hooks": HOOK_COLUMNS.names,
    "doctor_reconciliations": RECONCILIATION_COLUMNS.names,
    "doctor_steps": COLUMNS_WITH_OUTPUTS,
    "get_approval": ("ordinal", *APPROVAL_COLUMNS.names),
    "get_callback": CALLBACK_COLUMNS.names,
    "get_effect": RESERVATION_COLUMNS.names,
    "get_gates": (
        *GATE_COLUMNS.names,
        *("status", "deadline_at", "attempt", "error"),
        *("status", "expires_at", "reviews"),
        *("result", "ordinal"),
    ),
    "get_policy": POLICY_COLUMNS.names,
    "get_schedule": SCHEDULE_COLUMNS.names,
    "get_subscription": SUBSCRIPTION_COLUMNS.names,
    "list_approvals": ("ordinal", *APPROVAL_COLUMNS.names),
    "list_callbacks": ("ordinal", *CALLBACK_COLUMNS.names),
    "list_deliveries": ("ordinal", *DELIVERY_COLUMNS.names),
    "list_effects": LISTED_RESERVATION,
    "list_failed_effects": LISTED_RESERVATION,
    "list_pending_effects": LISTED_RESERVATION,
    "list_policies": POLICY_COLUMNS.names,
    "list_schedules": SCHEDULE_COLUMNS.names,
    "list_subscriptions": SUBSCRIPTION_COLUMNS.names,
}
"""Queries outside of batches whose rows are read as records."""
OF_SHARED_STORES = ("revision",)
"""The column that only a store of several nodes has; it comes last."""
RENAMED = {"insert_policy_versions": {"at": "updated_at"}}
"""Columns that are not called what the field is."""


def selected(sql: str) -> tuple[str, ...]:
    """The columns that a query gives, without the names of their tables."""
    found = re.search(r"json_array\(([^()]*)\)\)|^SELECT([^()]*?)\bFROM\b", sql, re.DOTALL)
    assert found is not None, sql
    return names(found[1] or found[2])


def inserted(sql: str) -> tuple[str, ...]:
    """The columns of the rows that a statement takes."""
    found = re.search(r"INSERT INTO \w+ \(([^()]*)\)|\bchange \(([^()]*)\)", sql)
    assert found is not None, sql
    return names(found[1] or found[2])


def names(listed: str) -> tuple[str, ...]:
    return tuple(column.strip().rpartition(".")[2] for column in listed.split(","))


def without_revision(columns: tuple[str, ...], backend: str) -> tuple[str, ...]:
    return columns[:-1] if backend == "postgresql" and columns[-1:] == OF_SHARED_STORES else columns


def queries(backend: str) -> dict[str, str]:
    return load_queries(QUERY_PACKAGES[backend])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("query", sorted(LOADS))
def test_a_load_gives_the_columns_that_are_read(backend: str, query: str) -> None:
    assert without_revision(selected(queries(backend)[query]), backend) == LOADS[query]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("query", sorted(READS))
def test_a_read_gives_the_columns_that_are_read(backend: str, query: str) -> None:
    assert selected(queries(backend)[query]) == READS[query]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("query", sorted(WRITES))
def test_a_write_takes_the_columns_that_are_written(backend: str, query: str) -> None:
    sql = queries(backend)[query]
    columns = tuple(RENAMED.get(query, {}).get(name, name) for name in inserted(sql))
    assert without_revision(columns, backend) == WRITES[query]
    if backend == "postgresql":
        assert len(set(re.findall(r"\$\d+::", sql))) == len(columns)


def test_all_kinds_of_statements_are_looked_at() -> None:
    assert {"load_work", "load_flows", "load_steps", "load_gates", "load_deliveries"} <= LOADS.keys()
    assert {"insert_work", "update_work", "end_work", "move_flows", "complete_steps", "put_gates"} <= WRITES.keys()


# ------------------------------------------------------------------------------------------------ records and rows


class Colour(StrEnum):
    RED = "red"


@dataclass
class Example:
    example_id: str
    colour: Colour
    is_new: bool
    words: list[str] | None = None
    more: dict[str, Any] | None = None
    share: float | None = None


def test_the_type_of_a_field_says_how_it_is_stored() -> None:
    columns = Columns(Example)
    row = columns.writer().row(Example("a", Colour.RED, is_new=True, words=["x"], share=0.5))
    assert row == ("a", "red", True, '["x"]', None, 0.5)
    assert type(row[1]) is str, "a subclass takes SQLite's adapter longer"
    assert columns.read(["a", "red", 1, '["x"]', None, 0.5]) == Example("a", Colour.RED, True, ["x"], None, 0.5)


def test_some_columns_can_be_written_and_read_for_themselves() -> None:
    columns = Columns(Example)
    writer = columns.writer("more", "example_id")
    assert (writer.names, writer.row(Example("a", Colour.RED, False, more={"n": 1}))) == (
        ("more", "example_id"),
        ('{"n":1}', "a"),
    )
    assert columns.without("words", "colour") == ("example_id", "is_new", "more", "share")
    assert columns.reader(("is_new", "colour", "example_id"))([0, "red", "a"]) == Example("a", Colour.RED, False)
    with pytest.raises(ValueError, match="unpack"):
        columns.read(["a", "red"])


def test_a_record_has_a_column_for_each_field() -> None:
    work = work_item(progress=0.25, result={"a": 1}, arguments={}, message="said")
    assert WORK_COLUMNS.names == tuple(field.name for field in fields(work))
    assert WORK_COLUMNS.read(WORK_COLUMNS.writer().row(work)) == work

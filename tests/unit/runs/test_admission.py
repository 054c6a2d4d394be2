"""The decision table of run keys, and when a flow owns its key."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.records import KeyedFlow
from counterfoil.domain.runs.admission import RunVerdict, judge
from counterfoil.domain.runs.ownership import holds_key, start_digest
from counterfoil.domain.runs.requests import OnConflict
from counterfoil.domain.states import FlowStatus
from tests.store.records import NOW, flow_record

ADMIT, SUPERSEDE, REUSE = RunVerdict.ADMIT, RunVerdict.SUPERSEDE, RunVerdict.REUSE
SIGNAL, CONFLICT, MISMATCH = RunVerdict.SIGNAL, RunVerdict.CONFLICT, RunVerdict.MISMATCH
ENDED = (FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.CANCELLED)
TABLE: dict[tuple[OnConflict, str], tuple[RunVerdict, RunVerdict]] = {
    ("reject", "active"): (CONFLICT, MISMATCH),
    ("adopt", "active"): (REUSE, MISMATCH),
    ("signal", "active"): (SIGNAL, MISMATCH),
    ("supersede", "active"): (SUPERSEDE, SUPERSEDE),
    ("reject", "compensating"): (CONFLICT, MISMATCH),
    ("adopt", "compensating"): (REUSE, MISMATCH),
    ("signal", "compensating"): (SIGNAL, MISMATCH),
    ("supersede", "compensating"): (CONFLICT, CONFLICT),
    **{("reject", status): (REUSE, MISMATCH) for status in ENDED},
    **{("adopt", status): (REUSE, MISMATCH) for status in ENDED},
    **{("signal", status): (REUSE, MISMATCH) for status in ENDED},
    **{("supersede", status): (ADMIT, ADMIT) for status in ENDED},
}
"""By strategy and state of the owner: the verdict on the same start, and on another one with the same key."""


def test_the_table_is_complete() -> None:
    strategies: tuple[OnConflict, ...] = ("reject", "adopt", "signal", "supersede")
    assert TABLE.keys() == {(strategy, status) for strategy in strategies for status in FlowStatus}


@pytest.mark.parametrize(("on_conflict", "status"), TABLE)
def test_the_decision(on_conflict: OnConflict, status: str) -> None:
    same, other = TABLE[on_conflict, status]
    assert judge(on_conflict, FlowStatus(status), same_start=True) is same
    assert judge(on_conflict, FlowStatus(status), same_start=False) is other


def claim(retain_ms: int = 0, *, retain_failed: bool = False) -> KeyedFlow:
    return KeyedFlow("flow", "key", 1, "digest", retain_ms, retain_failed)


@pytest.mark.parametrize("status", [FlowStatus.ACTIVE, FlowStatus.COMPENSATING])
def test_an_open_flow_owns_its_key_however_long(status: FlowStatus) -> None:
    assert holds_key(claim(), flow_record(status=status), NOW + 10**12)


@pytest.mark.parametrize(
    ("status", "retain_ms", "retain_failed", "until"),
    [
        (FlowStatus.COMPLETED, 0, False, 0),
        (FlowStatus.COMPLETED, 5_000, False, 5_000),
        (FlowStatus.COMPLETED, 5_000, True, 5_000),
        (FlowStatus.FAILED, 5_000, False, 0),
        (FlowStatus.FAILED, 5_000, True, 5_000),
        (FlowStatus.CANCELLED, 5_000, False, 0),
        (FlowStatus.CANCELLED, 5_000, True, 5_000),
        (FlowStatus.FAILED, 0, True, 0),
    ],
)
def test_a_flow_that_has_ended_owns_its_key_for_a_time(
    status: FlowStatus, retain_ms: int, retain_failed: bool, until: int
) -> None:
    flow = flow_record(status=status, finished_at=NOW)
    own = claim(retain_ms, retain_failed=retain_failed)
    assert [holds_key(own, flow, NOW + passed) for passed in (until - 1, until)] == [until > 0, False]


def test_a_key_that_is_not_retained_is_free_on_a_node_whose_clock_is_behind() -> None:
    flow = flow_record(status=FlowStatus.COMPLETED, finished_at=NOW)
    assert not holds_key(claim(), flow, NOW - 1_000)


@pytest.mark.parametrize(
    ("goals", "init", "same"),
    [
        (["b", "a"], {"x": 1.0, "y": [None]}, True),
        (["a", "b", "a"], {"y": [None], "x": 1}, True),
        (["a"], {"x": 1, "y": [None]}, False),
        (["a", "b"], {"x": 1}, False),
        (["a", "b"], {"x": True, "y": [None]}, False),
        (["a", "b"], {"x": "1", "y": [None]}, False),
    ],
)
def test_which_starts_are_the_same(goals: list[str], init: dict[str, Any], same: bool) -> None:
    assert (start_digest(goals, init) == start_digest(["a", "b"], {"x": 1, "y": [None]})) is same


def test_the_terms_of_the_key_are_options_of_the_flow() -> None:
    """In the journal, too: it alone tells which flow has which key, and for how long."""
    start = StartFlow(goals=["a"], idempotency_key="k", retain_key_for="90s", retain_failed=True, on_conflict="adopt")
    assert start.options() == {"idempotency_key": "k", "retain_key_for": 90_000, "retain_failed": True}
    assert StartFlow(goals=["a"], idempotency_key="k").options() == {"idempotency_key": "k"}
    assert StartFlow(goals=["a"], retain_key_for="24h").options() == {}

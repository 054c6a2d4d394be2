"""Records and versions: drafts leave the original alone, the same definition has the same name."""

from __future__ import annotations

import copy

import pytest

from counterfoil.domain.records import Record, StepVersion, host_of, step_of, version_of
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.steps.definitions import WorkDefaults
from tests.store.records import definition, flow_record, step_run, step_version, work_item


@pytest.mark.parametrize("record", [work_item(progress=0.5), step_run(), flow_record(error={"a": 1})], ids=repr)
def test_a_draft_is_equal_and_apart(record: Record) -> None:
    before = copy.deepcopy(record)
    draft = record.draft()
    assert draft == record
    assert type(draft) is type(record)
    draft.status = None  # type: ignore[attr-defined]
    assert record == before


def test_a_draft_keeps_every_field() -> None:
    work = work_item(
        WorkStatus.NOT_COMPLETED,
        owner="node",
        acknowledged_at=5,
        message="m",
        hold="h",
        result={"success": False},
        error={"code": "X"},
        recorded_at=7,
        arguments={"a": 1},
        redrive_of="before",
        undoes="another",
    )
    draft = work.draft()
    assert {name: getattr(draft, name) for name in work.__slots__} == {
        name: getattr(work, name) for name in work.__slots__
    }


def test_a_version_is_named_by_its_content() -> None:
    one, same = definition(labels={"a": "1", "b": "2"}), definition(labels={"b": "2", "a": "1"})
    assert version_of("step", one) == version_of("step", same)
    assert version_of("step", one) != version_of("step", definition())
    assert version_of("step", one) != version_of("step-2", one)


def test_what_a_definition_inherits_is_no_part_of_its_name() -> None:
    assert version_of("step", definition()) != version_of("step", definition(work={"max_retries": 5}))


def test_a_version_resolves_what_it_inherits() -> None:
    version = StepVersion.of("step", definition(work={"max_retries": 9}), WorkDefaults(deadline_ms=77))
    assert (version.work.max_retries, version.work.deadline_ms) == (9, 77)


def test_a_stored_version_keeps_the_name_it_was_stored_under() -> None:
    assert StepVersion.of("step", definition(), WorkDefaults(), "kept").version == "kept"


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("http://worker:9000/a", "worker:9000"),
        ("http://worker:9000/b?c=d@e", "worker:9000"),
        ("HTTP://Worker/a", "worker"),
        ("http://user:p@ss@worker/a", "worker"),
        ("https://[::1]:80/", "[::1]:80"),
    ],
)
def test_a_lane_is_a_step_and_the_host_of_its_endpoint(endpoint: str, host: str) -> None:
    lane = step_version("the.step-1", endpoint=endpoint).lane
    assert (step_of(lane), host_of(lane)) == ("the.step-1", host)


def test_the_limits_of_a_step_are_part_of_its_lane() -> None:
    limits = [{}, {"parallelism": 1}, {"parallelism": 2}, {"rate_limit": {"count": 1, "per_ms": 1_000}}]
    lanes = [step_version("step", endpoint="http://host.test:80/x", work=work).lane for work in limits]
    assert len(set(lanes)) == len(limits)
    assert {(step_of(lane), host_of(lane)) for lane in lanes} == {("step", "host.test:80")}
    assert lanes[0] == "step@host.test:80", "as in earlier releases"

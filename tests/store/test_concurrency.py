"""Many at once: one outcome for a receipt, whoever was first; nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.results import Heartbeat, StepResult
from counterfoil.domain.states import WorkStatus
from counterfoil.engine.cancel import Cancel
from counterfoil.engine.capacity import BatchCapacity, Slots
from counterfoil.engine.claim import Claim
from counterfoil.engine.complete import Beat, Complete
from counterfoil.engine.expire import ExpireOverdue
from counterfoil.observability.metrics import Metrics
from counterfoil.store.batch import Command
from counterfoil.store.changes import Changes
from counterfoil.store.commit import GroupCommit
from counterfoil.store.protocol import Store
from counterfoil.store.world import World
from counterfoil.testing.simulator import StillClock
from tests.store.backends import write
from tests.store.records import NOW, RETRY, flow_inputs, flow_record, new_records, step_run, step_version, work_item

FINAL = ("work_succeeded", "work_failed", "work_cancelled")


@pytest.fixture(params=[1, 7, 512], ids=lambda limit: f"batches-of-{limit}")
async def commit(store: Store, clock: StillClock, request: pytest.FixtureRequest) -> AsyncIterator[GroupCommit]:
    version = step_version()
    await write(store, Changes(current={"step": version}, versions={version.version: version}, at=NOW))
    limit = int(request.param)
    writer = GroupCommit(store, clock, Metrics(), {}, backlog_limit=100_000, batch_limit=limit)
    writer.start()
    yield writer
    await writer.close()


async def add_item(store: Store, name: str, status: WorkStatus = WorkStatus.ACTIVE, **fields: Any) -> None:
    version = step_version().version
    flow, step = flow_record(flow_id=name), step_run(flow_id=name, version=version)
    work = work_item(status, work_id=name, flow_id=name, version=version, **fields)
    await write(store, new_records(flow, step, work, flow_inputs(name)))


async def outcome_of(commit: GroupCommit, command: Command[Any]) -> str:
    try:
        answer = await commit.submit(command)
    except CounterfoilError as refusal:
        return refusal.code
    return str(getattr(answer, "verdict", answer))


def success(work_id: str, number: int) -> Complete:
    return Complete(work_id, StepResult(success=True, outputs={"number": number}), RETRY)


async def test_of_many_results_one_wins(store: Store, commit: GroupCommit) -> None:
    await add_item(store, "work")
    answers = await asyncio.gather(*(outcome_of(commit, success("work", number)) for number in range(50)))
    assert Counter(answers) == {"accepted": 1, "CONFLICTING_RESULT": 49}
    [row] = await store.read("get_work", work_id="work")
    assert parse_json(row[12])["outputs"] == {"number": answers.index("accepted")}
    told = [row[1] for row in await store.read("journal_of_flow", flow_id="work", after=0, limit=100)]
    assert told == ["work_succeeded", "step_completed", "flow_completed"]


async def test_of_many_equal_results_one_is_recorded(store: Store, commit: GroupCommit) -> None:
    await add_item(store, "work")
    answers = await asyncio.gather(*(outcome_of(commit, success("work", 1)) for _ in range(50)))
    assert Counter(answers) == {"accepted": 1, "ALREADY_SUCCEEDED": 49}


async def test_each_of_many_receipts_has_its_own_outcome(store: Store, commit: GroupCommit) -> None:
    names = [f"work-{number}" for number in range(40)]
    for name in names:
        await add_item(store, name)
    answers = await asyncio.gather(
        *(outcome_of(commit, success(name, number)) for number in range(3) for name in names)
    )
    assert Counter(answers) == {"accepted": 40, "CONFLICTING_RESULT": 80}
    rows = await store.read("list_work", status="succeeded", step_id=None, after=None, limit=100)
    assert len(rows) == 40


async def test_of_many_claims_one_sends_the_attempt(store: Store, commit: GroupCommit) -> None:
    slots = Slots(100, 100)

    def prepare(world: World) -> None:
        world.capacity = BatchCapacity(slots)

    commit.prepare = prepare
    await add_item(store, "work", WorkStatus.PENDING)
    claims = [Claim("work", "work") for _ in range(20)]
    assert Counter(await asyncio.gather(*map(commit.submit, claims))) == {True: 1, False: 19}
    [row] = await store.read("get_work", work_id="work")
    assert (row[5], row[6]) == ("active", 1)


async def test_whatever_ends_an_item_it_ends_once(store: Store, commit: GroupCommit, clock: StillClock) -> None:
    """Results, deadline, cancellation and heartbeats for the same item in one moment."""
    names = [f"work-{number}" for number in range(30)]
    for name in names:
        await add_item(store, name, attempt=3)
    clock.advance(60_000)
    commands: list[Command[Any]] = []
    for number, name in enumerate(names):
        several: list[Command[Any]] = [
            success(name, 1),
            ExpireOverdue(name, RETRY),
            Cancel(name),
            Beat(name, Heartbeat(progress=0.5)),
            Complete(name, StepResult(success=False, error="broken"), RETRY),
        ]
        commands += several[number % 5 :] + several[: number % 5]
    answers = await asyncio.gather(*(outcome_of(commit, command) for command in commands))
    assert "INTERNAL" not in answers
    for name in names:
        told = [row[1] for row in await store.read("journal_of_flow", flow_id=name, after=0, limit=100)]
        assert sum(1 for kind in told if kind in FINAL) == 1, told
        assert sum(1 for kind in told if kind.startswith("flow_")) == 1, told


async def test_events_of_one_commit_are_seen_together(store: Store, commit: GroupCommit) -> None:
    """A reader sees all of a batch or nothing of it: never a step that ended in a flow that has not."""
    names = [f"work-{number}" for number in range(60)]
    for name in names:
        await add_item(store, name)
    writing = asyncio.gather(*(outcome_of(commit, success(name, 0)) for name in names))
    while not writing.done():
        events = await store.read("journal_after", after=0, limit=1000)
        kinds = Counter(row[1] for row in events)
        assert kinds["work_succeeded"] == kinds["step_completed"] == kinds["flow_completed"]
    await writing

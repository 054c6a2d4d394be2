"""The doctor: a database that the engine left is clean, and whatever is broken by hand is found and named."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.doctor.rules import Finding, FlowRecords, check_flow
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres import doctor as postgres_doctor
from counterfoil.store.sqlite import doctor as sqlite_doctor
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, break_it, by_hand
from tests.databases import NewDatabase
from tests.journal import Breakage, changed_event, lost_event, repeated_event
from tests.store.records import DEFAULTS, definition

FLOWS = ("completed", "failed", "cancelled", "active", "retrying", "pending")


@pytest.fixture
async def filled(place: Place) -> Place:
    """A database with a flow in each state, its engine gone; broken flows are named by their state."""
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        await fill(simulator)
        assert simulator.examine() == [], "also while it is in use"
    return place


async def fill(simulator: Simulator) -> None:
    engine = simulator.engine
    await engine.steps.put("a", definition(cancel_url="http://worker.test/cancel"))
    await engine.steps.put("b", definition(work={"parallelism": 1, "max_retries": 5}))
    for flow_id in FLOWS:
        goals = ["b"] if flow_id == "pending" else ["a"]
        await engine.flows.start(StartFlow(flow_id=flow_id, goals=goals))
    work_of = {call.metadata["flow_id"]: call.metadata["work_id"] for call in simulator.network.calls}
    simulator.network.always("http://worker.test/cancel", answered())
    for call in simulator.network.waiting():
        await simulator.network.answer(call, answered(503 if call.metadata["flow_id"] == "retrying" else 200))
    await engine.reports.heartbeat(work_of["active"], Heartbeat(progress=0.1 + 0.2, message="m"))
    await engine.reports.complete(work_of["completed"], StepResult(success=True, outputs={"x": 1}))
    await engine.reports.complete(work_of["failed"], StepResult(success=False, error="broken"))
    await engine.flows.cancel("cancelled")
    await simulator.sweep(SweepName.CANCEL_CALLS)


def examine(place: Place, defaults: WorkDefaults | None = None) -> list[Finding]:
    if isinstance(place, Path):
        return sqlite_doctor.examine(place, defaults)
    return postgres_doctor.examine(place, defaults)


def found(place: Place) -> set[tuple[str, str]]:
    """Which promises are broken, and of what."""
    flow_of: dict[str, str] = dict(by_hand(place, "SELECT work_id, flow_id FROM work"))
    return {
        (finding.invariant, flow_of.get(finding.subject, finding.subject.partition("/")[0]))
        for finding in examine(place, DEFAULTS)
    }


def test_what_the_engine_left_is_clean(filled: Place) -> None:
    assert examine(filled) == []
    assert examine(filled, DEFAULTS) == []


def test_flows_are_looked_at_piece_by_piece(filled: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for doctor in (sqlite_doctor, postgres_doctor):
        monkeypatch.setattr(doctor, "CHUNK", 2)
    assert examine(filled) == []
    break_it(filled, "UPDATE flows SET open_steps = 9")
    assert {subject for _, subject in found(filled)} == set(FLOWS)


BREAKAGES: dict[str, tuple[str, str, *tuple[str | Breakage, ...]]] = {
    "an outcome that changed": (
        "journal",
        "completed",
        """UPDATE work SET result = '{"success":true,"outputs":{},"error":null}' WHERE status = 'succeeded'""",
    ),
    "two outcomes": (
        "one_outcome",
        "completed",
        repeated_event("work_succeeded", again="work_failed"),
    ),
    "an outcome without a time": (
        "one_outcome",
        "failed",
        "UPDATE work SET recorded_at = NULL WHERE status = 'failed'",
    ),
    "not completed without a next attempt": (
        "not_completed",
        "retrying",
        "UPDATE work SET due_at = NULL WHERE status = 'not_completed'",
    ),
    "active without a clock": ("active", "active", "UPDATE work SET due_at = NULL WHERE status = 'active'"),
    "an owner of what is not being sent": (
        "active",
        "retrying",
        "UPDATE work SET owner = 'node' WHERE status = 'not_completed'",
    ),
    "too many attempts": ("attempts", "pending", "UPDATE work SET attempt = 7 WHERE flow_id = 'pending'"),
    "an attempt without an intent": (
        "one_outcome",
        "active",
        changed_event("work_dispatched", lambda fields: [*fields[:3], 2, fields[4]], "active"),
    ),
    "a change without an event": (
        "journal",
        "active",
        lost_event("work_acknowledged", "active"),
    ),
    "an event without a change": (
        "journal",
        "active",
        "UPDATE work SET acknowledged_at = NULL WHERE flow_id = 'active'",
    ),
    "a journal without its beginning": (
        "journal",
        "completed",
        lost_event("flow_started", "completed"),
    ),
    "a journal without a step": (
        "journal",
        "completed",
        changed_event("flow_started", lambda fields: [*fields[:4], {**fields[4], "steps": {}}], "completed"),
    ),
    "a journal without a step's beginning": (
        "one_outcome",
        "completed",
        lost_event("step_started", "completed"),
    ),
    "a journal that lacks what an event needs": (
        "journal",
        "active",
        changed_event("work_dispatched", lambda fields: [*fields[:4], {}], "active"),
    ),
    "a journal with a fact of another kind": (
        "journal",
        "active",
        changed_event("work_dispatched", lambda fields: [*fields[:4], []], "active"),
    ),
    "a flow that the journal does not know": (
        "journal",
        "failed",
        "DELETE FROM journal WHERE flow_id = 'failed'",
    ),
    "a flow that only the journal knows": ("journal", "failed", "DELETE FROM flows WHERE flow_id = 'failed'"),
    "a step that only the journal knows": ("journal", "active", "DELETE FROM flow_steps WHERE flow_id = 'active'"),
    "a stuck flow": (
        "stuck_flow",
        "completed",
        "UPDATE flows SET status = 'active', finished_at = NULL WHERE flow_id = 'completed'",
    ),
    "a step of which no item is released": (
        "stuck_flow",
        "active",
        "UPDATE flow_steps SET waiting_items = open_items WHERE flow_id = 'active'",
    ),
    "open work in a flow that has ended": (
        "final_flow",
        "active",
        "UPDATE flows SET status = 'failed' WHERE flow_id = 'active'",
    ),
    "an open step in a flow that has ended": (
        "final_flow",
        "completed",
        "UPDATE flow_steps SET status = 'active' WHERE flow_id = 'completed'",
    ),
    "a wrong count of steps": ("counters", "active", "UPDATE flows SET open_steps = 3 WHERE flow_id = 'active'"),
    "a wrong count of items": (
        "counters",
        "active",
        "UPDATE flow_steps SET open_items = 3 WHERE flow_id = 'active'",
    ),
    "a version that is gone": (
        "versions",
        "pending",
        "DELETE FROM steps WHERE step_id = 'b'",
        "DELETE FROM step_versions WHERE step_id = 'b'",
    ),
    "a definition that is none": ("file", "b", "UPDATE step_versions SET definition = '{}' WHERE step_id = 'b'"),
    "a result that is no JSON": ("file", "completed", "UPDATE work SET result = '{' WHERE flow_id = 'completed'"),
    "an output that is no JSON": (
        "file",
        "completed",
        "UPDATE flow_steps SET outputs = '{' WHERE flow_id = 'completed'",
    ),
    "another output than the journal tells": (
        "journal",
        "completed",
        """UPDATE flow_steps SET outputs = '{"other":1}' WHERE flow_id = 'completed'""",
    ),
    "a step that waits longer than the journal tells": (
        "journal",
        "active",
        "UPDATE flow_steps SET due_at = 5 WHERE flow_id = 'active'",
    ),
    "another plan than the journal tells": (
        "journal",
        "active",
        "UPDATE flows SET plan = 'another' WHERE flow_id = 'active'",
    ),
    "an event that is no JSON": (
        "file",
        "active",
        "UPDATE journal SET events = '[[' WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an entry that is no list": (
        "file",
        "active",
        "UPDATE journal SET events = '{}' WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an entry of nothing": (
        "file",
        "active",
        "UPDATE journal SET events = '[]' WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an entry whose numbers run into the next": (
        "file",
        "active",
        f"UPDATE journal SET events = '[0{',0' * 64}]' WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an event that is no list": (
        "file",
        "active",
        "UPDATE journal SET events = '[0]' WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an event with too little": (
        "file",
        "active",
        changed_event("work_heartbeat", lambda fields: fields[:4], "active"),
    ),
    "an event with a step that is none": (
        "file",
        "active",
        changed_event("work_heartbeat", lambda fields: [fields[0], 1, *fields[2:]], "active"),
    ),
    "an event with an attempt that is none": (
        "file",
        "active",
        changed_event("work_heartbeat", lambda fields: [*fields[:3], "1", fields[4]], "active"),
    ),
    "an event that may be about a work item": (
        "file",
        "active",
        changed_event("work_heartbeat", lambda fields: [*fields[:2], None, *fields[3:]], "active"),
    ),
    "an event about the work item of an entry that has none": (
        "file",
        "active",
        "UPDATE journal SET work_id = NULL WHERE events LIKE '%work_heartbeat%' AND flow_id = 'active'",
    ),
    "an event of an unknown kind": (
        "file",
        "active",
        changed_event("work_heartbeat", lambda fields: ["work_forgotten", *fields[1:]], "active"),
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_is_broken_by_hand_is_found_and_named(filled: Place, name: str) -> None:
    invariant, flow_id, *changes = BREAKAGES[name]
    break_it(filled, *changes)
    seen = found(filled)
    assert (invariant, flow_id) in seen
    assert {subject for _, subject in seen} <= {flow_id, "b", "pending"}, "and nothing else is blamed"


def test_work_that_only_the_journal_knows(filled: Place) -> None:
    break_it(filled, "DELETE FROM work WHERE flow_id = 'active'")
    messages = {finding.message for finding in examine(filled)}
    assert "the journal has events of a work item that is not in the store" in messages


def test_work_that_the_journal_does_not_know(filled: Place) -> None:
    columns = "flow_id, step_id, version, status, attempt, idempotency_key, lane, created_at, recorded_at"
    break_it(
        filled,
        f"INSERT INTO work (work_id, item, {columns}) SELECT 'forged', 1, {columns} FROM work WHERE status = 'failed'",
    )
    findings = [finding for finding in examine(filled) if finding.subject == "forged" and finding.invariant != "open"]
    assert [(finding.invariant, finding.message) for finding in findings] == [
        ("journal", "the journal has no events of this work item")
    ]


def test_a_finding_says_what_differs(filled: Place) -> None:
    break_it(filled, "UPDATE work SET idempotency_key = 'forged' WHERE flow_id = 'active'")
    [finding] = examine(filled)
    assert finding.message.startswith(
        "the journal gives a different state: idempotency_key is 'forged', in the journal '"
    )


def test_the_last_heartbeat_may_be_later_than_that_of_the_journal(filled: Place) -> None:
    break_it(filled, "UPDATE work SET progress = 0.9, message = 'later' WHERE flow_id = 'active'")
    assert examine(filled) == []


def test_a_deadline_earlier_than_that_of_the_journal_is_found(filled: Place) -> None:
    earlier = "deadline_at = deadline_at - 5, due_at = deadline_at - 5"
    break_it(filled, f"UPDATE work SET {earlier} WHERE flow_id = 'active'")
    assert "journal" in {finding.invariant for finding in examine(filled)}


def test_a_limit_that_is_inherited_depends_on_the_settings_of_the_engine(filled: Place) -> None:
    break_it(filled, "UPDATE work SET attempt = 99 WHERE flow_id = 'active'")
    assert "attempts" not in {finding.invariant for finding in examine(filled)}


@pytest.mark.parametrize("ahead", [1, 98])
def test_a_database_of_another_time_is_not_judged(filled: Place, ahead: int) -> None:
    version = by_hand(filled, "SELECT max(version) FROM schema_version")[0][0] + ahead
    break_it(filled, f"INSERT INTO schema_version VALUES ({version}, 0)", "DELETE FROM journal")
    [finding] = examine(filled)
    assert (finding.invariant, finding.subject) == ("schema", f"version {version}")


@pytest.mark.sqlite_only
def test_there_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreFailure, match="there is no database here"):
        examine(tmp_path / "nothing.db")
    with pytest.raises(StoreFailure):
        examine(tmp_path)  # a directory


@pytest.mark.postgresql_only
def test_there_must_be_a_database(new_database: NewDatabase) -> None:
    empty = new_database(empty=True)
    with pytest.raises(StoreFailure, match="there is no counterfoil database here"):
        examine(empty)
    with pytest.raises(StoreFailure, match="does not exist"):
        examine(f"{empty}_of_none")


@pytest.mark.postgresql_only
def test_the_tables_of_another_program_are_not_judged(new_database: NewDatabase) -> None:
    other = new_database(empty=True)
    by_hand(other, "CREATE TABLE something (a INTEGER)")
    with pytest.raises(StoreFailure, match="there is no counterfoil database here"):
        examine(other)


@pytest.mark.sqlite_only
def test_a_file_that_is_no_database_is_a_finding(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database at all, however long one looks at it " * 50)
    [finding] = examine(other)
    assert (finding.invariant, finding.subject) == ("file", str(other))


@pytest.mark.sqlite_only
def test_a_file_of_another_program_is_a_finding(tmp_path: Path) -> None:
    by_hand(tmp_path / "other.db", "CREATE TABLE something (a)")
    [finding] = examine(tmp_path / "other.db")
    assert finding.invariant == "file"


@pytest.mark.sqlite_only
def test_a_damaged_file_is_a_finding(filled: Path) -> None:
    by_hand(filled, "PRAGMA wal_checkpoint(TRUNCATE)")
    [(page_size,)] = by_hand(filled, "PRAGMA page_size")
    [(root,)] = by_hand(filled, "SELECT rootpage FROM sqlite_schema WHERE name = 'work_of_flow'")
    content = bytearray(filled.read_bytes())
    start = (root - 1) * page_size
    content[start : start + 100] = bytes(100)
    filled.write_bytes(content)
    assert "file" in {finding.invariant for finding in examine(filled)}


def test_a_flow_that_only_the_journal_tells_of_is_reported_by_the_rules() -> None:
    [finding] = check_flow("flow", FlowRecords(None), {})
    assert (finding.invariant, finding.subject) == ("journal", "flow")


@pytest.mark.sqlite_only
def test_the_doctor_changes_nothing_in_a_file(filled: Path) -> None:
    by_hand(filled, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = filled.read_bytes()
    examine(filled)
    assert filled.read_bytes() == before


@pytest.mark.postgresql_only
def test_the_doctor_changes_nothing_on_a_server(filled: str) -> None:
    """Where the server refuses every change, the doctor finds nothing missing."""
    database = urlsplit(filled).path[1:]
    by_hand(filled, f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    assert examine(filled) == []
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        break_it(filled, "DELETE FROM journal")

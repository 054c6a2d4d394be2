"""Pruning: a flow that ended goes with everything of it, or loses what it carried; nothing else is touched."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import CancelCall, FlowInputs, KeyedFlow, KeyOwner
from counterfoil.domain.states import ApprovalStatus, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.subscriptions.definitions import Delivery
from counterfoil.engine.flows.prune import Prune
from counterfoil.engine.flows.start import Start
from counterfoil.store.group_commit.batch import Command, ForEach
from counterfoil.store.group_commit.commit import GuardRefused
from counterfoil.store.kinds.flows import FLOWS, KEYED_FLOWS, PRUNED, PrunedFlow
from counterfoil.store.kinds.gate import KEYS
from counterfoil.store.kinds.subscriptions import DELIVERIES
from counterfoil.store.kinds.work import CALLS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.by_hand import by_hand
from tests.store.backends import NewConnection, batch_of, find, load, place_of, write
from tests.store.nodes import CONTEXT, Pair, register, success
from tests.store.records import (
    NOW,
    Written,
    approval_record,
    flow_inputs,
    flow_record,
    gate_record,
    new_records,
    step_run,
    work_item,
)

OLD = NOW - 1_000
TABLES = (
    *("flows", "flow_inputs", "flow_labels", "flow_steps", "work", "journal"),
    *("cancel_calls", "gates", "approvals", "key_owners", "deliveries", "keyed_flows"),
)


def rows_of(store: Store, table: str, flow_id: str) -> int:
    return int(by_hand(place_of(store), f"SELECT count(*) FROM {table} WHERE flow_id = '{flow_id}'")[0][0])


async def add_ended(store: Store, *names: str, finished_at: int = OLD, **fields: Any) -> None:
    """Flows that ended, each with something in every table."""
    version = await register(store)
    for name in names:
        records = new_records(
            flow_record(
                **{
                    "status": FlowStatus.FAILED,
                    "flow_id": name,
                    "open_steps": 0,
                    "error": {"code": "STEP_FAILED", "message": "kept"},
                    "created_at": OLD - 9,
                    "finished_at": finished_at,
                    **fields,
                }
            ),
            step_run(
                StepStatus.FAILED,
                flow_id=name,
                version=version,
                open_items=0,
                items=2,
                finished_at=finished_at,
                outputs={"secret": 1},
                error={"code": "STEP_FAILED", "message": "secret \0"},
            ),
            work_item(
                WorkStatus.SUCCEEDED,
                work_id=f"{name}-good",
                flow_id=name,
                version=version,
                result={"success": True, "outputs": {"secret": 2}, "error": None},
                message="secret",
                arguments={"secret": 6},
            ),
            work_item(
                WorkStatus.FAILED,
                work_id=f"{name}-bad",
                flow_id=name,
                item=1,
                version=version,
                result={"success": False, "outputs": {}, "error": "secret"},
                error={"code": "STEP_FAILED", "message": "secret \0"},
            ),
            FlowInputs(name, ["step"], {"secret": 3}, {"secret": 4}, {"team": name, "a:b": "ü"}),
            gate_record(flow_id=name, work_id=f"{name}-good"),
            approval_record(
                ApprovalStatus.APPROVED,
                approval_id=f"{name}-asked",
                flow_id=name,
                arguments={"secret": 7},
                reviews=[{"by": "ada", "comment": "kept"}],
                decided_at=OLD,
            ),
        )
        records.of(KEYED_FLOWS)[name] = KeyedFlow(name, f"order {name}", 1, "digest", 0, retain_failed=False)
        records.of(KEYS)[f"workflow:{name}"] = KeyOwner(f"workflow:{name}", name, None, "digest", OLD, None)
        records.of(DELIVERIES)[name] = Delivery(
            name, "s", name, "flow.failed", '{"secret":8}', 9, None, "given up", OLD
        )
        records.of(CALLS)[f"{name}-bad"] = CancelCall(
            f"{name}-bad", name, "step", f"{name}-bad", "http://worker.test/", {}, 0, NOW
        )
        records.events += [Event(EventType.FLOW_STARTED, NOW, name, data={"init": {"secret": 5}})]
        await write(store, records)


def pruning(*flows: str, payloads: bool = False, cutoff: int = OLD) -> ForEach[bool]:
    """The command of the sweep."""
    rule: dict[str, Any] = {"cutoff": cutoff, "payloads": payloads}
    return ForEach(
        Find.of("find_prunable", flows=orjson.dumps(flows).decode(), **rule), lambda *row: Prune(*row, **rule)
    )


async def run(store: Store, *commands: Command[Any]) -> list[Any]:
    """The answers of commands that share a batch."""
    answers: list[Any] = []
    batch = batch_of(*commands, answers=answers)
    await store.execute(batch)
    batch.answer()
    return answers


# ------------------------------------------------------------------------------------------------ wholly


async def test_a_flow_goes_with_everything_of_it(store: Store) -> None:
    await add_ended(store, "old", "other")
    before = [rows_of(store, table, "other") for table in TABLES]
    assert all(before), "there is something in every table"
    assert await run(store, pruning("old", "unknown")) == [[True]]
    assert [rows_of(store, table, "old") for table in TABLES] == [0] * len(TABLES)
    assert [rows_of(store, table, "other") for table in TABLES] == before
    unit = await load(store, ReadSet(flows={"old"}, work={"old-good"}))
    assert (unit.find_flow("old"), unit.find_work("old-good")) == (None, None)


def step_key_of(name: str, flow_id: str, expires_at: int | None) -> KeyOwner:
    return KeyOwner(f"step:{name}", flow_id, "step", None, OLD, expires_at)


async def test_a_key_of_a_step_outlives_its_flow_for_its_window(store: Store) -> None:
    await add_ended(store, "old")
    given = [
        step_key_of("lapsed", "old", NOW),
        step_key_of("lasting", "old", NOW + 1),
        step_key_of("ever", "old", None),
    ]
    await write(store, Written(keys={owner.key_id: owner for owner in given}))
    assert await run(store, pruning("old")) == [[True]]
    assert by_hand(place_of(store), "SELECT key_id FROM key_owners ORDER BY key_id") == [
        ("step:ever",),
        ("step:lasting",),
    ]


class GiveKey:
    """Gives a key whose window has passed to another flow."""

    def needs(self, needs: ReadSet) -> None:
        needs.keys.add("step:k")

    def decide(self, unit: UnitOfWork, now: int) -> None:
        assert unit.find_key("step:k") == step_key_of("k", "old", OLD)
        unit.give_key(step_key_of("k", "new", None))


@pytest.mark.parametrize("first", ["pruned", "given"])
async def test_a_key_that_is_given_to_another_flow_in_the_same_batch_belongs_to_that_flow(
    store: Store, first: str
) -> None:
    await add_ended(store, "old")
    await write(store, Written(keys={"step:k": step_key_of("k", "old", OLD)}))
    commands = [pruning("old"), GiveKey()]
    answers = await run(store, *(commands if first == "pruned" else reversed(commands)))
    assert [True] in answers
    assert by_hand(place_of(store), "SELECT flow_id FROM key_owners") == [("new",)]


async def test_many_go_together(store: Store) -> None:
    names = [f"flow-{number:03}" for number in range(130)]
    await add_ended(store, *names)
    assert await run(store, pruning(*names[:129])) == [[True] * 129]
    assert by_hand(place_of(store), "SELECT flow_id FROM flows") == [("flow-129",)]
    assert by_hand(place_of(store), "SELECT count(*) FROM flow_labels") == [(2,)]


@pytest.mark.parametrize(
    "fields",
    [
        {"finished_at": OLD + 1},
        {"status": FlowStatus.ACTIVE, "finished_at": None},
        {"status": FlowStatus.COMPENSATING, "finished_at": None},
        {"status": FlowStatus.ACTIVE, "finished_at": OLD - 5},
    ],
    ids=["ended lately", "active", "compensating", "driven again"],
)
@pytest.mark.parametrize("payloads", [True, False])
async def test_what_has_not_ended_long_ago_stays(store: Store, fields: dict[str, Any], payloads: bool) -> None:
    await add_ended(store, "flow", **fields)
    assert await run(store, pruning("flow", payloads=payloads)) == [[]]
    rule: dict[str, Any] = {"cutoff": OLD, "payloads": payloads}
    assert await run(store, Prune("flow", None, **rule)) == [False], "it is decided anew, whatever was found"
    assert rows_of(store, "work", "flow") == 2


async def test_a_flow_that_is_changed_in_the_same_batch_stays(store: Store) -> None:
    """Also of a flow that ended something may be noted: that its worker was told, say."""

    class Note:
        def needs(self, needs: ReadSet) -> None:
            needs.flows.add("flow")

        def decide(self, unit: UnitOfWork, now: int) -> None:
            unit.record(Event(EventType.CANCEL_DELIVERED, now, "flow", "step", "flow-bad", 1))

    await add_ended(store, "flow")
    assert await run(store, pruning("flow"), Note()) == [[False], None]
    assert rows_of(store, "journal", "flow") == 2
    assert await run(store, pruning("flow")) == [[True]]


async def test_what_was_pruned_takes_no_change_in_the_same_batch(store: Store) -> None:
    unit = UnitOfWork({})
    unit.records(FLOWS).add("flow", flow_record(FlowStatus.FAILED, finished_at=OLD))
    rule: dict[str, Any] = {"cutoff": OLD, "payloads": False}
    assert Prune("flow", None, **rule).decide(unit, NOW)
    unit.discard()
    assert not unit.changes.peek(PRUNED), "what is refused prunes nothing"
    assert Prune("flow", None, **rule).decide(unit, NOW)
    unit.keep()
    assert unit.changes.any()
    with pytest.raises(UnknownFlow):
        unit.record(Event(EventType.CANCEL_DELIVERED, NOW, "flow", "step"))


async def test_an_id_can_be_used_again(store: Store) -> None:
    await add_ended(store, "flow")
    request = StartFlow(flow_id="flow", goals=["step"], labels={"team": "new"})
    pruned, refused = await run(store, pruning("flow"), Start(request, CONTEXT))
    assert (pruned, refused.code) == ([True], "FLOW_EXISTS"), "not in the commit that prunes it"
    [started] = await run(store, Start(request, CONTEXT))
    assert started["flow_id"] == "flow"
    [refused] = await run(store, success("flow-good"))
    assert refused.code == "UNKNOWN_RECEIPT"
    assert [rows_of(store, table, "flow") for table in TABLES] == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]


async def test_a_flow_that_another_node_removed_is_noticed(store: Store) -> None:
    with pytest.raises(GuardRefused):
        await write(store, Written(pruned={"nowhere": PrunedFlow({})}))


# ------------------------------------------------------------------------------------------------ only payloads


async def test_what_a_flow_carried_goes_and_the_rest_stays(store: Store) -> None:
    await add_ended(store, "old", "other")
    untouched = await store.read("get_flow", flow_id="other")
    assert await run(store, pruning("old", payloads=True)) == [[True]]
    assert await store.read("get_flow", flow_id="other") == untouched
    [row] = await store.read("get_flow", flow_id="old")
    assert row == (
        *("old", "failed", '["step"]', OLD - 9, '{"code":"STEP_FAILED","message":"kept"}', OLD),
        *("{}", '{"team":"old","a:b":"ü"}', "{}", '{"pruned":true}', None, None, None, None, NOW, "order old"),
    )
    everything = [
        by_hand(place_of(store), f"SELECT * FROM {table} WHERE flow_id = 'old'")
        for table in TABLES
        if table != "journal"
    ]
    assert "secret" not in str(everything)
    assert rows_of(store, "journal", "old") == 0
    assert rows_of(store, "journal", "other") == 1
    assert rows_of(store, "flow_labels", "old") == 2
    kept = [rows_of(store, table, "old") for table in ("gates", "approvals", "key_owners", "deliveries")]
    assert kept == [1, 1, 1, 0], "a message that was not delivered is what it carried"
    unit = await load(store, ReadSet(work={"old-good", "old-bad"}, approvals={"old-asked"}))
    asked = unit.approval("old-asked")
    assert (asked.status, asked.arguments, asked.reviews) == ("approved", None, [{"by": "ada", "comment": "kept"}])
    good, bad = unit.work("old-good"), unit.work("old-bad")
    assert (good.status, good.error, good.message) == ("succeeded", None, None)
    assert good.result == {"success": True, "outputs": {}, "error": None, "pruned": True}
    assert bad.result == {"success": False, "outputs": {}, "error": None, "pruned": True}
    assert bad.error == {"code": "STEP_FAILED", "message": "no longer kept"}
    assert bad.recorded_at == NOW


async def test_payloads_go_once(store: Store) -> None:
    await add_ended(store, "old")
    assert [await run(store, pruning("old", payloads=True)) for _ in range(2)] == [[[True]], [[]]]
    assert await run(store, pruning("old")) == [[True]]
    assert [rows_of(store, table, "old") for table in TABLES] == [0] * len(TABLES)


async def test_work_without_a_result_has_none_afterwards(store: Store) -> None:
    work = work_item(WorkStatus.FAILED, error={"code": "RETRIES_EXHAUSTED", "message": "m", "cause": {"code": "OTHER"}})
    ended = flow_record(FlowStatus.FAILED, open_steps=0, finished_at=OLD)
    await write(store, new_records(ended, step_run(StepStatus.FAILED, open_items=0), work, flow_inputs()))
    assert await run(store, pruning("flow", payloads=True)) == [[True]]
    found = (await load(store, ReadSet(work={"work"}))).work("work")
    assert (found.result, found.error) == (None, {"code": "RETRIES_EXHAUSTED", "message": "no longer kept"})


# ------------------------------------------------------------------------------------------------ the walk


async def walk(
    store: Store, after: int = 0, *, payloads: bool = False, limit: int = 99
) -> list[tuple[str, int | None]]:
    rows = await store.read("walk_flows", after=after, cutoff=OLD, payloads=payloads, limit=limit)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    return [(flow_id, items) for _, flow_id, _, items in rows]


async def test_flows_are_walked_along_as_they_were_made(store: Store) -> None:
    await add_ended(store, "z", "a")
    await add_ended(store, "late", finished_at=OLD + 1)
    await write(store, new_records(flow_record(flow_id="open")))
    await add_ended(store, "m")
    assert await walk(store) == [("z", 2), ("a", 2), ("late", None), ("open", None), ("m", 2)]
    assert await walk(store, limit=2) == [("z", 2), ("a", 2)]
    [(_, first)] = [
        (row[1], row[0]) for row in await store.read("walk_flows", after=0, cutoff=OLD, payloads=False, limit=1)
    ]
    assert (await walk(store, first))[0] == ("a", 2)
    await run(store, pruning("a", payloads=True))
    assert await walk(store, payloads=True) == [("z", 2), ("a", None), ("late", None), ("open", None), ("m", 2)]
    assert (await walk(store))[1] == ("a", 2)


# ------------------------------------------------------------------------------------------------ several nodes


@pytest.mark.postgresql_only
async def test_what_another_has_in_hand_is_passed_over(store: Store, new_connection: NewConnection) -> None:
    await add_ended(store, "one", "two")
    other = await new_connection()
    async with other.transaction():
        await other.execute("SELECT 1 FROM flows WHERE flow_id = 'one' FOR UPDATE")
        search = find(store, "find_prunable", flows='["one","two"]', cutoff=OLD, payloads=False)
        assert [row[0] for row in await asyncio.wait_for(search, 5)] == ["two"]


@pytest.mark.postgresql_only
async def test_nodes_that_prune_the_same_share_it(store: Store, nodes: Pair) -> None:
    names = [f"flow-{number:03}" for number in range(60)]
    await add_ended(store, *names)

    async def prune(node: Any) -> int:
        done = 0
        for begin in range(0, len(names), 10):
            for payloads in (True, False):
                done += sum(await node.commit.submit(pruning(*names[begin : begin + 10], payloads=payloads)))
        return done

    done = await asyncio.gather(*(prune(node) for node in nodes))
    assert sum(done) <= 2 * len(names)
    left = by_hand(place_of(store), "SELECT flow_id FROM flows")
    for (name,) in left:  # each had it in the other's hand: the next walk finds it
        assert await run(store, pruning(name)) == [[True]]
    assert [by_hand(place_of(store), f"SELECT count(*) FROM {table}")[0][0] for table in TABLES] == [0] * len(TABLES)


@pytest.mark.postgresql_only
async def test_what_a_node_remembers_of_a_flow_that_is_gone_does_no_harm(store: Store, nodes: Pair) -> None:
    """It was ended and pruned elsewhere: a report to the node that still believes in it is answered so."""
    here, there = nodes
    request = StartFlow(flow_id="flow", goals=["step"])
    await here.commit.submit(Start(request, CONTEXT))
    [(work_id,)] = by_hand(place_of(store), "SELECT work_id FROM work")
    assert await there.outcome(success(work_id, 1)) == "accepted"
    assert await there.commit.submit(pruning("flow", cutoff=NOW)) == [True]
    assert await here.outcome(success(work_id, 1)) == "UNKNOWN_RECEIPT"


def test_records_of_a_batch_say_whether_anything_is_pruned() -> None:
    assert not Changes().any()
    assert Changes(pruned={"a": PrunedFlow(None)}).any()

"""Unknown outcomes, keys and what waits for them: kept, found and forgotten by both stores alike."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from counterfoil.domain.records import DedupRecord, DedupWaiter, Reconciliation
from counterfoil.domain.states import FlowStatus, WorkStatus
from counterfoil.engine.effects.commands import ClaimProbe, ForgetKey
from counterfoil.engine.policies.commands import PutPolicy
from counterfoil.store.group_commit.batch import Batch, ForEach
from counterfoil.store.kinds.effects import WAITERS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from tests.by_hand import by_hand
from tests.store.backends import find, load, place_of, write
from tests.store.nodes import Pair
from tests.store.records import (
    NOW,
    flow_inputs,
    flow_record,
    new_records,
    reconciliation_record,
    step_run,
    step_version,
    work_item,
)
from tests.store.test_records import AWKWARD
from tests.store.test_two_nodes_guarding import policy

FULL = reconciliation_record(due_at=NOW + 1, probes=2, probed_at=NOW + 2, probe_state="unknown", granted=3)
KEY = DedupRecord("digest", "step", "refund:order-7", "pending", "work", "flow")
FULL_KEY = replace(
    KEY,
    state="failed",
    outcome={"result": AWKWARD, "error": AWKWARD},
    recorded_at=NOW + 1,
    expires_at=NOW + 2,
    waiting=4,
    wake_at=NOW + 3,
)


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    for full in (FULL, FULL_KEY):
        assert [each.name for each in fields(full) if getattr(full, each.name) == each.default] == []


@pytest.mark.parametrize("record", [FULL, replace(FULL, hold=None, due_at=None, probed_at=None, probe_state=None)])
async def test_an_unknown_outcome_comes_back_as_it_was(store: Store, record: Reconciliation) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    await write(store, Changes(reconciliations={"work": reconciliation_record()}))
    await write(store, Changes(reconciliations={"work": record}))
    unit = await load(store, ReadSet(work={"work", "other"}, reconciliations={"work", "other"}))
    assert unit.find_reconciliation("work") == record
    assert unit.find_reconciliation("other") is None


@pytest.mark.parametrize("record", [FULL_KEY, KEY])
async def test_a_key_comes_back_as_it_was_until_it_is_forgotten(store: Store, record: DedupRecord) -> None:
    await write(store, Changes(dedup={"digest": replace(KEY, work_id=None, flow_id=None, state="free")}))
    await write(store, Changes(dedup={"digest": record}))
    unit = await load(store, ReadSet(dedup={"digest", "other"}))
    assert unit.find_dedup("digest") == record
    assert unit.find_dedup("other") is None
    await write(store, Changes(dedup={"digest": None}))
    assert (await load(store, ReadSet(dedup={"digest"}))).find_dedup("digest") is None


async def test_what_waits_for_a_key_comes_back_as_it_was(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    waiter = DedupWaiter("work", "flow", "digest", NOW + 5)
    await write(store, Changes(waiters={"work": replace(waiter, since=NOW)}))
    await write(store, Changes(waiters={"work": waiter}))
    needs = ReadSet(work={"work"}, waiters={"work"})
    assert (await load(store, needs)).records(WAITERS).get("work") == waiter
    await write(store, Changes(waiters={"work": None}))
    assert (await load(store, needs)).records(WAITERS).get("work") is None


# ------------------------------------------------------------------------------------------------ searches


async def in_the_queue(store: Store, work_id: str, **fields: Any) -> None:
    """A flow whose item is held."""
    await write(store, Changes(versions={"version": replace(step_version(), version="version")}, at=NOW))
    await write(
        store,
        new_records(
            flow_record(flow_id=work_id),
            flow_inputs(work_id, init={"a": 1}),
            step_run(flow_id=work_id),
            work_item(WorkStatus.NOT_COMPLETED, work_id=work_id, flow_id=work_id, due_at=None, hold="reconcile"),
            reconciliation_record(**{"work_id": work_id, "flow_id": work_id, **fields}),
        ),
    )


async def test_probes_are_due_in_their_order(store: Store) -> None:
    for work_id, due_at in (("b", NOW + 2), ("a", NOW + 1), ("c", None), ("d", NOW + 9)):
        await in_the_queue(store, work_id, due_at=due_at, hold=None)
    assert await find(store, "find_due_probes", now=NOW + 5, limit=9) == [("a",), ("b",)]
    assert await find(store, "find_due_probes", now=NOW + 5, limit=1) == [("a",)]
    assert await store.read("next_probe") == [(NOW + 1,)]


async def test_the_queue_is_listed_from_the_longest_waiting_on(store: Store) -> None:
    for number, work_id in enumerate(("e", "d", "c", "b", "a")):
        hold = "unsafe_once" if work_id == "c" else None if work_id == "d" else "reconcile"
        await in_the_queue(store, work_id, since=NOW + number // 2, hold=hold)
    everything: dict[str, Any] = dict.fromkeys(("after_since", "after_work", "step_id", "hold", "since"))

    async def listed(**filters: Any) -> list[str]:
        rows = await store.read("list_reconciliations", **{**everything, "now": NOW, "limit": 9, **filters})
        return [row[1] for row in rows]

    assert await listed() == ["e", "b", "c", "a"]
    assert await listed(after_since=NOW + 1, after_work="b") == ["c", "a"]
    assert await listed(hold="unsafe_once") == ["c"]
    assert await listed(since=NOW + 2) == ["a"]
    assert await listed(step_id="step", limit=1) == ["e"]
    assert await listed(step_id="other") == []
    by_hold = {hold: (count, since) for hold, count, since in await store.read("reconciliations_by_hold", now=NOW)}
    assert by_hold == {"reconcile": (3, NOW), "unsafe_once": (1, NOW + 1)}
    [row] = await store.read("get_reconciliation", work_id="b")
    assert (row[1], row[5], row[11], row[13]) == ("b", "reconcile", "key", "not_completed")


async def waiting(store: Store, key: str, *work_ids: str, **fields: Any) -> None:
    """A key for which items of several flows wait, in this order."""
    await write(store, Changes(dedup={key: replace(KEY, dedup_id=key, waiting=len(work_ids), **fields)}))
    for number, work_id in enumerate(work_ids):
        await write(
            store,
            new_records(
                flow_record(flow_id=work_id),
                step_run(flow_id=work_id),
                work_item(WorkStatus.PENDING, work_id=work_id, flow_id=work_id, due_at=None, hold="dedup"),
                DedupWaiter(work_id, work_id, key, NOW + number),
            ),
        )


async def test_all_are_woken_for_a_result_and_one_for_a_free_key(store: Store) -> None:
    await waiting(store, "pending", "a", "b")
    assert (await find(store, "find_waking", limit=9), await store.read("next_waking")) == ([], [(None,)])
    await waiting(store, "done", "d", "c", state="success", wake_at=NOW + 1)
    await waiting(store, "free", "f", "e", state="free", work_id=None, flow_id=None, wake_at=NOW)
    woken = await find(store, "find_waking", limit=9)
    assert [row[0] for row in woken] == ["f", "d", "c"]
    assert woken[0] == ("f", "f", "free", NOW)
    assert [row[0] for row in await find(store, "find_waking", limit=2)] == ["f", "d"]
    assert await store.read("next_waking") == [(NOW,)]


async def test_results_are_forgotten_after_their_window(store: Store) -> None:
    for key, expires_at in (("later", NOW + 2), ("sooner", NOW + 1), ("never", None)):
        await write(store, Changes(dedup={key: replace(KEY, dedup_id=key, state="success", expires_at=expires_at)}))
    assert await store.read("next_forgetting") == [(NOW + 1,)]
    assert await find(store, "find_forgettable", now=NOW + 2, limit=9) == [("sooner",), ("later",)]
    assert await find(store, "find_forgettable", now=NOW + 1, limit=9) == [("sooner",)]


@pytest.mark.postgresql_only
async def test_a_key_that_is_waited_for_is_not_forgotten(nodes: Pair, store: Store) -> None:
    for key, count in (("waited", 1), ("alone", 0)):
        record = replace(KEY, dedup_id=key, state="success", expires_at=NOW, waiting=count)
        await write(store, Changes(dedup={key: record}))
    search = Find.of("find_forgettable", now=NOW, limit=9)
    answers = await nodes[0].commit.submit(ForEach(search, ForgetKey))
    assert sorted(answers) == [False, True]
    assert by_hand(place_of(store), "SELECT dedup_id FROM dedup_records") == [("waited",)]


# ------------------------------------------------------------------------------------------------ retention


@pytest.mark.parametrize(("hold", "prunable"), [("reconcile", False), ("unsafe_once", False), (None, True)])
async def test_a_flow_with_an_unknown_outcome_is_never_pruned(store: Store, hold: str | None, prunable: bool) -> None:
    flow = flow_record(FlowStatus.CANCELLED, finished_at=NOW)
    item = work_item(WorkStatus.CANCELLED)
    await write(store, new_records(flow, step_run(), item, flow_inputs(), reconciliation_record(hold=hold)))
    for payloads in (False, True):
        found = await find(store, "find_prunable", flows='["flow"]', cutoff=NOW, payloads=payloads)
        assert [row[0] for row in found] == (["flow"] if prunable else [])


# ------------------------------------------------------------------------------------------------ several nodes


class ClaimWhatIsMissed(ClaimProbe):
    """As commands do that learn only while they decide that they need what is known of an outcome."""

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)


@pytest.mark.postgresql_only
async def test_an_outcome_that_is_no_longer_found_is_not_looked_for_without_its_flow(
    nodes: Pair, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search found it, the batch began again, and meanwhile another node was quicker."""
    here, there = nodes
    await in_the_queue(store, "work", due_at=NOW)
    search = Find.of("find_due_probes", now=NOW, limit=9)
    await in_the_queue(store, "other", due_at=NOW)
    await there.commit.submit(ClaimProbe("other", 1_000))  # it has seen the policies
    await here.commit.submit(PutPolicy("p", policy("allow"), "ada"))  # so that the other node must begin again
    restart, restarts = Batch.restart, list[Batch]()

    def found_by_another(batch: Batch) -> None:
        restarts.append(batch)
        by_hand(place_of(store), "UPDATE reconciliations SET due_at = NULL")
        restart(batch)

    monkeypatch.setattr(Batch, "restart", found_by_another)
    assert await there.commit.submit(ForEach(search, lambda work_id: ClaimWhatIsMissed(work_id, 1_000))) == []
    assert len(restarts) == 1

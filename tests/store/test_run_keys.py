"""Claims on run keys: kept, found and forgotten by both stores alike, and absent where no flow has a key."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from counterfoil.domain.errors import RunKeyConflict
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.records import KeyedFlow
from counterfoil.domain.states import FlowStatus
from counterfoil.engine.flows.start import Start
from counterfoil.store.kinds.flows import PRUNED, PrunedFlow
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.writing import writes_of
from tests.by_hand import by_hand
from tests.store.backends import batch_of, load, place_of, write
from tests.store.nodes import CONTEXT, Pair, register
from tests.store.records import NOW, flow_record, new_records, step_run, work_item

FULL = KeyedFlow("flow", "order:Straße 7", 3, "digest", 86_400_000, retain_failed=True)


@pytest.mark.parametrize("record", [FULL, replace(FULL, retain_ms=0, retain_failed=False)])
async def test_a_claim_comes_back_as_it_was(store: Store, record: KeyedFlow) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    await write(store, Changes(keyed_flows={"flow": record}))
    unit = await load(store, ReadSet(run_keys={record.run_key, "other"}))
    assert unit.last_claim(record.run_key) == record
    assert unit.last_claim("other") is None


async def test_the_last_claim_is_found_whatever_the_order_of_starts(store: Store) -> None:
    """A flow that is redriven claims its key again, and keeps its place in the list."""
    for number in (1, 2, 3):
        await write(store, Changes(keyed_flows={f"f{number}": KeyedFlow(f"f{number}", "k", number, "d", 0, False)}))
    assert await last_claim(store) == ("f3", 3)
    await write(store, Changes(keyed_flows={"f1": KeyedFlow("f1", "k", 4, "another", 9, True)}))
    assert await last_claim(store) == ("f1", 4)
    rows = by_hand(place_of(store), "SELECT flow_id, digest, retain_ms FROM keyed_flows ORDER BY ordinal")
    assert rows == [("f1", "d", 0), ("f2", "d", 0), ("f3", "d", 0)], "only its claim has changed"


async def last_claim(store: Store, key: str = "k") -> tuple[str, int] | None:
    found = (await load(store, ReadSet(run_keys={key}))).last_claim(key)
    return None if found is None else (found.flow_id, found.claim)


async def test_no_two_claims_on_a_key_have_the_same_number(store: Store) -> None:
    """Should two batches ever both see a key free, one fails, and on PostgreSQL it is decided again."""
    await write(store, Changes(keyed_flows={"f1": KeyedFlow("f1", "k", 1, "d", 0, False)}))
    with pytest.raises(Exception, match=r"UNIQUE constraint|conflicts with other nodes"):
        await write(store, Changes(keyed_flows={"f2": KeyedFlow("f2", "k", 1, "d", 0, False)}))
    assert await last_claim(store) == ("f1", 1)


async def test_a_claim_goes_with_its_flow_while_another_flow_takes_the_key(store: Store) -> None:
    """In one statement on PostgreSQL: no row is written by two parts of it."""
    ended = flow_record(status=FlowStatus.COMPLETED, open_steps=0, finished_at=NOW)
    await write(store, new_records(ended))
    await write(store, Changes(keyed_flows={"flow": KeyedFlow("flow", "k", 1, "d", 0, False)}))
    changes = Changes(keyed_flows={"newer": KeyedFlow("newer", "k", 2, "d", 0, False)})
    changes.of(PRUNED)["flow"] = PrunedFlow({})
    await write(store, changes)
    assert await last_claim(store) == ("newer", 2)
    assert by_hand(place_of(store), "SELECT flow_id FROM keyed_flows") == [("newer",)]


async def test_flows_without_a_run_key_write_and_load_nothing_for_it(store: Store) -> None:
    await register(store)
    request = StartFlow(goals=["step"])
    start = Start(request, CONTEXT)
    needs = ReadSet()
    start.needs(needs)
    assert {name for name, _ in needs.items()} == {"registers"}
    batch = batch_of(start)
    await store.execute(batch)
    assert not any("key" in write.query for write in writes_of(batch.unit.changes, {}))


@pytest.mark.postgresql_only
async def test_two_nodes_give_a_key_to_one_flow(nodes: Pair) -> None:
    async def outcome(node: int) -> str:
        request = StartFlow(goals=["step"], idempotency_key="k")
        try:
            await nodes[node].commit.submit(Start(request, CONTEXT))
        except RunKeyConflict as refusal:
            return refusal.code
        return "started"

    answers = await asyncio.gather(*(outcome(number % 2) for number in range(20)))
    assert sorted(answers) == ["RUN_KEY_CONFLICT"] * 19 + ["started"]

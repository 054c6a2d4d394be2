"""Hooks, tokens, payloads and deliveries: kept, found and pruned by both stores alike."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest

from counterfoil.domain.records import Hook, HookDelivery, HookPayload, HookToken
from counterfoil.domain.states import FlowStatus, HookStatus, WorkStatus
from counterfoil.store.kinds.hooks import HOOK_PAYLOADS
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.by_hand import by_hand
from tests.store.backends import find, load, place_of, write
from tests.store.nodes import Pair
from tests.store.records import NOW, flow_inputs, flow_record, new_records, step_run, work_item
from tests.store.test_records import AWKWARD
from tests.store.test_retention import pruning, run

NAME = "flow\nstep\n0\n0"
HOOK = Hook(NAME, "flow", "step", 0, HookStatus.EXPECTED, "text:1", "order:ö", 1, NOW)
FULL = Hook(
    NAME, "flow", "step", 7, HookStatus.WAITING, "made:1", "order:😀", 3, NOW, "work", 2, 2**40, True, NOW + 1, NOW + 2
)  # fmt: skip
TOKEN = HookToken("text:1", NAME, "flow", "step", "work")
FULL_TOKEN = replace(TOKEN, queue=[["other\nstep\n0\n1", "other", "step", "w2"]], wake_at=NOW + 3)
DELIVERY = HookDelivery("digest", "flow", "step", NAME)


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    for full in (FULL, FULL_TOKEN):
        assert [each.name for each in fields(full) if getattr(full, each.name) == each.default] == []


@pytest.mark.parametrize("record", [FULL, HOOK])
async def test_a_hook_comes_back_as_it_was(store: Store, record: Hook) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    await write(store, Changes(hooks={NAME: replace(HOOK, received=9)}))
    await write(store, Changes(hooks={NAME: record}))
    unit = await load(store, ReadSet(flows={"flow"}, hooks={NAME, "flow\nother\n0\n0"}))
    assert unit.find_hook(NAME) == record
    assert unit.find_hook("flow\nother\n0\n0") is None


@pytest.mark.parametrize("record", [FULL_TOKEN, TOKEN])
async def test_a_token_comes_back_as_it_was_until_it_is_free(store: Store, record: HookToken) -> None:
    await write(store, Changes(hook_tokens={"text:1": replace(TOKEN, work_id="before")}))
    await write(store, Changes(hook_tokens={"text:1": record}))
    unit = await load(store, ReadSet(hook_tokens={"text:1", "text:2"}))
    assert unit.find_hook_token("text:1") == record
    assert unit.find_hook_token("text:2") is None
    await write(store, Changes(hook_tokens={"text:1": None}))
    assert (await load(store, ReadSet(hook_tokens={"text:1"}))).find_hook_token("text:1") is None


@pytest.mark.parametrize("payload", [AWKWARD, None, [], {}, 0, False, "", "\0", 2**200, [None]])
async def test_payloads_come_back_as_they_were_in_their_order(store: Store, payload: Any) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    kept = [payload, "second", payload]
    records = {f"{NAME}\n{number}": HookPayload(f"{NAME}\n{number}", "flow", each) for number, each in enumerate(kept)}
    await write(store, Changes(hook_payloads=records))
    hook = replace(HOOK, received=3)
    unit = await load(store, ReadSet(flows={"flow"}, hook_payloads=set(records)))
    assert unit.hook_payloads(hook) == kept
    assert len(list(unit.records(HOOK_PAYLOADS).values())) == 3


async def test_a_delivery_is_remembered(store: Store) -> None:
    await write(store, Changes(hook_deliveries={"digest": replace(DELIVERY, flow_id="before")}))
    await write(store, Changes(hook_deliveries={"digest": DELIVERY}))
    unit = await load(store, ReadSet(hook_deliveries={"digest", "other"}))
    assert unit.find_hook_delivery("digest") == DELIVERY
    assert unit.find_hook_delivery("other") is None


async def test_expected_hooks_are_found_by_their_token_the_oldest_first(store: Store) -> None:
    hooks = {}
    statuses = ["expected", "waiting", "expected", "ended", "expected"]
    for number, status in enumerate(statuses):
        token_id = "text:2" if number == 2 else "text:1"
        name = f"flow-{9 - number}\nstep\n0\n0"
        hooks[name] = replace(
            HOOK, hook_id=name, flow_id=f"flow-{9 - number}", status=HookStatus(status), token_id=token_id,
            created_at=NOW + number,
        )  # fmt: skip
    await write(store, Changes(hooks=hooks))
    found = await find(store, "find_expected_hooks", token_id="text:1", limit=16)
    assert [row[0] for row in found] == ["flow-9\nstep\n0\n0", "flow-5\nstep\n0\n0"]
    assert len(await find(store, "find_expected_hooks", token_id="text:1", limit=1)) == 1


async def test_owners_that_can_be_registered_are_found(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    later = replace(FULL_TOKEN, token_id="text:2")
    await write(store, Changes(hook_tokens={"text:1": TOKEN, "text:2": later}))
    found = await find(store, "find_waking_hooks", limit=9)
    assert [tuple(row) for row in found] == [("text:2", NAME, "work")]
    assert [tuple(row) for row in await store.read("next_waking_hook")] == [(NOW + 3,)]


@pytest.mark.parametrize("payloads", [True, False])
async def test_hooks_go_with_their_flow(store: Store, payloads: bool) -> None:
    flow = flow_record(FlowStatus.CANCELLED, open_steps=0, finished_at=NOW)
    await write(store, new_records(flow, step_run(), work_item(WorkStatus.CANCELLED), flow_inputs()))
    kept = HookPayload(f"{NAME}\n0", "flow", {"n": 1})
    ended = replace(HOOK, status=HookStatus.ENDED)
    await write(store, Changes(hooks={NAME: ended}, hook_payloads={kept.payload_id: kept}))
    await write(store, Changes(hook_deliveries={"digest": DELIVERY}))
    assert await run(store, pruning("flow", payloads=payloads, cutoff=NOW)) == [[True]]
    place = place_of(store)
    assert by_hand(place, "SELECT token FROM hooks") == ([(None,)] if payloads else [])
    assert by_hand(place, "SELECT count(*) FROM hook_payloads") == [(0,)]
    assert by_hand(place, "SELECT count(*) FROM hook_deliveries") == [(1 if payloads else 0,)]


class Count:
    """Adds an entry to the queue of a token, and answers how many there were."""

    def needs(self, needs: ReadSet) -> None:
        needs.hook_tokens.add("text:1")

    def decide(self, unit: UnitOfWork, now: int) -> int:
        token = unit.find_hook_token("text:1") or TOKEN
        unit.put_hook_token(replace(token, queue=[*token.queue, [str(len(token.queue)), "", "", ""]]))
        return len(token.queue)


@pytest.mark.postgresql_only
async def test_two_nodes_change_a_token_one_after_the_other(nodes: Pair) -> None:
    """Each transaction sees what the one before it wrote, though at first there was no row to lock."""
    answers = await asyncio.gather(*(node.commit.submit(Count()) for _ in range(20) for node in nodes))
    assert sorted(answers) == list(range(40))

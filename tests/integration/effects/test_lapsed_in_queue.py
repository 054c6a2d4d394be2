"""The reconciliation queue with lapsed reservations in it, and items that show what they wait for."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.integration.effects.reserving import complete, reserved, settle
from tests.running import Connect, StartNode
from tests.wire import Api

QUEUE = "/api/v1/reconciliations"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def api(start_node: StartNode, connect: Connect, clock: MovableClock) -> Api:
    return connect(await start_node(clock))


async def unknown(api: Api, endpoint: StepEndpoint, number: int) -> str:
    """A work item whose outcome is unknown."""
    endpoint.answer("/charge", Answer(500))
    await api.put_step("charge", endpoint.url("/charge"), kind="sync", effect={"policy": "reconcile"})
    flow_id = await api.start("charge", init={"order": number})
    return str((await api.until_work(flow_id, "not_completed", hold="reconcile"))["work_id"])


async def test_lapsed_reservations_and_work_items_wait_in_one_order(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    expected: list[str] = []
    for number in range(3):
        expected.append(await unknown(api, endpoint, number))
        clock.advance(seconds=1)
        await reserved(api, f"k{number}", ttl_seconds=1, **{"class": "irreversible"})
        clock.advance(seconds=2)
        expected.append(f"k{number}")
    await reserved(api, "alive", **{"class": "irreversible"})
    await reserved(api, "repeatable", ttl_seconds=1)
    clock.advance(seconds=1)
    for limit in ("1", "2", "4", "100"):
        found, cursor = [], ""
        while True:
            page = (await api.get(QUEUE, limit=limit, **({"cursor": cursor} if cursor else {}))).ok()
            found += [item["work_id"] or item["effect_key"] for item in page["reconciliations"]]
            cursor = page["next_cursor"] or ""
            if not cursor:
                break
        assert found == expected, limit
    lapsed = (await api.get(QUEUE, hold="irreversible")).ok()["reconciliations"]
    assert [item["effect_key"] for item in lapsed] == ["k0", "k1", "k2"]
    assert {
        name: lapsed[0][name] for name in ("work_id", "flow_id", "step_id", "arguments", "status_url")
    } == dict.fromkeys(("work_id", "flow_id", "step_id", "arguments", "status_url"))
    assert (lapsed[0]["tool"], lapsed[0]["holder"], lapsed[0]["attempt"]) == ("issue_refund", "agent-1", 1)
    assert (lapsed[0]["hold"], lapsed[0]["cause"]) == ("irreversible", "reservation_lapsed")
    assert [item["work_id"] for item in (await api.get(QUEUE, step="charge")).ok()["reconciliations"]] == expected[::2]
    metrics = (await api.get("/metrics")).content.decode()
    assert 'counterfoil_reconciliations{hold="irreversible"} 3.0' in metrics
    assert 'counterfoil_pending_effects{state="live"} 1.0' in metrics
    assert 'counterfoil_pending_effects{state="lapsed"} 4.0' in metrics
    (await settle(api, "k0", "applied")).ok()
    (await complete(api, "k1", 1)).ok()
    assert [item["effect_key"] for item in (await api.get(QUEUE, hold="irreversible")).ok()["reconciliations"]] == [
        "k2"
    ]
    assert (
        'counterfoil_effect_outcomes_total{state="complete-success"} 2.0'
        in (await api.get("/metrics")).content.decode()
    )


async def test_an_item_shows_which_one_it_waits_for(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer("/mail", Answer(200))
    effect = {"policy": "dedupe", "scope": "global"}
    await api.put_step("mail", endpoint.url("/mail"), effect=effect)
    owner = await api.start("mail", init={"to": "ann"})
    received = await endpoint.received("/mail")
    item = await api.until_work(owner, "active")
    waiting = await api.start("mail", init={"to": "ann"})
    held = await api.until_work(waiting, "pending", hold="dedup")
    assert (held["waits_for"], item["waits_for"]) == (item["work_id"], None)
    assert (await api.get(f"/api/v1/work/{held['work_id']}")).ok()["waits_for"] == item["work_id"]
    listed = (await api.get("/api/v1/work")).ok()["work"]
    assert {work["work_id"]: work["waits_for"] for work in listed} == {
        item["work_id"]: None,
        held["work_id"]: item["work_id"],
    }
    await api.succeed(received)
    await api.final(waiting)
    taken = (await api.get(f"/api/v1/work/{held['work_id']}")).ok()
    assert (taken["waits_for"], taken["dedup_of"]) == (None, item["work_id"])

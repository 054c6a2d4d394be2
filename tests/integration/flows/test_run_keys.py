"""Run keys: at most one active flow for a key, and what every other start with the key is answered."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.app import run_doctor
from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.flows.run_keys import FLOWS, KEY, end, flows_of_key, start
from tests.integration.planned import Workshop, gives, takes
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api

STRATEGIES = ("reject", "adopt", "supersede")


# -------------------------------------------------------------------------------------------- while the owner is active


async def test_the_first_start_makes_a_flow(api: Api, owned: str) -> None:
    flow = await api.flow(owned)
    assert (flow["status"], flow["idempotency_key"]) == ("active", KEY)
    body = (await start(api, key="another")).ok(201)
    assert body["reused"] is False
    assert "superseded" not in body
    assert (await api.flow(await api.start(STEP)))["idempotency_key"] is None


async def test_reject(api: Api, owned: str) -> None:
    explicit: dict[str, Any] = {"on_conflict": "reject"}
    for fields in (explicit, {}):
        reply = await api.post(FLOWS, {"goals": [STEP], "init": {"order": 4711}, "idempotency_key": KEY, **fields})
        assert reply.refused(409, "RUN_KEY_CONFLICT") == {"flow_id": owned, "status": "active"}
    assert await flows_of_key(api) == [owned]


async def test_adopt(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    body = (await start(api, "adopt", init={"order": 4711})).ok(200)
    assert (body["flow_id"], body["status"], body["reused"], body["init"]) == (owned, "active", True, {"order": 4711})
    assert "signalled" not in body
    await api.succeed(await endpoint.received(PATH), shipped=True)
    result = (await api.get(f"{FLOWS}/{body['flow_id']}/result", wait="10")).ok()
    assert (result["status"], result["outputs"]) == ("completed", {"shipped": True})


async def test_supersede(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    body = (await start(api, "supersede", init={"order": 4712})).ok(201)
    assert (body["superseded"], body["reused"], body["status"]) == (owned, False, "active")
    assert (await api.flow(owned))["status"] == "cancelled"
    ended = (await api.events(owned))[-1]
    assert (ended["type"], ended["data"]["superseded_by"]) == ("flow_cancelled", body["flow_id"])
    begun = (await api.events(body["flow_id"]))[0]
    assert (begun["type"], begun["data"]["superseded"]) == ("flow_started", owned)
    assert ended["seq"] < begun["seq"]
    await endpoint.received(PATH, 2)
    assert await flows_of_key(api) == [body["flow_id"], owned]


async def test_a_superseded_flow_takes_no_result(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    received = await endpoint.received(PATH)
    (await start(api, "supersede")).ok(201)
    (await api.complete(received, {"success": True})).refused(400, "WORK_CANCELLED")
    assert (await api.flow(owned))["status"] == "cancelled"


async def test_a_start_that_cannot_be_made_supersedes_nothing(api: Api, owned: str) -> None:
    (await start(api, "supersede", goals=["unknown"])).refused(404, "UNKNOWN_STEP")
    (await start(api, "supersede", flow_id=owned)).refused(409, "FLOW_EXISTS")
    assert (await api.flow(owned))["status"] == "active"
    (await start(api, init={"order": 4711})).refused(409, "RUN_KEY_CONFLICT")


async def test_another_start_with_the_same_key(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    """Other goals or another init: refused, whatever the strategy, except for ``supersede``."""
    await api.put_step("other", endpoint.url("/other"))
    for on_conflict in ("reject", "adopt"):
        others: list[dict[str, Any]] = [
            {"init": {"order": 1}},
            {"init": {}},
            {"goals": ["other"], "init": {"order": 4711}},
        ]
        for fields in others:
            reply = await start(api, on_conflict, **fields)
            assert reply.refused(409, "RUN_KEY_REUSED") == {"flow_id": owned, "status": "active"}
    assert await flows_of_key(api) == [owned]
    assert (await start(api, "supersede", goals=["other"])).ok(201)["superseded"] == owned


async def test_goals_are_a_set_and_init_is_canonical_json(api: Api, endpoint: StepEndpoint) -> None:
    for step_id in ("a", "b"):
        await api.put_step(step_id, endpoint.url(f"/{step_id}"))
    body = {"goals": ["a", "b"], "init": {"x": 1, "y": [1.5, "ä"]}, "idempotency_key": KEY}
    flow_id = (await api.post(FLOWS, body)).ok(201)["flow_id"]
    text = '{"init": {"y": [15e-1, "\\u00e4"], "x": 1.0}, "goals": ["b", "a", "b"], "idempotency_key": "order:4711", '
    text += '"on_conflict": "adopt", "labels": {"other": "label"}, "metadata": {"any": 1}}'
    same = await api.request("POST", FLOWS, data=text.encode(), headers={"Content-Type": "application/json"})
    assert same.ok(200)["flow_id"] == flow_id
    other = {**body, "init": {"x": True, "y": [1.5, "ä"]}, "on_conflict": "adopt"}
    (await api.post(FLOWS, other)).refused(409, "RUN_KEY_REUSED")


async def test_a_compensating_owner_holds_its_key(shop: Workshop) -> None:
    """Also against ``supersede``: cancelling it would leave its effects half undone."""
    api = shop.api
    await shop.sync(
        "book",
        {"room": gives()},
        lambda _: {"room": 7},
        compensate={"endpoint": shop.endpoint.url("/undo"), "kind": "async"},
    )
    await shop.waits("pay", {"room": takes()})
    owner = (await start(api, goals=["pay"])).ok(201)["flow_id"]
    await shop.fail("pay")
    undo = await shop.endpoint.received("/undo")
    for on_conflict in ("reject", "supersede"):
        reply = await start(api, on_conflict, goals=["pay"])
        assert reply.refused(409, "RUN_KEY_CONFLICT") == {"flow_id": owner, "status": "compensating"}
    adopted = (await start(api, "adopt", goals=["pay"])).ok(200)
    assert (adopted["flow_id"], adopted["status"]) == (owner, "compensating")
    await api.succeed(undo)
    assert (await api.final(owner))["status"] == "failed"
    assert "superseded" not in (await start(api, "supersede", goals=["pay"])).ok(201)


# --------------------------------------------------------------------------------------------- when the owner has ended


@pytest.mark.parametrize("on_conflict", STRATEGIES)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_the_key_is_free_as_soon_as_its_owner_ends(
    api: Api, endpoint: StepEndpoint, owned: str, ending: str, on_conflict: str
) -> None:
    await end(api, endpoint, owned, ending)
    body = (await start(api, on_conflict)).ok(201)
    assert body["reused"] is False
    assert "superseded" not in body, "the owner had already ended"
    assert await flows_of_key(api) == [body["flow_id"], owned]


async def test_the_deadline_of_the_owner_frees_its_key(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    owner = (await start(api, deadline_ms=60_000)).ok(201)["flow_id"]
    clock.advance(minutes=2)
    assert (await api.final(owner))["error"]["code"] == "DEADLINE_EXCEEDED"
    (await start(api)).ok(201)


async def test_a_finished_flow_is_the_answer_while_its_key_is_retained(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    owner = (await start(api, retain_key_for="1h")).ok(201)["flow_id"]
    await end(api, endpoint, owner, "completed")
    clock.advance(minutes=59)
    for on_conflict in ("reject", "adopt"):
        body = (await start(api, on_conflict)).ok(200)
        assert (body["flow_id"], body["status"], body["reused"]) == (owner, "completed", True)
        assert body["outputs"] == {"shipped": 1}
        assert (await start(api, on_conflict, init={"x": 1})).refused(409, "RUN_KEY_REUSED")["flow_id"] == owner
    clock.advance(minutes=1)
    assert (await start(api)).ok(201)["flow_id"] != owner


async def test_the_retention_of_the_owner_counts_not_that_of_the_newcomer(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    owner = (await start(api, retain_key_for="10m")).ok(201)["flow_id"]
    await end(api, endpoint, owner, "completed")
    clock.advance(minutes=9)
    assert (await start(api, retain_key_for="1s")).ok(200)["flow_id"] == owner
    clock.advance(minutes=1)
    assert (await start(api, retain_key_for="24h")).ok(201)["flow_id"] != owner


async def test_supersede_starts_again_within_the_retention(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    first = (await start(api, retain_key_for="1h")).ok(201)["flow_id"]
    await end(api, endpoint, first, "completed")
    body = (await start(api, "supersede")).ok(201)
    assert "superseded" not in body, "the owner had already ended"
    await end(api, endpoint, body["flow_id"], "failed", 2)
    assert (await start(api)).ok(201)["flow_id"] not in (first, body["flow_id"]), "the first one is no longer the owner"
    assert (await api.flow(first))["status"] == "completed"


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_a_failure_is_retained_where_that_is_asked_for(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, ending: str
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    free = (await start(api, retain_key_for="1h")).ok(201)["flow_id"]
    await end(api, endpoint, free, ending)
    kept = (await start(api, retain_key_for="1h", retain_failed=True)).ok(201)["flow_id"]
    await end(api, endpoint, kept, ending, 2)
    body = (await start(api)).ok(200)
    assert (body["flow_id"], body["status"], body["reused"]) == (kept, ending, True)
    clock.advance(hours=1)
    (await start(api)).ok(201)


# -------------------------------------------------------------------------------------------------------------- redrive


async def test_a_redrive_takes_the_key_back(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    await end(api, endpoint, owned, "failed")
    (await api.post(f"{FLOWS}/{owned}/redrive")).ok()
    assert (await start(api, init={"order": 4711})).refused(409, "RUN_KEY_CONFLICT")["flow_id"] == owned
    await end(api, endpoint, owned, "completed", 2)
    (await start(api)).ok(201)


async def test_a_redrive_while_another_flow_owns_the_key(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    await end(api, endpoint, owned, "failed")
    work_id = (await api.work(owned))["work_id"]
    newer = (await start(api, init={"order": 4711})).ok(201)["flow_id"]
    await endpoint.received(PATH, 2)
    for path in (f"{FLOWS}/{owned}/redrive", f"/api/v1/work/{work_id}/redrive"):
        assert (await api.post(path)).refused(409, "RUN_KEY_CONFLICT") == {"flow_id": newer, "status": "active"}
    assert (await api.flow(owned))["status"] == "failed"
    by_filter = (await api.post("/api/v1/work/redrive", {"filter": {"step_id": STEP}, "dry_run": False})).ok()
    assert (by_filter["matched"], by_filter["redriven"]) == (1, 0)
    await end(api, endpoint, newer, "completed", 2)
    (await api.post(f"{FLOWS}/{owned}/redrive")).ok()
    assert (await start(api, init={"order": 4711})).refused(409, "RUN_KEY_CONFLICT")["flow_id"] == owned
    assert await flows_of_key(api) == [newer, owned], "newest first: a redrive does not change the order"


async def test_a_redrive_while_a_finished_flow_retains_the_key(api: Api, endpoint: StepEndpoint, owned: str) -> None:
    await end(api, endpoint, owned, "failed")
    newer = (await start(api, init={"order": 4711}, retain_key_for="1h")).ok(201)["flow_id"]
    await end(api, endpoint, newer, "completed", 2)
    refused = (await api.post(f"{FLOWS}/{owned}/redrive")).refused(409, "RUN_KEY_CONFLICT")
    assert refused == {"flow_id": newer, "status": "completed"}


async def test_a_redriven_flow_retains_its_key_as_it_was_told(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH))
    owner = (await start(api, init={"x": 1}, retain_key_for="1h")).ok(201)["flow_id"]
    await end(api, endpoint, owner, "failed")
    other = (await start(api, init={"x": 2})).ok(201)["flow_id"]
    await end(api, endpoint, other, "completed", 2)
    (await api.post(f"{FLOWS}/{owner}/redrive")).ok()
    await end(api, endpoint, owner, "completed", 3)
    clock.advance(minutes=59)
    assert (await start(api, init={"x": 1})).ok(200)["flow_id"] == owner
    (await start(api, init={"x": 2})).refused(409, "RUN_KEY_REUSED")
    clock.advance(minutes=1)
    (await start(api, init={"x": 2})).ok(201)


# ------------------------------------------------------------------------------------------------ what goes with a flow


async def test_supersede_cancels_as_a_cancel_does(shop: Workshop) -> None:
    """Sub-flows are cancelled, and workers with a ``cancel_url`` are called."""
    api = shop.api
    await shop.waits("job", {"text": gives()}, cancel_url=shop.endpoint.url("/cancelled"))
    await shop.inner("outer", {"text": gives()}, {"goals": ["job"], "outputs": {"text": "text"}})
    owner = (await start(api, goals=["outer"])).ok(201)["flow_id"]
    received = await shop.endpoint.received("/job")
    await api.until_acknowledged(received.metadata["flow_id"])
    (await start(api, "supersede", goals=["outer"])).ok(201)
    inner = await api.flow(received.metadata["flow_id"])
    assert (inner["status"], inner["parent"]["flow_id"], inner["idempotency_key"]) == ("cancelled", owner, None)
    told = (await shop.endpoint.received("/cancelled")).body
    assert (told["cancelled"], told["metadata"]["flow_id"]) == (True, inner["flow_id"])
    assert "superseded" in told["reason"]


async def test_completed_steps_of_a_superseded_flow_are_not_compensated(shop: Workshop) -> None:
    await shop.sync("book", {"room": gives()}, lambda _: {"room": 7}, compensate=shop.undoing("book"))
    await shop.waits("pay", {"room": takes()})
    owner = (await start(shop.api, goals=["pay"])).ok(201)["flow_id"]
    await shop.endpoint.received("/pay")
    (await start(shop.api, "supersede", goals=["pay"])).ok(201)
    flow = await shop.api.flow(owner)
    assert (flow["status"], flow["compensation"]) == ("cancelled", [])


async def test_a_pruned_flow_leaves_its_key(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    hour = 3_600_000
    node = await start_node(clock, retention_ms=24 * hour, payload_retention_ms=hour)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    owner = (await start(api, retain_key_for="30d")).ok(201)["flow_id"]
    await end(api, endpoint, owner, "completed")
    clock.advance(hours=2)

    async def emptied() -> bool:
        return bool((await api.flow(owner))["pruned_at"])

    await eventually(emptied, what="the payloads of the flow are pruned")
    body = (await start(api)).ok(200)
    assert (body["flow_id"], body["idempotency_key"], body["outputs"]) == (owner, KEY, {})
    clock.advance(hours=24)

    async def gone() -> bool:
        return (await api.get(f"{FLOWS}/{owner}")).status == 404

    await eventually(gone, what="the flow is pruned")
    newer = (await start(api)).ok(201)["flow_id"]
    assert await flows_of_key(api) == [newer]
    await node.stop()
    assert run_doctor(node.settings) == []

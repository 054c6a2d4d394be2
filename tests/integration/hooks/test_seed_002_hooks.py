"""Walks the hook part of seed 002: each statement about hooks that can be tested, with its quotation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.client import Client, HookNotFound
from counterfoil.testing import StepEndpoint
from tests.eventually import eventually
from tests.integration.hooking import HOOK, order, path_of, post, put_hook, start_expecting, waiting
from tests.integration.planned import Workshop, gives, takes
from tests.running import Node
from tests.wire import Api

CHARGED = {"confirmed": takes("boolean"), "charged": gives("boolean")}


@pytest.fixture
async def charging(api: Api, shop: Workshop) -> Workshop:
    """The order of the seed: a hook that confirms, and a charge behind it."""
    await put_hook(api)
    await shop.sync("charge", CHARGED, lambda _: {"charged": True}, predicate="inputs.confirmed")
    return shop


async def test_a_token_is_the_key_of_one_active_owner(api: Api, charging: Workshop) -> None:
    """
    > Because hooks already ensure globally unique active tokens, Workflow can use the same mechanism to coordinate
    > duplicate requests while a run is active.

    > Hook tokens are globally unique while they are active: if another run tries to create a hook with the same token,
    > the runtime records a conflict, hook.getConflict() resolves with { runId } identifying the run that owns the
    > token, and the hook rejects with HookConflictError when the workflow awaits or iterates its payload.
    """
    owner = await order(api, "7", "charge")
    await waiting(api, owner, HOOK)
    duplicate = await order(api, "7", "charge")
    result = await api.final(duplicate)
    assert (result["status"], result["error"]["code"]) == ("failed", "HOOK_CONFLICT")
    assert result["error"]["details"]["flow_id"] == owner


async def test_a_token_comes_from_the_domain(api: Api, charging: Workshop) -> None:
    """
    > The token should come from your domain, such as an order ID, invoice ID, import ID, or request ID.
    """
    flows = {number: await order(api, number, "charge") for number in ("7", "8")}
    for number, flow_id in flows.items():
        await waiting(api, flow_id, HOOK)
        assert (await api.get(path_of(f"order:{number}"))).ok()["flow_id"] == flow_id


async def test_duplicate_runs_converge_on_one_owner_and_do_no_work(api: Api, charging: Workshop) -> None:
    """
    > The runtime creates the hook atomically. At most one active hook can own order:${orderId}, so duplicate workflow
    > runs converge on one active owner. A duplicate run observes getConflict() resolving with { runId } and returns
    > before it reaches chargeOrder().
    """
    flows = await asyncio.gather(*(order(api, "7", "charge") for _ in range(10)))
    ended = [flow_id for flow_id in flows if (await api.flow(flow_id))["status"] == "failed"]
    assert len(ended) == 9
    (owner,) = set(flows) - set(ended)
    (await post(api, "order:7", {"confirmed": True})).ok()
    assert (await api.final(owner))["outputs"] == {"confirmed": True, "charged": True}
    assert len(charging.calls("charge")) == 1


async def test_the_payload_decides_how_the_flow_goes_on(api: Api, charging: Workshop) -> None:
    """
    > const { confirmed } = await request;

    > if (!confirmed) {
    >     return { status: "cancelled" as const };
    >   }
    """
    flow_id = await order(api, "7", "charge")
    await waiting(api, flow_id, HOOK)
    (await post(api, "order:7", {"confirmed": False})).ok()
    assert (await api.final(flow_id))["outputs"] == {"confirmed": False}
    assert charging.calls("charge") == []


async def test_a_sender_resumes_first_and_starts_if_there_is_no_hook(api: Api, node: Node, charging: Workshop) -> None:
    """
    > Outside the workflow, try to resume the hook first. If the hook is not registered yet, start the workflow and
    > retry the resume until the new run creates the hook

    > the route detects it by comparing the resumed hook's runId against the run it just started, without waiting for
    > either run to finish.
    """
    async with Client(node.url) as client:

        async def confirm(number: str) -> tuple[str, bool]:
            try:
                return (await client.deliver(f"order:{number}", {"confirmed": True}))["flow_id"], True
            except HookNotFound:
                started = (await client.start_flow(["charge"], {"order_id": number}))["flow_id"]

            async def resumed() -> str | None:
                try:
                    return (await client.deliver(f"order:{number}", {"confirmed": True}))["flow_id"]
                except HookNotFound:
                    return None

            owner = await eventually(resumed, what="the hook of the new flow")
            return owner, owner != started

        flow_id, reused = await confirm("7")
        assert not reused
        assert (await client.result(flow_id))["status"] == "completed"
        other = await order(api, "8", "charge")
        await waiting(api, other, HOOK)
        assert await confirm("8") == (other, True)


async def test_no_retry_is_needed_where_the_flow_expects_its_hooks(api: Api, node: Node, shop: Workshop) -> None:
    """
    > A native API for atomically starting a run and registering a hook is in the works.

    > if the hook is not registered yet, the route starts the workflow and retries resumeHook() so the payload is not
    > dropped.
    """
    await shop.waits("prepare", {"order_id": takes(), "prepared": gives()})
    attributes: dict[str, Any] = {"order_id": takes("string"), "prepared": takes(), "confirmed": gives("boolean")}
    await put_hook(api, attributes=attributes)
    flow_id = await start_expecting(node, HOOK, init={"order_id": "7"})
    assert (await post(api, "order:7", {"confirmed": True})).ok()["buffered"]
    await shop.report("prepare", prepared=1)
    assert (await api.final(flow_id))["outputs"]["confirmed"] is True


async def test_a_token_can_be_used_again_after_the_flow(api: Api, charging: Workshop) -> None:
    """
    > This is active-run coordination. When the workflow completes and disposes the hook, the token can be used again.
    """
    for confirmed in (True, False):
        flow_id = await order(api, "7", "charge")
        await waiting(api, flow_id, HOOK)
        (await post(api, "order:7", {"confirmed": confirmed})).ok()
        assert (await api.final(flow_id))["outputs"]["confirmed"] is confirmed


async def test_the_owner_can_be_inspected(api: Api, charging: Workshop) -> None:
    """
    > To act on the owner, pass conflict.runId to getRun() inside a step — the duplicate run can do more than report the
    > owner

    > Retrieve a Run handle for the owner with getRun() inside a step:

    > Inspect the owner before deciding. Branch on the owner's live state
    """
    owner = await order(api, "7", "charge")
    await waiting(api, owner, HOOK)
    result = await api.final(await order(api, "7", "charge"))
    found = result["error"]["details"]
    assert (await api.flow(found["flow_id"]))["steps"][found["step_id"]]["status"] == "active"


async def test_a_duplicate_can_signal_the_owner(api: Api, charging: Workshop) -> None:
    """
    > Signal the owner instead of doing the work. The duplicate run knows the token, so it can deliver this run's input
    > to the owner's hook from a step

    > duplicate requests can also inject additional data and steer the existing run.
    """
    owner = await order(api, "7", "charge")
    await waiting(api, owner, HOOK)
    duplicate = await order(api, "7", "charge")
    assert (await api.final(duplicate))["status"] == "failed"
    assert (await post(api, "order:7", {"confirmed": True})).ok()["flow_id"] == owner
    assert (await api.final(owner))["status"] == "completed"


async def test_the_newest_can_supersede_the_owner(api: Api, endpoint: StepEndpoint) -> None:
    """
    > Supersede the owner. Newest-wins: cancel the active run, then claim the released token. Cancellation disposes the
    > owner's hooks; the retry loop covers the window where that disposal has not propagated yet
    """
    await put_hook(api)
    owner = await order(api)
    await waiting(api, owner)
    (await api.post(f"/api/v1/flows/{owner}/cancel", {})).ok()
    claimed = await order(api)
    await waiting(api, claimed)  # at once: cancelling releases the token in its own transaction
    await put_hook(api, "newest", hook={"on_conflict": "supersede"})
    winner = await order(api, "1", "newest")
    assert (await api.final(claimed))["error"]["code"] == "HOOK_SUPERSEDED"
    assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == winner


async def test_a_hook_can_be_looked_up_by_its_token(api: Api, node: Node, charging: Workshop) -> None:
    """
    > use getHookByToken() as an advisory pre-check before calling start().
    """
    async with Client(node.url) as client:
        with pytest.raises(HookNotFound):
            await client.hook("order:7")
        flow_id = await order(api, "7", "charge")
        await waiting(api, flow_id, HOOK)
        assert (await client.hook("order:7"))["flow_id"] == flow_id

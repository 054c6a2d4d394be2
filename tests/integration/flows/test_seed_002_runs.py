"""Seed 002, statement by statement, as far as it is about run idempotency and conflict strategies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.client import Client, Flow, RunKeyConflict
from counterfoil.client.calls.runs import ConflictStrategy
from counterfoil.testing import Received, StepEndpoint
from tests.integration.planned import gives, takes
from tests.wire import Api

CHARGE = "/charge"
ORDER = {"order_id": "7"}
KEY = "order:7"
YES = {"hook": KEY, "payload": {"confirmed": True}}
NO = {"hook": KEY, "payload": {"confirmed": False}}


class Shop:
    """The seed's order: a hook that waits for a confirmation, then a charge, which is asynchronous."""

    def __init__(self, api: Api, client: Client, endpoint: StepEndpoint) -> None:
        self.api = api
        self.client = client
        self.endpoint = endpoint

    async def open(self) -> None:
        hook = {
            "kind": "hook",
            "hook": {"token": "order:{order_id}"},
            "attributes": {"order_id": takes("string"), "confirmed": gives("boolean")},
        }
        charge = {
            "endpoint": self.endpoint.url(CHARGE),
            "predicate": "inputs.confirmed",
            "attributes": {"order_id": takes("string"), "confirmed": takes("boolean"), "charged": gives("boolean")},
        }
        await self.client.put_step("confirm", hook)
        await self.client.put_step("charge", charge)

    async def order(self, **fields: Any) -> Any:
        return await self.client.start(["charge"], ORDER, idempotency_key=KEY, **fields)

    def charges(self) -> list[Received]:
        return self.endpoint.requests(CHARGE)

    async def charged(self, count: int = 1) -> None:
        """The worker of the charge does its work."""
        await self.api.succeed(await self.endpoint.received(CHARGE, count), charged=True)


@pytest.fixture
async def shop(api: Api, endpoint: StepEndpoint) -> AsyncIterator[Shop]:
    async with Client(api.url) as client:
        shop = Shop(api, client, endpoint)
        await shop.open()
        yield shop


# ------------------------------------------------------------------------------------------------ run idempotency


async def test_one_run_or_two(shop: Shop) -> None:
    """
    > Run idempotency answers a different question: if the same API request is sent twice, should it create one workflow
    > run or two?

    The caller says which: with a run key it is one.
    """
    first = await shop.order(on_conflict="adopt")
    second = await shop.order(on_conflict="adopt")
    assert (first["reused"], second["reused"], second["flow_id"]) == (False, True, first["flow_id"])
    without = [await shop.client.start(["charge"], {"order_id": name}) for name in ("8", "9")]
    assert len({flow["flow_id"] for flow in without}) == 2


async def test_a_conflict_names_the_owner(shop: Shop) -> None:
    """
    > Hook tokens are globally unique while they are active: if another run tries to create a hook with the same token,
    > the runtime records a conflict, hook.getConflict() resolves with { runId } identifying the run that owns the token

    > // Another active run already owns this order's token.

    The key belongs to the flow, not to one of its hooks, and the conflict is the answer to the start itself.
    """
    first = await shop.order()
    with pytest.raises(RunKeyConflict) as conflict:
        await shop.order()
    assert conflict.value.flow_id == first["flow_id"]


@pytest.mark.parametrize("key", ["order-4711", "invoice/2026/17", "import:customers.csv", "0190c0de-request"])
async def test_keys_come_from_the_domain(shop: Shop, key: str) -> None:
    """
    > Use a hook token as the idempotency key for an active workflow run.

    > The token should come from your domain, such as an order ID, invoice ID, import ID, or request ID.
    """
    started = await shop.client.start(["charge"], {"order_id": key}, idempotency_key=key)
    assert (await shop.client.flow(started["flow_id"]))["idempotency_key"] == key


async def test_a_duplicate_runs_no_step(shop: Shop) -> None:
    """
    > At most one active hook can own order:${orderId}, so duplicate workflow runs converge on one active owner. A
    > duplicate run observes getConflict() resolving with { runId } and returns before it reaches chargeOrder().

    There is no duplicate run: of a start that is not admitted nothing is recorded.
    """
    first = await shop.order(signal=YES)
    await shop.endpoint.received(CHARGE)
    for on_conflict in ("adopt", "reject"):
        if on_conflict == "adopt":
            await shop.order(on_conflict=on_conflict)
        else:
            with pytest.raises(RunKeyConflict):
                await shop.order()
    assert len(shop.charges()) == 1
    page = await shop.client.flows()
    assert [flow["flow_id"] for flow in page["flows"]] == [first["flow_id"]]


async def test_resume_or_start_is_one_call(shop: Shop) -> None:
    """
    > Outside the workflow, try to resume the hook first. If the hook is not registered yet, start the workflow and
    > retry the resume until the new run creates the hook:

    > The resume always reaches the actual active

    > owner, so compare run IDs instead of waiting for this run to finish.

    ``on_conflict: signal`` is the whole route: no resume before, no retries after, no ids to compare.
    """
    started = await shop.order(on_conflict="signal", signal=YES)
    assert started["reused"] is False
    await shop.charged()
    result = await shop.client.result(started["flow_id"])
    assert (result["status"], result["outputs"]) == ("completed", {"confirmed": True, "charged": True})


async def test_no_two_requests_both_see_that_there_is_no_owner(shop: Shop) -> None:
    """
    > This avoids creating a new run only after the first run has registered its hook. Because start() returns before
    > the run body executes and calls createHook(), two concurrent requests can both observe "no hook yet" and each
    > call start(). The race is resolved inside the workflow body, where the losing run observes getConflict()
    > resolving with the active owner and returns without doing duplicate-sensitive work

    > // A concurrent request's run may have won the race between `start()`

    > A native API for atomically starting a run and registering a hook is in the works.

    Admission is atomic: the race is over before any step runs.
    """
    answers = await asyncio.gather(*(shop.order(on_conflict="adopt") for _ in range(50)))
    assert Counter(answer["reused"] for answer in answers) == {True: 49, False: 1}
    assert len({answer["flow_id"] for answer in answers}) == 1
    page = await shop.client.flows()
    assert len(page["flows"]) == 1, "no losing run was ever started"


async def test_after_the_end_the_key_can_be_used_again(shop: Shop) -> None:
    """
    > This is active-run coordination. When the workflow completes and disposes the hook, the token can be used again.
    """
    first = await shop.order(signal=NO)
    assert (await shop.client.result(first["flow_id"]))["status"] == "completed"
    assert (await shop.order())["reused"] is False


async def test_or_the_original_result_is_returned(shop: Shop) -> None:
    """
    > If a duplicate request after completion must return the original result instead of starting fresh work, persist
    > that completed result under the same domain key.

    ``retain_key_for`` does.
    """
    first = await shop.order(signal=YES, retain_key_for="24h")
    await shop.charged()
    await shop.client.result(first["flow_id"])
    again = await shop.order()
    assert (again["flow_id"], again["reused"], again["status"]) == (first["flow_id"], True, "completed")
    assert again["outputs"] == {"confirmed": True, "charged": True}
    assert len(shop.charges()) == 1


# ------------------------------------------------------------------------------------------------ strategies


async def test_a_policy_is_a_name_or_ordinary_code(shop: Shop) -> None:
    """
    > Some workflow systems resolve duplicate IDs with a fixed, pre-declared policy — typically a static choice between
    > rejecting the new execution, deferring to the existing one, or terminating it. Workflow has no policy enum.
    > hook.getConflict() hands the duplicate run the conflicting run's ID, and the policy is ordinary code — including
    > policies that inspect state before deciding, which static configuration can't express.

    Both: four names for the usual policies, and a function that is given the owner.
    """
    first = await shop.order()
    seen: list[Flow] = []

    async def policy(owner: Flow) -> ConflictStrategy:
        seen.append(owner)
        return "adopt" if owner["steps"]["charge"]["status"] == "pending" else "reject"

    assert (await shop.order(on_conflict=policy))["flow_id"] == first["flow_id"]
    assert [owner["flow_id"] for owner in seen] == [first["flow_id"]]


async def test_reject(shop: Shop) -> None:
    """
    > The example above implements reject the duplicate: return the owner's runId and let the caller decide.
    """
    first = await shop.order()
    with pytest.raises(RunKeyConflict) as conflict:
        await shop.order(on_conflict="reject")
    assert (conflict.value.flow_id, conflict.value.flow_status) == (first["flow_id"], "active")


async def test_adopt(shop: Shop) -> None:
    """
    > Adopt the owner's result. Wait for the active run to finish and return its result, so callers cannot tell which
    > run did the work:

    > // Callers get the same result regardless of which run did the work.
    """

    async def caller() -> Any:
        flow = await shop.order(on_conflict="adopt", signal=YES)
        return (await shop.client.result(flow["flow_id"], 20))["outputs"]

    callers = [asyncio.create_task(caller()) for _ in range(10)]
    await shop.charged()
    assert await asyncio.gather(*callers) == [{"confirmed": True, "charged": True}] * 10
    assert len(shop.charges()) == 1


async def test_inspect(shop: Shop) -> None:
    """
    > Inspect the owner before deciding. Branch on the owner's live state:

    > // Owner already reached a terminal state; its hook will be released.

    A decision about an owner that has changed since is not carried out: the function is asked again, or the key is
    free.
    """
    first = await shop.order()
    asked = 0

    async def policy(owner: Flow) -> ConflictStrategy:
        nonlocal asked
        asked += 1
        await shop.client.cancel(owner["flow_id"])  # meanwhile it reaches a terminal state
        return "adopt"

    second = await shop.order(on_conflict=policy)
    assert (second["reused"], asked) == (False, 1), "the owner had ended: this start was admitted"
    assert second["flow_id"] != first["flow_id"]


async def test_inspect_again(shop: Shop) -> None:
    """
    > Inspect the owner before deciding. Branch on the owner's live state:
    """
    first = await shop.order()
    asked: list[str] = []

    async def policy(owner: Flow) -> ConflictStrategy:
        asked.append(owner["steps"]["charge"]["status"])
        if asked == ["pending"]:  # between the look and the decision, the charge begins
            await shop.order(on_conflict="signal", signal=YES)
            await shop.endpoint.received(CHARGE)
        return "supersede" if asked[-1] == "pending" else "adopt"

    second = await shop.order(on_conflict=policy)
    assert asked == ["pending", "active"]
    assert (second["flow_id"], second["reused"]) == (first["flow_id"], True), "nothing that charges is cancelled"


async def test_signal(shop: Shop) -> None:
    """
    > Signal the owner instead of doing the work. The duplicate run knows the token, so it can deliver this run's input
    > to the owner's hook from a step:
    """
    first = await shop.order()
    second: Any = await shop.order(on_conflict="signal", signal=YES)
    assert (second["flow_id"], second["reused"], second["signalled"]) == (first["flow_id"], True, True)
    await shop.charged()
    assert (await shop.client.result(first["flow_id"]))["outputs"] == {"confirmed": True, "charged": True}


async def test_supersede(shop: Shop) -> None:
    """
    > Supersede the owner. Newest-wins: cancel the active run, then claim the released token. Cancellation disposes the
    > owner's hooks; the retry loop covers the window where that disposal has not propagated yet:

    > // Token claimed — this run is now the owner.

    There is no window, and no loop: one transaction does both, and the new flow has the token as well.
    """
    first = await shop.order()
    second: Any = await shop.order(on_conflict="supersede")
    assert second["superseded"] == first["flow_id"]
    assert (await shop.client.flow(first["flow_id"]))["status"] == "cancelled"
    third: Any = await shop.order(on_conflict="signal", signal=NO)
    assert (third["flow_id"], third["signalled"]) == (second["flow_id"], True)
    assert (await shop.client.result(second["flow_id"]))["outputs"] == {"confirmed": False}


async def test_reuse_without_sending_data(shop: Shop) -> None:
    """
    > If duplicate requests should only reuse the active run without sending data, use getHookByToken() as an advisory
    > pre-check before calling start(). The workflow should still check hook.getConflict(), because the lookup and
    > start() are not atomic.

    ``adopt`` is both at once; ``?key=`` is the lookup alone.
    """
    assert (await shop.client.flows(idempotency_key=KEY, status="active"))["flows"] == []
    first = await shop.order(on_conflict="adopt")
    assert (await shop.order(on_conflict="adopt"))["flow_id"] == first["flow_id"]
    (found,) = (await shop.client.flows(idempotency_key=KEY, status="active"))["flows"]
    assert found["flow_id"] == first["flow_id"]


async def test_duplicates_steer_the_run_and_no_payload_is_dropped(shop: Shop) -> None:
    """
    > Because this pattern uses hooks for idempotency, duplicate requests can also inject additional data and steer the
    > existing run.

    > if the hook already exists, the duplicate request resumes the active workflow; if the hook is not registered yet,
    > the route starts the workflow and retries resumeHook() so the payload is not dropped.
    """
    first = await shop.order()
    second = await shop.order(on_conflict="signal", signal=NO)
    assert second["flow_id"] == first["flow_id"]
    assert (await shop.client.result(first["flow_id"]))["outputs"] == {"confirmed": False}, "it was steered"
    third = await shop.order(on_conflict="signal", signal=YES)
    assert third["reused"] is False
    await shop.charged()
    outputs = (await shop.client.result(third["flow_id"]))["outputs"]
    assert outputs == {"confirmed": True, "charged": True}, "the payload of the very start"

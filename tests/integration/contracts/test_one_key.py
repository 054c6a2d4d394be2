"""One key from the step of a workflow down to the request that has the effect, whichever way the call takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from counterfoil.client import Assignment, Client, Worker
from counterfoil.contracts import EngineDedupStore, SqliteDedupStore, ToolCall, ToolContract
from tests.integration.contracts.payments import Payments
from tests.integration.contracts.shop_tools import good_refund
from tests.wire import Api

if TYPE_CHECKING:
    from tests.running import Node

ARGUMENTS = {"payment_id": "p-1", "amount_minor": 1400}


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client(node.url) as opened:
        yield opened


@pytest.fixture
def refund(payments: Payments, tmp_path: Path) -> Iterator[ToolContract[Any, Any]]:
    store = SqliteDedupStore(tmp_path / "effects.db")
    yield good_refund(payments.url).bind(store)
    store.close()


@pytest.fixture
async def dispatched(client: Client, refund: ToolContract[Any, Any]) -> AsyncIterator[list[str]]:
    """A worker that refunds what the step ``refund`` is about; the keys that it was given."""
    keys: list[str] = []
    worker = Worker()

    @worker.step("/refund")
    async def handle(work: Assignment) -> dict[str, Any]:
        keys.append(work.receipt.idempotency_key)
        made = await refund.run(ToolCall.from_dispatch(work.arguments, work.receipt))
        return {"refund_id": made.refund_id}

    runner = web.AppRunner(worker.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await client.put_step("refund", {"endpoint": f"http://127.0.0.1:{runner.addresses[0][1]}/refund"})
    yield keys
    await runner.cleanup()


async def test_the_key_of_a_dispatch_reaches_the_payment_system(
    client: Client, api: Api, payments: Payments, dispatched: list[str]
) -> None:
    flow = await client.start_flow(["refund"], ARGUMENTS)
    result = await client.result(flow["flow_id"], wait=20)
    assert result["outputs"] == {"refund_id": "re_1"}
    assert list(payments.keys) == dispatched
    [work] = (await client.flow(flow["flow_id"]))["steps"]["refund"]["work"]
    assert (await api.get(f"/api/v1/work/{work['work_id']}")).ok()["idempotency_key"] == dispatched[0]


async def test_a_key_given_at_the_start_of_the_flow_reaches_it_verbatim(
    client: Client, payments: Payments, dispatched: list[str]
) -> None:
    """Two flows with one key for one business action: one refund, also without a shared key in the engine."""
    for _ in range(2):
        flow = await client.start_flow(["refund"], ARGUMENTS, init_keys={"refund": "refund:order-7"})
        assert (await client.result(flow["flow_id"], wait=20))["outputs"] == {"refund_id": "re_1"}
    assert dispatched == ["refund:order-7"] * 2
    assert payments.keys == {"refund:order-7": 1}


async def test_the_key_of_a_gate_call_reaches_it(
    client: Client, payments: Payments, refund: ToolContract[Any, Any]
) -> None:
    workflow = (await client.create_workflow("refund"))["workflow_id"]
    for _ in range(2):  # the second run finds the step done
        async with client.step(workflow, "pay", key="refund-7", input=ARGUMENTS) as step:
            if not step.done:
                made = await refund.run(ToolCall.from_step(ARGUMENTS, step))
                step.output = made.model_dump()
    assert step.output == {"refund_id": "re_1", "amount_minor": 1400}
    assert payments.keys == {"refund-7": 1}


async def test_a_gated_step_that_crashed_before_its_report_is_called_again_with_its_key(
    client: Client, payments: Payments, refund: ToolContract[Any, Any]
) -> None:
    """Without a key of the gate call, workflow, step, tool and arguments make one: the same after the crash."""
    workflow = (await client.create_workflow("refund"))["workflow_id"]

    async def agent(crash: bool) -> Any:
        async with client.step(workflow, "pay", input=ARGUMENTS) as step:
            made = await refund.run(ToolCall.from_step({**ARGUMENTS, "reason": f"crash: {crash}"}, step))
            if crash:
                raise ConnectionError("gone before the report")
            step.output = made.model_dump()
        return step.output

    with pytest.raises(ConnectionError):
        await agent(crash=True)
    assert (await agent(crash=False))["refund_id"] == "re_1"
    assert payments.paid() == 1
    assert list(payments.keys.values()) == [1]


async def test_the_engine_may_be_the_dedup_store_too(node: Node, client: Client, payments: Payments) -> None:
    """One engine gives the key, and keeps what came of it: any process that can reach it is recognised."""
    workflow = (await client.create_workflow("refund"))["workflow_id"]
    answers = []
    for _ in range(2):
        store = EngineDedupStore(node.url)
        refund = good_refund(payments.url).bind(store)
        async with client.step(workflow, "pay", key="refund-8", input=ARGUMENTS, retry_policy="reevaluate") as step:
            answers.append(await refund.run(ToolCall.from_step(ARGUMENTS, step)))
        shown = await store.show("issue_refund", "refund-8")
        await store.aclose()
    assert [answer.refund_id for answer in answers] == ["re_1", "re_1"]
    assert shown is not None
    assert [entry.type for entry in shown.audit] == ["effect_reserved", "effect_completed", "dedup_hit"]
    assert payments.paid() == 1


async def test_many_dispatches_of_many_flows_with_one_key_are_one_refund(
    client: Client, payments: Payments, dispatched: list[str]
) -> None:
    flows = [await client.start_flow(["refund"], ARGUMENTS, init_keys={"refund": "refund:order-9"}) for _ in range(10)]
    results = await asyncio.gather(*(client.result(flow["flow_id"], wait=30) for flow in flows))
    assert [result["outputs"] for result in results] == [{"refund_id": "re_1"}] * 10
    assert (len(dispatched), payments.paid()) == (10, 1)

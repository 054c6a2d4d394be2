"""Which receipt secrets an engine can do without: those that have signed nothing that is still out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from counterfoil.app import StartFailure
from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.integration.scenario import PATH, STEP, dispatched, place_of, webhook_path
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.both_paths

A, B, C = (f"secret-{letter}-0123456789abcdef" for letter in "abc")
PATIENT = {"deadline_ms": 30 * 24 * 3_600_000}


@contextlib.asynccontextmanager
async def serving(start_node: StartNode, connect: Connect, clock: MovableClock, *secrets: str) -> AsyncIterator[Api]:
    """An engine with these secrets for the length of a block, a day after the one before."""
    clock.advance(hours=24)
    node = await start_node(clock=clock, receipt_secrets=",".join(secrets))
    yield connect(node)
    await node.stop()


async def refusal(start_node: StartNode, clock: MovableClock, *secrets: str) -> str:
    clock.advance(hours=24)
    with pytest.raises(StartFailure, match="--new-receipt-secret") as refused:
        await start_node(clock=clock, receipt_secrets=",".join(secrets))
    assert not [secret for secret in (A, B, C) if secret in str(refused.value)]
    return str(refused.value)


async def test_a_secret_is_needed_until_what_it_signed_has_an_outcome(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    async with serving(start_node, connect, clock, A) as api:
        _, by_a = await dispatched(api, endpoint, work=PATIENT)
    await refusal(start_node, clock, B)
    async with serving(start_node, connect, clock, A, B):
        pass
    async with serving(start_node, connect, clock, B, A) as api:
        _, by_b = await dispatched(api, endpoint, work=PATIENT)
    assert "1 open work items" in await refusal(start_node, clock, B)
    assert "1 open work items" in await refusal(start_node, clock, A)
    assert "2 open work items" in await refusal(start_node, clock, C)
    async with serving(start_node, connect, clock, C, B, A) as api:
        (await api.post(webhook_path(by_a), {"success": True})).ok()
    await refusal(start_node, clock, C)
    async with serving(start_node, connect, clock, B) as api:
        (await api.post(webhook_path(by_b), {"success": True})).ok()
    async with serving(start_node, connect, clock, C):
        pass


async def test_a_secret_that_signs_again_covers_both_times(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    async with serving(start_node, connect, clock, A) as api:
        _, first = await dispatched(api, endpoint, work=PATIENT)
    async with serving(start_node, connect, clock, B, A):
        pass
    async with serving(start_node, connect, clock, A, B) as api:
        await dispatched(api, endpoint, work=PATIENT)
        (await api.post(webhook_path(first), {"success": True})).ok()
    await refusal(start_node, clock, B)
    async with serving(start_node, connect, clock, A):
        pass


async def test_what_carries_no_receipt_needs_no_secret(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A sync step that waits for its next attempt."""
    clock = MovableClock()
    endpoint.answer(PATH, Answer(503))
    async with serving(start_node, connect, clock, A) as api:
        slow = {"init_backoff_ms": 3_600_000, "max_backoff_ms": 3_600_000, "max_retries": 100}
        await api.put_step(STEP, endpoint.url(PATH), kind="sync", work=slow)
        flow_id = await api.start(STEP)
        await api.until_work(flow_id, "not_completed")
    async with serving(start_node, connect, clock, B):
        pass


async def test_the_receipt_of_an_attempt_that_is_retried_is_still_out(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    endpoint.answer(PATH, Answer(503))
    async with serving(start_node, connect, clock, A) as api:
        slow = {"init_backoff_ms": 24 * 3_600_000, "max_backoff_ms": 24 * 3_600_000}
        await api.put_step(STEP, endpoint.url(PATH), work=slow)
        await api.until_work(await api.start(STEP), "not_completed")
    await refusal(start_node, clock, B)


async def test_a_compensation_is_out_like_any_other_work(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    async with serving(start_node, connect, clock, A) as api:
        compensate = {"kind": "async", "endpoint": endpoint.url("/undo")}
        await api.put_step(STEP, endpoint.url(PATH), compensate=compensate)
        await api.put_step("fails", endpoint.url("/fails"), wait_for={"of": [STEP]})
        flow_id = await api.start("fails")
        await api.succeed(await endpoint.received(PATH))
        (await api.complete(await endpoint.received("/fails"), {"success": False, "error": "no"})).ok()
        await endpoint.received("/undo")
        assert (await api.flow(flow_id))["status"] == "compensating"
    await refusal(start_node, clock, B)


async def test_the_database_holds_no_secret_but_its_check_value(start_node: StartNode) -> None:
    node = await start_node(receipt_secrets=A)
    [(check, since, _)] = by_hand(place_of(node), "SELECT * FROM receipt_checks")
    assert (len(check), since) == (64, 0)
    assert A not in check


@pytest.mark.postgresql_only
async def test_a_node_that_goes_on_signing_with_the_old_secret_is_counted(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Nodes are restarted one by one: what the last old one sends is signed after the first new one has begun."""
    clock = MovableClock()
    old = await start_node(clock=clock, receipt_secrets=f"{A},{B}", lease_ms=500)
    clock.advance(hours=24)
    new = await start_node(clock=clock, receipt_secrets=f"{B},{A}", lease_ms=500)
    clock.advance(hours=24)
    ends = "SELECT count(*) FROM receipt_checks WHERE signs_until > " + str(clock())
    await eventually(lambda: by_hand(place_of(old), ends) == [(2,)], what="both nodes to say that they sign")
    await new.stop()
    _, by_a = await dispatched(connect(old), endpoint, work=PATIENT)
    await old.stop()
    await refusal(start_node, clock, B)
    async with serving(start_node, connect, clock, B, A) as api:
        (await api.post(webhook_path(by_a), {"success": True})).ok()
    async with serving(start_node, connect, clock, B):
        pass

"""Schedules on several nodes: whichever is there fires, and each tick starts one flow."""

from __future__ import annotations

from itertools import pairwise

import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.integration.schedules.test_schedules import put, shown, ticks, until_ticks
from tests.integration.several_nodes import metric, start_nodes
from tests.running import Connect, StartNode
from tests.wire import moment

pytestmark = pytest.mark.postgresql_only

BUSY = {"sweep_interval_ms": 20}


async def test_each_tick_starts_one_flow(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """All nodes look for due schedules all the time."""
    clock = MovableClock()
    apis = [connect(node) for node in await start_nodes(start_node, 3, clock=clock, **BUSY)]
    await apis[0].put_step(STEP, endpoint.url(PATH), kind="sync")
    names = [f"schedule-{number}" for number in range(5)]
    for name in names:
        (await put(apis[0], name, every_ms=100, catch_up="all")).ok(201)
    clock.advance(seconds=20)
    for name in names:
        await until_ticks(apis[1], 100, name)
        (await put(apis[2], name, every_ms=100, catch_up="all", enabled=False)).ok()
    for name in names:
        found = [moment(tick).timestamp() * 1000 for tick in await ticks(apis[1], name)]
        assert {round(after - before) for before, after in pairwise(found)} == {100}, (
            "none is missing, and none is there twice"
        )
    started = [await metric(api, 'counterfoil_schedule_firings_total{outcome="started"}') for api in apis]
    assert sum(started) == sum([len(await ticks(apis[0], name)) for name in names])


async def test_another_node_takes_over(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    first, second = await start_nodes(start_node, 2, clock=clock, **BUSY)
    api = connect(second)
    await api.put_step(STEP, endpoint.url(PATH))
    body = (await put(connect(first))).ok(201)
    await first.stop()
    clock.advance(hours=1)
    call = await endpoint.received(PATH)
    assert call.metadata["scheduled_at"] == body["next_at"]
    assert (await shown(api))["last_flow_id"] == call.metadata["flow_id"]

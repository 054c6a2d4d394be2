"""kill -9 between the commit of an event and the answer of its subscriber: it is delivered after the restart."""

from __future__ import annotations

import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.by_hand import by_hand
from tests.integration.subscribing import Subscriber


@pytest.mark.sqlite_only  # on PostgreSQL crashes are those of tests/unit/subscriptions/test_deliveries.py
async def test_a_kill_does_not_make_the_engine_forget_a_subscription(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, store_settings: dict[str, str]
) -> None:
    engine = new_engine()
    await engine.start()
    api = client_of(engine)
    ops = Subscriber(api, endpoint)
    await ops.subscribe("flow.started")
    endpoint.answer(ops.path, Answer(fault="silent"), Answer())
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    first = await endpoint.received(ops.path)
    await engine.kill()
    [(delivery_id,)] = by_hand(engine.place, "SELECT delivery_id FROM deliveries WHERE due_at IS NOT NULL")
    by_hand(engine.place, "UPDATE deliveries SET due_at = 0")  # the time that the dead one had it in hand is over
    await engine.start()
    second = await endpoint.received(ops.path, 2)
    assert ops.read(second)["data"]["flow_id"] == flow_id
    assert {first.headers["webhook-id"], second.headers["webhook-id"]} == {delivery_id}
    assert first.content == second.content
    await ops.all_told()
    await engine.kill()
    assert "whsec_" not in engine.log.read_text("utf-8")
    assert run_doctor(Settings(data=engine.data, store=store_settings.get("store", ""))) == []

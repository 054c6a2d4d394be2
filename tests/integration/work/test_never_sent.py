"""Section 1: work that was never sent yet takes no report, even from a holder of its receipt."""

from __future__ import annotations

import pytest

from counterfoil.domain.work.receipts import Receipts
from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.both_paths

SECRET = "a receipt secret of this test"


@pytest.fixture
async def waiting(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> tuple[Api, str, str]:
    """A flow whose only item waits behind another one (parallelism 1), and the path of its webhook."""
    api = connect(await start_node(receipt_secrets=SECRET))
    first, received = await dispatched(api, endpoint, work={"parallelism": 1})
    flow_id = await api.start(STEP)
    work = await api.work(flow_id)
    assert work["status"] == "pending"
    receipts = Receipts([SECRET.encode()])
    assert receipts.issue(first, STEP, (await api.work(first))["work_id"]) == received.token
    return api, flow_id, f"/webhook/{flow_id}/{STEP}/{receipts.issue(flow_id, STEP, work['work_id'])}"


@pytest.mark.parametrize(
    "result", [{"success": True}, {"success": False, "error": "x"}, {"success": False, "retriable": True}]
)
async def test_a_result_is_refused(waiting: tuple[Api, str, str], result: dict[str, object]) -> None:
    api, flow_id, path = waiting
    before = await api.events(flow_id)
    details = (await api.post(path, result)).refused(400, "WORK_NOT_ACTIVE")
    assert details["status"] == "pending"
    assert details["recorded_at"] is None
    assert await api.events(flow_id) == before


async def test_a_heartbeat_is_refused(waiting: tuple[Api, str, str]) -> None:
    api, flow_id, path = waiting
    details = (await api.post(path + "/heartbeat", {"progress": 0.5})).refused(400, "WORK_NOT_ACTIVE")
    assert details["status"] == "pending"
    assert (await api.work(flow_id))["progress"] is None


async def test_looking_is_allowed(waiting: tuple[Api, str, str]) -> None:
    api, _, path = waiting
    body = (await api.get(path)).ok()
    assert (body["status"], body["attempt"], body["cancel_requested"]) == ("pending", 0, False)
    assert body["recorded_at"] is None


async def test_a_cancelled_item_that_was_never_sent(waiting: tuple[Api, str, str], endpoint: StepEndpoint) -> None:
    api, flow_id, path = waiting
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    (await api.post(path, {"success": True})).refused(400, "WORK_CANCELLED")
    assert (await api.post(path + "/heartbeat", {})).ok()["cancel_requested"] is True
    assert len(endpoint.requests(PATH)) == 1

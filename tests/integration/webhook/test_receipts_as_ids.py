"""A receipt is never accepted as an id, because ids are shown to every reader."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import StepEndpoint
from tests.wire import Api

pytestmark = pytest.mark.both_paths

POLICY = {"name": "p", "action": {"type": "allow"}}
SUBSCRIPTION = {"url": "http://127.0.0.1:9/", "events": ["flow.failed"]}
SCHEDULE = {"every_ms": 3_600_000, "flow": {"goals": ["job"]}}


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "steps/{}", {"endpoint": "http://127.0.0.1:9/"}),
        ("PUT", "steps/x.{}", {"endpoint": "http://127.0.0.1:9/"}),
        ("PUT", "policies/{}", POLICY),
        ("PUT", "schedules/{}", SCHEDULE),
        ("PUT", "subscriptions/{}", SUBSCRIPTION),
        ("POST", "workflows/{workflow}/steps/{}/gate", {}),
    ],
)
async def test_a_receipt_in_the_place_of_an_id_is_refused_and_kept_nowhere(
    api: Api, endpoint: StepEndpoint, method: str, path: str, body: dict[str, Any]
) -> None:
    await api.put_step("job", endpoint.url("/job"))
    await api.start("job")
    token = (await endpoint.received("/job")).token
    workflow = (await api.post("/api/v1/workflows", {"workflow_name": "w"})).ok(201)["workflow_id"]
    reply = await api.request(method, "/api/v1/" + path.format(token, workflow=workflow), json=body)
    reply.refused(400, "BAD_REQUEST")
    assert token not in reply.content.decode()
    for kind in ("steps", "policies", "schedules", "subscriptions", f"workflows/{workflow}"):
        assert token not in (await api.get(f"/api/v1/{kind}")).content.decode()


async def test_reading_by_a_receipt_finds_nothing(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("job", endpoint.url("/job"))
    await api.start("job")
    token = (await endpoint.received("/job")).token
    (await api.get(f"/api/v1/flows/{token}")).refused(404, "UNKNOWN_FLOW")
    (await api.get(f"/api/v1/steps/{token}")).refused(404, "UNKNOWN_STEP")

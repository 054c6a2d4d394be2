"""What several acceptance tests begin with."""

from __future__ import annotations

from counterfoil.testing import Received, StepEndpoint
from tests.wire import Api


async def dispatched(api: Api, endpoint: StepEndpoint) -> tuple[str, Received]:
    """A new flow whose one work item was sent and acknowledged: its id, and what the endpoint received."""
    await api.put_step("job", endpoint.url("/job"))
    before = len(endpoint.requests("/job"))
    flow_id = await api.start("job")
    await api.until_acknowledged(flow_id)
    return flow_id, await endpoint.received("/job", before + 1)

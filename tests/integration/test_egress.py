"""Endpoints at addresses that the egress rules forbid, however the address is written: nothing is sent there."""

from __future__ import annotations

import pytest

from tests.integration.scenario import STEP
from tests.wire import Api

METADATA = (
    "169.254.169.254",
    "[::ffff:169.254.169.254]",
    "[::ffff:0:169.254.169.254]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::169.254.169.254]",
    "[64:ff9b:1:a9fe:a9:fe00::1]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:808:808::5601:5601]",
    "[2001:db8::200:5efe:169.254.169.254]",
)


@pytest.mark.sqlite_only  # the store has no part in it
@pytest.mark.parametrize("host", METADATA)
async def test_the_metadata_service_of_a_cloud_is_not_called(api: Api, host: str) -> None:
    await api.put_step(STEP, f"http://{host}/latest/")
    flow_id = await api.start(STEP)
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.work(flow_id))["error"]["code"] == "EGRESS_DENIED"

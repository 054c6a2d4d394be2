"""Endpoints at addresses that the egress rules forbid, however the address is written: nothing is sent there."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
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


@pytest.mark.sqlite_only  # the store has no part in it
@pytest.mark.parametrize(
    ("only", "called", "refused"),
    [
        (["localhost"], "localhost", "127.0.0.1"),
        (["127.0.0.0/8"], "127.0.0.1", "192.0.2.1"),
        (["127.0.0.0/8", "::1"], "localhost", "192.0.2.1"),
        (["workers.example", "127.0.0.1"], "127.0.0.1", "127.0.0.2"),
    ],
)
async def test_only_what_is_listed_is_called(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, only: list[str], called: str, refused: str
) -> None:
    api = connect(await start_node(egress_only=only))
    endpoint.answer(PATH, Answer(200, {"success": True}))
    port = urlsplit(endpoint.url(PATH)).port
    await api.put_step(STEP, f"http://{refused}:{port}{PATH}", kind="sync")
    flow_id = await api.start(STEP)
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.work(flow_id))["error"]["code"] == "EGRESS_DENIED"
    assert endpoint.all_requests() == []
    await api.put_step(STEP, f"http://{called}:{port}{PATH}", kind="sync")
    assert (await api.final(await api.start(STEP)))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 1

import asyncio, time, pytest
from counterfoil.testing import Answer
from tests.eventually import elapsed
from tests.integration.several_nodes import *
from tests.integration.test_nodes_takeover import line
from tests.integration.scenario import PATH, STEP, dispatched
from tests.sse import event_stream
pytestmark = pytest.mark.postgresql_only
@pytest.mark.parametrize("how", ["refuse", "cut", "silence"])
async def test_stream(line, start_node, connect, endpoint, how):
    lost, other = await start_node(store=line.dsn), await start_node()
    a, b = connect(lost), connect(other)
    flow_id, received = await dispatched(b, endpoint)
    async with event_stream(a.session, f"{a.url}/api/v1/stream") as s:
        getattr(line, how)()
        (await b.post(on(b, received, "/heartbeat"), {})).ok()
        await elapsed(4)
        line.admit()
        try:
            print("GOT", how, await s.next(within=8))
        except BaseException as e:
            print("GOT", how, repr(e))

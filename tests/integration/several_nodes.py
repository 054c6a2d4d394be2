"""Several engines on one PostgreSQL: how tests start them, and look behind and between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import asyncpg

from counterfoil.engine.cluster.lease import Lease
from counterfoil.testing import Received
from tests.eventually import eventually
from tests.running import Node, StartNode
from tests.wire import Api

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

ONLY_BY_WORD = {"sweep_interval_ms": 60_000, "lease_ms": 300_000}
"""No sweep runs by itself before the test is over: what one node knows of another it was told."""
PROMPT_SECONDS = 5.0
"""Far more than word from node to node takes, and far less than the time after which sweeps run by themselves."""
SHORT_LEASE = {"lease_ms": 600, "sweep_interval_ms": 100}


async def start_nodes(start_node: StartNode, count: int, **settings: Any) -> list[Node]:
    """So many nodes that know of each other, and hear each other."""
    nodes = [await start_node(**settings) for _ in range(count)]
    await introduce(*nodes)
    return nodes


async def introduce(*nodes: Node) -> None:
    """Let each count the others now, instead of at its next renewal, and wait until each hears what they say."""
    for node in nodes:
        await lease_of(node).keep()
    await eventually(lambda: _listeners(nodes[0], len(nodes)), what="a listener of every node")


async def _listeners(node: Node, count: int) -> bool:
    async with hand_in_server(node) as server:
        return len(await listeners(server, node)) >= count


async def listeners(server: Connection, node: Node) -> list[int]:
    """The server processes by which the nodes of a database hear each other: they last did that, or asked for life."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND (query LIKE 'LISTEN %' OR query = 'SELECT 1')"
    return [row[0] for row in await server.fetch(query, database_of(node))]


def database_of(node: Node) -> str:
    return node.settings.store.rpartition("/")[2]


@contextlib.asynccontextmanager
async def hand(node: Node) -> AsyncIterator[Connection]:
    """A hand in the database of a node."""
    connection = await asyncpg.connect(node.settings.store)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def hand_in_server(node: Node) -> AsyncIterator[Connection]:
    """A hand in the server of a node, beside its database."""
    connection = await asyncpg.connect(f"{node.settings.store.rpartition('/')[0]}/postgres")
    try:
        yield connection
    finally:
        await connection.close()


def lease_of(node: Node) -> Lease:
    return node.engine.engine.lease


def node_id(node: Node) -> str:
    """Under which name it claims what it sends."""
    return node.engine.engine.context.node_id


def deafen(node: Node) -> None:
    """Whatever the others say to this node is lost."""
    node.engine.engine.store.listen(lambda message: None)


def on(api: Api, received: Received, suffix: str = "") -> str:
    """The webhook of a dispatch (or a path below it) at a node that need not be the sender."""
    metadata = received.metadata
    return f"{api.url}/webhook/{metadata['flow_id']}/{metadata['step_id']}/{received.token}{suffix}"


async def succeed(api: Api, received: Received, **outputs: Any) -> None:
    """Report success at this node."""
    body = (await api.post(on(api, received), {"success": True, "outputs": outputs})).ok()
    assert body["verdict"] == "accepted"


async def start_many(api: Api, step_id: str, count: int) -> list[str]:
    return await asyncio.gather(*(api.start(step_id) for _ in range(count)))


async def senders(api: Api, flow_id: str) -> list[str]:
    """The owner of each attempt of a flow with one work item, in their order."""
    events = await api.events(flow_id)
    return [event["data"]["owner"] for event in events if event["type"] == "work_dispatched"]


async def metric(api: Api, line: str) -> float:
    """The value of a metric, by its name with labels; 0 where it is not there yet."""
    text = (await api.get("/metrics")).content.decode()
    found = [each.rpartition(" ")[2] for each in text.splitlines() if each.startswith(f"{line} ")]
    return float(found[0]) if found else 0.0

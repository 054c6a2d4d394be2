"""Three nodes on one PostgreSQL behind a real nginx, with ``config/nginx.conf`` as it stands but for its addresses."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.acceptance.processes import EngineProcess
from tests.eventually import eventually
from tests.pages import ROOT
from tests.programs import program
from tests.sse import event_stream
from tests.wire import Api

FILE = ROOT / "config" / "nginx.conf"
SECRET = "cf_a-key-for-this-test-only"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

pytestmark = pytest.mark.postgresql_only


def prepared(directory: Path, port: int, nodes: list[int], **timeouts: str) -> Path:
    """The file with ports and directories of this test; ``timeouts`` are shorter ones, by their place in the file."""
    text = FILE.read_text("utf-8")
    places = "".join(f"{name}_temp_path {directory}/{name};\n" for name in TEMPORARY)
    changes = {
        "listen 80;": f"listen 127.0.0.1:{port};",
        "/var/log/nginx/": f"{directory}/",
        "http {\n": f"http {{\n{places}",
        **{f"node-{number}:8080": f"127.0.0.1:{node}" for number, node in enumerate(nodes, start=1)},
        **{f"proxy_read_timeout {usual};": f"proxy_read_timeout {short};" for usual, short in timeouts.items()},
    }
    for old, new in changes.items():
        assert old in text, f"config/nginx.conf has no {old!r} any more"
        text = text.replace(old, new)
    user = "user root;\n" if os.geteuid() == 0 else ""  # its workers must get at the directory of the test
    made = directory / "nginx.conf"
    made.write_text(f"{user}pid {directory}/nginx.pid;\ndaemon off;\n{text}", "utf-8")
    return made


async def run_nginx(configuration: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        program("nginx"),
        *("-p", str(configuration.parent), "-e", str(configuration.parent / "error.log"), "-c", str(configuration)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def test_nginx_takes_the_file_and_warns_of_nothing(tmp_path: Path) -> None:
    process = await run_nginx(prepared(tmp_path, 8080, [8081, 8082, 8083]), "-t")
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert "[warn]" not in said


@dataclass
class Balanced:
    """Nodes behind nginx: ``api`` speaks with nginx, as callers do; ``beside`` with one of the nodes."""

    nodes: list[EngineProcess]
    api: Api
    beside: Callable[[EngineProcess], Api]
    directory: Path

    def logged(self) -> str:
        return "".join(log.read_text() for log in self.directory.glob("*.log"))


Balance = Callable[..., Awaitable[Balanced]]


@pytest.fixture
async def balance(
    tmp_path: Path, new_engine: NewEngine, unused_tcp_port_factory: Callable[[], int]
) -> AsyncIterator[Balance]:
    """Starts three nodes and nginx in front of them."""
    program("nginx")
    running: list[asyncio.subprocess.Process] = []
    timeout = aiohttp.ClientTimeout(total=30)
    session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}, timeout=timeout)

    async def start(**timeouts: str) -> Balanced:
        port = unused_tcp_port_factory()
        url = f"http://127.0.0.1:{port}"
        settings = {"webhook_base_url": url, "api_keys": f"ops:admin:{SECRET}", "lease_ms": "3000"}
        nodes = [new_engine(tmp_path / f"node-{number}", **settings) for number in (1, 2, 3)]
        await asyncio.gather(*(node.start() for node in nodes))
        directory = tmp_path / "nginx"
        directory.mkdir()
        running.append(await run_nginx(prepared(directory, port, [node.port for node in nodes], **timeouts)))
        await eventually(lambda: answers(port), what="nginx")
        return Balanced(nodes, Api(session, url), lambda node: Api(session, node.url), directory)

    yield start
    await session.close()
    for process in running:
        process.terminate()
        await process.communicate()


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


async def sent(balanced: Balanced, endpoint: StepEndpoint, count: int) -> list[Received]:
    """Start so many flows through nginx, and wait until their work is out and acknowledged."""
    await balanced.api.put_step("translate", endpoint.url("/translate"))
    flows = [await balanced.api.start("translate") for _ in range(count)]
    await endpoint.received("/translate", count=count)
    for flow_id in flows:
        await balanced.api.until_acknowledged(flow_id)
    return endpoint.requests("/translate")


async def test_a_flow_goes_through_any_node(balance: Balance, endpoint: StepEndpoint) -> None:
    balanced = await balance()
    api = balanced.api
    await api.put_step("translate", endpoint.url("/translate"))
    flow_id = await api.start("translate")
    received = await endpoint.received("/translate")
    assert received.webhook_url.startswith(f"{api.url}/webhook/{flow_id}/translate/")
    async with event_stream(api.session, f"{api.url}/api/v1/flows/{flow_id}/stream") as stream:
        await stream.until("work_acknowledged")  # nothing else happens: a proxy that gathers would keep it
        (await api.post(f"{received.webhook_url}/heartbeat", {"progress": 0.5})).ok()
        await stream.until("work_heartbeat")
        await api.succeed(received, text="bonjour")
        await stream.until("flow_completed")
    for node in balanced.nodes:
        assert (await balanced.beside(node).final(flow_id))["outputs"] == {"text": "bonjour"}
        again = await api.complete(received, {"success": True, "outputs": {"text": "bonjour"}})
        assert again.refused(400, "ALREADY_SUCCEEDED")["same_result"] is True
    assert received.token not in balanced.logged()


async def test_what_is_for_operators_is_not_shown_and_the_rest_is_the_nodes_business(balance: Balance) -> None:
    balanced = await balance()
    api = balanced.api
    for path in ("/metrics", "/healthz", "/readyz", "/", "/metrics/", "/docs/../metrics"):
        async with api.session.get(f"{api.url}{path}") as answer:  # of nginx itself, so not as the engine documents it
            assert answer.status == 404, path
    for path in ("/docs", "/docs/docs.js", "/openapi.json", "/api/v1/steps"):
        assert (await api.get(path)).status == 200, path
    without = await api.request("GET", "/api/v1/steps", headers={"Authorization": ""})
    without.refused(401, "UNAUTHENTICATED")
    large = await api.post("/api/v1/flows", {"goals": ["translate"], "init": {"text": "x" * 1_100_000}})
    large.refused(413, "PAYLOAD_TOO_LARGE")


async def test_reports_survive_the_loss_of_nodes(balance: Balance, endpoint: StepEndpoint) -> None:
    balanced = await balance()
    api = balanced.api
    received = await sent(balanced, endpoint, 24)
    first, second, third = balanced.nodes
    for each in received[:3]:
        await api.succeed(each)  # nginx has connections to all of them now
    await first.kill()
    for each in received[3:12]:
        await api.succeed(each)
    stopping = asyncio.create_task(second.stop())
    for each in received[12:23]:
        await api.succeed(each)
    assert await stopping == 0
    await third.kill()
    for reply in (await api.complete(received[23], {"success": True}), await api.get("/api/v1/flows")):
        reply.refused(503, "UNAVAILABLE")
        assert reply.headers["Retry-After"] == "1"
    await third.start()
    await eventually(lambda: accepted(api, received[23]), what="the node that is back")
    logged = balanced.logged()
    assert not [each for each in received if each.token in logged]


async def accepted(api: Api, received: Received) -> bool:
    return (await api.complete(received, {"success": True})).status == 200


async def test_a_node_that_stands_still_costs_time_but_no_result(balance: Balance, endpoint: StepEndpoint) -> None:
    balanced = await balance(**{"10s": "1s", "75s": "1s"})
    api = balanced.api
    received = await sent(balanced, endpoint, 12)
    standing = balanced.nodes[1]
    standing.signal(signal.SIGSTOP)
    replies = [await api.post("/api/v1/flows", {"goals": ["translate"]}) for _ in balanced.nodes]
    # The one that went to the standing node: perhaps it has it, so no other node gets it.
    assert sorted(reply.status for reply in replies) == [201, 201, 503]
    for each in received:
        await api.succeed(each)
    standing.signal(signal.SIGCONT)
    await eventually(lambda: is_ready(balanced.beside(standing)), what="the node that goes on")
    flows = (await api.get("/api/v1/flows")).ok()["flows"]
    assert 14 <= len(flows) <= 15
    assert sum(flow["status"] == "completed" for flow in flows) == 12


async def is_ready(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200

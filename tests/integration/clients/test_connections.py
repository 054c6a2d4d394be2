"""Connections of clients: they are kept and used again, and completions on them take the fast path."""

from __future__ import annotations

import re

import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.clients.calls import Call
from tests.integration.clients.relay import relay_to
from tests.integration.clients.senders import Send, by_clients
from tests.integration.scenario import dispatched
from tests.wire import Api

pytestmark = pytest.mark.both_paths

RESULT = {"success": True, "outputs": {"a": 1}}
NO_KEEPING = ["urllib.request"]  # it asks for every connection to be closed


async def completions_by_path(api: Api) -> dict[str, float]:
    """How many completion requests took which path through the server."""
    text = (await api.get("/metrics")).content.decode()
    found = re.findall(r'^counterfoil_completion_requests_total\{path="(\w+)"\} ([0-9.]+)$', text, re.MULTILINE)
    return {path: float(count) for path, count in found}


@by_clients("keep-alive", but=NO_KEEPING)
async def test_connections_are_used_again(
    api: Api, endpoint: StepEndpoint, send: Send, request: pytest.FixtureRequest
) -> None:
    """By completions, a heartbeat, reads and refusals, in any order."""
    work = [(await dispatched(api, endpoint))[1] for _ in range(2)]
    async with relay_to(api.url) as relay:
        first, second = (relay.through(received.webhook_url) for received in work)
        answers = await send(
            [
                Call("POST", first, json=RESULT),
                Call("POST", relay.through(work[1].metadata["heartbeat_url"]), json={"progress": 0.5}),
                Call("GET", second),
                Call("POST", first, json=RESULT),
                Call("POST", second, json={"success": 1}),
                Call("POST", second, json=RESULT),
                Call("GET", relay.through(f"{api.url}/api/v1/nothing")),
                Call("GET", relay.through(f"{api.url}/healthz")),
            ]
        )
        assert [each.status for each in answers] == [200, 200, 200, 400, 422, 200, 404, 200]
        # Node may open a second connection while it still counts the first one as busy, then it uses both.
        assert relay.connections <= (2 if "Node" in request.node.name else 1)


@by_clients("completions on the fast path", but=NO_KEEPING)
async def test_completions_take_the_fast_path(api: Api, endpoint: StepEndpoint, send: Send, fast_path: bool) -> None:
    """As the first requests of a connection, and behind others, in as many segments as the client makes of them."""
    work = [(await dispatched(api, endpoint))[1] for _ in range(6)]
    urls = [received.webhook_url for received in work]
    heartbeat = Call("POST", work[-1].metadata["heartbeat_url"], json={"progress": 0.5})
    completions = [Call("POST", url, json=RESULT) for url in urls]
    answers = await send([*completions[:3], heartbeat, Call("GET", urls[0]), *completions[3:]])
    assert [each.status for each in answers] == [200] * 8
    assert await completions_by_path(api) == ({"fast": 6, "ordinary": 0} if fast_path else {"fast": 0, "ordinary": 6})


@pytest.mark.sqlite_only
@by_clients("a connection for each request", ["urllib.request"])
async def test_connections_that_are_to_be_closed(api: Api, endpoint: StepEndpoint, send: Send) -> None:
    _, received = await dispatched(api, endpoint)
    async with relay_to(api.url) as relay:
        url = relay.through(received.webhook_url)
        answers = await send([Call("GET", url), Call("POST", url, json=RESULT), Call("GET", url)])
        assert [each.status for each in answers] == [200] * 3
        assert relay.connections == 3
        assert {each.headers["connection"] for each in answers} == {"close"}


@pytest.mark.sqlite_only
@by_clients("HTTP/1.0", ["curl"])
async def test_http_1_0(api: Api, endpoint: StepEndpoint, send: Send, old_curl: Send) -> None:
    _, received = await dispatched(api, endpoint)
    url = received.webhook_url
    answers = await old_curl([Call("GET", url), Call("POST", url, json=RESULT), Call("POST", url, json=RESULT)])
    assert [each.status for each in answers] == [200, 200, 400]

"""A tool as a test speaks for it: reserves, completes and settles effects over HTTP, keys percent-encoded."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from yarl import URL

from counterfoil.domain.jsontext import dump_json
from tests.contract import published
from tests.wire import JSON, Api, Reply

EFFECTS = "/api/v1/effects"
TOOL = "issue_refund"
WRITE = "write-non-idempotent"


def path_of(key: str, verb: str = "", tool: str = TOOL) -> str:
    """The path of an effect, with everything percent-encoded that can be, dots included."""
    segments = [quote(text, safe="").replace(".", "%2E") for text in (tool, key)]
    return "/".join([EFFECTS, *segments, *([verb] if verb else [])])


async def send(api: Api, method: str, path: str, json: Any = None) -> Reply:
    """A request whose path goes out as it is: the client library must not decode and resolve it."""
    data = None if json is None else dump_json(json)
    headers = {**api.headers, **(JSON if json is not None else {})}
    url = URL(api.url + path, encoded=True)
    async with api.session.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
        content = await response.read()
    published().check(method, path.partition("?")[0], response.status, response.headers, content)
    return Reply(response.status, response.headers, content)


async def reserve(api: Api, key: str, holder: str = "agent-1", **fields: Any) -> Reply:
    body = {"tool": TOOL, "key": key, "class": WRITE, "holder": holder, **fields}
    return await api.post(EFFECTS, body)


async def reserved(api: Api, key: str, holder: str = "agent-1", **fields: Any) -> int:
    """The fence of a new reservation."""
    return int((await reserve(api, key, holder, **fields)).ok(201)["fence"])


async def complete(api: Api, key: str, fence: int, tool: str = TOOL, **fields: Any) -> Reply:
    body = {"fence": fence, "success": True, **fields}
    return await send(api, "POST", path_of(key, "complete", tool), body)


async def settle(api: Api, key: str, outcome: str, tool: str = TOOL, **fields: Any) -> Reply:
    return await send(api, "POST", path_of(key, "settle", tool), {"outcome": outcome, **fields})


async def show(api: Api, key: str, tool: str = TOOL) -> Reply:
    return await send(api, "GET", path_of(key, tool=tool))


async def audit(api: Api, key: str) -> list[tuple[str, str]]:
    """Type and holder of each entry."""
    return [(entry["type"], entry["holder"]) for entry in (await show(api, key)).ok()["audit"]]

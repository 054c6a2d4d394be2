"""People and agents as tests of approvals know them: a client for each key, and the sentences that they say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from tests.eventually import eventually
from tests.wire import Api, Reply

ROLES = {
    "ada": "admin",
    "olga": "operator",
    "otto": "operator",
    "rita": "reviewer",
    "rob": "reviewer",
    "vic": "viewer",
}
API_KEYS = ",".join(f"{name}:{role}:{name}-secret-0123456789" for name, role in ROLES.items())
KEYED = {"api_keys": API_KEYS}

Document = dict[str, Any]


def clients(session: aiohttp.ClientSession, url: str) -> dict[str, Api]:
    """A client of one node for each key, by its name."""
    return {name: Api(session, url, {"Authorization": f"Bearer {name}-secret-0123456789"}) for name in ROLES}


def policy(step_id: str | None = None, action: str = "require_approval", **fields: Any) -> Document:
    """A policy about a step, or about all; what is no part of a policy is about its action."""
    parts = ("name", "priority", "enabled", "match", "conditions", "expression")
    own = {name: fields.pop(name) for name in parts if name in fields}
    match = {} if step_id is None else {"step_id": step_id}
    return {"name": "a policy", "match": match, **own, "action": {"type": action, **fields}}


async def put_policy(api: Api, policy_id: str, definition: Mapping[str, Any]) -> Document:
    reply = await api.request("PUT", f"/api/v1/policies/{policy_id}", json=dict(definition))
    assert reply.status in (200, 201), reply.content
    document: Document = reply.body
    return document


async def begin(api: Api, **fields: Any) -> str:
    """A new workflow."""
    return str((await api.post("/api/v1/workflows", {"workflow_name": "refund", **fields})).ok(201)["workflow_id"])


def step_path(workflow_id: str, step_id: str, verb: str) -> str:
    return f"/api/v1/workflows/{workflow_id}/steps/{step_id}/{verb}"


async def call_gate(api: Api, workflow_id: str, step_id: str = "pay", **fields: Any) -> Reply:
    return await api.post(step_path(workflow_id, step_id, "gate"), fields)


async def gate(api: Api, workflow_id: str, step_id: str = "pay", **fields: Any) -> Document:
    answer: Document = (await call_gate(api, workflow_id, step_id, **fields)).ok()
    return answer


async def again(api: Api, workflow_id: str, step_id: str = "pay", **fields: Any) -> Document:
    """The gate once more, and the policies with it."""
    return await gate(api, workflow_id, step_id, retry_policy="reevaluate", **fields)


async def complete(api: Api, workflow_id: str, step_id: str = "pay", **fields: Any) -> Reply:
    return await api.post(step_path(workflow_id, step_id, "complete"), fields)


async def approve(api: Api, approval_id: str, comment: str | None = None) -> Reply:
    return await api.post(f"/api/v1/approvals/{approval_id}/approve", {"comment": comment})


async def reject(api: Api, approval_id: str, reason: str | None = None) -> Reply:
    return await api.post(f"/api/v1/approvals/{approval_id}/reject", {"reason": reason})


async def approval(api: Api, approval_id: str) -> Document:
    document: Document = (await api.get(f"/api/v1/approvals/{approval_id}")).ok()
    return document


async def approvals(api: Api, **filters: str) -> list[Document]:
    page: list[Document] = (await api.get("/api/v1/approvals", **filters)).ok()["approvals"]
    return page


async def asked(api: Api, flow_id: str, count: int = 1) -> list[Document]:
    """Wait until so many questions of a flow are open; returns them, the oldest first."""

    async def look() -> list[Document] | None:
        found = await approvals(api, status="pending", flow_id=flow_id)
        return found if len(found) >= count else None

    found = await eventually(look, what=f"{count} pending approvals")
    assert len(found) == count, found
    return found


async def decided(api: Api, flow_id: str) -> list[tuple[str, str | None, str | None]]:
    """What the journal tells of reviews: the verdict, the reviewer, and why."""
    return [
        (event["type"], review.get("by"), review.get("comment"))
        for event in await api.events(flow_id)
        if event["type"].startswith("approval_") and event["type"] != "approval_requested"
        for review in [event["data"].get("review", {})]
    ]

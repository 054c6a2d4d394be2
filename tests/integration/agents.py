"""Agents as tests play them: a workflow, the gate in front of its steps, and what is reported, over real HTTP."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterfoil.testing import MovableClock
from tests.running import Node
from tests.wire import Api, Reply

CASE = "case"
"""The label that tells the workflow of one test from those of all others on the same engine."""


def where(field: str, operator: str, value: Any) -> dict[str, Any]:
    """A condition of a policy."""
    return {"field": field, "operator": operator, "value": value}


@dataclass(frozen=True)
class Agent:
    """The agent that runs the steps of one workflow."""

    api: Api
    workflow_id: str
    case: str

    @property
    def path(self) -> str:
        return f"/api/v1/workflows/{self.workflow_id}"

    def at(self, api: Api) -> Agent:
        """The same workflow, at another node."""
        return Agent(api, self.workflow_id, self.case)

    async def ask(self, step_id: str, query: Mapping[str, str] | None = None, **body: Any) -> Reply:
        """Call the gate, and give the answer as it came."""
        return await self.api.request("POST", f"{self.path}/steps/{step_id}/gate", json=body, params=query)

    async def gate(self, step_id: str, query: Mapping[str, str] | None = None, **body: Any) -> dict[str, Any]:
        """Call the gate; the answer, which is a decision."""
        answer: dict[str, Any] = (await self.ask(step_id, query, **body)).ok()
        return answer

    async def context(self, step_id: str, query: Mapping[str, str] | None = None, **body: Any) -> dict[str, Any]:
        """Call the gate; what it tells about the attempts."""
        context: dict[str, Any] = (await self.gate(step_id, query, **body))["retry_context"]
        return context

    async def report(self, step_id: str, **body: Any) -> Reply:
        """Report what became of a step, and give the answer as it came."""
        return await self.api.post(f"{self.path}/steps/{step_id}/complete", body)

    async def complete(self, step_id: str, *, replayed: bool = False, **body: Any) -> None:
        """The same, and it is taken."""
        reply = await self.report(step_id, **body)
        assert (reply.status, reply.content) == (204, b""), reply.content
        assert reply.headers.get("Idempotent-Replayed") == ("true" if replayed else None)

    async def say(self, verb: str, body: Any = None) -> Reply:
        """``complete``, ``fail``, ``abort`` or ``resume`` the workflow."""
        return await self.api.post(f"{self.path}/{verb}", body)

    async def review(self, step_id: str, verb: str, **body: Any) -> Reply:
        return await self.api.post(f"{self.path}/steps/{step_id}/{verb}", body)

    async def workflow(self) -> dict[str, Any]:
        document: dict[str, Any] = (await self.api.get(self.path)).ok()
        return document

    async def step(self, step_id: str) -> dict[str, Any]:
        document: dict[str, Any] = (await self.api.get(f"{self.path}/steps/{step_id}")).ok()
        return document

    async def history(self, step_id: str, *kinds: str) -> list[dict[str, Any]]:
        """What happened to a step, of these types."""
        return [event for event in (await self.step(step_id))["history"] if event["type"] in kinds]

    async def rule(self, action: str | dict[str, Any], *conditions: dict[str, Any], **more: Any) -> str:
        """Have a policy about this workflow alone; its id."""
        definition = {
            "name": "of one test",
            "match": {"flow_labels": {CASE: self.case}, **more.pop("match", {})},
            "conditions": list(conditions),
            "action": {"type": action} if isinstance(action, str) else action,
            **more,
        }
        policy_id = f"of-{uuid.uuid4().hex}"
        (await self.api.request("PUT", f"/api/v1/policies/{policy_id}", json=definition)).ok(201)
        return policy_id

    async def drop(self, policy_id: str) -> None:
        reply = await self.api.request("DELETE", f"/api/v1/policies/{policy_id}")
        assert reply.status == 204, reply.content


async def begin(api: Api, **fields: Any) -> Agent:
    """An agent with a workflow that is its own."""
    case = uuid.uuid4().hex
    labels = {CASE: case, **fields.pop("labels", {})}
    reply = await api.post("/api/v1/workflows", {"workflow_name": "refund", "labels": labels, **fields})
    return Agent(api, reply.ok(201)["workflow_id"], case)


@dataclass(frozen=True)
class Gatehouse:
    """An engine that the tests of a module share, each with workflows of its own, and its clock."""

    node: Node
    api: Api
    clock: MovableClock

    async def agent(self, **fields: Any) -> Agent:
        return await begin(self.api, **fields)

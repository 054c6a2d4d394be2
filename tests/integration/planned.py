"""Steps with attributes as tests of planned flows write them: sync ones that compute, async ones that wait, flows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.wire import Api

Compute = Callable[[dict[str, Any]], dict[str, Any]]
FAILS = Answer(body={"success": False, "error": "broken"})


def takes(kind: str = "any", **more: Any) -> dict[str, Any]:
    return {"role": "required", "type": kind, **more}


def may_take(default: Any = None, kind: str = "any", **more: Any) -> dict[str, Any]:
    return {"role": "optional", "type": kind, "default": default, **more}


def gives(kind: str = "any", **more: Any) -> dict[str, Any]:
    return {"role": "output", "type": kind, **more}


def each(kind: str = "any", **more: Any) -> dict[str, Any]:
    """Fanned out over."""
    return takes(kind, for_each=True, **more)


def succeeded(**outputs: Any) -> Answer:
    return Answer(body={"success": True, "outputs": outputs})


class Workshop:
    """Steps at one endpoint, each under a path of its own name."""

    def __init__(self, api: Api, endpoint: StepEndpoint) -> None:
        self.api = api
        self.endpoint = endpoint

    async def sync(self, step_id: str, attributes: dict[str, Any], compute: Compute | Answer, **more: Any) -> None:
        """A step that answers at once: with what it computes from its arguments, or always the same."""

        async def answer(received: Received) -> Answer:
            return succeeded(**compute(received.arguments)) if callable(compute) else compute

        self.endpoint.answer(f"/{step_id}", answer)
        await self.put(step_id, kind="sync", attributes=attributes, **more)

    async def waits(self, step_id: str, attributes: dict[str, Any], **more: Any) -> None:
        """A step whose result the test reports."""
        await self.put(step_id, kind="async", attributes=attributes, **more)

    async def put(self, step_id: str, **definition: Any) -> None:
        await self.api.put_step(step_id, self.endpoint.url(f"/{step_id}"), **definition)

    async def inner(self, step_id: str, attributes: dict[str, Any], flow: dict[str, Any], **more: Any) -> None:
        """A step that is a flow."""
        definition = {"kind": "flow", "attributes": attributes, "flow": flow, **more}
        reply = await self.api.request("PUT", f"/api/v1/steps/{step_id}", json=definition)
        assert reply.status in (200, 201), reply.content

    def undoing(self, step_id: str, *programme: Answer, **more: Any) -> dict[str, Any]:
        """The ``compensate`` of a step, at a path of its own; it succeeds unless told otherwise."""
        if programme:
            self.endpoint.answer(f"/undo-{step_id}", *programme)
        elif more.get("kind", "sync") == "sync":
            self.endpoint.answer(f"/undo-{step_id}", succeeded())
        return {"endpoint": self.endpoint.url(f"/undo-{step_id}"), **more}

    def calls(self, step_id: str) -> list[dict[str, Any]]:
        """The arguments of every call so far."""
        return [received.arguments for received in self.endpoint.requests(f"/{step_id}")]

    async def run(self, *goals: str, **fields: Any) -> dict[str, Any]:
        """Start a flow and wait for its end; the whole flow."""
        return await self.end(await self.api.start(*goals, **fields))

    async def end(self, flow_id: str) -> dict[str, Any]:
        await self.api.final(flow_id)
        return await self.api.flow(flow_id)

    async def report(self, step_id: str, count: int = 1, **outputs: Any) -> Received:
        """Report success for the count-th call of an async step."""
        received = await self.endpoint.received(f"/{step_id}", count)
        await self.api.succeed(received, **outputs)
        return received

    async def fail(self, step_id: str, count: int = 1) -> Received:
        received = await self.endpoint.received(f"/{step_id}", count)
        (await self.api.complete(received, {"success": False, "error": "broken"})).ok()
        return received


def states(flow: dict[str, Any]) -> dict[str, str]:
    """By step: what became of it."""
    return {step_id: step["status"] for step_id, step in flow["steps"].items()}


def items(flow: dict[str, Any], step_id: str) -> list[str]:
    """What became of the items of a step."""
    return [work["status"] for work in flow["steps"][step_id]["work"]]

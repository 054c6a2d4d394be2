"""The worker of the Sunday incident: an agent loop around a refund tool whose contract and HTTP client retry, too.

A process of its own, so that it can be killed. Each request to the payment system says which layer has made it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web
from pydantic import BaseModel

from counterfoil.client import Assignment, NotCompleted, StepFailed, Worker
from counterfoil.contracts import (
    DedupStore,
    EngineDedupStore,
    PhaseEvent,
    SqliteDedupStore,
    ToolCall,
    ToolError,
    Transient,
    TransientRetries,
    tool_contract,
)

settings = json.loads(sys.argv[1])
place: ContextVar[dict[str, str]] = ContextVar("place")
worker = Worker()


class Refund(BaseModel):
    payment_id: str
    amount_minor: int
    reason: str = ""


async def post(call: ToolCall[Refund]) -> dict[str, Any]:
    """The HTTP client: it tries twice, with one set of headers but for the count."""
    body = call.arguments.model_dump(exclude={"reason"})
    for number in (1, 2):
        headers = {**call.headers(), **place.get(), "X-Attempt": str(call.attempt), "X-Try": str(number)}
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{settings['payments']}/refunds", json=body, headers=headers) as response,
            ):
                if response.status >= 500:
                    raise Transient("UPSTREAM_TIMEOUT", f"status {response.status}")
                found: dict[str, Any] = await response.json()
                return found
        except aiohttp.ClientConnectionError:
            continue
    raise Transient("UPSTREAM_TIMEOUT", "two connections broke")


@tool_contract(
    name="issue_refund",
    version="2.1.0",
    effect="write-non-idempotent",
    value="high",
    pending_ttl=1,
    keep=["payment_id", "amount_minor"],
    retries=TransientRetries(1, 0.01, 0.01),
)
async def issue_refund(call: ToolCall[Refund]) -> dict[str, Any]:
    return await post(call)


def die_after_the_second_turn(event: PhaseEvent) -> None:
    """The deploy: the process is gone when the refund is made, and before anything of it is recorded."""
    if (event.phase, event.moment) == ("execute", "end") and place.get()["X-Turn"] == settings["dies_in_turn"]:
        os.kill(os.getpid(), signal.SIGKILL)


def opened_store() -> DedupStore:
    where: str = settings["store"]
    return EngineDedupStore(where) if where.startswith("http") else SqliteDedupStore(where)


refund = issue_refund.bind(opened_store(), on_phase=die_after_the_second_turn)


@worker.step("/refund")
async def agent_loop(work: Assignment) -> dict[str, Any]:
    """The agent calls the tool again when its answer is ambiguous, and gives its reason in other words each time."""
    for turn in ("1", "2", "3"):
        place.set({"X-Dispatch": str(work.receipt.attempt), "X-Turn": turn})
        arguments = {**work.arguments, "reason": f"the customer asked for it, said {turn} times"}
        if settings["makes_keys"]:
            call: ToolCall[Any] = ToolCall(arguments, idempotency_key=str(uuid4()))
        else:
            call = ToolCall.from_dispatch(arguments, work.receipt)
        try:
            return await refund(call)
        except ToolError as error:
            if not error.retriable:
                raise StepFailed(str(error)) from error
    raise NotCompleted("the refund is still not made")


def announce(_: str) -> None:
    sys.stdout.write("listening\n")
    sys.stdout.flush()


if __name__ == "__main__":
    web.run_app(worker.app(), host="127.0.0.1", port=settings["port"], print=announce)

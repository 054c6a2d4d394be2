"""An agent as a graph of nodes that dies at the worst moment, and is started again.

The loop is the kind that LangGraph and its like run: nodes that read and write a state, edges that depend on it, and a
circle (draft, review, draft again). Each visit of a node is a step that the gate guards, so whatever was done is not
done again: a run that is started anew goes the same way with the outputs that are recorded.

The first run dies when the bank has paid and nobody was told of it. The second one finds that step open, asks the bank
with the same idempotency key, and goes on. The third one is a caller who is impatient: there is nothing left to do.

Run it beside an engine; it brings its own bank, and starts the agents as processes of their own:

    python examples/agent_loop.py
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web

from counterfoil.client import Client

ENGINE = os.environ.get("COUNTERFOIL_URL", "http://127.0.0.1:8080")
PORT = int(os.environ.get("PORT", "9000"))
BANK = f"http://127.0.0.1:{PORT}/payments"
END = "the end"

State = dict[str, Any]


@dataclass
class Node:
    """What to do, which part of the state it is done with, and where to go next."""

    work: Callable[..., Awaitable[State]]
    reads: tuple[str, ...]
    then: Callable[[State], str]


class Graph:
    """Nodes and edges; knows nothing of gates."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def node(self, *reads: str, then: Callable[[State], str]) -> Callable[[Any], Any]:
        def add(work: Callable[..., Awaitable[State]]) -> Callable[..., Awaitable[State]]:
            self.nodes[work.__name__] = Node(work, reads, then)
            return work

        return add


graph = Graph()


@graph.node("complaint", "remark", then=lambda state: "review")
async def draft(complaint: str, remark: str) -> State:
    """A model would write this."""
    return {"letter": f"Sorry for {complaint}." if not remark else f"Sorry for {complaint}. We return your money."}


@graph.node("letter", then=lambda state: "draft" if state["remark"] else "refund")
async def review(letter: str) -> State:
    """And another one would judge it."""
    return {"remark": "" if "money" in letter else "say what we do about it"}


@graph.node("order", "amount", then=lambda state: "send")
async def refund(order: str, amount: int) -> State:
    """The one thing that must not happen twice. Its key is that of the step."""
    headers = {"Idempotency-Key": f"refund:{order}"}
    async with aiohttp.ClientSession() as session, session.post(BANK, json={"amount": amount}, headers=headers) as paid:
        payment = await paid.json()
    if os.environ.get("DIES") == "yes":
        say("the agent dies: the bank has paid, and nobody knows")
        os._exit(1)
    return dict(payment)


@graph.node("letter", "payment", then=lambda state: END)
async def send(letter: str, payment: str) -> State:
    return {"sent": f"{letter} ({payment})"}


async def run(client: Client, workflow_id: str, state: State) -> State:
    """Go through the graph. Each visit of a node is a step of its own: draft-1, review-1, draft-2, ..."""
    name, visits = "draft", Counter[str]()
    while name != END:
        node = graph.nodes[name]
        visits[name] += 1
        asked = {field: state[field] for field in node.reads}
        async with client.step(
            workflow_id,
            f"{name}-{visits[name]}",
            input=asked,
            key=f"refund:{state['order']}" if name == "refund" else None,
            claim=1,  # a dead agent blocks the step for so long, a living one keeps its claim
            wait_for_claim=20,
        ) as step:
            if not step.done:
                if step.retry_context["gate_count"] > 1:
                    say(f"{step.step_id:<8} was begun before, and nobody knows how it went")
                step.output = await node.work(**asked)
        say(f"{step.step_id:<8} {'is done already' if step.done else 'done'}: {step.output}")
        state |= step.output or {}
        name = node.then(state)
    return state


async def agent(order: str) -> None:
    """One run. Whoever starts it again with the same order gets the same workflow."""
    async with Client(ENGINE, os.environ.get("COUNTERFOIL_KEY")) as client:
        workflow = await client.create_workflow("refund", source="agent_loop", key=f"refund:{order}")
        state = {"order": order, "amount": 40, "complaint": "the broken lamp", "remark": ""}
        await run(client, workflow["workflow_id"], state)
        if workflow["status"] == "in_progress":
            await client.complete_workflow(workflow["workflow_id"])


class Bank:
    """It pays once for each idempotency key, as payment providers do."""

    def __init__(self) -> None:
        self.payments: dict[str, dict[str, str]] = {}

    async def pay(self, request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        if key in self.payments:
            say("(the bank: that was paid before)")
        else:
            say(f"(the bank: {(await request.json())['amount']} are paid)")
            self.payments[key] = {"payment": f"payment {len(self.payments) + 1}"}
        return web.json_response(self.payments[key])


def say(text: str) -> None:
    print(f"  {text}", flush=True)


async def main() -> None:
    bank = Bank()
    app = web.Application()
    app.router.add_post("/payments", bank.pay)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    order = f"order-{uuid4().hex[:8]}"
    try:
        for title, dies in (("the first run", "yes"), ("the second run", "no"), ("the third run", "no")):
            print(title, flush=True)
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, order, env={**os.environ, "DIES": dies, "PORT": str(PORT)}
            )
            await process.wait()
    finally:
        await runner.cleanup()
    print(f"the bank has paid {len(bank.payments)} time", flush=True)


if __name__ == "__main__":
    asyncio.run(agent(sys.argv[1]) if len(sys.argv) > 1 else main())

"""An agent, built as a graph of nodes, that crashes at the worst moment and is started again.

The loop is like those of LangGraph and similar frameworks: nodes that read and write a state, edges that depend on it,
and a cycle (draft, review, draft again). Each visit of a node is a step that the gate guards, so completed steps are
not repeated: a run that is started again takes the same path with the recorded outputs.

The first run crashes after the bank has paid, before the payment is reported. The second run finds that step open,
repeats the payment with the same idempotency key, and continues. The third run, started by an impatient caller, finds
nothing left to do.

Run it next to an engine; it includes the bank, and starts the agents as separate processes:

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
    """What to do, which parts of the state it reads, and which node comes next."""

    work: Callable[..., Awaitable[State]]
    reads: tuple[str, ...]
    then: Callable[[State], str]


class Graph:
    """Nodes and edges; it does not know about the gate."""

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
    """In a real agent, a model would write this."""
    return {"letter": f"Sorry for {complaint}." if not remark else f"Sorry for {complaint}. We return your money."}


@graph.node("letter", then=lambda state: "draft" if state["remark"] else "refund")
async def review(letter: str) -> State:
    """In a real agent, another model would judge it."""
    return {"remark": "" if "money" in letter else "say what we do about it"}


@graph.node("order", "amount", then=lambda state: "send")
async def refund(order: str, amount: int) -> State:
    """The only node that must not run twice. Its idempotency key is that of the step."""
    headers = {"Idempotency-Key": f"refund:{order}"}
    async with aiohttp.ClientSession() as session, session.post(BANK, json={"amount": amount}, headers=headers) as paid:
        payment = await paid.json()
    if os.environ.get("DIES") == "yes":
        say("the agent crashes: the bank has paid, but the payment is not reported")
        os._exit(1)
    return dict(payment)


@graph.node("letter", "payment", then=lambda state: END)
async def send(letter: str, payment: str) -> State:
    return {"sent": f"{letter} ({payment})"}


async def run(client: Client, workflow_id: str, state: State) -> State:
    """Walk through the graph. Each visit of a node is a separate step: draft-1, review-1, draft-2, ..."""
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
            claim=1,  # seconds: a crashed agent blocks the step this long, a running one extends its claim
            wait_for_claim=20,
        ) as step:
            if not step.done:
                if step.retry_context["gate_count"] > 1:
                    say(f"{step.step_id:<8} was started before, with an unknown outcome")
                step.output = await node.work(**asked)
        say(f"{step.step_id:<8} {'is done already' if step.done else 'done'}: {step.output}")
        state |= step.output or {}
        name = node.then(state)
    return state


async def agent(order: str) -> None:
    """One run. Another run with the same order gets the same workflow."""
    async with Client(ENGINE, os.environ.get("COUNTERFOIL_KEY")) as client:
        workflow = await client.create_workflow("refund", source="agent_loop", key=f"refund:{order}")
        state = {"order": order, "amount": 40, "complaint": "the broken lamp", "remark": ""}
        await run(client, workflow["workflow_id"], state)
        if workflow["status"] == "in_progress":
            await client.complete_workflow(workflow["workflow_id"])


class Bank:
    """Pays once for each idempotency key, as payment providers do."""

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

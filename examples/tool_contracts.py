"""Three tools of an agent under contract: a refund, an e-mail and an upsert. The agent is killed after the refund.

The agent works through its steps three times, as an orchestrator would have it: the first run is killed (kill -9) when
the payment system has paid and the agent has not yet recorded it, the second one does the rest, and the third one is a
replay of everything. The steps keep their ids over all runs, so each action keeps its key: one refund, one message.

It starts its own payment system, mail provider and customer database, on a free port:

    python examples/tool_contracts.py
"""

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import aiohttp
from aiohttp import web
from pydantic import BaseModel, Field

from counterfoil.contracts import (
    NotInKey,
    PhaseEvent,
    SqliteDedupStore,
    ToolCall,
    ToolFailure,
    Transient,
    tool_contract,
)

SHOP = os.environ.get("SHOP_URL", "")


async def request(method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    """One HTTP request; what can be repeated becomes Transient, and the contract repeats it with the same key."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, SHOP + path, json=body, headers=headers) as response,
        ):
            if response.status == 402:
                raise ToolFailure("CARD_EXPIRED")
            if response.status >= 500:
                raise Transient("UPSTREAM_TIMEOUT", f"the shop answered {response.status}")
            return await response.json()
    except aiohttp.ClientConnectionError as error:
        raise Transient("UPSTREAM_TIMEOUT") from error


# ------------------------------------------------------------------------------------------------ the tools


class Refund(BaseModel):
    payment_id: str
    amount_minor: int = Field(gt=0, description="in the smallest unit of the currency")
    reason: Annotated[str, NotInKey()] = ""  # free text, which a model writes anew at each retry


class Refunded(BaseModel):
    refund_id: str


@tool_contract(
    name="issue_refund",
    version="2.1.0",
    effect="write-non-idempotent",
    value="high",  # a window of seven days
    pending_ttl=2,  # for this example; longer than the tool ever takes, with margin: 300, if not given
    downstream_window="30d",
    errors={"CARD_EXPIRED": "Ask the customer for another card."},
)
async def issue_refund(call: ToolCall[Refund]) -> Refunded:
    """Refund a payment, in whole or in part."""
    body = {"payment_id": call.arguments.payment_id, "amount_minor": call.arguments.amount_minor}
    return Refunded.model_validate(await request("POST", "/refunds", body, call.headers()))


class Email(BaseModel):
    to: str
    template: str
    params: dict[str, str] = {}


@tool_contract(name="send_email", version="1.3.0", effect="write-non-idempotent", pending_ttl=60)
async def send_email(call: ToolCall[Email]) -> str:
    """Send a message to a customer."""
    answer = await request("POST", "/messages", call.arguments.model_dump(), {"Message-ID": call.idempotency_key or ""})
    return str(answer["state"])


class Customer(BaseModel):
    customer_id: str
    fields: dict[str, str]


@tool_contract(name="upsert_customer", version="3.0.0", effect="write-idempotent", resource="customer_id")
async def upsert_customer(call: ToolCall[Customer]) -> str:
    """Create a customer, or change one. The customer's id is what makes a repeat harmless: no key is needed."""
    answer = await request("PUT", f"/customers/{call.arguments.customer_id}", call.arguments.fields, {})
    return str(answer["customer_id"])


# ------------------------------------------------------------------------------------------------ the agent


async def agent(run: int, store: SqliteDedupStore) -> None:
    """The loop of an agent. ``conversation`` and the ids of the steps are what its runtime keeps over a crash."""

    def deploy(event: PhaseEvent) -> None:
        """A deploy in the worst moment: the tool has been executed, and nothing is recorded."""
        if run == 1 and (event.phase, event.moment) == ("execute", "end"):
            print("  the agent is killed: the refund is paid, and not recorded", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def step(number: int, arguments: dict[str, Any]) -> ToolCall[Any]:
        return ToolCall(arguments, conversation_id="ticket-4711", step_id=str(number))

    refund, email = issue_refund.bind(store, on_phase=deploy), send_email.bind(store)
    words = {1: "arrived broken", 2: "it was broken on arrival", 3: "broken when it came"}
    paid = await refund(step(1, {"payment_id": "p-1", "amount_minor": 1_400_000, "reason": words[run]}))
    print(f"  issue_refund     {paid.refund_id}", flush=True)
    sent = await email(step(2, {"to": "ada@example.com", "template": "refunded", "params": {"id": paid.refund_id}}))
    print(f"  send_email       {sent}", flush=True)
    changed = await upsert_customer(ToolCall({"customer_id": "c-7", "fields": {"last_refund": paid.refund_id}}))
    print(f"  upsert_customer  {changed}", flush=True)


# ------------------------------------------------------------------------------------------------ the shop


class Shop:
    """The systems that have the effects. Payments and messages are made once for each key; the rest is counted."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.refunds: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        self.customers: dict[str, dict[str, Any]] = {}

    async def refund(self, request: web.Request) -> web.Response:
        self.requests.append("refund")
        key = request.headers["Idempotency-Key"]
        made = self.refunds.setdefault(key, {"refund_id": f"re_{len(self.refunds) + 1}", **await request.json()})
        return web.json_response(made)

    async def message(self, request: web.Request) -> web.Response:
        self.requests.append("message")
        self.messages.setdefault(request.headers["Message-ID"], await request.json())
        return web.json_response({"state": "queued"})

    async def customer(self, request: web.Request) -> web.Response:
        self.requests.append("customer")
        customer_id = request.match_info["customer_id"]
        self.customers.setdefault(customer_id, {}).update(await request.json())
        return web.json_response({"customer_id": customer_id})

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/refunds", self.refund)
        app.router.add_post("/messages", self.message)
        app.router.add_put("/customers/{customer_id}", self.customer)
        return app


async def main() -> None:
    shop = Shop()
    runner = web.AppRunner(shop.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    with tempfile.TemporaryDirectory() as folder:
        for run, title in enumerate(("the first run", "the second run", "the third run, a replay"), start=1):
            print(title, flush=True)
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, str(run), folder, env={**os.environ, "SHOP_URL": url}
            )
            await process.wait()
    await runner.cleanup()
    arrived = {name: shop.requests.count(name) for name in ("refund", "message", "customer")}
    print("what the shop has seen")
    print(f"  POST /refunds    {arrived['refund']} times, {len(shop.refunds)} paid")
    print(f"  POST /messages   {arrived['message']} time, {len(shop.messages)} sent")
    print(f"  PUT /customers   {arrived['customer']} times, {len(shop.customers)} stored")


async def run_agent(run: int, folder: str) -> None:
    async with SqliteDedupStore(Path(folder) / "effects.db") as store:
        await agent(run, store)


if __name__ == "__main__":
    asyncio.run(run_agent(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main())

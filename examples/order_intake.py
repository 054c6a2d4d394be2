"""An order intake that is safe to double-click: however often an order is sent, it is charged once.

A web route takes orders and starts a flow for each, with the number of the order as its run key. Ten clicks on one
order are ten requests: one of them starts the flow, the others are answered with it, and all of them return the same
receipt. A click after the order is done returns the recorded receipt. An order that is changed before it is charged
replaces the first one; afterwards it is refused.

It needs an engine (`counterfoil serve`), and brings its workers:

    python examples/order_intake.py
"""

import asyncio
import os
from collections import Counter
from typing import Any

import aiohttp
from aiohttp import web

from counterfoil.client import Client, Flow, RunKeyReused

ENGINE = os.environ.get("COUNTERFOIL_URL", "http://127.0.0.1:8080")
PORT = int(os.environ.get("PORT", "9100"))
HERE = f"http://127.0.0.1:{PORT}"

TAKES, GIVES = {"role": "required"}, {"role": "output"}
STEPS: dict[str, dict[str, Any]] = {
    "reserve": {"item": TAKES, "number": TAKES, "shelf": GIVES},
    "charge": {"shelf": TAKES, "number": TAKES, "receipt": GIVES},
}


class Shop:
    """The route for customers, and the workers behind it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.starts: Counter[str] = Counter()
        self.charged: Counter[str] = Counter()
        self.open = asyncio.Event()
        """Whether the warehouse works. While it does not, orders wait to be reserved."""

    # -- what customers call -------------------------------------------------------------------

    async def order(self, request: web.Request) -> web.Response:
        order = await request.json()

        def decide(owner: Flow) -> Any:
            if owner["init"] == order:
                return "adopt"
            return "supersede" if owner["steps"]["charge"]["status"] == "pending" else "reject"

        try:
            flow = await self.client.start(
                ["charge"],
                order,
                idempotency_key=f"order:{order['number']}",
                on_conflict=decide,
                retain_key_for="24h",
            )
        except RunKeyReused:
            return web.json_response({"status": "refused"}, status=409)
        self.starts["reused" if flow["reused"] else "started"] += 1
        result = await self.client.result(flow["flow_id"])
        return web.json_response({"status": result["status"], "receipt": result["outputs"].get("receipt")})

    # -- what the engine calls -----------------------------------------------------------------

    async def reserve(self, request: web.Request) -> web.Response:
        arguments = (await request.json())["arguments"]
        await self.open.wait()
        return web.json_response({"success": True, "outputs": {"shelf": f"shelf of {arguments['item']}"}})

    async def charge(self, request: web.Request) -> web.Response:
        arguments = (await request.json())["arguments"]
        self.charged[arguments["number"]] += 1
        receipt = f"{arguments['shelf'].removeprefix('shelf of ')} paid"
        return web.json_response({"success": True, "outputs": {"receipt": receipt}})


async def serve(shop: Shop) -> web.AppRunner:
    app = web.Application()
    app.router.add_post("/orders", shop.order)
    app.router.add_post("/reserve", shop.reserve)
    app.router.add_post("/charge", shop.charge)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    return runner


async def click(customer: aiohttp.ClientSession, number: str, item: str) -> str:
    """A customer sends an order, and waits for the receipt."""
    async with customer.post(f"{HERE}/orders", json={"number": number, "item": item}) as response:
        answer = await response.json()
    return f"{answer['status']}, {answer['receipt']}" if answer.get("receipt") else str(answer["status"])


async def until_active(client: Client, key: str) -> None:
    """Wait until the flow of an order runs."""
    while not (await client.flows(idempotency_key=key, status="active"))["flows"]:
        await asyncio.sleep(0.05)


async def tell(shop: Shop, customer: aiohttp.ClientSession, run: str) -> None:
    lamp, desk = f"lamp-{run}", f"desk-{run}"
    print("ten clicks on one order")
    shop.open.set()
    answers = await asyncio.gather(*(click(customer, lamp, "lamp") for _ in range(10)))
    print(f"  {shop.starts['started']} flow is started, {shop.starts['reused']} clicks are answered with it")
    print(f"  {len(set(answers))} answer: {answers[0]}; charged {shop.charged[lamp]} time")

    print("one more click on the next day")
    print(f"  {await click(customer, lamp, 'lamp')}; charged {shop.charged[lamp]} time")

    print("an order that is changed before it is charged")
    shop.open.clear()
    first = asyncio.create_task(click(customer, desk, "desk"))
    await until_active(shop.client, f"order:{desk}")
    second = asyncio.create_task(click(customer, desk, "two desks"))
    print(f"  the first one: {await first}")
    shop.open.set()
    print(f"  the second one: {await second}; charged {shop.charged[desk]} time")

    print("an order that is changed after it was charged")
    print(f"  {await click(customer, desk, 'three desks')}; charged {shop.charged[desk]} time")


async def main() -> None:
    async with Client(ENGINE, os.environ.get("COUNTERFOIL_KEY")) as client, aiohttp.ClientSession() as customer:
        shop = Shop(client)
        runner = await serve(shop)
        for step_id, attributes in STEPS.items():
            await client.put_step(step_id, {"kind": "sync", "endpoint": f"{HERE}/{step_id}", "attributes": attributes})
        await tell(shop, customer, os.urandom(4).hex())
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

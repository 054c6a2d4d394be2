"""An order in three steps, each with a compensation: reserve the goods, charge the card, ship the parcel.

The order of the steps is not written down: each step declares its inputs and outputs, and the engine plans the steps
that lead to the goal. The first order ships. The second one cannot be shipped, so its completed steps are undone, the
last one first: the card is refunded, then the reservation is released.

Run it next to an engine; it includes its workers:

    python examples/order_fulfilment.py
"""

import asyncio
import os
from typing import Any

from aiohttp import web

from counterfoil.client import Assignment, Client, StepFailed, Worker

ENGINE = os.environ.get("COUNTERFOIL_URL", "http://127.0.0.1:8080")
PORT = int(os.environ.get("PORT", "9000"))
HERE = os.environ.get("WORKER_URL", f"http://127.0.0.1:{PORT}")

STEPS: dict[str, dict[str, Any]] = {
    "reserve": {
        "kind": "sync",
        "endpoint": f"{HERE}/reserve",
        "attributes": {
            "item": {"role": "required", "type": "string"},
            "reservation": {"role": "output", "type": "string"},
        },
        "compensate": {"endpoint": f"{HERE}/release"},
    },
    "charge": {
        "kind": "sync",
        "endpoint": f"{HERE}/charge",
        "attributes": {
            "reservation": {"role": "required", "type": "string"},
            "amount": {"role": "required", "type": "number"},
            "payment": {"role": "output", "type": "string"},
        },
        "compensate": {"endpoint": f"{HERE}/refund"},
    },
    "ship": {
        "kind": "async",  # shipping takes long: the worker reports later, by webhook
        "endpoint": f"{HERE}/ship",
        "attributes": {
            "payment": {"role": "required", "type": "string"},
            "address": {"role": "required", "type": "string"},
            "parcel": {"role": "output", "type": "string"},
        },
        "compensate": {"endpoint": f"{HERE}/call-back"},
        "work": {"max_retries": 2},
    },
}

worker = Worker()


@worker.step("/reserve")
async def reserve(work: Assignment) -> dict[str, Any]:
    say(work, f"{work.arguments['item']} is reserved")
    return {"reservation": f"shelf-{work.arguments['item']}"}


@worker.step("/release")
async def release(work: Assignment) -> None:
    """A compensation gets the arguments and the outputs of its step."""
    assert work.outputs is not None
    say(work, f"undone: {work.outputs['reservation']} is free again")


@worker.step("/charge")
async def charge(work: Assignment) -> dict[str, Any]:
    say(work, f"{work.arguments['amount']} are charged")
    return {"payment": f"payment-of-{work.arguments['amount']}"}


@worker.step("/refund")
async def refund(work: Assignment) -> None:
    assert work.outputs is not None
    say(work, f"undone: {work.outputs['payment']} is refunded")


@worker.step("/ship")
async def ship(work: Assignment) -> dict[str, Any]:
    await asyncio.sleep(0.2)
    if "nowhere" in work.arguments["address"]:
        say(work, "no carrier goes there")
        raise StepFailed("no carrier goes there")
    say(work, f"on its way to {work.arguments['address']}")
    return {"parcel": "parcel-1"}


@worker.step("/call-back")
async def call_back(work: Assignment) -> None:
    say(work, "undone: the parcel is called back")


def say(work: Assignment, text: str) -> None:
    print(f"  {work.receipt.step_id:<8} {text}", flush=True)


async def order(client: Client, title: str, address: str) -> None:
    print(title, flush=True)
    started = await client.start_flow(["ship"], {"item": "lamp", "amount": 40, "address": address})
    result = await client.result(started["flow_id"], wait=30)
    flow = await client.flow(started["flow_id"])
    undone = [f"{entry['step_id']} ({entry['status']})" for entry in flow["compensation"]]
    print(f"  the flow has {result['status']}" + (f", undone: {', '.join(undone)}" if undone else ""), flush=True)


async def main() -> None:
    runner = web.AppRunner(worker.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    try:
        async with Client(ENGINE, os.environ.get("COUNTERFOIL_KEY")) as client:
            for step_id, definition in STEPS.items():
                await client.put_step(step_id, definition)
            await order(client, "an order that ships", "Vienna")
            await order(client, "an order that does not", "the middle of nowhere")
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

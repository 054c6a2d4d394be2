"""A payment that is completed by the payment provider's own webhook: no code reads its events or checks its signature.

The step ``charge`` has ``accept``: the engine verifies the provider's signature, ignores events that say nothing about
the outcome, and makes the outputs of the step from the payload. The shop only creates the payment, with the webhook URL
of the work item in its metadata. The provider has one URL for all its events, as such providers have, so the shop
forwards each event as it is to the URL in its metadata. The shop has no secret, and could not forge an event.

The provider is a stand-in that signs as Stripe does. One card is charged and its event delivered twice; another card is
declined, after an attacker that knows all URLs has sent a success with a signature of its own.

It starts an engine of its own, on a free port:

    python examples/vendor_payment.py
"""

import asyncio
import hashlib
import hmac
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import Any

import aiohttp
from aiohttp import web

from counterfoil.client import Client

SECRET = "whsec_only_for_this_example"  # the provider shows it once, where its webhooks are configured
CHARGE: dict[str, Any] = {
    "attributes": {
        "card": {"role": "required", "type": "string"},
        "amount": {"role": "required", "type": "number"},
        "payment_id": {"role": "output", "type": "string"},
        "paid": {"role": "output", "type": "number"},
    },
    "accept": {
        "signature": {"preset": "stripe", "secret": "setting:provider"},
        "map": {
            "ignore": "!(payload.type in ['payment_intent.succeeded', 'payment_intent.payment_failed'])",
            "success": "payload.type == 'payment_intent.succeeded'",
            "outputs": {"payment_id": "payload.data.object.id", "paid": "payload.data.object.amount_received"},
            "error": "payload.data.object.last_payment_error.message",
        },
    },
}


class Provider:
    """Takes payments, and reports each change of one to a single URL, signed."""

    def __init__(self) -> None:
        self.events_to = ""
        self.sending: set[asyncio.Task[None]] = set()

    async def create(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        intent = {"id": f"pi_{wanted['card']}", "amount": wanted["amount"], "amount_received": 0, **wanted}
        task = asyncio.create_task(self.charge(intent))
        self.sending.add(task)
        task.add_done_callback(self.sending.discard)
        return web.json_response({"id": intent["id"], "status": "processing"})

    async def charge(self, intent: dict[str, Any]) -> None:
        await self.send("payment_intent.created", intent)
        if intent["card"] == "empty":
            forged = {**intent, "amount_received": intent["amount"]}
            await self.send("payment_intent.succeeded", forged, secret="a guess")  # not by the provider
            error = {"code": "card_declined", "message": "Your card has insufficient funds."}
            await self.send("payment_intent.payment_failed", {**intent, "last_payment_error": error})
        else:
            paid = {**intent, "amount_received": intent["amount"]}
            await self.send("payment_intent.succeeded", paid)
            await self.send("payment_intent.succeeded", paid)  # providers deliver at least once

    async def send(self, kind: str, intent: dict[str, Any], secret: str = SECRET) -> None:
        body = json.dumps({"type": kind, "data": {"object": intent}}, indent=2).encode()
        timestamp = str(int(time.time()))
        signature = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": f"t={timestamp},v1={signature}",
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.events_to, data=body, headers=headers) as response,
        ):
            answer = await response.json()
            verdict = answer.get("verdict") or answer["error"]["code"]
            print(f"{intent['id']:<9} {kind:<31} {response.status} {verdict}", flush=True)


class Shop:
    """Creates payments for the step, and forwards the provider's events."""

    def __init__(self, provider: str, engine: str) -> None:
        self.provider = provider
        self.engine = engine

    async def charge(self, request: web.Request) -> web.Response:
        """The endpoint of the step: an empty answer means that the webhook will tell the outcome."""
        call = await request.json()
        payment = {**call["arguments"], "metadata": {"callback": call["metadata"]["webhook_url"]}}
        headers = {"Idempotency-Key": request.headers["Idempotency-Key"]}
        async with aiohttp.ClientSession() as session:
            await session.post(f"{self.provider}/payments", json=payment, headers=headers)
        return web.Response()

    async def forward(self, request: web.Request) -> web.Response:
        """Pass an event on, byte for byte: the signature is over exactly this body."""
        body = await request.read()
        callback = json.loads(body)["data"]["object"]["metadata"]["callback"]
        if not callback.startswith(f"{self.engine}/webhook/"):
            return web.Response(status=400)
        headers = {name: request.headers[name] for name in ("Content-Type", "Stripe-Signature")}
        async with (
            aiohttp.ClientSession() as session,
            session.post(callback, data=body, headers=headers) as response,
        ):
            return web.Response(body=await response.read(), status=response.status, content_type="application/json")


async def serve(*routes: web.RouteDef) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def start_engine(data: str) -> tuple[Process, str]:
    """The engine alone has the secret of the provider; definitions refer to it by its name."""
    settings = {"COUNTERFOIL_SECRET_PROVIDER": SECRET, "COUNTERFOIL_LOG_LEVEL": "error"}
    command = (sys.executable, "-m", "counterfoil", "serve", "--port", "0", "--data", data)
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, env={**os.environ, **settings})
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if "listening on " in line:
            return process, line.split("listening on ")[1].split()[0]
    sys.exit("the engine did not start")


async def main() -> None:
    provider = Provider()
    with tempfile.TemporaryDirectory() as data:
        process, engine = await start_engine(data)
        provider_server, provider_url = await serve(web.post("/payments", provider.create))
        shop = Shop(provider_url, engine)
        shop_server, shop_url = await serve(web.post("/charge", shop.charge), web.post("/events", shop.forward))
        provider.events_to = f"{shop_url}/events"
        try:
            async with Client(engine) as client:
                await client.put_step("charge", {"endpoint": f"{shop_url}/charge", **CHARGE})
                for card in ("visa", "empty"):
                    flow_id = (await client.start_flow(["charge"], {"card": card, "amount": 2000}))["flow_id"]
                    result = await client.result(flow_id, wait=30)
                    await asyncio.gather(*provider.sending)
                    ending = result["outputs"] or (await client.flow(flow_id))["steps"]["charge"]["work"][0]["error"]
                    print(f"the flow has {result['status']}: {json.dumps(ending)}", flush=True)
        finally:
            process.terminate()
            await process.wait()
            await shop_server.cleanup()
            await provider_server.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

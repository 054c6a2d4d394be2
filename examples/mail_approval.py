"""An approval by mail: a link that a mail scanner cannot trigger, because opening it only shows a page.

A flow asks for an approval before it pays. The step ``ask`` "mails" a link, the hook step ``approval`` waits, and the
step ``pay`` runs only if the answer was yes. The link leads to a page of this program, not to the engine: GET shows the
page with two buttons, and only POST decides. The URL of the hook, which is a credential, stays in this program. It
comes with the dispatch of ``ask``, in ``metadata.hooks``, before the hook step starts.

Programs that open every link in a mail (scanners, previews) do so here, too, before the person does. And the person
presses the button twice: the same ``webhook-id`` makes that one delivery.

Start an engine (``counterfoil serve``), then:

    python examples/mail_approval.py
"""

import asyncio
import html
import os
import secrets

import aiohttp
from aiohttp import web

from counterfoil.client import Client

ENGINE = os.environ.get("COUNTERFOIL_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("COUNTERFOIL_KEY")
PAGE = """<!doctype html><title>Approval</title>
<p>Pay {amount} to {payee}?</p>
<form method="post">
<button name="approved" value="yes">Pay</button> <button name="approved" value="no">Refuse</button>
</form>
"""


class ApprovalPages:
    """The pages behind the mailed links, and the mailbox of the approver."""

    def __init__(self) -> None:
        self.url = ""
        self.mailbox: asyncio.Queue[str] = asyncio.Queue()
        self.questions: dict[str, dict[str, str]] = {}
        """By the secret in the link: the URL of the hook, and what is asked."""

    async def ask(self, request: web.Request) -> web.Response:
        """The endpoint of the step ``ask``: mail a link."""
        dispatch = await request.json()
        link = secrets.token_urlsafe(16)
        self.questions[link] = {"hook": dispatch["metadata"]["hooks"]["approval"], **dispatch["arguments"]}
        await self.mailbox.put(f"{self.url}/approvals/{link}")
        return web.json_response({"success": True, "outputs": {"asked": True}})

    async def show(self, request: web.Request) -> web.Response:
        """GET: show the question. It decides nothing."""
        question = self.questions[request.match_info["link"]]
        shown = {name: html.escape(str(question[name])) for name in ("amount", "payee")}
        return web.Response(text=PAGE.format(**shown), content_type="text/html")

    async def decide(self, request: web.Request) -> web.Response:
        """POST: a button was pressed. The engine takes JSON, a form is the business of this page."""
        link = request.match_info["link"]
        form = await request.post()
        payload = {"approved": form["approved"] == "yes"}
        async with aiohttp.ClientSession() as session:
            for _ in range(20):
                url = self.questions[link]["hook"]
                async with session.post(url, json=payload, headers={"webhook-id": link}) as answer:
                    if answer.status == 200:
                        taken = await answer.json()
                        return web.Response(text="thank you, again" if taken["duplicate"] else "thank you")
                await asyncio.sleep(0.1)  # the hook step starts when the mail is sent: a program may be faster
        return web.Response(status=410, text="the answer is no longer needed")

    async def pay(self, request: web.Request) -> web.Response:
        """The endpoint of the step ``pay``."""
        arguments = (await request.json())["arguments"]
        return web.json_response({"success": True, "outputs": {"paid": arguments["amount"]}})

    async def serve(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/ask", self.ask)
        app.router.add_post("/pay", self.pay)
        app.router.add_get("/approvals/{link}", self.show)
        app.router.add_post("/approvals/{link}", self.decide)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(os.environ.get("PORT", "0"))).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


async def register(client: Client, pages: ApprovalPages) -> None:
    amount = {"amount": {"role": "required", "type": "number"}}
    payee = {"payee": {"role": "required", "type": "string"}}
    await client.put_step(
        "ask",
        {
            "kind": "sync",
            "endpoint": f"{pages.url}/ask",
            "attributes": {**amount, **payee, "asked": {"role": "output", "type": "boolean"}},
        },
    )
    await client.put_step(
        "approval",
        {
            "kind": "hook",
            "hook": {"token": None},  # the engine makes an unguessable one
            "attributes": {"asked": {"role": "required"}, "approved": {"role": "output", "type": "boolean"}},
            "work": {"deadline_ms": 3 * 24 * 3_600_000},
        },
    )
    await client.put_step(
        "pay",
        {
            "kind": "sync",
            "endpoint": f"{pages.url}/pay",
            "attributes": {**amount, "approved": {"role": "required"}, "paid": {"role": "output", "type": "number"}},
            "predicate": "inputs.approved",
        },
    )


async def read_mail(
    client: Client, session: aiohttp.ClientSession, pages: ApprovalPages, flow_id: str, answer: str
) -> None:
    """A scanner opens the link three times; then the person opens it, and presses a button twice."""
    link = await pages.mailbox.get()
    for _ in range(3):
        async with session.get(link) as page:
            decided = "approved" in (await client.flow(flow_id))["outputs"]
            print("scanner:", page.status, "and it is decided" if decided else "and nothing is decided")
    for _ in range(2):
        async with session.post(link, data={"approved": answer}) as page:
            print("person: ", answer, "->", await page.text())


async def main() -> None:
    pages = ApprovalPages()
    runner = await pages.serve()
    async with Client(ENGINE, key=KEY) as client, aiohttp.ClientSession() as session:
        await register(client, pages)
        for amount, answer in ((500, "yes"), (90_000, "no")):
            flow = await client.start_flow(["pay"], {"amount": amount, "payee": "Ada"})
            await read_mail(client, session, pages, flow["flow_id"], answer)
            result = await client.result(flow["flow_id"])
            print(f"pay {amount}:", result["status"], result["outputs"])
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

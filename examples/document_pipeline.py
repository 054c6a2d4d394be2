"""Reads a document in pages: splits it, has a vendor read each page and call back later, and joins the texts.

The step `read` fans out: one work item for each page, at most two at a time. The vendor accepts a page with 200, and
calls the webhook when it has read it. Blank pages are skipped by a predicate, without a call; the list of texts has
null in their place. `join` begins when all pages are read, and leaves out the nulls.

Run it next to an engine; it includes its workers:

    python examples/document_pipeline.py
"""

import asyncio
import os
import random
from typing import Any

import aiohttp
from aiohttp import web

from counterfoil.client import Client

ENGINE = os.environ.get("COUNTERFOIL_URL", "http://127.0.0.1:8080")
PORT = int(os.environ.get("PORT", "9000"))
HERE = os.environ.get("WORKER_URL", f"http://127.0.0.1:{PORT}")
DOCUMENT = "one receipt\f\fone outcome\fwhatever happens"  # four pages, the second one blank

STEPS: dict[str, dict[str, Any]] = {
    "split": {
        "kind": "sync",
        "endpoint": f"{HERE}/split",
        "attributes": {
            "document": {"role": "required", "type": "string"},
            "page": {"role": "output", "type": "array"},
        },
    },
    "read": {
        "kind": "async",
        "endpoint": f"{HERE}/vendor",
        "attributes": {
            "page": {"role": "required", "type": "string", "for_each": True},
            "text": {"role": "output", "type": "string"},
        },
        "predicate": 'inputs.page != ""',
        "fan_out": {"parallelism": 2},
        "work": {"deadline_ms": 60_000},
    },
    "join": {
        "kind": "sync",
        "endpoint": f"{HERE}/join",
        "attributes": {
            "text": {"role": "required", "type": "array"},
            "summary": {"role": "output", "type": "string"},
        },
    },
}

routes = web.RouteTableDef()
calls_back: set[asyncio.Task[None]] = set()


@routes.post("/split")
async def split(request: web.Request) -> web.Response:
    """A sync step: the response is the result."""
    arguments = (await request.json())["arguments"]
    return web.json_response({"success": True, "outputs": {"page": arguments["document"].split("\f")}})


@routes.post("/vendor")
async def vendor(request: web.Request) -> web.Response:
    """An async step: the page is accepted now, and read later."""
    dispatch = await request.json()
    task = asyncio.create_task(read(dispatch["arguments"]["page"], dispatch["metadata"]["webhook_url"]))
    calls_back.add(task)
    task.add_done_callback(calls_back.discard)
    return web.Response()


async def read(page: str, webhook_url: str) -> None:
    await asyncio.sleep(random.uniform(0.1, 0.5))
    print(f"  the vendor has read {page!r}", flush=True)
    result = {"success": True, "outputs": {"text": page.upper()}}
    async with aiohttp.ClientSession() as session:
        for _ in range(20):
            try:
                async with session.post(webhook_url, json=result) as answer:
                    if answer.status < 500:  # 200: recorded; 400: already recorded. Both are final
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.5)


@routes.post("/join")
async def join(request: web.Request) -> web.Response:
    texts = (await request.json())["arguments"]["text"]
    summary = " / ".join(text for text in texts if text is not None)
    return web.json_response({"success": True, "outputs": {"summary": summary}})


async def main() -> None:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", PORT).start()
    try:
        async with Client(ENGINE, os.environ.get("COUNTERFOIL_KEY")) as client:
            for step_id, definition in STEPS.items():
                await client.put_step(step_id, definition)
            plan = await client.plan(["join"], {"document": DOCUMENT})
            print(f"the plan: {' -> '.join(plan['steps'])}", flush=True)
            started = await client.start_flow(["join"], {"document": DOCUMENT})
            result = await client.result(started["flow_id"], wait=30)
            print(f"the flow has {result['status']}", flush=True)
            print(f"  texts:   {result['outputs']['text']}", flush=True)
            print(f"  summary: {result['outputs']['summary']}", flush=True)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())

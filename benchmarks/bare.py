"""The servers that the engine is compared with: the same HTTP hops and validation, but no state.

Runs as a separate process: ``python -m benchmarks.bare handler [--asyncio]`` or ``relay ENDPOINT``; prints its address.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import aiohttp
import orjson
import uvloop
from aiohttp import web

from counterfoil.domain.work.results import StepResult


async def _complete(request: web.Request) -> web.Response:
    """The simplest handler: validate the result, store nothing."""
    result = StepResult.model_validate_json(await request.read())
    return web.json_response({"verdict": "accepted", "status": "succeeded" if result.success else "failed"})


def handler_app() -> web.Application:
    app = web.Application()
    app.router.add_post("/webhook/{flow_id}/{step_id}/{token}", _complete)
    return app


def relay_app(endpoint: str) -> web.Application:
    """Start, call the endpoint, take the webhook: the hops of a flow, without state."""
    app = web.Application()
    background: set[asyncio.Task[None]] = set()

    async def session(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as app["session"]:
            yield

    async def call(app: web.Application, body: bytes) -> None:
        async with app["session"].post(endpoint, data=body, headers={"Content-Type": "application/json"}) as answer:
            await answer.read()

    async def start(request: web.Request) -> web.Response:
        wanted = orjson.loads(await request.read())
        flow_id, token = uuid4().hex, uuid4().hex
        url = f"http://{request.host}/webhook/{flow_id}/step/{token}"
        body = orjson.dumps({"arguments": wanted["init"], "metadata": {"flow_id": flow_id, "webhook_url": url}})
        task = asyncio.create_task(call(request.app, body))
        background.add(task)
        task.add_done_callback(background.discard)
        return web.json_response({"flow_id": flow_id, "status": "active"}, status=201)

    app.cleanup_ctx.append(session)
    app.router.add_post("/api/v1/flows", start)
    app.router.add_post("/webhook/{flow_id}/{step_id}/{token}", _complete)
    return app


async def _serve(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(f"listening on http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    run = asyncio.run if "--asyncio" in rest else uvloop.run
    run(_serve(handler_app() if kind == "handler" else relay_app(rest[0])))

"""A step endpoint that only stores dispatches: you act as the worker.

    POST /work             called by the engine: stores the dispatch and returns 200
    GET  /work/FLOW        the dispatch of that flow; waits until it has arrived
    GET  /webhook/FLOW     only its webhook URL, for a shell variable

It shows receipts to every caller. A real endpoint keeps them secret.
"""  # noqa: INP001 - a script beside the pages, not a package

import asyncio
import os
import sys
from collections import defaultdict
from typing import Any

from aiohttp import web

routes = web.RouteTableDef()
dispatches: dict[str, Any] = {}
arrivals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@routes.post("/work")
async def take(request: web.Request) -> web.Response:
    dispatch = await request.json()
    flow_id = dispatch["metadata"]["flow_id"]
    dispatches[flow_id] = dispatch
    arrivals[flow_id].set()
    return web.Response()


@routes.get("/work/{flow}")
async def show(request: web.Request) -> web.Response:
    await arrivals[request.match_info["flow"]].wait()
    return web.json_response(dispatches[request.match_info["flow"]])


@routes.get("/webhook/{flow}")
async def show_webhook(request: web.Request) -> web.Response:
    await arrivals[request.match_info["flow"]].wait()
    return web.Response(text=dispatches[request.match_info["flow"]]["metadata"]["webhook_url"])


if __name__ == "__main__":
    app = web.Application()
    app.add_routes(routes)
    port = int(os.environ.get("PORT", "9000"))
    try:
        web.run_app(app, host="127.0.0.1", port=port, access_log=None)
    except OSError as error:
        sys.exit(f"error: cannot listen on port {port} ({error.strerror}); stop the process that uses it, or set PORT")

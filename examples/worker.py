"""A step endpoint and its worker, with the worker kit.

The kit answers the engine at once, runs the function in the background and reports its result. Run it next to an
engine, then start_flow.sh:

    python examples/worker.py
"""

import asyncio
import logging
import os
from typing import Any

from aiohttp import web

from counterfoil.client import Assignment, NotCompleted, StepFailed, Worker

worker = Worker(heartbeat_every=5.0)


@worker.step("/thumbnail")
async def thumbnail(work: Assignment) -> dict[str, Any]:
    """The returned dict becomes the outputs of the step; a raised exception determines how it failed."""
    image = work.arguments.get("image")
    if not isinstance(image, str):
        raise StepFailed("there is no image to make smaller")  # final: no retry would help
    if work.arguments.get("busy") and work.receipt.attempt == 1:
        raise NotCompleted("the renderer is busy", retry_after=1)  # the engine tries again, a second later
    seconds = float(work.arguments.get("seconds", 2))
    for part in range(4):
        await asyncio.sleep(seconds / 4)  # long work, for which no HTTP request would wait
        if await work.heartbeat(progress=(part + 1) / 4, message=f"rendering {image}"):
            return {}  # the flow was cancelled: the result is no longer needed
    return {"thumbnail": f"small-{image}"}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    web.run_app(worker.app(), host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))

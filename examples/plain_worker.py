"""The same step without the worker kit: only aiohttp and the HTTP contract, to port to any language.

The endpoint puts the work into a queue and answers 200 at once. A worker takes it from there, and reports to
the webhook URL of the request. The rules of reporting:

    200                        recorded
    400                        refused by the state machine, final: most often a repeat of a recorded result
    404, 413, 415, 422, 401    wrong, and a repeat would be refused too
    408, 425, 429, 5xx         retry, not before Retry-After
    no answer                  retry: if the result was recorded nevertheless, the repeat gets a 400, which is fine

The webhook URL contains the receipt, which is a credential: do not log it.

    python examples/plain_worker.py
"""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

log = logging.getLogger("plain_worker")
QUEUE: web.AppKey[asyncio.Queue[dict[str, Any]]] = web.AppKey("queue", asyncio.Queue)
TRIES = 8


async def endpoint(request: web.Request) -> web.Response:
    """Accept the work and acknowledge it.

    A queue that survives a restart would be better than one in memory. After a lost answer or a passed deadline the
    same work comes again, as the next attempt, with the same metadata.idempotency_key.
    """
    request.app[QUEUE].put_nowait(await request.json())
    return web.json_response({"success": True})


async def worker(queue: asyncio.Queue[dict[str, Any]]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            work = await queue.get()
            metadata = work["metadata"]
            result = await thumbnail(session, work["arguments"], metadata)
            await report(session, metadata, {**result, "attempt": metadata["attempt"]})


async def thumbnail(session: aiohttp.ClientSession, arguments: dict[str, Any], metadata: dict[str, Any]) -> Any:
    """Do the work and turn its outcome into a StepResult."""
    image = arguments.get("image")
    if not isinstance(image, str):
        return {"success": False, "error": "there is no image to make smaller"}
    if arguments.get("busy") and metadata["attempt"] == 1:
        return {"success": False, "error": "the renderer is busy", "retriable": True, "retry_after": 1}
    await asyncio.sleep(float(arguments.get("seconds", 2)) / 2)
    await heartbeat(session, metadata, 0.5)
    await asyncio.sleep(float(arguments.get("seconds", 2)) / 2)
    return {"success": True, "outputs": {"thumbnail": f"small-{image}"}}


async def heartbeat(session: aiohttp.ClientSession, metadata: dict[str, Any], progress: float) -> None:
    """Extend the deadline. A lost heartbeat does no harm: the next one extends it as well."""
    try:
        async with session.post(metadata["heartbeat_url"], json={"progress": progress}):
            pass
    except (aiohttp.ClientError, TimeoutError):
        log.info("a heartbeat got lost")


async def report(session: aiohttp.ClientSession, metadata: dict[str, Any], result: dict[str, Any]) -> None:
    """Report the result until there is a final answer."""
    name = f"flow {metadata['flow_id']}, step {metadata['step_id']}, attempt {metadata['attempt']}"
    for failures in range(TRIES):
        pause = random.uniform(0.5, 1) * min(30, 0.5 * 2**failures)
        try:
            async with session.post(metadata["webhook_url"], json=result) as answer:
                body = await answer.json(content_type=None)
                if answer.status == 200:
                    log.info("%s: %s", name, body["verdict"])
                    return
                if answer.status < 500 and answer.status not in (408, 425, 429):
                    log.warning("%s: refused, %s", name, body["error"]["code"])
                    return
                pause = max(pause, float(answer.headers.get("Retry-After", 0)))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.info("%s: no answer (%s), trying again", name, type(error).__name__)
        await asyncio.sleep(pause)
    log.error("%s: could not be reported; the engine will try the work again when its deadline has passed", name)


async def background(app: web.Application) -> AsyncIterator[None]:
    app[QUEUE] = asyncio.Queue()
    workers = [asyncio.create_task(worker(app[QUEUE])) for _ in range(4)]
    yield
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


def make_app() -> web.Application:
    app = web.Application()
    app.router.add_post("/thumbnail", endpoint)
    app.cleanup_ctx.append(background)
    return app


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    web.run_app(make_app(), host="127.0.0.1", port=int(os.environ.get("PORT", "9000")))

"""The card provider of the demo, and the process that charges cards there and dies in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter

from aiohttp import web


class CardProvider:
    """Charges a card at every request: it knows no idempotency keys, so a repeated request is a second charge."""

    def __init__(self) -> None:
        self.charges: Counter[str] = Counter()
        """How often each flow was charged."""

    async def charge(self, request: web.Request) -> web.Response:
        """``POST /provider/charges``."""
        self.charges[(await request.json())["flow_id"]] += 1
        return web.json_response({})


class ChargeWorker:
    """Keeps the process of the step ``charge`` running from ``start`` to ``stop``.

    The listening socket belongs to the demo, and every process inherits it: connections that arrive while no process
    runs wait for the next one.
    """

    def __init__(self) -> None:
        self.deaths = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._keeping: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def start(self, provider_url: str) -> None:
        """Start the first process; each is followed by another when it dies."""
        first = await self._process(provider_url)
        self._keeping = asyncio.create_task(self._keep(first, provider_url))

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._socket.close()

    async def _keep(self, process: Process, provider_url: str) -> None:
        try:
            while True:
                await process.wait()
                self.deaths += 1
                process = await self._process(provider_url)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _process(self, provider_url: str) -> Process:
        inherited = self._socket.fileno()
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "counterfoil.cli.demo.charge_worker",
            str(inherited),
            provider_url,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            pass_fds=[inherited],
        )

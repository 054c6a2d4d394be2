"""``counterfoil dev relay``: passes requests of an engine on to a worker that the engine cannot reach.

The relay opens one connection to the engine and keeps it. Requests for ``relay://<name>/<path>`` arrive through it, are
posted to the worker as they are, and the worker's answer is returned. What the relay knows of the delivery, it tells:
a worker that refuses connections has seen nothing, an answer that is missing leaves the outcome unknown.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from counterfoil.cli.connection import EngineConnection, connected
from counterfoil.cli.output import CommandFailed, failure
from counterfoil.domain.urls import RELAY_NAME_PATTERN

if TYPE_CHECKING:
    from counterfoil.client import Client
    from counterfoil.domain.work.replies import Reply
    from counterfoil.transport.http import HttpTransport

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
EVERYWHERE = ("0.0.0.0/0", "::/0")
DROPPED_HEADERS = frozenset({"host", "content-length", "connection", "transfer-encoding"})


@click.command(
    short_help="Pass dispatches on to a worker behind NAT.",
    epilog="Example: counterfoil dev relay --to http://localhost:9000 --name dev",
)
@click.option("--to", "target", required=True, metavar="URL", help="Base URL of the worker on this machine.")
@click.option(
    "--name", default="dev", show_default=True, help="Name of the relay: steps have endpoints relay://NAME/PATH."
)
@connected
def relay(connection: EngineConnection, target: str, name: str) -> None:
    """Pull the dispatches of relay://NAME/PATH endpoints, post them to the worker, and return its answers.

    Runs until Ctrl-C, and reconnects when the connection breaks.
    """
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise click.BadParameter("must be a URL such as http://localhost:9000", param_hint="--to")
    if not re.fullmatch(RELAY_NAME_PATTERN, name):
        raise click.BadParameter("must have lower-case letters, digits and hyphens", param_hint="--name")
    try:
        asyncio.run(_run(connection, target.rstrip("/"), name))
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


async def _run(connection: EngineConnection, target: str, name: str) -> None:
    from counterfoil.client import ApiError, Client, ClientError, Unavailable
    from counterfoil.engine.context import system_clock
    from counterfoil.transport.egress import EgressPolicy
    from counterfoil.transport.http import HttpTransport

    worker = HttpTransport(egress=EgressPolicy(allow=EVERYWHERE), clock=system_clock, max_response_bytes=1_048_576)
    pause = FIRST_PAUSE_SECONDS
    async with worker, Client(connection.url, connection.key) as client:
        forwarder = Forwarder(client, worker, target, name)
        while True:
            try:
                await forwarder.follow()
                reason = "the engine ended the connection"
            except ApiError as error:
                if not isinstance(error, Unavailable):
                    raise failure(error) from None
                reason = str(error)
            except ClientError as error:
                reason = str(error)
            pause = FIRST_PAUSE_SECONDS if forwarder.was_connected else min(pause * 2, LONGEST_PAUSE_SECONDS)
            click.echo(f"{reason}; trying again in {pause:g} s", err=True)
            await asyncio.sleep(pause)


class Forwarder:
    """Follows the stream of a relay, and passes each request on in a task of its own."""

    def __init__(self, client: Client, worker: HttpTransport, target: str, name: str) -> None:
        self._client = client
        self._worker = worker
        self._target = target
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self.was_connected = False
        """Whether the last connection was established."""

    async def follow(self) -> None:
        """Pass requests on until the stream ends; raises what the client raises when it breaks."""
        self.was_connected = False
        async for kind, document in self._client.relay_events(self._name):
            if kind == "hello":
                self.was_connected = True
                self._greet(document)
            elif kind == "replaced":
                raise CommandFailed(f"another relay has connected with the name {self._name}; choose another --name")
            elif kind == "request":
                task = asyncio.create_task(self._forward(document))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _greet(self, hello: dict[str, Any]) -> None:
        click.echo(f"connected: relay://{self._name}/PATH is posted to {self._target}/PATH")
        click.echo(f"completions: a worker posts to webhook_url, which begins with {hello['webhook_base_url']}")
        if urlsplit(hello["webhook_base_url"]).hostname != urlsplit(self._client.base_url).hostname:
            click.echo(
                f"warning: this relay reaches the engine at {self._client.base_url}; if a worker here cannot reach "
                "the other address, set WEBHOOK_BASE_URL of the engine",
                err=True,
            )

    async def _forward(self, document: dict[str, Any]) -> None:
        from counterfoil.client import ClientError

        method, path = document["method"], document["path"]
        click.echo(f"-> {method} {path}")
        began = time.monotonic()
        headers = {key: value for key, value in document["headers"].items() if key.lower() not in DROPPED_HEADERS}
        url, timeout_ms = self._target + path, document["timeout_ms"]
        if method == "POST":
            body = document["body"].encode()
            reply = await self._worker.post(url, body=body, headers=headers, timeout_ms=timeout_ms)
        else:
            reply = await self._worker.get(url, headers=headers, timeout_ms=timeout_ms)
        took = (time.monotonic() - began) * 1000
        try:
            await self._client.relay_reply(self._name, document["request_id"], _document(reply))
        except ClientError as error:
            click.echo(f"<- {_outcome(reply)} ({took:.0f} ms), which the engine did not take: {error}", err=True)
        else:
            click.echo(f"<- {_outcome(reply)} {method} {path} ({took:.0f} ms)")


def _outcome(reply: Reply) -> str:
    return str(reply.status) if reply.status is not None else f"{reply.delivery}: {reply.error}"


def _document(reply: Reply) -> dict[str, Any]:
    return {
        "outcome": reply.delivery.value,
        "status": reply.status,
        "retry_after_ms": reply.retry_after_ms,
        "body": reply.body.decode(errors="replace"),
        "truncated": reply.truncated,
        "error": reply.error,
        "timed_out": reply.timed_out,
    }

"""Connection of client commands to an engine: --url, --key, and one call whose errors become one line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from counterfoil.cli.output import failure

if TYPE_CHECKING:
    from counterfoil.client import Client

DEFAULT_URL = "http://127.0.0.1:8080"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class EngineConnection:
    """The engine that a command talks to."""

    url: str
    key: str | None = field(repr=False)

    def call(self, ask: Callable[[Client], Awaitable[R]]) -> R:
        """Call the engine; an error ends the command with one line."""
        from counterfoil.client import Client, ClientError

        async def exchange() -> R:
            async with Client(self.url, self.key) as client:
                return await ask(client)

        try:
            return asyncio.run(exchange())
        except ClientError as error:
            raise failure(error) from None


def connected(command: Callable[Concatenate[EngineConnection, P], R]) -> Callable[P, R]:
    """Add --url and --key to a command, and pass the connection as its first argument."""

    @click.option("--url", envvar="COUNTERFOIL_URL", default=DEFAULT_URL, show_default=True, help="URL of the engine.")
    @click.option("--key", envvar="COUNTERFOIL_KEY", help="Secret of an API key, if the engine requires one.")
    @wraps(command)
    def with_connection(*args: P.args, **kwargs: P.kwargs) -> R:
        url, key = str(kwargs.pop("url")), kwargs.pop("key")
        return command(EngineConnection(url, str(key) if key else None), *args, **kwargs)

    return with_connection

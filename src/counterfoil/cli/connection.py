"""Connection of client commands to an engine: --url, --key, and one call whose errors become one line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import IO, TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

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


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """``name=value`` options as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def json_pairs(texts: Sequence[str], option: str) -> dict[str, Any]:
    """``name=value`` options, each value parsed as JSON if possible, otherwise a string."""
    return {name: _json_or_text(value) for name, value in pairs(texts, option).items()}


def inputs_of(init: Sequence[str], init_file: IO[str] | None) -> dict[str, Any]:
    """The inputs of a flow: the object in the file, overridden by single values."""
    inputs = json_object(init_file.read(), "--init-file") if init_file is not None else {}
    inputs.update(json_pairs(init, "--init"))
    return inputs


def signal_of(text: str | None, delivery_id: str | None) -> dict[str, Any] | None:
    """The ``signal`` of a flow start, from ``HOOK=JSON``: a token may have an equals sign, JSON begins behind one."""
    if text is None:
        return None
    for place, character in enumerate(text):
        if character == "=" and place:
            try:
                payload = json.loads(text[place + 1 :])
            except ValueError:
                continue
            sent: dict[str, Any] = {"hook": text[:place], "payload": payload}
            return sent if delivery_id is None else {**sent, "delivery_id": delivery_id}
    raise click.BadParameter(f"{text!r} is not HOOK=JSON", param_hint="--signal")


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def json_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object of a file or an option."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=source) from None
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint=source)
    return value

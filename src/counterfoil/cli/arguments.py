"""Options that several commands have, and values of options and files: NAME=VALUE pairs and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import IO, Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def json_flag(command: C) -> C:
    """Add --json to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print the raw JSON response.")(command)


def paged(limit: int = 50) -> Callable[[C], C]:
    """Add --limit, --cursor and --json to a command that lists a page."""
    entries = click.option("--limit", type=click.IntRange(1, 1000), default=limit, show_default=True)
    cursor = click.option("--cursor", help="Continue after the previous page.")
    return lambda command: entries(cursor(json_flag(command)))


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


def json_value(text: str, source: str) -> Any:
    """The JSON value of a file or an option."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=source) from None


def json_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object of a file or an option."""
    value = json_value(text, source)
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint=source)
    return value

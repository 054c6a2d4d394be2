"""Tokens of hooks: templates over the inputs of a step, and made tokens, which are credentials like receipts.

A made token is ``<hook address>.<HMAC>``. It follows from the flow, the step and the item, so that a link can be sent
before the hook step starts; a forged one is recognised without a lookup, and the database holds no made token. It has
the form of a receipt, so that whatever removes receipts from texts removes it as well.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from hmac import compare_digest
from typing import Any, NamedTuple

from counterfoil.domain.canonical import canonical_json, digest
from counterfoil.domain.work.receipts import Receipts

MAX_TOKEN = 255
"""The most characters of a token: percent-encoded, it still fits into a request line."""

_MADE = re.compile(r"[0-9a-f]{32}\.[A-Za-z0-9_-]{43}")
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PURPOSE = "hook"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_BETWEEN = "\n"
"""Separates the parts of a hook id: no flow id and no step id can hold it."""


def hook_id(flow_id: str, step_id: str, item: int, run: int) -> str:
    """The id of a hook. ``run``: how often the step was redriven before; each run of a step has hooks of its own."""
    return _BETWEEN.join((flow_id, step_id, str(item), str(run)))


def run_of(name: str) -> int:
    """The run that the id of a hook has."""
    return int(name.rpartition(_BETWEEN)[2])


class Token(NamedTuple):
    """A token as the engine knows it."""

    token_id: str
    text: str | None
    """None: a made token."""


class TokenRefused(ValueError):
    """A template gives no usable token. The message never holds a value of the inputs."""


def made(flow_id: str, step_id: str, item: int) -> Token:
    """The made token of an item of a hook step."""
    return Token(_made_id(_address(flow_id, step_id, item)), None)


def given(text: str) -> Token:
    """A token that a template gave, or that a caller names."""
    return Token(f"text:{digest(text)}", text)


def made_token(receipts: Receipts, flow_id: str, step_id: str, item: int) -> str:
    """The made token as it is sent out: always the same one, as long as the first secret stays."""
    address = _address(flow_id, step_id, item)
    return f"{address}.{_signature(receipts.derived(_PURPOSE, address)[0])}"


def has_made_form(text: str) -> bool:
    return _MADE.fullmatch(text) is not None


def read_made(receipts: Receipts, text: str) -> Token | None:
    """The made token that a text is; None: it is forged, or no made token at all."""
    if not has_made_form(text):
        return None
    address, _, signature = text.partition(".")
    for secret in receipts.derived(_PURPOSE, address):
        if compare_digest(_signature(secret), signature):
            return Token(_made_id(address), None)
    return None


def _address(flow_id: str, step_id: str, item: int) -> str:
    return digest([_PURPOSE, flow_id, step_id, item])[:32]


def _made_id(address: str) -> str:
    return f"made:{address}"


def _signature(secret: bytes) -> str:
    return b2a_base64(secret).translate(_URL_SAFE)[:43].decode()


class Template:
    """A token template: text with ``{name}`` for inputs of the step; ``{{`` and ``}}`` stand for braces."""

    def __init__(self, text: str) -> None:
        """Raises ValueError if the braces do not match."""
        self._parts: list[tuple[str, str | None]] = []
        """Texts, each with the name of the input that follows it."""
        begin, literal = 0, ""
        for part in _PART.finditer(text):
            literal += text[begin : part.start()]
            begin = part.end()
            if part[0] in ("{{", "}}"):
                literal += part[0][0]
            elif part[1]:
                self._parts.append((literal, part[1]))
                literal = ""
            else:
                raise ValueError("each { needs a name and a }; write {{ and }} for braces")
        self._parts.append((literal + text[begin:], None))

    @property
    def names(self) -> list[str]:
        """The inputs that it names."""
        return [name for _, name in self._parts if name is not None]

    def token(self, arguments: Mapping[str, Any]) -> Token:
        """The token with these arguments; raises TokenRefused."""
        text = "".join(
            literal + ("" if name is None else _text(name, arguments[name])) for literal, name in self._parts
        )
        problem = token_problem(text)
        if problem is not None:
            raise TokenRefused(f"the token {problem}")
        return given(text)


@lru_cache(maxsize=1024)
def template(text: str) -> Template:
    """The template, from a cache."""
    return Template(text)


def token_problem(text: str) -> str | None:
    """Why a text cannot be a token; None: it can."""
    if not text or len(text) > MAX_TOKEN:
        return f"must have 1 to {MAX_TOKEN} characters"
    if "\0" in text:
        return "must not contain NUL characters"
    if text in (".", ".."):
        return "must not be . or .., which no URL can hold"
    if _MADE.search(text):
        return "must not have the form of a made token"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must not contain unpaired surrogates"
    return None


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return canonical_json(value).decode()
    raise TokenRefused(f"{name} must be a string, a number or a boolean, because the token of the hook names it")

"""The two templates of a signature: what its header looks like, and which text is signed.

A template consists of literal text and placeholders in braces. ``format`` names the fields of the header's value, for
example ``t={timestamp},v1={signature}``; the value may have them in any order, several times, and among others.
``signed`` is the signed text, for example ``{timestamp}.{body}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TIMESTAMP, SIGNATURE, BODY = "timestamp", "signature", "body"
HEADER_PREFIX = "header:"
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")

_SEPARATORS = ",; \t"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class HeaderFormat:
    """How timestamp and signatures are found in the value of a header."""

    prefixes: tuple[tuple[str, str], ...]
    """The name of each field and the text in front of its value."""
    separator: re.Pattern[str]

    @property
    def has_timestamp(self) -> bool:
        return any(name == TIMESTAMP for name, _ in self.prefixes)

    def read(self, value: str) -> dict[str, list[str]]:
        """The values of each field, in their order; what has another form is left out. Never raises."""
        found: dict[str, list[str]] = {name: [] for name, _ in self.prefixes}
        for part in self.separator.split(value):
            for name, prefix in self.prefixes:
                if part.startswith(prefix) and len(part) > len(prefix):
                    found[name].append(part[len(prefix) :])
        return found


def parse_format(text: str) -> HeaderFormat:
    """ValueError says what is wrong with a ``format``."""
    literals, names = _split(text)
    unknown = [name for name in names if name not in (TIMESTAMP, SIGNATURE)]
    if unknown or names.count(SIGNATURE) != 1 or names.count(TIMESTAMP) > 1:
        raise ValueError("must contain {signature} once, {timestamp} at most once, and no other placeholder")
    if literals[-1]:
        raise ValueError("must end with a placeholder")
    prefixes = [literals[0]]
    for between in literals[1:-1]:
        prefix = between.lstrip(_SEPARATORS)
        if prefix == between:
            raise ValueError("must have a comma, semicolon or space between its fields")
        prefixes.append(prefix)
    if any(prefix != prefix.strip() or " " in prefix or "\t" in prefix for prefix in prefixes):
        raise ValueError("must not have spaces in the name of a field")
    if len(prefixes) == 2 and (prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])):
        raise ValueError("must have fields with different names, such as t={timestamp},v1={signature}")
    used = "".join(prefixes)
    separators = "".join(character for character in _SEPARATORS if character not in used)
    return HeaderFormat(tuple(zip(names, prefixes, strict=True)), re.compile(f"[{separators}]+"))


@dataclass(frozen=True)
class SignedText:
    """The text that a signature is made of."""

    literals: tuple[bytes, ...]
    names: tuple[str, ...]
    """The placeholders between the literals."""

    @property
    def headers(self) -> list[str]:
        """The headers that are part of the text, in lower case."""
        return [name.removeprefix(HEADER_PREFIX).lower() for name in self.names if name.startswith(HEADER_PREFIX)]

    def fill(self, values: dict[str, bytes]) -> bytes:
        """The text for these values, by placeholder; the header names of placeholders are in lower case."""
        pieces = [self.literals[0]]
        for name, literal in zip(self.names, self.literals[1:], strict=True):
            pieces += (values[name], literal)
        return b"".join(pieces)


def parse_signed(text: str) -> SignedText:
    """ValueError says what is wrong with a ``signed``."""
    literals, names = _split(text)
    for name in names:
        header = name.removeprefix(HEADER_PREFIX)
        if name not in (TIMESTAMP, BODY) and (header == name or not HEADER_NAME.fullmatch(header)):
            raise ValueError("may contain only the placeholders {timestamp}, {body} and {header:<name>}")
    if names.count(BODY) != 1:
        raise ValueError("must contain {body} once")
    lowered = (name.lower() for name in names)
    return SignedText(tuple(literal.encode() for literal in literals), tuple(lowered))


def _split(text: str) -> tuple[list[str], list[str]]:
    """The literals of a template and the placeholders between them."""
    parts = _PLACEHOLDER.split(text)
    literals, names = parts[::2], parts[1::2]
    if any("{" in literal or "}" in literal for literal in literals):
        raise ValueError("has a brace that belongs to no placeholder")
    return literals, names

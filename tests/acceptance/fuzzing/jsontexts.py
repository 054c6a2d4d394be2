"""JSON as an attacker writes it: what no serialiser would produce, and values at the edge of what can be kept."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

BODY_LIMIT = 262_144
"""``max_body_bytes`` of the engine under test: bodies over it stay cheap to send."""


@dataclass(frozen=True)
class Raw:
    """Text that stands in a document as it is, whether or not it is JSON."""

    text: bytes


@dataclass(frozen=True)
class Pairs:
    """An object whose keys may come twice."""

    members: Sequence[tuple[str, Any]]


def render(value: Any) -> bytes:
    """A document as text. Lone surrogates are escaped, everything else beyond ASCII is written as it is."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Pairs):
        return b"{" + b",".join(render(key) + b":" + render(item) for key, item in value.members) + b"}"
    if isinstance(value, dict):
        return b"{" + b",".join(render(str(key)) + b":" + render(item) for key, item in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(render, value)) + b"]"
    if isinstance(value, str):
        try:
            return json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return json.dumps(value).encode()
    return json.dumps(value).encode()


NUMBERS = [
    *("0", "-0", "-0.0", "1", "-1", "0.1", "1.5", "1e5", "1E+2", "5e-324", "1e-400", "1.7976931348623157e308"),
    *("9007199254740993", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", str(2**70), str(-(2**70)), "1" + "0" * 300, "1e308", "1" * 250 + ".5", "0." + "3" * 400),
]
REFUSED_NUMBERS = [
    *("1e400", "-1e400", "1e309", "1" + "0" * 309, "9" * 1000, "0e999999999", "1e-999999999", "1e99999999999999999999"),
    *("NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "0x10", "1_000", "--1", "1e"),
]
REFUSED_TEXTS = ["\ud800", "x\udc00y", "\ud83d", "\0", "a\0b"]
ODD_TEXTS = [
    *("", " ", "\ufeff", "\u202egpj.exe", "שלום عالم", "e\u0301\u0301"),
    *("Z" + "\u0301" * 200, "👩‍👩‍👧‍👦", "\U0010ffff", "\x7f\x1b[31m", "line\nbreak\r\nSet-Cookie: a=b", "\u2028\u2029"),
    *("../../etc/passwd", "..", ".", "%00", "%2e%2e%2f", "a/b", "'; DROP TABLE flows; --", '"', "\\", "\\u0000"),
    *("${jndi:ldap://x}", "{0.__class__}", "%s%n", "<script>alert(1)</script>", "null", "true", "NaN", "-1", "1e9"),
    *(
        "__proto__",
        "constructor",
        "*",
        "?",
        "[",
        "(a+)+$",
        "2026-02-30T25:61:61Z",
        "9999-12-31T23:59:59Z",
        "24h",
        "P1D",
    ),
]
LENGTHS = [1, 100, 127, 128, 129, 200, 255, 256, 257, 400, 999, 1000, 1001, 1024, 1025, 4095, 4096, 4097, 9999, 10_001]
DEPTHS = [1, 2, 3, 5, 8, 20, 50, 80, *range(90, 105), 150, *range(193, 203), 250, 300]
NOT_JSON = [
    *(b"", b" ", b"{", b"}", b"[1,]", b'{"a":1,}', b"{'a':1}", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b"\0"),
    *(b'{"a":1}{"b":2}', b'{"a":1} x', b"success=true&outputs=", b"<a/>", b'{"a":"\x01"}', b'"\\ud800"', b'"\\x41"'),
    *(b"nul", b"[" * 400, b'{"a":' * 400, b"[" * 300 + b"]" * 299, b"\xf0\x9f\x98", b'{"\\u0000":1}', b"//c\n{}"),
]


def nested(depth: int, kind: str, inner: bytes = b"1") -> Raw:
    """So many arrays or objects in each other, around one value."""
    if kind == "arrays":
        return Raw(b"[" * depth + inner + b"]" * depth)
    if kind == "objects":
        return Raw(b'{"a":' * depth + inner + b"}" * depth)
    pairs = depth // 2
    return Raw(b'{"a":[' * pairs + inner + b"]}" * pairs)


class Hostile:
    """Values drawn by lot. ``receipt`` gives a text with a live receipt in it, or None where there is none yet."""

    def __init__(self, dice: random.Random, receipt: Callable[[], str | None]) -> None:
        self._dice = dice
        self._receipt = receipt

    def text(self) -> str:
        """A text at the edge of what texts may be; now and then a receipt."""
        dice = self._dice
        chance = dice.random()
        if chance < 0.35 and (receipt := self._receipt()) is not None:
            return receipt
        if chance < 0.37:
            return dice.choice(REFUSED_TEXTS)
        if chance < 0.75:
            return dice.choice(ODD_TEXTS)
        if chance < 0.99:
            return dice.choice(("x", "é", "\U0001f600", "a b ", "\\", '"')) * dice.choice(LENGTHS)
        return "y" * dice.choice((BODY_LIMIT // 8, BODY_LIMIT // 2, BODY_LIMIT - 200, BODY_LIMIT, 2 * BODY_LIMIT))

    def number(self) -> Raw:
        return Raw(self._dice.choice(NUMBERS).encode())

    def deep(self) -> Raw:
        receipt = self._receipt() if self._dice.random() < 0.3 else None
        inner = b"1" if receipt is None else render(receipt)
        return nested(self._dice.choice(DEPTHS), self._dice.choice(("arrays", "objects", "both")), inner)

    def json(self) -> Any:
        """JSON that is well-formed, whatever it means where it stands."""
        makers = (self.text, self.number, self.deep, self._plain, self._wide, self._twice, self._tree)
        return self._dice.choices(makers, weights=(30, 15, 10, 25, 3, 7, 10))[0]()

    def anything(self) -> Any:
        """The same, or a number that is none, or out of range."""
        if self._dice.random() < 0.1:
            return Raw(self._dice.choice(REFUSED_NUMBERS).encode())
        return self.json()

    def members(self) -> dict[str, Any]:
        """The members of an object that may hold anything."""
        return {self._key(): self.json() for _ in range(self._dice.choice((0, 1, 1, 2, 3)))}

    def _key(self) -> str:
        return self._dice.choice(("a", "b", "text", "x")) if self._dice.random() < 0.7 else self.text()

    def _plain(self) -> Any:
        return self._dice.choice((None, True, False, 0, 1, -1, 1.5, "", "x", [], {}, [None], {"": None}))

    def _wide(self) -> Any:
        count = self._dice.choice((33, 65, 129, 257, 1024, 1025, 5000))
        if self._dice.random() < 0.5:
            return {f"k{number}": number for number in range(count)}
        return [0] * count

    def _twice(self) -> Pairs:
        key = self._key()
        return Pairs([(key, self._plain()), ("other", 1), (key, self.text())])

    def _tree(self) -> Any:
        return {"list": [self.text(), self.number(), {"in": self.text()}], self._key(): self._plain()}

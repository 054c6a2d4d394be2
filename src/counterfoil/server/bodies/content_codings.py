"""Decodes compressed bodies (``Content-Encoding``), no further than the limit on a body.

aiohttp's own decoding is turned off: it depends on what is installed, and knows no limit.
"""

from __future__ import annotations

import zlib
from enum import Enum

from counterfoil.domain.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType

ACCEPTED = ("gzip", "deflate", "identity")
"""What a refusal names; ``x-gzip`` is another name of gzip."""
BROKEN = "the body is not compressed as its Content-Encoding says"
MOST_MEMBERS = 16
"""A gzip stream may consist of several members. Each costs a copy of what follows it, so there must not be many."""

_GZIP_BITS, _ZLIB_BITS, _RAW_BITS = 31, 15, -15
_ZLIB_METHOD, _ZLIB_CHECK = 8, 31


class Coding(Enum):
    """How a body is compressed."""

    GZIP = "gzip"
    DEFLATE = "deflate"


_NAMES = {"": None, "identity": None, "gzip": Coding.GZIP, "x-gzip": Coding.GZIP, "deflate": Coding.DEFLATE}


def coding_of(content_encoding: str) -> Coding | None:
    """The coding that a ``Content-Encoding`` header names; None: the body is not compressed."""
    name = content_encoding.strip().lower()
    if name not in _NAMES:
        raise UnsupportedMediaType(
            f"the body has a Content-Encoding that is not supported; supported are {', '.join(ACCEPTED)}",
            content_encodings=list(ACCEPTED),
        )
    return _NAMES[name]


def decode(body: bytes, coding: Coding, limit: int) -> bytes:
    """The decompressed body. BadRequest: it is damaged or incomplete; PayloadTooLarge: it would exceed the limit."""
    pieces: list[bytes] = []
    size = 0
    for _ in range(MOST_MEMBERS if coding is Coding.GZIP else 1):
        stream = zlib.decompressobj(_window_bits(body, coding))
        try:
            pieces.append(stream.decompress(body, limit - size + 1))
        except zlib.error:
            raise BadRequest(BROKEN) from None
        size += len(pieces[-1])
        if size > limit:
            raise PayloadTooLarge(limit_bytes=limit)
        if not stream.eof:
            raise BadRequest(BROKEN)
        body = stream.unused_data
        if not body:
            return b"".join(pieces)
    raise BadRequest(BROKEN)


def _window_bits(body: bytes, coding: Coding) -> int:
    """``deflate`` means a zlib stream; some clients send it without zlib's header, which is told from it by that."""
    if coding is Coding.GZIP:
        return _GZIP_BITS
    is_zlib = len(body) > 1 and body[0] & 0x0F == _ZLIB_METHOD and (body[0] << 8 | body[1]) % _ZLIB_CHECK == 0
    return _ZLIB_BITS if is_zlib else _RAW_BITS

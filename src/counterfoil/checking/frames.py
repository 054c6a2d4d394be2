"""The protocol between engine and checking process: frames of bytes, each preceded by its length."""

from __future__ import annotations

import struct
from collections.abc import Callable

_LENGTH = struct.Struct(">Q")

Read = Callable[[int], bytes]
"""Reads at most that many bytes; an empty result: the other process has closed the pipe."""


def frame(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


def read_frame(read: Read) -> bytes | None:
    """The next frame; None: the other process closed the pipe before it was complete."""
    head = _read_exactly(read, _LENGTH.size)
    return None if head is None else _read_exactly(read, _LENGTH.unpack(head)[0])


def _read_exactly(read: Read, size: int) -> bytes | None:
    pieces: list[bytes] = []
    while size:
        piece = read(size)
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)

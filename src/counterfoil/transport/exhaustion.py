"""Detects that this machine lacks descriptors, memory, ports or threads, which says nothing about the endpoint.

A call that failed for lack of one of them was never made. So it must not count as an attempt, and the operator must be
informed.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from counterfoil.transport.descriptors import take_one

DESCRIPTORS, MEMORY, PORTS, THREADS = "file descriptors", "memory", "local ports", "threads"
TOLD_AGAIN_SECONDS = 5.0
"""The shortest time between two log lines about the same shortage, and how long a noted shortage lasts."""

_LACKS = {errno.EMFILE: DESCRIPTORS, errno.ENFILE: DESCRIPTORS, errno.ENOMEM: MEMORY, errno.ENOBUFS: MEMORY}

log = structlog.get_logger(__name__)


class LocalLack(OSError):
    """A connection or a lookup could not even be tried; ``lack`` names the missing resource."""

    def __init__(self, lack: str) -> None:
        self.lack = lack
        super().__init__(errno.EMFILE, f"this machine lacks {lack}")


def lack_of(error: BaseException | None, address: tuple[Any, ...] | None = None) -> str | None:
    """The resource that this machine lacked when the error was raised; None: the error has another cause.

    ``address``: the destination of the connection, in the form of ``getaddrinfo``.
    """
    if isinstance(error, LocalLack):
        return error.lack
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, RuntimeError):
        return THREADS if "start new thread" in str(error) else None
    if isinstance(error, socket.gaierror):
        return _lack_of_lookup(error)
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.errno == errno.EADDRNOTAVAIL:
        return PORTS if address is not None and _has_source(address) else None
    return _LACKS.get(error.errno)


def _lack_of_lookup(error: socket.gaierror) -> str | None:
    """A lookup without descriptors only reports that it found nothing, so test whether a descriptor is available."""
    if error.errno == socket.EAI_MEMORY:
        return MEMORY
    try:
        take_one()
    except OSError as lacking:
        return _LACKS.get(lacking.errno or 0)
    return None


def _has_source(address: tuple[Any, ...]) -> bool:
    """Whether this machine has a source address for the destination: only then was a port missing.

    Connecting a datagram socket sends nothing, and takes its port from another range.
    """
    family, _, _, _, target = address
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
    except OSError as failure:
        return failure.errno in _LACKS
    return True


class Shortage:
    """The resource that is lacking now, for the readiness check and, at intervals, for the log."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._waiting = 0
        self._lack: str | None = None
        self._began = self._noted = 0.0
        self._told = -TOLD_AGAIN_SECONDS
        self._announced = False

    @contextmanager
    def waiting(self, lack: str) -> Iterator[None]:
        """A block that waits before it retries, because of the shortage."""
        self._waiting += 1
        self.note(lack)
        try:
            yield
        finally:
            self._waiting -= 1

    def note(self, lack: str) -> None:
        """Note that the resource was not available just now."""
        self._noted = now = time.monotonic()
        if self._lack is None:
            self._began = now
        self._lack = lack
        if now - self._told >= TOLD_AGAIN_SECONDS:
            event = "descriptors_exhausted" if lack == DESCRIPTORS else "resources_exhausted"
            log.error(event, lack=lack, where=self._where, waiting=self._waiting)
            self._told = now
            self._announced = True

    @property
    def lack(self) -> str | None:
        """The lacking resource, if any: noted recently, or still waited for."""
        if self._lack is not None and time.monotonic() - self._noted >= TOLD_AGAIN_SECONDS:
            self.end()
        return self._lack

    def end(self) -> None:
        """The resource was available again. The shortage ends when nothing waits for it any more."""
        if self._lack is None or self._waiting:
            return
        if self._announced:
            lasted = round(time.monotonic() - self._began, 3)
            log.info("resources_available", lack=self._lack, where=self._where, after_seconds=lasted)
        self._lack = None
        self._announced = False

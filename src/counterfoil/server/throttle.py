"""Wrong API keys and, in a flood, unknown receipts are answered late. Callers with a right one never wait.

Late answers slow down the guessing of keys. Failures are counted by peer address in a leaky bucket. Memory is bounded,
and so is the number of answers that are held back: beyond it a wrong key is answered at once, because a late answer
keeps a connection open.

Receipts cannot be guessed, but refusing one costs as much as a completion. A client that sends the next one after the
answer to the last leaves the node time for completions if that answer is late.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

FREE_FAILURES = 10
"""Wrong keys from one address that are answered at once."""
FORGIVEN_SECONDS = 10.0
"""One failure of an address is forgotten in this time."""
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
COUNTED_FAILURES = FREE_FAILURES + 16
"""Further failures are not counted: the delay of an address ends within a few minutes."""
PEERS_KEPT = 4_096
LATE_ANSWERS = 64
LATE_ANSWERS_PER_PEER = 8

UNKNOWN_RECEIPTS_PER_SECOND = 1_000
"""Unknown receipts that are answered without a delay."""
UNKNOWN_RECEIPTS_AT_ONCE = 100
LONGEST_TURN_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Peer:
    failures: float = 0.0
    at: float = 0.0
    late: int = 0


class KeyThrottle:
    """Delays the answers to wrong keys, by peer address: IPv4 as it is, IPv6 by its network of 64 bits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._late = 0
        self._released = asyncio.Event()

    async def failed(self, address: str | None) -> None:
        """Count a wrong key, and return when it may be answered."""
        delay = self.delay(address)
        peer = self._peers[_network_of(address)]
        if not delay or self._late >= LATE_ANSWERS or peer.late >= LATE_ANSWERS_PER_PEER or self._released.is_set():
            return
        self._late += 1
        peer.late += 1
        try:
            async with asyncio.timeout(delay):
                await self._released.wait()
        except TimeoutError:
            pass
        finally:
            self._late -= 1
            peer.late -= 1

    def release(self) -> None:
        """Release all delayed answers, and delay none from now on: the server stops."""
        self._released.set()

    def delay(self, address: str | None) -> float:
        """Count a wrong key; returns the delay of its answer in seconds."""
        now, network = self._clock(), _network_of(address)
        peer = self._peers.setdefault(network, _Peer(at=now))
        self._peers.move_to_end(network)
        if len(self._peers) > PEERS_KEPT:
            self._peers.popitem(last=False)
        left = max(0.0, peer.failures - (now - peer.at) / FORGIVEN_SECONDS)
        peer.failures, peer.at = min(left + 1, COUNTED_FAILURES), now
        excess = peer.failures - FREE_FAILURES
        if excess <= 0:
            return 0.0
        if left <= FREE_FAILURES:
            log.warning("wrong_api_keys", peer=network, further_answers="delayed")
        return min(FIRST_DELAY_SECONDS * 2 ** (excess - 1), LONGEST_DELAY_SECONDS)


class ReceiptPace:
    """When unknown receipts are answered: so many a second, over all callers, and each within a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at = 0.0
        """When ``UNKNOWN_RECEIPTS_AT_ONCE`` may be answered again."""

    async def turn(self) -> None:
        if delay := self.delay():
            await asyncio.sleep(delay)

    def delay(self) -> float:
        """Count an unknown receipt; returns the delay of its answer in seconds."""
        now = self._clock()
        at_once = UNKNOWN_RECEIPTS_AT_ONCE / UNKNOWN_RECEIPTS_PER_SECOND
        full_at = max(self._full_at, now) + 1 / UNKNOWN_RECEIPTS_PER_SECOND
        self._full_at = min(full_at, now + at_once + LONGEST_TURN_SECONDS)
        return max(0.0, self._full_at - now - at_once)


def _network_of(address: str | None) -> str:
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))

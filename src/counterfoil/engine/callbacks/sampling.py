"""Which callbacks are recorded when there are very many: a flood must not fill the database.

Every client can send unknown receipts, so all of them share one rate. Repeats for one work item need its receipt, so
each item has a rate of its own. The counts are in the memory of this node.
"""

from __future__ import annotations

ITEM_BURST = 100
ITEM_INTERVAL_MS = 1_000
"""Of one work item so many at once, then one in each interval."""
MOST_ITEMS = 10_000


class Rate:
    """A token bucket: ``burst`` at once, ``per_second`` after that; 0 per second: none at all."""

    __slots__ = ("_burst", "_full_at", "_interval_ms")

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval_ms = 1000 / per_second if per_second else 0.0
        self._burst = burst if per_second else 0
        self._full_at = 0.0
        """When all tokens are there again."""

    def takes(self, now: int) -> bool:
        """Take a token, if there is one."""
        full_at = max(self._full_at, now)
        if not self._burst or full_at > now + (self._burst - 1) * self._interval_ms:
            return False
        self._full_at = full_at + self._interval_ms
        return True

    def is_full(self, now: int) -> bool:
        return self._full_at <= now


class RatePerItem:
    """A rate for each of many keys; those whose tokens are all there again are forgotten."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def takes(self, key: str, now: int) -> bool:
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= MOST_ITEMS:
                self._forget(now)
            rate = self._rates[key] = Rate(1000 / ITEM_INTERVAL_MS, ITEM_BURST)
        return rate.takes(now)

    def _forget(self, now: int) -> None:
        kept = {key: rate for key, rate in self._rates.items() if not rate.is_full(now)}
        self._rates = kept if len(kept) < MOST_ITEMS else {}

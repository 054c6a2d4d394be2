"""Rate limits: a strict sliding window over the latest dispatches of a step."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.steps.definitions import DAY_MS, RateLimit


@dataclass(frozen=True, slots=True)
class SentTimes:
    """The times of the latest dispatches of a step, in ascending order: as many as its limits may have to count.

    ``most`` is the largest ``count`` under which it was dispatched so far. Flows with an older definition may have
    another limit than new ones; each must count the dispatches under the other, so the larger limit determines how many
    are kept.
    """

    times: tuple[int, ...] = ()
    most: int = 0

    def rests_until(self, limit: RateLimit, now: int) -> int | None:
        """When the next dispatch is allowed; None: now. A window of ``per_ms`` holds ``count`` dispatches at most."""
        if len(self.times) < limit.count:
            return None
        until = self.times[-limit.count] + limit.per_ms
        return until if until > now else None

    def and_now(self, limit: RateLimit, now: int) -> SentTimes:
        """Add one dispatch. Times older than the longest possible window are dropped.

        A node whose clock is behind counts from the latest time of the other nodes, so that the times never decrease.
        """
        most = max(self.most, limit.count)
        latest = max(now, self.times[-1]) if self.times else now
        kept = (*self.times, latest)[-most:]
        if kept[0] <= latest - DAY_MS:
            kept = tuple(time for time in kept if time > latest - DAY_MS)
        return SentTimes(kept, most)

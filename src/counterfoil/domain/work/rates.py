"""Rate limits: a strict sliding window over the times at which a step was sent last."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.steps.definitions import DAY_MS, RateLimit


@dataclass(frozen=True, slots=True)
class SentTimes:
    """When a step was sent last, in rising order: as many times as its limits may ever have to count.

    ``most`` is the largest ``count`` under which it was sent so far. Flows of an older definition may have another
    limit than new ones; each must see what was sent under the other, so the larger one says how many are kept.
    """

    times: tuple[int, ...] = ()
    most: int = 0

    def rests_until(self, limit: RateLimit, now: int) -> int | None:
        """When the next dispatch may go; None: now. Allowed is what leaves ``count`` in every window of ``per_ms``."""
        if len(self.times) < limit.count:
            return None
        until = self.times[-limit.count] + limit.per_ms
        return until if until > now else None

    def and_now(self, limit: RateLimit, now: int) -> SentTimes:
        """With one more dispatch. What is older than any window may be long is of no use to anybody.

        A node whose clock is behind that of another counts from the other's last time, so that times never fall.
        """
        most = max(self.most, limit.count)
        latest = max(now, self.times[-1]) if self.times else now
        kept = (*self.times, latest)[-most:]
        if kept[0] <= latest - DAY_MS:
            kept = tuple(time for time in kept if time > latest - DAY_MS)
        return SentTimes(kept, most)

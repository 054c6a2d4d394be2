"""When to try again: backoff with a cap and jitter, ``Retry-After``, and the maximum number of attempts."""

from __future__ import annotations

from counterfoil.domain.steps.definitions import WorkDefaults

_ENOUGH_DOUBLINGS = 64
"""One millisecond doubled this often exceeds any cap."""


def backoff_ms(
    work: WorkDefaults, retry_number: int, draw: float, retry_after_ms: int | None, retry_after_limit_ms: int
) -> int:
    """How long to wait before a retry (the first one has number 1).

    The cap comes before the jitter, so that capped delays are spread as well; ``draw`` (at least 0, below 1) picks
    evenly from half of the delay to all of it. A longer delay that the worker asked for is used instead, up to its own
    limit.
    """
    if work.backoff_type == "exponential":
        delay = work.init_backoff_ms << min(retry_number - 1, _ENOUGH_DOUBLINGS)
    elif work.backoff_type == "linear":
        delay = work.init_backoff_ms * retry_number
    else:
        delay = work.init_backoff_ms
    delay = min(delay, work.max_backoff_ms)
    if work.jitter:
        least = (delay + 1) // 2
        delay = least + int(draw * (delay - least + 1))
    return max(delay, min(retry_after_ms or 0, retry_after_limit_ms))


def retries_left(work: WorkDefaults, attempt: int) -> bool:
    """Whether another attempt may follow this one (the first attempt has number 1)."""
    return work.max_retries < 0 or attempt <= work.max_retries

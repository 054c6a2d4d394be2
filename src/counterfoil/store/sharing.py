"""How commands are shared out among the batches that a backend takes at once.

Clients that were answered together come back together. If the first few of them were taken at once, the rest would make
one large batch, and there would be nothing to decide while the backend works on it. So a batch takes its share of all
that are about: as many commands as there have been lately, divided by the batches.
"""

from __future__ import annotations

import math

FADING = 0.9
"""How much of the crowd is still expected after each batch, if it does not show."""


class Shares:
    """Remembers how many commands there were, waiting and under way together."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._crowd = 0.0

    def take(self, waiting: int, under_way: int) -> int:
        """How many of those that wait the next batch takes."""
        self._crowd = max(waiting + under_way, self._crowd * FADING)
        return min(waiting, math.ceil(self._crowd / self._batches))

    def are_enough(self, waiting: int) -> bool:
        """Whether these are the share of a batch, or more."""
        return waiting >= self._crowd / self._batches

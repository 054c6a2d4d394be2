"""How commands are shared out among the batches that a backend takes at once.

Clients that were answered together come back together. If the first few of them were taken at once, the rest would make
one large batch, and there would be nothing to decide while the backend works on it. So a batch takes its share of all
that are about: as many commands as there have been lately, divided by the batches.

A batch has a cost of its own, in this process and in the database, as large as that of several commands. So few
commands are not divided. How few depends on what could be done meanwhile: a single node would leave the
database idle; other nodes use it. Nor is a small rest left to a batch of its own: it would keep one
of the places busy for a whole trip to the database, and the commands that come meanwhile waiting.
"""

from __future__ import annotations

import math

FADING = 0.75
"""How much of the load is still expected after each batch, if it does not show."""
SOME_MORE = 1.5
"""Up to so many shares are taken by one batch, if no more wait."""
LEAST_ALONE = 16
LEAST_AMONG_OTHERS = 32
"""How many commands a batch has at least, if there are so many at all."""
PATIENCE = 0.002
PATIENCE_OF_FEW = 0.01
"""Seconds that commands wait at most for others to share a batch with, while another batch is under way; and where they
are so few that, among other nodes, all of them make one."""
PATIENCE_AT_REST = 0.001
"""The same while nothing is under way, among other nodes: they have the processor meanwhile."""


class BatchSizer:
    """Keeps how many commands there were lately, waiting and under way together."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._load = 0.0
        self._others = 0

    def expect_others(self, others: int) -> None:
        """So many other nodes write to the same database."""
        self._others = others

    def take(self, waiting: int, under_way: int) -> int:
        """How many of those that wait the next batch takes."""
        self._load = max(waiting + under_way, self._load * FADING)
        enough = self.enough
        return waiting if waiting < SOME_MORE * enough else enough

    @property
    def enough(self) -> int:
        """How many are the share of a batch."""
        least = LEAST_AMONG_OTHERS if self._others else LEAST_ALONE
        return math.ceil(max(self._load / self._batches, min(self._load, least)))

    @property
    def patience(self) -> float:
        """How many seconds it is worth to wait for a share."""
        return PATIENCE_OF_FEW if self._others and self._load <= LEAST_AMONG_OTHERS else PATIENCE

    @property
    def patience_at_rest(self) -> float:
        """The same while no batch is under way: a node that is alone would leave the database idle."""
        return PATIENCE_AT_REST if self._others else 0.0

"""When the steps with a rate limit were sent, as one batch sees it: loaded, and what its commands add.

The store has one row a step. It is read and written under the lock of the step (on PostgreSQL; on SQLite there is one
writer), so every node sees what the others have sent. What a command adds is a draft until the command is kept: a
dispatch that was refused after all has used up nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.steps.definitions import RateLimit
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.unit_of_work.read_set import NotLoaded


class Rates:
    """The sent times of a batch's steps, by step."""

    def __init__(self) -> None:
        self._steps: dict[str, SentTimes] = {}
        self._drafts: dict[str, SentTimes] = {}

    def add(self, step_id: str, sent: SentTimes) -> None:
        """As it was loaded."""
        self._steps.setdefault(step_id, sent)

    def of(self, step_id: str) -> SentTimes:
        draft = self._drafts.get(step_id)
        if draft is not None:
            return draft
        try:
            return self._steps[step_id]
        except KeyError:
            raise NotLoaded("rates", step_id) from None

    def count(self, step_id: str, limit: RateLimit, now: int) -> None:
        """The present command sends one more."""
        self._drafts[step_id] = self.of(step_id).and_now(limit, now)

    def keep(self, changed: dict[str, SentTimes]) -> None:
        """The command was decided: its drafts count for the commands after it, and are noted as changes."""
        if self._drafts:
            self._steps.update(self._drafts)
            changed.update(self._drafts)
            self._drafts = {}

    def discard(self) -> None:
        if self._drafts:
            self._drafts = {}


def read_sent(row: Any) -> tuple[str, SentTimes]:
    """A row of ``load_rates``: the step, and its times."""
    step_id, most, text = row
    return step_id, SentTimes(tuple(accumulate(parse_json(text))), most)


def put_sent(changed: Mapping[str, SentTimes]) -> list[tuple[Any, ...]]:
    """Rows for ``put_rates``. Times are written as distances, each from the one before: a third of the text."""
    return [
        (step_id, sent.most, dump_json([*sent.times[:1], *(b - a for a, b in pairwise(sent.times))]).decode())
        for step_id, sent in sorted(changed.items())
    ]

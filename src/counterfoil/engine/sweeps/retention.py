"""The search for flows that ended long ago: after a time their payloads are pruned, after another the whole flow.

The search walks along the flows in the order in which they were started, which needs no index that every completion
would have to write. It stops at flows that are too young to have ended long ago, and continues from there in the next
round. From time to time it starts again from the beginning, for flows that it skipped because they were open or had
ended recently.

Every node runs its own search. A flow that another node has locked is skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson

from counterfoil.engine.engine import Engine
from counterfoil.engine.flows.prune import Prune
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.protocol import Row
from counterfoil.store.unit_of_work.read_set import Find

FLOWS_A_ROUND = 100
"""Flows that are pruned in one transaction at most: others wait for it no longer than for any other batch."""
ITEMS_A_ROUND = 1_000
"""Work items that these flows have at most, unless one alone has more."""
ROWS_A_ROUND = 1_000
"""Flows that are looked at in one round at most."""
PAUSE_MS = 50
"""Pause between two rounds."""
ANEW_MS = 3_600_000
"""Longest time after its beginning that a finished walk begins again."""
LONGEST_REST_MS = 60_000
SHORTEST_REST_MS = 1_000


class Walk:
    """The walk over all flows for one rule, and its position."""

    def __init__(self, kept_ms: int, *, payloads: bool) -> None:
        self.kept_ms = kept_ms
        self.payloads = payloads
        self.after = 0
        """The last flow that was looked at, by its ordinal."""
        self.rests_until = 0
        self._began_at = 0
        self._anew_ms = min(ANEW_MS, max(kept_ms, SHORTEST_REST_MS))
        self._rest_ms = min(LONGEST_REST_MS, max(kept_ms // 100, SHORTEST_REST_MS))
        self._at_end = True

    def goes_on(self, now: int) -> None:
        """A round begins: from the first flow, if the walk is finished and began long enough ago."""
        if self._at_end and now - self._began_at >= self._anew_ms:
            self.after, self._began_at = 0, now

    def rests(self, now: int, after: int, *, at_end: bool) -> None:
        """A round is over: a finished walk rests, another one only pauses."""
        self.after, self._at_end = after, at_end
        self.rests_until = now + (self._rest_ms if at_end else PAUSE_MS)


class RetentionSearch:
    """Goes on with each walk that does not rest. There may be more to prune: after a pause, see ``next_due``."""

    def __init__(self, engine: Engine) -> None:
        kept = engine.context.retention
        self._engine = engine
        self._walks: list[Walk] = []
        if kept.flows_ms is not None:
            self._walks.append(Walk(kept.flows_ms, payloads=False))
        if kept.payloads_ms is not None and (kept.flows_ms is None or kept.payloads_ms < kept.flows_ms):
            self._walks.append(Walk(kept.payloads_ms, payloads=True))

    async def search(self, now: int, limit: int) -> AsyncIterator[ForEach[bool]]:
        """A walk moves on when its flows are pruned: a round that fails is made again."""
        engine = self._engine
        for walk in self._walks if engine.accepting else ():
            if walk.rests_until > now:
                continue
            walk.goes_on(now)
            cutoff = now - walk.kept_ms
            rule: dict[str, Any] = {"cutoff": cutoff, "payloads": walk.payloads}
            rows = await engine.store.read("walk_flows", after=walk.after, limit=ROWS_A_ROUND, **rule)
            flows, after, at_end = _choose(rows, walk.after, cutoff, min(limit, FLOWS_A_ROUND))
            if flows:
                find = Find.of("find_prunable", flows=orjson.dumps(flows).decode(), **rule)
                yield ForEach(find, partial(Prune, **rule))
            walk.rests(engine.context.clock(), after, at_end=at_end)

    async def next_due(self) -> int | None:
        return min((walk.rests_until for walk in self._walks), default=None) if self._engine.accepting else None


def _choose(rows: list[Row], after: int, cutoff: int, limit: int) -> tuple[list[str], int, bool]:
    """The flows of a round, the last one that was looked at, and whether those behind it are all too young."""
    flows: list[str] = []
    items = 0
    for ordinal, flow_id, created_at, own_items in rows:
        if created_at > cutoff:
            return flows, after, True
        if own_items is not None:
            items += own_items
            if flows and (len(flows) == limit or items > ITEMS_A_ROUND):
                return flows, after, False
            flows.append(flow_id)
        after = ordinal
    return flows, after, len(rows) < ROWS_A_ROUND

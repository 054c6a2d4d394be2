"""Flows that this node started lately, and whether it has seen them end: what a poll need not ask the store.

Only the commits of this node are noted, so it holds only while no other node writes: see ``Results``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MOST_FLOWS = 10_000
"""Those that were noted longest ago are dropped first. A poll of a flow that is not noted reads the store once."""


class RecentFlows:
    """Open or ended, by flow. A flow that was seen to end is never open again here, in whatever order commits are told.

    Two batches that were under way at once may be told in the other order: the end of a flow before its start.
    """

    def __init__(self, most: int = MOST_FLOWS) -> None:
        self._most = most
        self._open: OrderedDict[str, bool] = OrderedDict()

    def start(self, flow_ids: Iterable[str]) -> None:
        for flow_id in flow_ids:
            self._open.setdefault(flow_id, True)
        self._drop()

    def end(self, flow_ids: Iterable[str]) -> None:
        self._open.update(dict.fromkeys(flow_ids, False))
        self._drop()

    def is_open(self, flow_id: str) -> bool:
        """Whether it was started here and has not ended; False: it has, or nothing is known of it."""
        return self._open.get(flow_id, False)

    def clear(self) -> None:
        """Another node may have ended any of them."""
        self._open.clear()

    def _drop(self) -> None:
        while len(self._open) > self._most:
            self._open.popitem(last=False)

    def __len__(self) -> int:
        return len(self._open)

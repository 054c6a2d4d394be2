"""The owners of work items over time, read from the database: never two at a time.

An attempt belongs to the node that committed its intent, from then until the attempt ends or the node's lease lapses.
A lapsed lease never lives again, so the end that the table of nodes shows in the end is the true one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.acceptance.ledger import Key
from tests.journal import ENTRIES, events_of
from tests.postgres import Cluster

ENDS = ("work_succeeded", "work_failed", "work_cancelled")
NO_LEASE = -math.inf


@dataclass
class Item:
    """A work item, as far as its events have been read."""

    attempt: int = 0
    owner: str | None = None
    """The node that sends the present attempt, until it is over."""
    ended: bool = False
    faults: list[str] = field(default_factory=list)


@dataclass
class Ownership:
    """``leases``: until when each node had its lease, in milliseconds."""

    leases: dict[str, float]
    items: dict[Key, Item] = field(default_factory=lambda: defaultdict(Item))
    events: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))

    def read(self, event: dict[str, Any]) -> None:
        """The next event of the journal, if it is one that changes owners."""
        key = event["flow_id"], event["step_id"]
        self.events[key].append(str(event))
        item = self.items[key]
        kind, data = event["type"], event["data"]
        if kind == "work_dispatched":
            self._dispatched(item, event, data["owner"])
        elif kind == "work_not_completed":
            interrupted = (data["error"] or {}).get("code") == "INTERRUPTED"
            if interrupted and event["at"] < math.floor(self._lease(item.owner)):
                item.faults.append(
                    f"{event}: taken from {item.owner}, whose lease held until {self._lease(item.owner)}"
                )
            item.owner = None
        elif kind in ENDS:
            if item.ended:
                item.faults.append(f"{event}: has ended before")
            item.ended, item.owner = True, None

    def _dispatched(self, item: Item, event: dict[str, Any], owner: str) -> None:
        if item.ended:
            item.faults.append(f"{event}: sent though it has ended")
        if item.owner is not None:
            item.faults.append(f"{event}: claimed while {item.owner} had it")
        if event["attempt"] != item.attempt + 1:
            item.faults.append(f"{event}: attempt {event['attempt']} follows attempt {item.attempt}")
        if event["at"] > self._lease(owner):
            item.faults.append(f"{event}: claimed by {owner}, whose lease had lapsed at {self._lease(owner)}")
        item.attempt, item.owner = event["attempt"], owner

    def _lease(self, owner: str | None) -> float:
        return self.leases.get(owner or "", NO_LEASE)

    def faults(self) -> list[str]:
        return [fault for item in self.items.values() for fault in item.faults]


async def read_ownership(cluster: Cluster, database: str) -> Ownership:
    """The whole journal, in its order."""
    connection = await cluster.connect(database)
    try:
        rows = await connection.fetch("SELECT node_id, extract(epoch FROM lease_until) * 1000 AS until FROM nodes")
        ownership = Ownership({row["node_id"]: float(row["until"]) for row in rows})
        events = events_of(await connection.fetch(ENTRIES))
    finally:
        await connection.close()
    for event in events:
        if event["work_id"] is not None:
            ownership.read(event)
    return ownership


async def open_work(cluster: Cluster, database: str) -> list[str]:
    """What has not ended, with its journal: to find out what it waits for."""
    connection = await cluster.connect(database)
    try:
        items = await connection.fetch(
            "SELECT work_id, flow_id, step_id, status, attempt, due_at, deadline_at, owner, acknowledged_at FROM work "
            "WHERE status NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY ordinal LIMIT 20"
        )
        flows = {item["flow_id"] for item in items}
        events = [event for event in events_of(await connection.fetch(ENTRIES)) if event["flow_id"] in flows]
    finally:
        await connection.close()
    return [*(str(dict(item)) for item in items), *map(str, events)]

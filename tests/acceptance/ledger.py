"""What the clients of an engine were told, and whether the engine still says the same when everything is over."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from counterfoil.testing import Received

LIMITED_RETRIES = 2
FINAL = ("completed", "failed", "cancelled")
READERS = 8

Key = tuple[str, str]
"""A flow and one of its steps: here each step of a flow has one work item."""

Call = Callable[[str, str], Awaitable[tuple[int, Any]]]
"""Makes a request (method and path), patiently, and returns status and body of its answer."""


def key_of(received: Received) -> Key:
    return received.metadata["flow_id"], received.metadata["step_id"]


@dataclass
class Ledger:
    """What each client was told. ``faults`` collects what must never happen."""

    started: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    accepted: dict[Key, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    attempts: dict[Key, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Which attempts arrived at an endpoint, in their order, and when."""
    overtaken: list[tuple[Key, str]] = field(default_factory=list)
    """Attempts that arrived behind their successors, and how that was seen."""
    sync_answers: dict[Key, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    reports: int = 0
    tried_again: Counter[str] = field(default_factory=Counter)
    """Why requests were made again."""
    faults: list[str] = field(default_factory=list)

    def accept(self, key: Key, result: dict[str, Any]) -> None:
        """A worker got 200 for a final result."""
        if key in self.accepted and self.accepted[key] != result:
            self.faults.append(f"two results accepted for {key}: {self.accepted[key]} and {result}")
        self.accepted[key] = result

    def dispatched(self, received: Received) -> None:
        """An endpoint was called. An attempt never arrives twice; one that comes too late is for the test to judge."""
        key, attempt = key_of(received), received.metadata["attempt"]
        seen = self.attempts[key]
        if attempt in seen:
            self.faults.append(f"attempt {attempt} of {key} was sent twice: {seen}")
            return
        seen[attempt] = time.time()
        if attempt < max(seen):
            self.overtaken.append((key, f"attempt {attempt} of {key} arrived behind its successor: {seen}"))

    def summary(self) -> str:
        dispatches = sum(map(len, self.attempts.values()))
        again = ", ".join(f"{count} x {reason}" for reason, count in self.tried_again.most_common())
        return (
            f"{len(self.started)} flows, {self.reports} reports, {len(self.accepted)} outcomes accepted, "
            f"{dispatches} dispatches; requests made again: {again or 'none'}"
        )


async def compare(ledger: Ledger, call: Call, seconds: float) -> None:
    """The ledger against what the engine shows now; what is still on its way has so many seconds to end."""
    assert not ledger.faults, ledger.faults
    found = await all_flows(call)
    lost, unknown = ledger.started - found, found - ledger.started
    assert not lost, f"started and lost: {lost}"
    assert not unknown, f"exist, but no client was told so: {unknown}"
    flow_ids = sorted(found)

    async def read(which: list[str]) -> None:
        for flow_id in which:
            await _end(flow_id, call)
            status, flow = await call("GET", f"/api/v1/flows/{flow_id}")
            assert status == 200, (flow_id, status, flow)
            check_flow(ledger, flow)

    async with asyncio.timeout(seconds + len(flow_ids) / 50), asyncio.TaskGroup() as group:
        for number in range(READERS):
            group.create_task(read(flow_ids[number::READERS]))


async def all_flows(call: Call) -> set[str]:
    """The id of every flow, over all pages."""
    flows: set[str] = set()
    path = "/api/v1/flows?limit=100"
    while True:
        status, page = await call("GET", path)
        assert status == 200, page
        flows |= {flow["flow_id"] for flow in page["flows"]}
        if page["next_cursor"] is None:
            return flows
        path = f"/api/v1/flows?limit=100&cursor={page['next_cursor']}"


async def _end(flow_id: str, call: Call) -> None:
    status = 202
    while status == 202:
        status, answer = await call("GET", f"/api/v1/flows/{flow_id}/result?wait=1")
    assert status == 200, (flow_id, status, answer)


def check_flow(ledger: Ledger, flow: dict[str, Any]) -> None:
    flow_id = flow["flow_id"]
    assert flow["status"] in FINAL, f"{flow_id} is stuck: {flow}"
    if flow_id in ledger.ended:
        told = ledger.ended[flow_id]
        shown = {name: flow[name] for name in ("status", "outputs", "error")}
        assert shown == {name: told[name] for name in shown}, f"{flow_id} ended otherwise than was told: {told}, {flow}"
    if flow_id in ledger.cancelled:
        assert flow["status"] == "cancelled", flow
    for step_id, step in flow["steps"].items():
        for work in step["work"]:
            check_work(ledger, (flow_id, step_id), work)


def check_work(ledger: Ledger, key: Key, work: dict[str, Any]) -> None:
    assert work["status"] in ("succeeded", "failed", "cancelled"), (key, work)
    told = ledger.accepted.get(key)
    if told is not None:
        assert work["status"] == ("succeeded" if told["success"] else "failed"), (key, told, work)
        if told["success"]:
            assert work["outputs"] == told["outputs"], (key, told, work)
        else:
            assert work["error"]["message"] == told["error"], (key, told, work)
    elif work["status"] == "succeeded":
        assert key[1] == "sync", f"{key} succeeded, but no worker was told so: {work}"
        assert work["outputs"] in ledger.sync_answers[key], (key, work)
    attempts = ledger.attempts.get(key, {})
    assert max(attempts, default=0) <= work["attempt"], (key, attempts, work)
    if key[1] == "limited":
        assert work["attempt"] <= LIMITED_RETRIES + 1, (key, work)
